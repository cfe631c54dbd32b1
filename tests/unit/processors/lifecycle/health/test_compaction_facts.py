"""Estimates for a changelog's compaction from samples of its log and from the workers' statuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.sampling import Sampled, Window
from holdfast.processors.lifecycle.health.compaction import (
    ASSUMED_RECORDS_PER_S,
    CompactionFacts,
    PartitionSpan,
    StoreSpace,
)
from holdfast.processors.lifecycle.health.compaction_facts import (
    _with_workers,
    estimated_records,
    overdue_before,
    overdue_records,
    places_in,
    restore_rate,
)

DAY_MS = 86_400_000


def window(offset: int, end: int, *records: Sampled) -> Window:
    return Window(Partition("t", 0), offset, end, records)


def filled(offset: int, end: int, count: int) -> Window:
    return window(offset, end, *(Sampled(offset + i, b"%d" % i, 0, False, 10) for i in range(count)))


def record(offset: int, key: bytes, timestamp_ms: int) -> Sampled:
    return Sampled(offset, key, timestamp_ms, False, 10)


def test_each_place_stands_for_the_offsets_up_to_the_next() -> None:
    compacted, whole = filled(0, 100, 10), filled(500, 600, 100)
    assert estimated_records([whole, compacted], 1000) == 50 + 500


def test_places_that_were_read_beyond_the_next_one_are_counted() -> None:
    assert estimated_records([filled(0, 1000, 20), filled(10, 1000, 10)], 1000) == 20
    assert estimated_records([filled(0, 15, 15), filled(10, 25, 15)], 25) == 25


def test_a_short_log_is_looked_at_whole_and_a_long_one_evenly() -> None:
    assert places_in(5, 5, None) == []
    assert places_in(5, 400, None) == [5]
    assert places_in(0, 6000, None) == [0, 1000, 2000, 3000, 4000, 5000]
    assert places_in(0, 6000, 2800) == [0, 1000, 2000, 2300, 3000, 4000, 5000]
    assert places_in(0, 6000, 100) == [0, 1000, 2000, 3000, 4000, 5000]


@given(start=st.integers(0, 10**9), span=st.integers(1, 10**9), at=st.none() | st.integers(0, 2 * 10**9))
def test_places_are_in_the_log(start: int, span: int, at: int | None) -> None:
    assert all(start <= place < start + span for place in places_in(start, start + span, at))


def test_a_record_is_overdue_when_a_later_one_of_its_key_is_old_too() -> None:
    head = window(0, 3, record(0, b"a", 10), record(1, b"b", 11), record(2, b"c", 12))
    later = window(90, 93, record(90, b"a", 40), record(91, b"b", 99), record(92, b"d", 41))
    assert overdue_records([head, later], 50) == (5, 1), "b was overwritten only after the bound"
    assert overdue_records([head, later], 100) == (6, 2)
    assert overdue_records([head, later], None) == (0, 0)
    assert overdue_records([later, head], 50) == (5, 1)


def test_places_that_overlap_count_a_record_once() -> None:
    head = window(0, 2, record(0, b"a", 10), record(1, b"b", 11))
    assert overdue_records([head, head], 50) == (2, 0)


def test_the_bound_in_age_is_the_longest_lag_and_a_segments_time_and_the_cleaners() -> None:
    config = {"max.compaction.lag.ms": str(7 * DAY_MS), "segment.ms": str(DAY_MS)}
    assert overdue_before(config, 100 * DAY_MS) == 92 * DAY_MS - 3_600_000
    assert overdue_before({**config, "segment.ms": str(90 * DAY_MS)}, 100 * DAY_MS) == 86 * DAY_MS - 3_600_000
    assert overdue_before({"segment.ms": "1"}, 100 * DAY_MS) is None
    assert overdue_before({**config, "max.compaction.lag.ms": "9223372036854775807"}, 100 * DAY_MS) is None


@dataclass
class Task:
    partition: int
    stores: dict[str, Any] = field(default_factory=lambda: {"s": {"changelog": "t", "offset": 1}})
    restore: None = None
    store_bytes: int | None = 300
    live_bytes: int | None = 100
    keys: int | None = 5
    restored: int = 0
    restored_s: float = 0.0


def test_the_rate_of_a_worker_is_that_of_its_tasks_together() -> None:
    workers = [
        [Task(0, restored=60_000, restored_s=1.0), Task(1, restored=40_000, restored_s=2.0)],
        [Task(2, restored=90_000, restored_s=3.0)],
        [Task(3, restored=10, restored_s=0.1)],
    ]
    rate = restore_rate(workers)
    assert (rate.records_per_s, rate.workers, rate.measured) == (40_000.0, 3, True)


@pytest.mark.parametrize("workers", [[], [[]], [[Task(0, restored=5, restored_s=0.001)]]])
def test_a_rate_that_nobody_measured_is_assumed_and_said_to_be(workers: list[list[Task]]) -> None:
    rate = restore_rate(workers)
    assert (rate.records_per_s, rate.workers, rate.measured) == (ASSUMED_RECORDS_PER_S, 1, False)


def test_keys_and_space_are_those_of_the_tasks_that_write_the_changelog() -> None:
    seen = CompactionFacts("t", {}, (PartitionSpan(0, 0, 9, 9), PartitionSpan(1, 0, 9, 9)))
    other = Task(1, {"x": {"changelog": "other", "offset": 1}})
    found = _with_workers(seen, [[Task(0), other]])
    assert [part.keys for part in found.partitions] == [5, None]
    assert found.space == StoreSpace(300, 100)
    two_stores = Task(0, {"s": {"changelog": "t"}, "u": {"changelog": "v"}})
    assert _with_workers(seen, [[two_stores]]).partitions[0].keys is None, "they are both stores' keys"
    assert _with_workers(seen, [[Task(0, live_bytes=None)]]).space is None
