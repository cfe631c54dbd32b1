"""Each promise of ``docs/guarantees.md`` has a case in `make test`, in one of the test files that the page names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.mechanics.tiers import TESTS, name_of
from tests.mechanics.trees import tree_of

PROJECT = TESTS.parent
PAGE = PROJECT / "docs" / "guarantees.md"
#: Test files of promises that only `make test-thorough` shows, and what makes them too long for `make test`.
LATER = {
    "tests/bench/test_windows_compared.py": "compiles and runs a program of Kafka Streams",
    "tests/dagster/test_source_table_snapshots.py": "two snapshots by Dagster",
    "tests/dagster/test_tutorial.py": "the whole tutorial",
    "tests/dagster/test_window_tables.py": "three snapshots by Dagster",
    "tests/kafka/verbs/test_windows_restored.py": "a restore from the warehouse and a backfill",
}
_PATH = re.compile(r"`(tests/[\w/]+(?:\.py)?)`")
_LATER = re.compile(r"\bmark\.(?:thorough|long_drill)\b")


def promises() -> Iterator[tuple[str, list[Path]]]:
    """The promise and the test files of each row of the page. A named folder stands for all of its test files."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        named = [PROJECT / path for path in _PATH.findall(line)] if line.startswith("| ") else []
        if named:
            files = [file for path in named for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
            yield line.split(" | ")[1], files


def has_a_case(tree: ast.Module) -> bool:
    """Whether `make test` runs a test function of a module, as far as the marks in its text say."""
    marked = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    if any(line.startswith("pytestmark") and _LATER.search(line) for line in marked):
        return False
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return any(not any(_LATER.search(ast.unparse(each)) for each in node.decorator_list) for node in functions)


def test_each_promise_has_a_case_in_make_test() -> None:
    rows = list(promises())
    assert len(rows) > 100
    assert [(promise, file) for promise, files in rows for file in files if not file.is_file()] == []
    without = {name_of(files[0]) for _, files in rows if not any(has_a_case(tree_of(file)) for file in files)}
    assert without == set(LATER)


def test_a_module_whose_cases_are_all_thorough_has_none() -> None:
    later = "@pytest.mark.thorough\n@pytest.mark.parametrize('n', [1])\ndef test_a(n): ...\n"
    assert not has_a_case(ast.parse(later))
    assert not has_a_case(ast.parse("pytestmark = [pytest.mark.thorough]\ndef test_a(): ..."))
    assert has_a_case(ast.parse(later + "@pytest.mark.slow\ndef test_b(): ..."))
