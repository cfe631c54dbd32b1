"""`holdfast init`: the files and names of a new project, and which folders it refuses."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.settings import load_settings
from holdfast.orchestration.cli import main
from holdfast.orchestration.commands.installation.up import lineage_page
from holdfast.orchestration.project.new import ProjectRefused, make_project, package_name, project_files
from holdfast.processors.application.registration import ProcessorDefinition, load_processors

FILES = {
    *("README.md", ".gitignore", "holdfast.toml", "orders.jsonl", "pyproject.toml", "tests/test_processors.py"),
    *("late_orders/__init__.py", "late_orders/definitions.py", "late_orders/processors.py"),
}


def test_a_project_has_its_own_name_everywhere() -> None:
    made = project_files("late_orders")
    assert {str(path) for path in made} == FILES
    assert not [path for path, text in made.items() if "my_project" in text or ".txt" in text]
    for path, text in made.items():
        if path.suffix == ".py":
            ast.parse(text)
        if path.suffix == ".toml":
            tomllib.loads(text)


def test_its_settings_name_its_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = make_project(tmp_path / "Late-Orders")
    assert {str(path.relative_to(tmp_path / "Late-Orders")) for path in made} == FILES
    monkeypatch.chdir(tmp_path / "Late-Orders" / "tests")
    monkeypatch.delenv("HOLDFAST_PROJECT")
    settings = load_settings()
    assert settings.home == tmp_path / "Late-Orders" / ".holdfast"
    assert settings.definitions == "late_orders.definitions"
    (found,) = load_processors(settings)
    assert isinstance(found, ProcessorDefinition)
    assert (found.name, found.target) == ("late_orders", "late_orders.processors:app")
    assert [store.name for store in found.topology.stores] == ["customers"]


@pytest.mark.slow
def test_its_tests_pass_and_its_code_is_formatted(tmp_path: Path) -> None:
    folder = tmp_path / "late_orders"
    make_project(folder)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    assert "2 passed" in ran.stdout
    ruff = Path(sys.executable).parent / "ruff"
    for words in (
        ["check", "--select", "E,F,W,B,UP", "--line-length", "120"],
        ["format", "--check", "--line-length", "120"],
    ):
        done = subprocess.run([ruff, *words, "."], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


OWN = """
from holdfast import Application

app = Application(consumer_group="late.payments")
frame = app.dataframe(app.topic("payments"))
frame.apply(lambda value, state: state.set("n", 1), stateful=True, store="payers")
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_its_own_asset_follows_the_processor_that_replaces_the_example(tmp_path: Path) -> None:
    make_project(tmp_path / "late_orders")
    (tmp_path / "late_orders" / "late_orders" / "processors.py").write_text(f'"""Counts payments."""\n{OWN}')
    code = (
        "import late_orders.definitions as d\n"
        "specs = {s.key.to_user_string(): s for s in d.defs.resolve_all_asset_specs()}\n"
        "print(sorted(map(str, d.tables.values())), [x.asset_key.path[-1] for x in specs['rows_of_tables'].deps])\n"
        "print(specs['processors/late.payments/late.payments_processor'].description)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "late_orders",
        env={name: value for name, value in os.environ.items() if name != "HOLDFAST_PROJECT"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["['holdfast.late_payments.payers'] ['payers_snapshot']", "Counts payments."]


@pytest.mark.slow
def test_dagster_loads_its_module_by_name_as_the_workspace_of_up_does(tmp_path: Path) -> None:
    """Dagster refuses a module with two ``Definitions`` objects. A plain import would not show this error.

    So the test loads the module as Dagster does.
    """
    make_project(tmp_path / "late_orders")
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "late_orders.definitions"],
        cwd=tmp_path / "late_orders",
        env={
            **{name: value for name, value in os.environ.items() if name != "HOLDFAST_PROJECT"},
            "DAGSTER_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", ["2fast", "json", "holdfast", "tests", "class", "with space!", "Ünder", "x" * 61])
def test_names_that_python_or_holdfast_needs_are_refused(name: str) -> None:
    with pytest.raises(ProjectRefused, match="can't name a project") as refused:
        package_name(Path("/srv") / name)
    assert refused.value.exit_code == EXIT_BAD_CONFIGURATION


@pytest.mark.parametrize(("folder", "package"), [("My-Shop", "my_shop"), ("shop.v2", "shop_v2"), ("shop", "shop")])
def test_the_package_is_named_after_the_folder(folder: str, package: str) -> None:
    assert package_name(Path(folder)) == package


def test_a_folder_that_is_not_empty_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "notes.txt").write_text("mine")
    assert main(["init", "shop"]) == EXIT_BAD_CONFIGURATION
    assert "is not empty: it holds notes.txt" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["notes.txt"]


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProjectRefused, match="can't be written: Not a directory"):
        make_project(tmp_path / "file" / "shop")


def test_the_command_tells_what_it_made_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "late_orders"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in FILES)
    assert said.index("cd late_orders") < said.index("holdfast up")


def test_the_page_shows_the_files_of_a_new_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "projects.md").read_text()
    made = {str(path): text for path, text in project_files("my_project").items()}
    for name in ("my_project/processors.py", "my_project/definitions.py"):
        assert f"```python\n{made[name]}```\n" in page
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my_project"]) == 0
    assert capsys.readouterr().out.replace(str(tmp_path), "/srv") in page


def test_the_lineage_of_a_processor_has_an_address() -> None:
    page = lineage_page("http://127.0.0.1:3000/here", "late.orders")
    assert page == "http://127.0.0.1:3000/here/locations/holdfast/asset-groups/late_orders/lineage"
