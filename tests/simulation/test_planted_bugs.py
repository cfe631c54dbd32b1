"""Tests the simulation itself: each planted bug must break an invariant within ``SEEDS_MAX`` seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.processors.testing.log import PartitionLog
from tests.mechanics.tiers import named
from tests.simulation.planted import (
    ASKED_BUGS,
    BUGS,
    CALLED_BUGS,
    GROUPED_BUGS,
    JOINED_BUGS,
    LIVE_BUGS,
    SOURCED_BUGS,
    TIMED_BUGS,
    Planted,
    not_caught,
    seeds_until_caught,
)
from tests.simulation.run import SeedRunner, runner

SEEDS_MAX = 1_000
_READ = PartitionLog.read
#: Bugs that only few or long schedules detect. Each takes seconds, so they run only in `make test-thorough`.
RARE = frozenset(
    {
        "a checkpoint of another changelog is restored",
        "a join of tables takes a falsy row for none",
        "a refused commit counts as done",
        "a restart forgets the stream time",
        "a standby counts as complete before it has reached the end",
        "a value that is deleted keeps its end",
        "an abort rewinds the first tasks only",
        "an aborted transaction that was left open is committed",
        "an end from before a pause or an assignment counts",
        "an interval join keeps the newest message of a key and time",
        "an outer row is never sent",
        "an unknown outcome counts as failure",
        "an unknown outcome counts as success",
        "committed offsets are read without waiting for pending ones",
        "damaged data reads as absent",
        "files are collected that another upload is about to name",
        "markers that Kafka left out are not looked for",
        "messages behind group_by move the stream time",
        "messages to a repartition topic are sent outside of the transaction",
        "offsets are committed before the transaction, not in it",
        "offsets tell whether a commit happened that moves none",
        "outputs to a deleted topic count as sent",
        "the first task before group_by tells the time of all",
        "the group's generation does not fence",
        "the last word of a dead worker counts as its end",
        "the restore target is the last stable offset",
        "timers that fire without a message are not committed",
        "two versions with other tasks run beside each other",
        "windows by columns count what an aborted commit counted",
        "windows that an aborted commit closed stay closed",
        "windows without room in the record of their key stay open",
    }
)
PAGES = Path(__file__).resolve().parent.parent.parent / "docs"
DOCS = (PAGES / "simulation.md", PAGES / "simulation-groups.md")


@pytest.fixture(scope="module")
def seeds() -> Iterator[SeedRunner]:
    with runner() as running:
        yield running


@pytest.fixture(scope="module")
def timed_seeds() -> Iterator[SeedRunner]:
    with runner(of="timed") as running:
        yield running


@pytest.fixture(scope="module")
def grouped_seeds() -> Iterator[SeedRunner]:
    with runner(of="grouped") as running:
        yield running


@pytest.fixture(scope="module")
def joined_seeds() -> Iterator[SeedRunner]:
    with runner(of="joined") as running:
        yield running


@pytest.mark.parametrize("bug", named(BUGS, thorough=RARE))
def test_a_planted_bug_is_caught(seeds: SeedRunner, bug: Planted, known: bool) -> None:
    check_caught(seeds, bug, known)


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(TIMED_BUGS, thorough=RARE))
def test_a_planted_bug_in_windows_or_timers_is_caught(timed_seeds: SeedRunner, bug: Planted, known: bool) -> None:
    check_caught(timed_seeds, bug, known)


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(GROUPED_BUGS, thorough=RARE))
def test_a_planted_bug_in_groups_is_caught(grouped_seeds: SeedRunner, bug: Planted, known: bool) -> None:
    check_caught(grouped_seeds, bug, known)


@pytest.fixture(scope="module")
def live_seeds() -> Iterator[SeedRunner]:
    with runner(of="live") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(LIVE_BUGS, thorough=RARE))
def test_a_planted_bug_behind_live_producers_is_caught(live_seeds: SeedRunner, bug: Planted, known: bool) -> None:
    check_caught(live_seeds, bug, known)


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(JOINED_BUGS, thorough=RARE))
def test_a_planted_bug_in_joins_is_caught(joined_seeds: SeedRunner, bug: Planted, known: bool) -> None:
    check_caught(joined_seeds, bug, known)


@pytest.fixture(scope="module")
def sourced_seeds() -> Iterator[SeedRunner]:
    with runner(of="sourced") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("bug", named(SOURCED_BUGS, thorough=RARE))
def test_a_planted_bug_in_tables_of_topics_is_caught(sourced_seeds: SeedRunner, bug: Planted, known: bool) -> None:
    check_caught(sourced_seeds, bug, known)


def check_caught(seeds: SeedRunner, bug: Planted, known: bool) -> None:
    caught = seeds_until_caught(seeds, bug, SEEDS_MAX, known=known)
    assert PartitionLog.read is _READ, "the bug is still there: tests behind this one would fail"
    assert caught is not None, not_caught(bug, "tests.simulation.planted")
    needed, outcome = caught
    print(f"{bug.name}: caught by {outcome.invariant!r} in seed {outcome.seed}, the {needed}th")


def test_the_documentation_lists_every_planted_bug() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS)
    bugs = (*BUGS, *TIMED_BUGS, *GROUPED_BUGS, *LIVE_BUGS, *JOINED_BUGS, *SOURCED_BUGS, *CALLED_BUGS, *ASKED_BUGS)
    assert [bug.name for bug in bugs if f"| {bug.name} |" not in text] == []
