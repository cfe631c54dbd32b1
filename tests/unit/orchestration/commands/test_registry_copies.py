"""`holdfast registry backup` and `restore` on the command line. The registry (Holdfast's database) may be damaged."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.database import schema
from holdfast.infra.database.errors import RegistryUnavailable
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import load_settings
from holdfast.orchestration.cli import main
from holdfast.orchestration.world import open_registry
from tests.unit.infra.database.test_copies import damage
from tests.unit.processors.lifecycle.in_memory import ELSEWHERE

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    deploy("old")
    return load_settings().paths.registry


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    def asked(*words: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main([*words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return asked


def deploy(name: str) -> None:
    with closing(open_registry(load_settings())) as registry:
        registry.record_deployment(name, "v1", ("0",), NOW, desired="stopped")


def names(document: Any) -> set[str]:
    return {each["processor"] for each in document["processors"]}


def test_a_copy_is_made_and_put_back(file: Path, tmp_path: Path, run: Callable[..., tuple[int, Any]]) -> None:
    copy = tmp_path / "copy.db"
    assert run("registry", "backup", str(copy)) == (0, {"file": str(copy), "bytes": copy.stat().st_size})
    deploy("new")
    code, refused = run("registry", "restore", str(copy))
    assert code == EXIT_BAD_CONFIGURATION
    assert refused["error"]["action"] == f"Repeat the command with `--yes`: `holdfast registry restore {copy} --yes`."
    assert names(run("status")[1]) == {"old", "new"}, "nothing was changed"
    assert run("registry", "restore", str(copy), "--yes") == (0, {"file": str(copy), "damaged": None})
    assert names(run("status")[1]) == {"old"}


def test_an_apply_under_way_is_waited_for(file: Path, tmp_path: Path, run: Callable[..., tuple[int, Any]]) -> None:
    copy = str(tmp_path / "copy.db")
    run("registry", "backup", copy)
    facts = {"processor": "old", "verb": "deploy", "plan_hash": "a", "plan": "{}", "who": "ann", "holder": ELSEWHERE}
    with closing(open_registry(load_settings())) as registry:
        begun, _ = registry.journal.begin_apply(**facts, now=NOW)
        code, refused = run("registry", "restore", copy, "--yes")
        assert code == EXIT_BAD_CONFIGURATION
        assert "deploy of old, started by ann) is under way" in refused["error"]["message"]
        assert registry.journal.end_apply(begun.id, begun.token, "done", NOW), "its process ended"
    assert run("registry", "restore", copy, "--yes")[0] == 0


def test_the_action_about_a_damaged_registry_brings_its_copy_back(
    file: Path, tmp_path: Path, run: Callable[..., tuple[int, Any]]
) -> None:
    copy = tmp_path / "copy.db"
    run("registry", "backup", str(copy))
    damage(file)
    code, told = run("status")
    assert code == RegistryUnavailable.exit_code
    assert "`holdfast registry restore COPY`" in told["error"]["action"]
    assert run("down")[0] == 0
    code, document = run("registry", "restore", str(copy), "--yes")
    assert code == 0
    assert Path(document["damaged"]).exists()
    code, status = run("status")
    assert (code, names(status)) == (0, {"old"})


def test_the_action_about_a_damaged_registry_works_without_a_copy(
    file: Path, run: Callable[..., tuple[int, Any]]
) -> None:
    damage(file)
    _, told = run("status")
    assert f"move {file} and the files {file.name}-wal and {file.name}-shm away" in told["error"]["action"]
    for end in ("", "-wal", "-shm"):
        if (part := file.with_name(file.name + end)).exists():
            part.rename(part.with_name(f"moved-{part.name}"))
    code, status = run("status")
    assert (code, status["processors"]) == (0, [])


def test_a_registry_that_a_newer_release_migrated_is_put_back(
    file: Path, tmp_path: Path, run: Callable[..., tuple[int, Any]]
) -> None:
    """After an upgrade is undone, the former release of Holdfast runs again, with the registry of the newer release.

    It refuses this registry (Holdfast's database) until the backup from before the upgrade is restored.
    """
    copy = tmp_path / "copy.db"
    run("registry", "backup", str(copy))
    with closing(sqlite3.connect(file)) as newer:
        newer.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
        newer.commit()
    assert run("status")[1]["error"]["type"] == "RegistryNewerThanCode"
    assert run("registry", "restore", str(copy), "--yes")[0] == 0
    assert names(run("status")[1]) == {"old"}
