"""Reads the facts of a changelog's compaction from the brokers, from samples of the log, and from the workers.

Invariants:
    - Nothing is written, and the number of requests is bounded, because a schedule reads these facts for every
      changelog.
    - A fact that cannot be read is listed in ``unknown``; the other facts are still read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.inspection.inspection import Inspector
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.sampling import RECORDS_MAX, Window, sample
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.serving.status import TaskStatus
from holdfast.processors.lifecycle.health.compaction import (
    ASSUMED_RECORDS_PER_S,
    PATIENCE_S,
    CompactionFacts,
    PartitionSpan,
    RestoreRate,
    StoreSpace,
)

POLL_S = 0.5
#: Maximum number of partitions of a changelog that are sampled, and maximum number of samples in each.
PARTITIONS_LOOKED_INTO, PLACES = 16, 6
#: A restore rate is computed only from restores of at least this many records.
RESTORED_FEW = 10_000
#: Maximum seconds that a healthy log cleaner may need to compact a segment that is ready for compaction.
CLEANER_S = 3600.0
_NEVER_MS = 2**62


def read_compaction(
    topics: Topics,
    topic: str,
    *,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> CompactionFacts:
    """Reads offsets and configuration of a changelog.

    While a transaction is open, the offsets are read again for at most ``patience_s`` seconds.

    Raises:
        holdfast.infra.kafka.errors.KafkaFailed: The cluster refused or did not answer.
    """
    described = topics.describe([topic]).get(topic)
    if described is None:
        return CompactionFacts(topic, None, ())
    starts = topics.start_offsets(topic)
    began = clock()
    # The last stable offset is read before the high watermark. So if both are equal, no transaction was open at the
    # first read. A commit between the two reads only causes one more poll.
    first = topics.end_offsets(topic, committed=True)
    ends = topics.end_offsets(topic, committed=False)
    still = {number for number, stable in first.items() if stable < ends[number]}
    latest = dict(first)
    while still and clock() - began < patience_s:
        time.sleep(POLL_S)
        latest = topics.end_offsets(topic, committed=True)
        still = {number for number in still if latest[number] == first[number]}
    waited = clock() - began
    spans = tuple(
        PartitionSpan(number, starts.get(number, 0), latest[number], end, waited if number in still else 0.0)
        for number, end in sorted(ends.items())
    )
    return CompactionFacts(topic, described.config, spans, replication=described.replication, brokers=topics.ping())


def look_closer(
    facts: CompactionFacts,
    topics: Topics,
    *,
    client_config: Mapping[str, str | int | float | bool] | None = None,
    workers: Sequence[Sequence[TaskStatus]] = (),
    now: Callable[[], float] = time.time,
) -> CompactionFacts:
    """Adds the facts that need more requests: sizes, open transactions, samples of records, and the workers' facts.

    ``workers`` has the tasks of each running worker; ``now`` returns the wall clock, seconds since 1970.
    """
    if facts.config is None:
        return facts
    facts = _with_workers(facts, workers)
    for add in (_with_inspection, _with_young, _with_samples):
        try:
            facts = add(facts, topics, client_config or {}, now())
        except KafkaFailed as failed:
            facts = replace(facts, unknown=(*facts.unknown, f"{failed}"))
    return facts


def _with_inspection(
    facts: CompactionFacts, topics: Topics, config: Mapping[str, str | int | float | bool], now: float
) -> CompactionFacts:
    numbers = [part.partition for part in facts.partitions]
    unknown: list[str] = []
    sizes: dict[int, int] = {}
    open_on: dict[int, tuple[Any, ...]] = {}
    with Inspector(topics.bootstrap, config) as inspector:
        try:
            sizes = inspector.sizes(facts.topic, numbers)
        except KafkaFailed as failed:
            unknown.append(str(failed))
        stood = [part.partition for part in facts.partitions if part.stood_still_s > 0]
        if stood:
            try:
                for each in inspector.open_transactions(facts.topic, stood):
                    open_on[each.partition.number] = (*open_on.get(each.partition.number, ()), each)
            except KafkaFailed as failed:
                unknown.append(str(failed))
    parts = tuple(
        replace(part, size_bytes=sizes.get(part.partition), open=open_on.get(part.partition, ()))
        for part in facts.partitions
    )
    return replace(facts, partitions=parts, unknown=(*facts.unknown, *unknown))


def _with_young(
    facts: CompactionFacts, topics: Topics, config: Mapping[str, str | int | float | bool], now: float
) -> CompactionFacts:
    lag_ms = int((facts.config or {}).get("min.compaction.lag.ms", "0"))
    since = topics.offsets_at(facts.topic, int(now * 1000) - lag_ms)
    parts = tuple(
        replace(part, young=max(0, part.high_watermark - since.get(part.partition, part.start)))
        for part in facts.partitions
    )
    return replace(facts, partitions=parts)


def _with_samples(
    facts: CompactionFacts, topics: Topics, config: Mapping[str, str | int | float | bool], now: float
) -> CompactionFacts:
    bound_ms = overdue_before(facts.config or {}, now * 1000)
    at_bound = {} if bound_ms is None else topics.offsets_at(facts.topic, bound_ms)
    chosen = _spread(facts.partitions, PARTITIONS_LOOKED_INTO)
    places = [
        (Partition(facts.topic, part.partition), offset)
        for part in chosen
        for offset in places_in(part.start, part.last_stable, at_bound.get(part.partition))
    ]
    windows = sample(topics.bootstrap, places, config)
    by_partition: dict[int, list[Window]] = {}
    for window in windows:
        by_partition.setdefault(window.partition.number, []).append(window)
    parts = [_sampled(part, by_partition.get(part.partition, []), bound_ms, now) for part in facts.partitions]
    seen = [part for part in parts if part.records is not None]
    span = sum(part.span for part in seen)
    density = sum(part.records or 0 for part in seen) / span if span else 1.0
    # Kafka spreads keys evenly over partitions. So the records per offset of the sampled partitions are assumed for all
    # others.
    if seen:
        parts = [replace(p, records=round(p.span * density)) if p.records is None else p for p in parts]
    return replace(facts, partitions=tuple(parts))


def _sampled(part: PartitionSpan, windows: Sequence[Window], bound_ms: int | None, now: float) -> PartitionSpan:
    if part.start >= part.high_watermark:
        return replace(part, records=0)
    if not windows:
        return part
    first = min(windows, key=lambda window: window.offset)
    oldest = first.records[0].timestamp_ms / 1000 if first.records else None
    tested, overdue = overdue_records(windows, bound_ms)
    return replace(
        part,
        records=estimated_records(windows, part.high_watermark),
        oldest_s=None if oldest is None else max(0.0, now - oldest),
        tested=tested,
        overdue=overdue,
    )


def overdue_before(config: Mapping[str, str], now_ms: float) -> int | None:
    """The timestamp (ms since 1970) below which compaction must have removed overwritten records by now.

    A record is overdue if it and a later record of its key are both older than this. None if the topic's configuration
    sets no limit.
    """
    lag = int(config.get("max.compaction.lag.ms", str(_NEVER_MS)))
    segment = min(int(config.get("segment.ms", str(_NEVER_MS))), lag)
    least = int(config.get("min.compaction.lag.ms", "0"))
    bound = now_ms - max(lag, least) - segment - CLEANER_S * 1000
    return int(bound) if lag < _NEVER_MS and bound > 0 else None


def places_in(start: int, end: int, at_bound: int | None) -> list[int]:
    """The offsets at which samples of a partition begin.

    The samples are evenly spaced from ``start``. One more sample ends at ``at_bound``, the first offset that is too
    young to be overdue. A small partition is read as one sample.
    """
    if end <= start:
        return []
    if end - start <= RECORDS_MAX:
        return [start]
    step = (end - start) / PLACES
    places = {start + round(step * number) for number in range(PLACES)}
    if at_bound is not None:
        places.add(max(start, min(at_bound, end) - RECORDS_MAX))
    return sorted(places)


def estimated_records(windows: Sequence[Window], end: int) -> int:
    """Estimated number of records up to ``end``.

    Between two samples, the number of records per offset is assumed to be that of the earlier sample.
    """
    ordered = sorted(windows, key=lambda window: window.offset)
    edges = [*(window.offset for window in ordered[1:]), end]
    total = 0.0
    for window, edge in zip(ordered, edges, strict=True):
        covered = min(window.end, edge)
        total += sum(record.offset < covered for record in window.records) + window.density * (edge - covered)
    return round(total)


def overdue_records(windows: Sequence[Window], bound_ms: int | None) -> tuple[int, int]:
    """Counts the old records in the samples, and the overdue records among them; returns both numbers.

    A record is overdue if the samples have a later record of the same key, and both are older than ``bound_ms`` (ms
    since 1970). The number of overdue records is a minimum, because later records outside of the samples are unknown.
    """
    if bound_ms is None:
        return 0, 0
    old = {
        record.offset: record.key
        for window in windows
        for record in window.records
        if record.timestamp_ms < bound_ms and record.key is not None
    }
    newest: dict[bytes, int] = {}
    for offset, key in old.items():
        if key is not None:
            newest[key] = max(newest.get(key, offset), offset)
    overdue = sum(1 for offset, key in old.items() if key is not None and newest[key] > offset)
    return len(old), overdue


def _with_workers(facts: CompactionFacts, workers: Sequence[Sequence[TaskStatus]]) -> CompactionFacts:
    tasks = [task for tasks in workers for task in tasks if any(_is_of(at, facts.topic) for at in task.stores.values())]
    keys = {task.partition: task.keys for task in tasks if len(task.stores) == 1}
    parts = tuple(replace(part, keys=keys.get(part.partition)) for part in facts.partitions)
    known = [(task.store_bytes, task.live_bytes) for task in tasks]
    space = None
    if known and all(size is not None and live is not None for size, live in known):
        space = StoreSpace(sum(size or 0 for size, _ in known), sum(live or 0 for _, live in known))
    return replace(facts, partitions=parts, space=space, rate=restore_rate(workers))


def restore_rate(workers: Sequence[Sequence[TaskStatus]]) -> RestoreRate:
    """Returns the mean restore rate of one worker (records per second), from the restores that the workers report.

    If no worker reports a restore, the rate is ``ASSUMED_RECORDS_PER_S``.
    """
    rates = []
    for tasks in workers:
        restored, seconds = sum(task.restored for task in tasks), max((task.restored_s for task in tasks), default=0.0)
        if restored >= RESTORED_FEW and seconds > 0:
            # A worker restores its tasks in parallel, so its restore lasts as long as that of its slowest task.
            rates.append(restored / seconds)
    count = max(1, len(workers))
    if rates:
        return RestoreRate(sum(rates) / len(rates), count)
    return RestoreRate(ASSUMED_RECORDS_PER_S, count, measured=False)


def _is_of(at: Mapping[str, Any], topic: str) -> bool:
    return at.get("changelog") == topic


def _spread(parts: Sequence[PartitionSpan], count: int) -> Sequence[PartitionSpan]:
    filled = [part for part in parts if part.last_stable > part.start]
    return (
        filled if len(filled) <= count else [filled[round(i * (len(filled) - 1) / (count - 1))] for i in range(count)]
    )
