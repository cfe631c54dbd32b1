"""Fills source topics with messages, and changelogs with the records that each contender would have written.

Each partition of a seeded source has one message before the committed offset, so it counts as processed. The changelogs
hold the state after that message.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from holdfast import Application
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.aggregates import aggregation
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta, encode_value, key_prefix
from tests.bench import ours_builtin
from tests.bench.contenders import Work
from tests.bench.ours import STATE_KEY, application_of
from tests.bench.stream import FIRST_TIMESTAMP_MS, PARTITIONS, SeededState, key_of

_STREAMS_STATE = struct.Struct(">qddd")
#: Topic settings that prevent log compaction between two runs.
_KEPT = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.99",
    "min.compaction.lag.ms": "864000000",
    "max.compaction.lag.ms": str(2**63 - 1),
}

#: How long to wait until the broker has a group coordinator, in seconds.
COORDINATOR_WITHIN_S = 60.0

Row = tuple[str, int, bytes, bytes, Any]


def fill(bootstrap: str, rows: Iterable[Row], first_ms: int | None = None, step_ms: int = 1) -> None:
    """Produce rows of topic, partition, key, value and headers.

    Args:
        bootstrap: The broker.
        rows: The records.
        first_ms: The timestamp of the first record; None uses the present time for all.
        step_ms: The difference between the timestamps of consecutive records.

    Raises:
        KafkaException: The broker refused a record.
    """
    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
            "compression.type": "lz4",
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failed.append(error),
        }
    )
    for number, (topic, partition, key, value, headers) in enumerate(rows):
        time_ms = 0 if first_ms is None else first_ms + number * step_ms  # the client replaces 0 by the present time
        while True:
            try:
                producer.produce(topic, value, key, partition, timestamp=time_ms, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120) or failed:
        raise KafkaException(failed[0] if failed else "records were not acknowledged")


def seed(contender: str, work: Work, topics: Topics, state: SeededState) -> None:
    """Write the whole ``state`` to a contender's changelog, and commit the contender's input offsets."""
    topic, rows = _SEEDS[contender](work, topics, state)
    kept = {**(CHANGELOG_CONFIG if contender.startswith("ours") else {}), **_KEPT}
    topics.create(TopicSpec(topic, PARTITIONS, 1, kept))
    fill(work.bootstrap, rows)
    consumer = Consumer({"bootstrap.servers": work.bootstrap, "group.id": work.group, "enable.auto.commit": False})
    done = [TopicPartition(work.source, number, 1) for number in range(PARTITIONS)]
    _commit(consumer, done)
    consumer.close()


def _commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    """Commit offsets; retry while a new broker has no group coordinator yet."""
    deadline = time.monotonic() + COORDINATOR_WITHIN_S
    while True:
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            return
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def first_of_each_partition(source: str) -> list[Row]:
    """Return one message for each partition.

    The committed offsets are after these messages, so they count as processed.
    """
    return [(source, number, key_of(number), b"{}", None) for number in range(PARTITIONS)]


def _totals(times: int, total: float, least: float, most: float) -> Mapping[str, Any]:
    return {"count": times, "total": total, "min": least, "max": most}


def _ours(work: Work, topics: Topics, state: SeededState) -> tuple[str, Iterable[Row]]:
    values = ((user, _totals(*totals)) for user, *totals in state.items())
    return _of_the_engine(work, topics, application_of(work), STATE_KEY, values)


def _ours_builtin(work: Work, topics: Topics, state: SeededState) -> tuple[str, Iterable[Row]]:
    values = ((user, ours_builtin.stored(key_of(user).decode(), *totals)) for user, *totals in state.items())
    return _of_the_engine(work, topics, application_of(work, ours_builtin.add_up), aggregation.STATE_KEY, values)


def _of_the_engine(
    work: Work,
    topics: Topics,
    application: Application,
    state_key: str,
    values: Iterable[tuple[int, Mapping[str, Any]]],
) -> tuple[str, Iterable[Row]]:
    topology = application.topology()
    topic = topology.changelogs[0].topic.name
    sources = {work.source: topics.describe([work.source])[work.source].topic_id}
    meta = ChangelogMeta({work.source: 1}, 1, topology.code_version, sources).encode()

    def rows() -> Iterable[Row]:
        suffix = state_key.encode()
        for user, value in values:
            key = key_prefix(key_of(user)) + suffix
            yield topic, user % PARTITIONS, key, encode_value(value, FIRST_TIMESTAMP_MS), None
        for number in range(PARTITIONS):
            yield topic, number, META_KEY, meta, None

    return topic, rows()


def rows_of_ours(work: Work, topics: Topics, state: SeededState) -> Iterable[Row]:
    """Yield the changelog records of this state in the engine's format.

    The record with the offsets is last in each partition.
    """
    return _ours(work, topics, state)[1]


def _quix(work: Work, _: Topics, state: SeededState) -> tuple[str, Iterable[Row]]:
    topic = f"changelog__{work.group}--{work.source}--default"
    processed = json.dumps({work.source: 0}, separators=(",", ":")).encode()
    headers = [("__column_family__", b"default"), ("__processed_tp_offsets__", processed)]
    # Both parts of a key are JSON strings, because the function gets strings.
    form, encode = b'"%s"|"' + STATE_KEY.encode() + b'"', msgspec.json.Encoder().encode
    return topic, (
        (topic, user % PARTITIONS, form % key_of(user), encode(_totals(*totals)), headers)
        for user, *totals in state.items()
    )


def _streams(work: Work, _: Topics, state: SeededState) -> tuple[str, Iterable[Row]]:
    topic = f"{work.group}-totals-changelog"
    return topic, (
        (topic, user % PARTITIONS, key_of(user), _STREAMS_STATE.pack(*totals), None) for user, *totals in state.items()
    )


def _floor(work: Work, _: Topics, state: SeededState) -> tuple[str, Iterable[Row]]:
    return work.changelog, (
        (work.changelog, user % PARTITIONS, key_of(user), encode_value(_totals(*totals), FIRST_TIMESTAMP_MS), None)
        for user, *totals in state.items()
    )


_SEEDS: Mapping[str, Callable[[Work, Topics, SeededState], tuple[str, Iterable[Row]]]] = {
    "floor": _floor,
    "ours": _ours,
    "ours-builtin": _ours_builtin,
    "quix": _quix,
    "streams": _streams,
}
