"""What a snapshot's plan has to know of the changelog, read from Kafka."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.topics import Topics, TransactionUndecided
from holdfast.processors.engine.state.coherence import delete_retention_s
from holdfast.processors.snapshots.facts import ChangelogNow, LogPartition

#: How long the markers of an answered commit may take, in seconds.
MARKERS_WITHIN_S = 10.0


def changelog_now(topics: Topics, topic: str, upto: Mapping[int, int]) -> ChangelogNow | None:
    """The changelog as it is; None when it is not there.

    Args:
        topics: Kafka.
        topic: The changelog.
        upto: By partition, the offsets whose transactions are waited for, a moment.

    Raises:
        KafkaFailed: It can't be asked.
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
    starts = topics.start_offsets(topic)
    return ChangelogNow(
        topic=topic,
        topic_id=facts.topic_id,
        partitions={number: LogPartition(starts[number], ends.get(number, starts[number])) for number in starts},
        delete_retention_s=delete_retention_s(facts),
        compaction_lag_s=int(facts.config.get("min.compaction.lag.ms", 0)) / 1000,
        deletes_by_age="delete" in facts.config.get("cleanup.policy", "compact"),
    )
