"""Warns about topics of tables if Kafka may delete, or has deleted, the only record of a table's row."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.topology import Topology

#: Kafka's default retention of a topic, by time and by size.
_RETENTION = {"retention.ms": "604800000", "retention.bytes": "-1"}

#: Milliseconds (one hour). If a table is restored from a topic, and the topic's `min.compaction.lag.ms` is less than
#: this, a warning is logged.
COMPACTION_LAG_MIN_MS = 3_600_000


def table_warnings(topology: Topology, facts: Mapping[str, TopicFacts]) -> tuple[str, ...]:
    """Returns a warning and an action for each topic of a table that may lose rows.

    ``facts`` has the existing topics.
    """
    # topics that also serve as changelogs get no such warning here, because ``forgetful`` returns them
    restored_from = {log.topic for log in topology.source_logs}
    lost = {name: "a rebuild of the table lacks" for name in topology.table_topics if name not in restored_from}
    lost |= {spec.name: "a restart of a worker lacks" for spec in topology.global_tables}
    found = [
        f"Topic {log.topic}, from which table {log.store} is restored, has min.compaction.lag.ms="
        f"{_compaction_lag_ms(facts[log.topic])}: where the processor is behind, a restore may lack rows until it has "
        f"read the records that replaced them. Set `min.compaction.lag.ms` on {log.topic} to more than the processor "
        "may be behind."
        for log in topology.source_logs
        if log.topic in facts and _compaction_lag_ms(facts[log.topic]) < COMPACTION_LAG_MIN_MS
    ]
    for name, lacks in lost.items():
        if said := _limits_of_rows(facts.get(name)):
            found.append(
                f"Topic {name} of a table has {said}: Kafka deletes rows that are not written again, and {lacks} them. "
                f"Set `cleanup.policy=compact` on {name}."
            )
    return tuple(found)


def forgetful(topology: Topology, facts: Mapping[str, TopicFacts]) -> tuple[tuple[str, str, str], ...]:
    """Returns the topics from which tables are restored, but from which Kafka may delete rows.

    Each item has the topic's name, the problem and the suggested action.
    """
    return tuple(
        (
            log.topic,
            f"Table {log.store} is restored from topic {log.topic}, which has {said}: Kafka would delete rows of it.",
            f"Set `cleanup.policy=compact` on {log.topic}. Or declare the table without `changelog='source'`.",
        )
        for log in topology.source_logs
        if (said := _limits_of_rows(facts.get(log.topic)))
    )


def lost_records(topology: Topology, starts: Mapping[str, Mapping[int, int]]) -> tuple[str, ...]:
    """Returns a warning and an action for each topic that restores a table but has lost its first records.

    ``starts`` has the first offset of each partition. Compaction does not change the first offset, so a first offset
    above 0 means that records were deleted. A restore from the topic would lack the rows of the deleted records.
    """
    found = []
    for log in topology.source_logs:
        lost = [f"{start} in partition {number}" for number, start in sorted(starts[log.topic].items()) if start > 0]
        if lost:
            found.append(
                f"Topic {log.topic}, from which table {log.store} is restored, begins at offset {', '.join(lost)}, "
                "expected 0: its first records were deleted. Where local state is lost and no checkpoint has it, the "
                "restore will be refused. Declare the table without `changelog='source'` and deploy: the changelog is "
                "filled from local state."
            )
    return tuple(found)


def _compaction_lag_ms(seen: TopicFacts) -> int:
    return int(seen.config.get("min.compaction.lag.ms", "0"))


def _limits_of_rows(seen: TopicFacts | None) -> str:
    """Returns the configuration entries by which Kafka may delete the only record of a row, as one text.

    Returns an empty text for a topic whose rows Kafka does not delete.
    """
    if seen is None:
        return ""
    policy = seen.config.get("cleanup.policy", "delete")
    retention = {entry: seen.config.get(entry, default) for entry, default in _RETENTION.items()}
    bounds = {entry: value for entry, value in retention.items() if value != "-1"}
    limits = {"cleanup.policy": policy, **bounds} if "delete" in policy.split(",") and bounds else {}
    return ", ".join(f"{entry}={value}" for entry, value in limits.items())
