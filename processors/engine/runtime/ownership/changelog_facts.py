"""Reads what a restore must know of changelogs: their topic ids, and each partition's first and last offset to replay.

A changelog is replayed from its first offset to its high watermark. The source topic of a table is replayed from its
first offset to the group's committed offset, because later records are not processed yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.infra.log import get_logger
from holdfast.processors.engine.runtime.ports import TopicView
from holdfast.processors.engine.state.coherence import (
    ChangelogFacts,
    changelog_missing,
    changelog_too_narrow,
    delete_retention_s,
    source_missing,
)
from holdfast.processors.engine.state.keep_or_restore import RETENTION_PART_SAFE
from holdfast.processors.engine.table_topics import lost_records, table_warnings
from holdfast.processors.engine.topology import SourceLog, Topology

_log = get_logger("table_topics")

#: Maps each store to the facts of its changelog, by partition number.
Found = Mapping[str, Mapping[int, ChangelogFacts]]


def read_changelogs(
    topics: TopicView, topology: Topology, stores: Set[str], committed: Mapping[Partition, int | None], now: float
) -> Found:
    """Returns the facts of every changelog partition of these stores.

    ``committed`` has the group's committed offsets, which must be read before this call. ``now`` is the wall clock in
    seconds since 1970.

    Raises:
        StateIncoherent: A changelog is missing.
        TopicUnusable: The source topic of a table is missing.
    """
    specs = [spec for spec in topology.changelogs if spec.store in stores]
    logs = [log for log in topology.source_logs if log.store in stores]
    described = topics.describe([*(spec.topic.name for spec in specs), *(log.topic for log in logs)])
    found: dict[str, Mapping[int, ChangelogFacts]] = {}
    for log in logs:
        if (seen := described.get(log.topic)) is None:
            raise source_missing(log.topic)
        starts, young = topics.start_offsets(log.topic), young_from(topics, seen, log.topic, now)
        found[log.store] = {
            number: facts_of_source(log, seen, start, committed.get(Partition(log.topic, number)), young[number])
            for number, start in starts.items()
            if number in young  # partitions that were added after ``describe`` are not in ``young``
        }
    for spec in specs:
        name = spec.topic.name
        if (seen := described.get(name)) is None:
            raise changelog_missing(name, topology)
        starts, ends = topics.start_offsets(name), topics.end_offsets(name, committed=False)
        kept_s = delete_retention_s(seen)
        found[spec.store] = {
            number: ChangelogFacts(name, seen.topic_id, starts[number], end, kept_s) for number, end in ends.items()
        }
    return found


def warnings_at_start(topics: TopicView, topology: Topology, facts: Mapping[str, TopicFacts]) -> tuple[str, ...]:
    """Returns the warnings about tables that are restored from their source topics.

    The warnings of ``lost_records`` are also logged here. Those of ``table_warnings`` were already logged.
    """
    lost = lost_records(topology, {log.topic: topics.start_offsets(log.topic) for log in topology.source_logs})
    for warning in lost:
        _log.warning(warning)
    return (*table_warnings(topology, facts), *lost)


def facts_of_task(found: Found, stores: Sequence[str], partition: int) -> dict[str, ChangelogFacts]:
    """Returns the facts of one task's changelogs, by store.

    Raises StateIncoherent if a changelog lacks the partition.
    """
    facts = {}
    for name in (store for store in stores if store in found):
        if partition not in found[name]:
            raise changelog_too_narrow(next(each.topic for each in found[name].values()), partition)
        facts[name] = found[name][partition]
    return facts


def young_from(topics: TopicView, seen: TopicFacts, topic: str, now: float) -> Mapping[int, int]:
    """Maps partitions of a table's source topic to the offset from which on Kafka has certainly kept all tombstones.

    ``now`` is the wall clock in seconds since 1970. Only three quarters of the retention (``delete.retention.ms``) are
    counted, because clocks may differ.
    """
    return topics.offsets_at(topic, int((now - delete_retention_s(seen) * RETENTION_PART_SAFE) * 1000))


def facts_of_source(log: SourceLog, seen: TopicFacts, start: int, committed: int | None, young: int) -> ChangelogFacts:
    """Returns the facts for replaying one partition of a table's source topic, up to the group's offset ``committed``.

    If ``committed`` is None, the group has committed no offset, and nothing is replayed.
    """
    end = start if committed is None else committed
    return ChangelogFacts(log.topic, seen.topic_id, start, end, delete_retention_s(seen), log, young)
