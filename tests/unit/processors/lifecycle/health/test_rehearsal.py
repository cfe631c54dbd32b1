"""A rehearsal restores one partition as a test.

Tests the choice of the partition, the verdict, and what is remembered.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.infra.database.records import Action
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.lifecycle.deploy.present import slots_at_work
from holdfast.processors.lifecycle.health.rehearsal import (
    REHEARSE,
    Candidate,
    Rehearsal,
    Rehearsals,
    StoreRehearsal,
    as_document,
    choose,
    cut_at,
    judge,
    rehearsed,
    rehearsed_rate,
)
from tests.unit.processors.lifecycle.in_memory import NAME, open_installation

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def candidates(count: int) -> list[Candidate]:
    return [Candidate("fleet", "0", f"flights-{number}", number) for number in range(count)]


def rehearsal(seconds: float = 2.0, records: int = 5_000, *, equal: bool = True, tasks: int = 4) -> Rehearsal:
    owned, other = Fingerprint(3, 7, 9), Fingerprint(3, 8, 9)
    store = StoreRehearsal("counts", "fleet-counts-changelog", 100, owned if equal else other, owned)
    return Rehearsal("fleet", "flights-1", 1, (store,), records, seconds, tasks)


def action(text: str, verb: str = REHEARSE, subject: str = "fleet") -> Action:
    return Action(1, verb, subject, "somebody", text, "equal", NOW, NOW)


def test_one_day_means_one_partition_whatever_the_order() -> None:
    chosen = choose(candidates(8), "2026-03-01")
    assert chosen == choose(candidates(8)[::-1], "2026-03-01")
    assert choose([], "2026-03-01") is None


def test_every_partition_has_its_turn() -> None:
    days = [f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29)]
    assert {choose(candidates(8), day) for day in days} == set(candidates(8))


def test_a_copy_that_differs_is_told_with_the_way_to_the_keys() -> None:
    passed, text = judge(rehearsal(equal=False), 300.0)
    assert not passed
    assert "counts differ from the owner's state" in text
    assert "`holdfast audit fleet`" in text


def test_a_restore_of_all_that_takes_too_long_is_told() -> None:
    passed, text = judge(rehearsal(seconds=100.0), 300.0)
    assert not passed
    assert "400 s for all 4 partitions, the target is 300 s" in text


def test_what_is_in_order_is_compared_with_the_last_time() -> None:
    assert judge(rehearsal(), 300.0, 1.5) == (
        True,
        "Partition 1 of fleet was restored from its changelogs in 2.00 s: 5,000 records, 3 keys, all equal to the "
        "owner's. The rehearsal before took 1.50 s.",
    )


def test_a_rate_is_what_the_newest_telling_rehearsal_had() -> None:
    short, long = (json.dumps(as_document(rehearsal(records=count))) for count in (10, 5_000))
    known = [action(short), action(long), action(json.dumps(as_document(rehearsal(1.0))))]
    assert rehearsed_rate(known, "fleet") == 2_500.0
    assert rehearsed_rate(known, "other") is None
    assert rehearsed_rate([action(long, verb="deploy")], "fleet") is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"seconds": "many", "records": 3}', '{"seconds": 1}'])
def test_a_record_that_cannot_be_read_is_left_out(text: str) -> None:
    assert rehearsed([action(text)], "fleet") == []


@pytest.mark.parametrize(("end", "left"), [(5, []), (10, []), (12, [10, 11]), (14, [10, 11, 13]), (99, [10, 11, 13])])
def test_nothing_is_replayed_from_the_end_on(end: int, left: list[int]) -> None:
    batch = Batch(Partition("log", 0), keys=[b"a", b"b", b"c"], values=[b"1", None, b"3"], offsets=[10, 11, 13])
    cut = cut_at(batch, end)
    assert (cut.offsets, len(cut.keys), len(cut.values)) == (left, len(left), len(left))
    assert batch.offsets == [10, 11, 13]


def test_the_tasks_of_a_worker_beyond_the_record_are_rehearsed_too(tmp_path: Path) -> None:
    """An interrupted change of the number of workers left a worker that the deployment record does not name.

    This worker owns partitions like any other worker, so restores of its partitions are rehearsed, too.
    """
    installed = open_installation(tmp_path, slots=2)
    installed.registry.record_deployment(NAME, "v1", ["0"], NOW)

    def answered(processor: str, slot: str) -> Any:
        status = installed.answer(slot).status()
        tasks = tuple(replace(task, stores={"seen": 1}) for task in status.tasks)
        return SimpleNamespace(status=lambda: replace(status, tasks=tasks))

    nothing: Any = None
    world = replace(installed.world, statuses=answered)
    found = Rehearsals(world, nothing, nothing, lambda name: slots_at_work(name, world)).candidates(NAME)
    assert [each.slot for each in found] == ["0", "1"]
    installed.registry.close()
