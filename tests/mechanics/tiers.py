"""Selects the test cases of a run by its tier and part, and sorts their files.

`tests/README.md` has the rule that puts a case into a tier, and the time budget of each folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
TIERS = ("quick", "test", "thorough")
#: A test below one of these folders of `tests` gets the folder's name as its pytest marker.
MARKED_FOLDERS = frozenset({"kafka", "spark", "dagster", "browser", "drills"})
#: The folders that `make quick` runs. It leaves out cases with the marker `slow`, or with the name of a folder in
#: `MARKED_FOLDERS`.
QUICK_FOLDERS = frozenset({"unit", "contract", "simulation", "combinations", "fuzz", "tidy", "docs"})
#: The file with the measured seconds of each test file (the sum of its cases). `--write-seconds` writes it.
SECONDS = TESTS / "mechanics" / "seconds.txt"
#: The file with the cases of quick folders that took ``SLOW_S`` seconds or more. `--write-seconds` writes it.
SLOW_CASES = TESTS / "mechanics" / "slow_cases.txt"
SLOW_S = 0.2
#: The seconds assumed for a case of a file that was not measured yet: without and with a real broker, Spark or Dagster.
UNMEASURED_S, UNMEASURED_REAL_S = 0.1, 5.0
_PARAMETERS = type(pytest.param())
#: The tier of this test run: ``quick``, ``test`` or ``thorough``.
_selected = "test"


def variants(rows: Iterable[Any], *, tested: int = 1, quick: int | None = None) -> list[Any]:
    """Return the parameters of a test, marked so that each tier of the tests runs only some of them.

    The first `quick` rows run in every tier, the first `tested` rows in `make test`, and all rows in `make
    test-thorough`.

    A row is one value, a tuple of values, or a `pytest.param`. Without `quick`, the first `tested` rows run in every
    tier.
    """
    made = []
    for place, row in enumerate(rows):
        marks = [pytest.mark.thorough] if place >= tested else []
        if quick is not None and quick <= place < tested:
            marks.append(pytest.mark.slow)
        if isinstance(row, _PARAMETERS):
            made.append(pytest.param(*row.values, marks=(*row.marks, *marks), id=row.id))
        else:
            made.append(pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=marks))
    return made


def named(rows: Iterable[Any], *, thorough: Collection[str] = ()) -> list[Any]:
    """Return parameters whose test id is their `name`. Those named in `thorough` run only in `make test-thorough`."""
    return [pytest.param(row, id=row.name, marks=pytest.mark.thorough if row.name in thorough else ()) for row in rows]


def select(tier: str) -> None:
    """Record the tier of this run. Must be called before tests are imported, because their parameters depend on it."""
    global _selected
    _selected = tier


def examples(thorough: int, *, tested: int) -> int:
    """How many examples hypothesis makes for a test: the first number in `make test-thorough`, else the second."""
    return thorough if _selected == "thorough" else tested


def belongs(item: pytest.Item, tier: str) -> bool:
    """Whether a case runs in a tier."""
    marks = {mark.name for mark in item.iter_markers()}
    if tier == "thorough":
        return True
    if marks & {"thorough", "long_drill"}:
        return False
    if tier == "test":
        return True
    quick = folder_of(item.path) in QUICK_FOLDERS and not marks & {"slow", *MARKED_FOLDERS}
    return quick and item.nodeid not in slow_cases()


def folder_of(file: Path) -> str:
    """The name of the folder of `tests` that contains a file."""
    return file.relative_to(TESTS).parts[0]


def in_part(items: list[pytest.Item], part: str) -> list[pytest.Item]:
    """The items of one part of the run, for instance of part `1/3`.

    Raises:
        UsageError: `part` is not of the form `n/count` with 1 <= n <= count.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part is {part!r}; write it as 1/3, which is the first of three parts")
    cases = Counter(name_of(item.path) for item in items)
    files = split(cases, read_seconds(), int(count))[int(number) - 1]
    return [item for item in items if name_of(item.path) in files]


def split(cases: Mapping[str, int], seconds: Mapping[str, float], count: int) -> list[frozenset[str]]:
    """Divide test files into parts of about equal duration. The same input always gives the same parts.

    Args:
        cases: How many cases each file has.
        seconds: How long each file takes. The duration of a file that is missing here is estimated from its cases.
        count: The number of parts.
    """

    def weight(file: str) -> float:
        real = file.startswith(tuple(f"tests/{folder}/" for folder in MARKED_FOLDERS))
        return seconds.get(file) or cases[file] * (UNMEASURED_REAL_S if real else UNMEASURED_S)

    parts: list[set[str]] = [set() for _ in range(count)]
    loads = [0.0] * count
    for file in sorted(cases, key=lambda each: (-weight(each), each)):
        lightest = loads.index(min(loads))
        parts[lightest].add(file)
        loads[lightest] += weight(file)
    return [frozenset(part) for part in parts]


def name_of(file: Path) -> str:
    """A test file's path in the form that `seconds.txt` and pytest use."""
    return file.relative_to(TESTS.parent).as_posix()


def read_seconds() -> dict[str, float]:
    """The seconds of each test file, from `seconds.txt`."""
    lines = SECONDS.read_text().splitlines() if SECONDS.exists() else []
    return {file: float(seconds) for seconds, _, file in (line.partition(" ") for line in lines) if file}


@cache
def slow_cases() -> frozenset[str]:
    """The names of cases that are too slow for `make quick`, although they have no marker `slow`."""
    return frozenset(SLOW_CASES.read_text().splitlines())


def write_slow_cases(measured: Mapping[str, float]) -> None:
    """Write the slow cases among the measured cases. Cases of files that were not measured stay in the file."""
    files = {case.partition("::")[0] for case in measured}
    kept = [case for case in slow_cases() if case.partition("::")[0] not in files]
    slow = [case for case, seconds in measured.items() if seconds >= SLOW_S and case.split("/")[1] in QUICK_FOLDERS]
    SLOW_CASES.write_text("".join(f"{case}\n" for case in sorted([*kept, *slow])))


def write_seconds(measured: Mapping[str, float]) -> None:
    """Write the seconds of the measured test files. If a test file was not measured but exists, its line stays."""
    known = {file: seconds for file, seconds in read_seconds().items() if (TESTS.parent / file).exists()}
    known.update({file: round(seconds) for file, seconds in measured.items()})
    lines = [f"{seconds:.0f} {file}\n" for file, seconds in sorted(known.items()) if seconds >= 1]
    SECONDS.write_text("".join(lines))


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the items in the order in which they run.

    Spark's files come first, because one test process takes all of them (`FilesAndSpark` in conftest.py). Then come the
    files with a real broker, Dagster or a browser, one from each folder in turn. Their tests mostly wait. Files that
    only need CPU come last, the longest first. Otherwise one test process could run a long file alone at the end.
    """
    measured = read_seconds()
    files: dict[str, dict[Path, None]] = {}
    for item in items:
        files.setdefault(folder_of(item.path), {})[item.path] = None
    turns = {
        file: (
            folder != "spark",
            folder not in MARKED_FOLDERS,
            0.0 if folder in MARKED_FOLDERS else -measured.get(name_of(file), 0.0),
            place / len(there),
        )
        for folder, there in files.items()
        for place, file in enumerate(there)
    }
    return sorted(items, key=lambda item: turns[item.path])
