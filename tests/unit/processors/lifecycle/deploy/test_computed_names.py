"""A plan lists imports and files that the release (the copied code) may lack: their names are computed at run time.

Modules and files with fixed names are copied.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.processors.lifecycle.deploy.code_files import code_of
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.facts.facts import CodeFacts
from holdfast.processors.lifecycle.plans.requests import Deploy
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import orders_topology, world_of

MODULE, PACKAGE = "computed_of_mine", "packed_of_mine"
HERE = "from pathlib import Path\nHERE = Path(__file__).resolve().parent\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules, on Python's import path."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in (MODULE, PACKAGE):
        sys.modules.pop(name, None)


def unseen(project: Path, text: str) -> tuple[str, ...]:
    (project / f"{MODULE}.py").write_text(text)
    return code_of(f"{MODULE}:application").unseen


@pytest.mark.parametrize(
    "text",
    [
        "import importlib\nimportlib.import_module(name)\n",
        "import importlib\nimportlib.import_module(f'{name}.rules')\n",
        "import importlib\nimportlib.import_module('rules_' + name)\n",
        "import os\n__import__(os.environ['RULES'])\n",
        "import runpy\nrunpy.run_path(name)\n",
    ],
)
def test_a_module_whose_name_is_computed_is_named(project: Path, text: str) -> None:
    assert unseen(project, text) == (f"{MODULE}.py:2 imports a module whose name is computed",)


@pytest.mark.parametrize(
    "line",
    [
        "open(HERE / f'{region}.json')",
        "HERE.joinpath(name)",
        "Path(__file__).with_name(f'{region}.json')",
        "os.path.join(os.path.dirname(__file__), name)",
        "os.listdir(HERE)",
        "HERE.glob('*.json')",
        "HERE.parent / name",
    ],
)
def test_a_path_that_is_put_together_is_named(project: Path, line: str) -> None:
    assert unseen(project, f"{HERE}{line}\n") == (f"{MODULE}.py:3 opens files whose names are computed",)


@pytest.mark.parametrize(
    "line",
    [
        "import_module('json')",
        f"import_module(f'{PACKAGE}.rules.{{name}}')",
        f"import_module('{PACKAGE}.' + name)",
        "import_module(f'.{name}', __package__)",
        "(HERE / 'rates.json').read_text()",
        "open(HERE / 'rates' / name)",
        "','.join(names)",
        "names / 2",
    ],
)
def test_what_the_text_tells_needs_no_word(project: Path, line: str) -> None:
    assert unseen(project, f"{HERE}{line}\n") == ()


def test_in_a_package_all_files_are_copied_and_a_path_needs_no_word(project: Path) -> None:
    (project / PACKAGE).mkdir()
    (project / PACKAGE / "__init__.py").write_text(f"{HERE}open(HERE / name)\n__import__(name)\n")
    (project / PACKAGE / "rates.json").write_text("{}")
    code = code_of(f"{PACKAGE}:application")
    assert [each.name for each in code.files] == [f"{PACKAGE}/__init__.py", f"{PACKAGE}/rates.json"]
    assert code.unseen == (f"{PACKAGE}/__init__.py:4 imports a module whose name is computed",)


def test_a_package_whose_name_begins_a_computed_one_is_copied_and_changes_the_release(project: Path) -> None:
    (project / PACKAGE).mkdir()
    (project / PACKAGE / "__init__.py").touch()
    (project / PACKAGE / "eu.py").write_text("RATE = 1\n")
    (project / f"{MODULE}.py").write_text(f"import importlib\nimportlib.import_module(f'{PACKAGE}.{{region}}')\n")
    first = code_of(f"{MODULE}:application")
    assert {each.name for each in first.files} == {f"{MODULE}.py", f"{PACKAGE}/__init__.py", f"{PACKAGE}/eu.py"}
    (project / PACKAGE / "eu.py").write_text("RATE = 2\n")
    assert code_of(f"{MODULE}:application").digest != first.digest


def test_a_module_beside_a_package_that_imports_it_is_copied_and_changes_the_release(project: Path) -> None:
    (project / PACKAGE / "streams").mkdir(parents=True)
    (project / PACKAGE / "__init__.py").touch()
    (project / PACKAGE / "streams" / "__init__.py").touch()
    (project / PACKAGE / "streams" / "orders.py").write_text(f"import {MODULE}\napplication = None\n")
    (project / f"{MODULE}.py").write_text("RATE = 1\n")
    (project / "unused_of_mine.py").write_text("RATE = 1\n")
    target = f"{PACKAGE}.streams.orders:application"
    first = code_of(target)
    assert f"{MODULE}.py" in {each.name for each in first.files}
    assert "unused_of_mine.py" not in {each.name for each in first.files}
    (project / f"{MODULE}.py").write_text("RATE = 2\n")
    assert code_of(target).digest != first.digest


def test_the_plan_names_the_lines() -> None:
    topology = orders_topology()
    code = CodeFacts("v2-aaaa", "orders:app", unseen=("orders.py:7 imports a module whose name is computed",))
    facts = msgspec.structs.replace(world_of(topology), code=code)
    text = explain(decide(Deploy("orders"), msgspec.structs.replace(facts, deployment=None), topology))
    assert "may not be copied: orders.py:7 imports a module whose name is computed." in text
