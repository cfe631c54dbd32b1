"""A bounded read of one partition: from an offset to an offset, then stop.

Used for audits and tests, never by the running engine. Stops rightly when the range ends in control records,
aborted records or records that compaction has taken (position, end of partition and offsets are all looked at).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from infra.kafka.client import library_logger
from infra.kafka.errors import KafkaFailed
from infra.kafka.records import Record

#: A read that gets nothing new for so many seconds is given up.
NO_PROGRESS_S = 60.0


def read_range(
    bootstrap: str,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    committed: bool = True,
    extra_config: Mapping[str, str | int | float | bool] | None = None,
) -> Iterator[Record]:
    """Yield the records of ``[start, end)`` of one partition, in order.

    Args:
        bootstrap: Kafka's bootstrap servers.
        topic: The topic to read.
        partition: The partition to read.
        start: The first offset.
        end: The offset to stop before; at most the last stable offset when ``committed``.
        committed: Leave out the records of open and aborted transactions.
        extra_config: Security settings.

    Raises:
        KafkaFailed: The range can't be read (gone, refused, or no progress for a minute).
    """
    if start >= end:
        return
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "holdfast-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 50,
            **(extra_config or {}),
        },
        logger=library_logger(),
    )
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        yield from _records(consumer, topic, partition, end)
    finally:
        consumer.close()


def _records(consumer: Consumer, topic: str, partition: int, end: int) -> Iterator[Record]:
    progress = time.monotonic()
    last = -1
    while True:
        for message in consumer.consume(5000, 0.2):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    return
                if error.code() != KafkaError._PARTITION_EOF and not error.retriable():
                    raise KafkaFailed(
                        f"Reading {topic}[{partition}] up to {end} failed: {error.str()}.",
                        action="Read a range that is still there; see the topic's start offsets.",
                        topic=topic,
                        partition=partition,
                    )
                continue
            if message.offset() >= end:
                return
            last = message.offset()
            progress = time.monotonic()
            yield Record(message.key(), message.value(), last, message.timestamp()[1], message.headers())
        position = consumer.position([TopicPartition(topic, partition)])[0].offset
        if position >= end:
            return
        if time.monotonic() - progress > NO_PROGRESS_S:
            raise KafkaFailed(
                f"Reading {topic}[{partition}] got no further than offset {max(last, position)} of {end}.",
                action="Look for a hanging transaction on the topic, or for a truncated log.",
                topic=topic,
                partition=partition,
                position=position,
            )
