"""Which cases run: three tiers, parts of a run, and the order in which files are handed out.

`tests/README.md` has the rule by which a case is in a tier, and the budget of each folder.
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
#: A test below one of these folders of `tests` gets the folder's name as its marker.
MARKED_FOLDERS = frozenset({"kafka", "spark", "dagster", "browser", "drills"})
#: What `make quick` looks into. Of these it runs what has no marker of a real part and is not `slow`.
QUICK_FOLDERS = frozenset({"unit", "contract", "simulation", "combinations", "fuzz", "tidy", "docs"})
#: Seconds of each file with all its cases, as measured last; `--write-seconds` writes it.
SECONDS = TESTS / "mechanics" / "seconds.txt"
#: The cases of quick folders that took ``SLOW_S`` seconds or more when measured last; `--write-seconds` writes it.
SLOW_CASES = TESTS / "mechanics" / "slow_cases.txt"
SLOW_S = 0.4
#: What a case is taken to last in a file that was not measured yet.
UNMEASURED_S, UNMEASURED_REAL_S = 0.1, 5.0
_PARAMETERS = type(pytest.param())


def variants(rows: Iterable[Any], *, tested: int = 1, quick: int | None = None) -> list[Any]:
    """Parameters of a test: the first `quick` run in every tier, the first `tested` in `make test`, all in thorough.

    A row is one value, a tuple of values, or a `pytest.param`. Without `quick`, what is tested is quick.
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
    """Parameters that are called by their `name`; those of `thorough` run in `make test-thorough` only."""
    return [pytest.param(row, id=row.name, marks=pytest.mark.thorough if row.name in thorough else ()) for row in rows]


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
    """The folder of `tests` that a file lies in."""
    return file.relative_to(TESTS).parts[0]


def in_part(items: list[pytest.Item], part: str) -> list[pytest.Item]:
    """The items of one part of the run, `1/3` for instance.

    Raises:
        UsageError: `part` is not a number, a slash, and a number that is not smaller.
    """
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part is {part!r}; write it as 1/3, which is the first of three parts")
    cases = Counter(name_of(item.path) for item in items)
    files = split(cases, read_seconds(), int(count))[int(number) - 1]
    return [item for item in items if name_of(item.path) in files]


def split(cases: Mapping[str, int], seconds: Mapping[str, float], count: int) -> list[frozenset[str]]:
    """Files in parts that take about as long as each other; the same files always give the same parts.

    Args:
        cases: How many cases each file has.
        seconds: How long files take; a file that is not in it is estimated by its cases.
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
    """A test file's path as `seconds.txt` and pytest write it."""
    return file.relative_to(TESTS.parent).as_posix()


def read_seconds() -> dict[str, float]:
    """How long each file took when `seconds.txt` was written."""
    lines = SECONDS.read_text().splitlines() if SECONDS.exists() else []
    return {file: float(seconds) for seconds, _, file in (line.partition(" ") for line in lines) if file}


@cache
def slow_cases() -> frozenset[str]:
    """The names of the cases that are too slow for `make quick`, without a mark that says so."""
    return frozenset(SLOW_CASES.read_text().splitlines())


def write_slow_cases(measured: Mapping[str, float]) -> None:
    """Write the slow ones of the cases that were measured, and keep those of files that were not measured."""
    files = {case.partition("::")[0] for case in measured}
    kept = [case for case in slow_cases() if case.partition("::")[0] not in files]
    slow = [case for case, seconds in measured.items() if seconds >= SLOW_S and case.split("/")[1] in QUICK_FOLDERS]
    SLOW_CASES.write_text("".join(f"{case}\n" for case in sorted([*kept, *slow])))


def write_seconds(measured: Mapping[str, float]) -> None:
    """Write the seconds of the files that were measured, and keep those of other files that are still there."""
    known = {file: seconds for file, seconds in read_seconds().items() if (TESTS.parent / file).exists()}
    known.update({file: round(seconds) for file, seconds in measured.items()})
    lines = [f"{seconds:.0f} {file}\n" for file, seconds in sorted(known.items()) if seconds >= 1]
    SECONDS.write_text("".join(lines))


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Spark's files first, one after the other; then those of the other folders with real parts by turns.

    One test process takes Spark's files as a whole (`FilesAndSpark` in conftest.py). The others take meanwhile what
    mostly waits. What takes seconds comes last, the longest files of it first: no test process is left alone with
    what takes minutes.
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
