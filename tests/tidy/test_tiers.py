"""Marks decide which test cases run in which tier. The parts of a run are disjoint and complete."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.mechanics import tiers
from tests.mechanics.tiers import TESTS, name_of, named, read_seconds, split, variants

FILES = {name_of(file): 3 for file in sorted(TESTS.rglob("test_*.py"))}
CASES = """
import pytest

@pytest.mark.parametrize("at", range(3))
def test_plain(at):
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.kafka
def test_real():
    pass

@pytest.mark.thorough
def test_thorough():
    pass

@pytest.mark.long_drill
def test_long():
    pass
"""


@pytest.mark.parametrize("count", [1, 2, 3, 7, len(FILES) + 1])
def test_parts_have_no_file_in_common_and_together_have_all(count: int) -> None:
    parts = split(FILES, read_seconds(), count)
    assert len(parts) == count
    assert sorted(file for part in parts for file in part) == sorted(FILES)
    assert split(dict(reversed(FILES.items())), read_seconds(), count) == parts


def test_parts_take_about_as_long_as_each_other() -> None:
    seconds = {"a": 60.0, "b": 30.0, "c": 29.0, "d": 1.0}
    parts = split(dict.fromkeys(seconds, 1), seconds, 2)
    assert [sum(seconds[file] for file in part) for part in parts] == [60.0, 60.0]


def test_a_file_that_was_not_measured_is_estimated_by_its_cases_and_its_folder() -> None:
    cases = {"tests/kafka/test_a.py": 4, "tests/unit/kafka/test_b.py": 100, "tests/unit/test_c.py": 90}
    assert split(cases, {}, 2) == [
        {"tests/kafka/test_a.py"},
        {"tests/unit/kafka/test_b.py", "tests/unit/test_c.py"},
    ]


def test_spark_comes_first_and_of_what_takes_seconds_the_longest_file(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "tests/simulation/test_seeds.py"
    monkeypatch.setattr(tiers, "read_seconds", lambda: {long: 60.0, "tests/kafka/test_audit.py": 90.0})
    names = ("unit/a/test_a.py", "kafka/test_one.py", "simulation/test_a.py", "simulation/test_seeds.py")
    files = [*names, "kafka/test_audit.py", "spark/test_a.py", "dagster/test_a.py"]
    items: list[Any] = [SimpleNamespace(path=TESTS / name) for name in files]
    turns = [name_of(item.path).removeprefix("tests/") for item in tiers.in_turn(items)]
    assert turns[0] == "spark/test_a.py"
    assert turns[1:4] == ["kafka/test_one.py", "dagster/test_a.py", "kafka/test_audit.py"]
    assert turns[4:] == ["simulation/test_seeds.py", "unit/a/test_a.py", "simulation/test_a.py"]


def test_variants_are_marked_from_the_first_that_is_left_out() -> None:
    made = variants([1, (2,), pytest.param(3, id="three", marks=pytest.mark.kafka), 4], tested=3, quick=1)
    assert [row.values for row in made] == [(1,), (2,), (3,), (4,)]
    assert [[mark.name for mark in row.marks] for row in made] == [[], ["slow"], ["kafka", "slow"], ["thorough"]]
    assert made[2].id == "three"


def test_named_rows_keep_their_name() -> None:
    rows = [type("Row", (), {"name": name}) for name in ("one", "two")]
    made = named(rows, thorough={"two"})
    assert [(row.id, [mark.name for mark in row.marks]) for row in made] == [("one", []), ("two", ["thorough"])]


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that lists the cases that pytest would run with the given options.

    The same test file is in three folders: one of unit tests, one of benches, and one with a real broker.
    """
    for folder in ("unit/kafka", "bench", "kafka"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_cases.py").write_text(CASES)
    shutil.copy(TESTS / "conftest.py", tmp_path / "tests")
    for name in ("mechanics", "parts"):
        shutil.copytree(TESTS / name, tmp_path / "tests" / name)
    shutil.copy(TESTS.parent / "pyproject.toml", tmp_path)

    def run(*options: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", *options]
        environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
        said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return [line for line in said.stdout.splitlines() if "::test_" in line]

    return run


@pytest.mark.slow
def test_a_tier_has_the_cases_that_its_marks_allow(listed: Callable[..., list[str]]) -> None:
    quick, tested, thorough = (listed("--tier", tier) for tier in ("quick", "test", "thorough"))
    assert [case.partition("::")[0] for case in quick] == ["tests/unit/kafka/test_cases.py"] * 3
    assert len(tested) == 3 * 5
    assert len(thorough) == 3 * 7
    assert set(quick) < set(tested) < set(thorough)


@pytest.mark.slow
def test_parts_of_a_run_have_each_case_once(listed: Callable[..., list[str]]) -> None:
    parts = [listed("--tier", "thorough", "--part", f"{number}/2") for number in (1, 2)]
    assert all(parts)
    assert len({*parts[0], *parts[1]}) == len(parts[0]) + len(parts[1]) == 3 * 7


def test_cases_that_were_slow_when_measured_are_not_quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "slow_cases.txt"
    file.write_text("tests/unit/test_b.py::test_kept\ntests/unit/test_a.py::test_was_slow\n")
    monkeypatch.setattr(tiers, "SLOW_CASES", file)
    tiers.slow_cases.cache_clear()
    try:
        measured = {"test_was_slow": 0.15, "test_slow[1]": 1.2, "test_quick": 0.1}
        tiers.write_slow_cases({f"tests/unit/test_a.py::{name}": seconds for name, seconds in measured.items()})
        assert file.read_text() == "tests/unit/test_a.py::test_slow[1]\ntests/unit/test_b.py::test_kept\n"
        tiers.slow_cases.cache_clear()
        item: Any = SimpleNamespace(
            nodeid="tests/unit/test_a.py::test_slow[1]", path=TESTS / "unit" / "test_a.py", iter_markers=lambda: ()
        )
        assert [tiers.belongs(item, tier) for tier in tiers.TIERS] == [False, True, True]
        item.nodeid = "tests/unit/test_a.py::test_slow[2]"
        assert tiers.belongs(item, "quick")
    finally:
        tiers.slow_cases.cache_clear()


def test_the_slow_cases_are_there() -> None:
    for case in tiers.slow_cases():
        file, _, name = case.partition("::")
        assert f"def {name.partition('[')[0]}(" in (TESTS.parent / file).read_text(), case
