"""Typical mistakes in Dagster's own configuration files: the error names file and line."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from holdfast.infra.settings import PROJECT
from holdfast.orchestration.host.dagster_config import DagsterConfigInvalid, check_dagster_config

WORKSPACE = PROJECT / "workspace.yaml"
OURS = (files("holdfast.infra") / "dagster" / "local.yaml").read_text()


def line_of(text: str) -> int:
    return OURS[: OURS.index(text)].count("\n") + 1


def write(home: Path, text: str) -> Path:
    (home / "dagster.yaml").write_text(text)
    return home


def test_what_is_written_for_a_new_home_is_right(tmp_path: Path) -> None:
    check_dagster_config(write(tmp_path, OURS), WORKSPACE)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("telemetry: {enabled: false}\nsensors: {use_threads: true\nschedules: 1\n", 3, "expected ',' or '}'"),
        (
            OURS.replace("max_concurrent_runs: -1", "max_concurrent_run: -1"),
            line_of("max_concurrent_runs: -1"),
            "max_concurrent_run",
        ),
        (
            OURS.replace("poll_interval_seconds: 30", "poll_interval_seconds: often"),
            line_of("poll_interval_seconds: 30"),
            "often",
        ),
        (OURS + "\nruncoordinator: {}\n", OURS.count("\n") + 2, "runcoordinator"),
    ],
    ids=["no yaml", "unknown entry", "wrong kind", "unknown section"],
)
def test_the_line_is_said(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(DagsterConfigInvalid) as seen:
        check_dagster_config(write(tmp_path, text), WORKSPACE)
    assert words in seen.value.message
    assert seen.value.fields == {"file": str(tmp_path / "dagster.yaml"), "line": line}
    assert f"line {line}: " in seen.value.message


@pytest.mark.parametrize(
    "entry",
    [
        "password: hunter2",
        'postgres_url: "postgresql://me:hunter2@db/dagster"',
        'postgres_url: "postgresql://db/dagster?password=hunter2"',
    ],
)
def test_a_secret_in_the_file_is_refused(tmp_path: Path, entry: str) -> None:
    """Dagster passes the file's content to its code servers on the command line, where other users can read it."""
    text = OURS + f"storage:\n  postgres:\n    postgres_db:\n      {entry}\n"
    with pytest.raises(DagsterConfigInvalid, match="command line") as seen:
        check_dagster_config(write(tmp_path, text), WORKSPACE)
    assert seen.value.fields["line"] == text.count("\n")
    assert "hunter2" not in f"{seen.value} {seen.value.as_dict()}"


def test_a_class_that_is_not_there_is_said(tmp_path: Path) -> None:
    text = OURS.replace("class: ProcessorRunCoordinator", "class: NoSuchCoordinator")
    with pytest.raises(DagsterConfigInvalid, match="NoSuchCoordinator"):
        check_dagster_config(write(tmp_path, text), WORKSPACE)


def test_a_workspace_that_is_no_yaml_is_said(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text("load_from:\n  - python_module: [\n")
    with pytest.raises(DagsterConfigInvalid, match="workspace.yaml, line 3"):
        check_dagster_config(write(tmp_path, OURS), workspace)
