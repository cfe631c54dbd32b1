"""Reads the offsets and settings of a changelog from Kafka, as input for the plan of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.infra.kafka.records import Partition, TopicFacts
from holdfast.infra.kafka.topics.topics import Topics, TransactionUndecided
from holdfast.processors.engine.state.coherence import delete_retention_s
from holdfast.processors.snapshots.facts import ChangelogNow, LogPartition

#: Maximum seconds to wait for transaction markers: Kafka answers a commit before it writes the commit's markers.
MARKERS_WITHIN_S = 10.0


def changelog_now(topics: Topics, topic: str, upto: Mapping[int, int]) -> ChangelogNow | None:
    """The present offsets and settings of a changelog; None if the topic does not exist.

    ``upto`` maps partitions to offsets. The function waits at most ``MARKERS_WITHIN_S`` seconds until all transactions
    below these offsets have ended.

    Raises:
        KafkaFailed: Kafka does not answer.
    """
    facts = topics.describe([topic]).get(topic)
    if facts is None:
        return None
    written = topics.end_offsets(topic, committed=False)
    try:
        awaited = {number: end for number, end in upto.items() if end <= written.get(number, 0)}
        ends = topics.settled_end_offsets(topic, MARKERS_WITHIN_S, upto=awaited)
    except TransactionUndecided:
        ends = topics.end_offsets(topic, committed=True)
    return _now(topics, topic, facts, ends)


def table_topic_now(topics: Topics, topic: str, group: str) -> ChangelogNow | None:
    """Offsets of the source topic from which a table is restored; the end offsets are the group's committed offsets.

    None if the topic does not exist.

    Raises:
        KafkaFailed: Kafka does not answer.
    """
    facts = topics.describe([topic]).get(topic)
    if facts is None:
        return None
    committed = topics.committed_offsets(group)
    ends = {number: committed.get(Partition(topic, number), 0) for number in range(facts.partitions)}
    return replace(_now(topics, topic, facts, ends), is_source=True)


def _now(topics: Topics, topic: str, facts: TopicFacts, ends: Mapping[int, int]) -> ChangelogNow:
    starts = topics.start_offsets(topic)
    return ChangelogNow(
        topic=topic,
        topic_id=facts.topic_id,
        partitions={number: LogPartition(starts[number], ends.get(number, starts[number])) for number in starts},
        delete_retention_s=delete_retention_s(facts),
        compaction_lag_s=int(facts.config.get("min.compaction.lag.ms", 0)) / 1000,
        deletes_by_age="delete" in facts.config.get("cleanup.policy", "compact"),
    )
