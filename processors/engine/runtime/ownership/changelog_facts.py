"""The facts for the restore of tasks, read in the order that ``assignment`` defines.

changelog          from its beginning to its high watermark
topic of a table   from its beginning to the group's committed offset: what is behind it is not processed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import structlog

from holdfast.infra.kafka.records import Partition, TopicFacts
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

_log = structlog.get_logger("table_topics")

#: By store, the facts of the partitions of its changelog.
Found = Mapping[str, Mapping[int, ChangelogFacts]]


def read_changelogs(
    topics: TopicView, topology: Topology, stores: Set[str], committed: Mapping[Partition, int | None], now: float
) -> Found:
    """The facts of every partition of these stores' changelogs; the high watermarks are read last.

    ``committed`` are the group's offsets, ``now`` is the wall clock in seconds since 1970.

    Raises:
        StateIncoherent: A changelog is missing.
        TopicUnusable: The topic of a table is missing.
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
            if number in young  # partitions may be added meanwhile
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
    """``table_warnings``, which are logged already, and ``lost_records``, which are logged here."""
    lost = lost_records(topology, {log.topic: topics.start_offsets(log.topic) for log in topology.source_logs})
    for warning in lost:
        _log.warning(warning)
    return (*table_warnings(topology, facts), *lost)


def facts_of_task(found: Found, stores: Sequence[str], partition: int) -> dict[str, ChangelogFacts]:
    """The facts of one task's changelogs, by store; raises StateIncoherent if a changelog lacks the partition."""
    facts = {}
    for name in (store for store in stores if store in found):
        if partition not in found[name]:
            raise changelog_too_narrow(next(each.topic for each in found[name].values()), partition)
        facts[name] = found[name][partition]
    return facts


def young_from(topics: TopicView, seen: TopicFacts, topic: str, now: float) -> Mapping[int, int]:
    """By partition of a table's topic, the first offset after which Kafka has kept all tombstones.

    ``now`` is the wall clock in seconds since 1970. A quarter of the retention is reserved for clock differences.
    """
    return topics.offsets_at(topic, int((now - delete_retention_s(seen) * RETENTION_PART_SAFE) * 1000))


def facts_of_source(log: SourceLog, seen: TopicFacts, start: int, committed: int | None, young: int) -> ChangelogFacts:
    """One partition of a table's topic, up to the group's committed offset; None before its first commit."""
    end = start if committed is None else committed
    return ChangelogFacts(log.topic, seen.topic_id, start, end, delete_retention_s(seen), log, young)
