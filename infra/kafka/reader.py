"""A bounded read of one partition: from an offset to an offset, then stop.

Used for audits and tests, never by the running engine. Stops rightly when the range ends in control records,
aborted records or records that compaction has taken (position, end of partition and offsets are all looked at).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from holdfast.infra.kafka.client import library_logger
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Batch, Partition, Record
from holdfast.infra.kafka.rights import WITHOUT_A_GROUP, principal_of, refusal_of

#: A read that gets nothing new for so many seconds is given up.
NO_PROGRESS_S = 60.0
#: Of the client, so many messages are asked for at once.
MESSAGES_AT_ONCE = 5_000


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
    for messages in _message_range(bootstrap, Partition(topic, partition), start, end, committed, extra_config or {}):
        for message in messages:
            yield Record(message.key(), message.value(), message.offset(), message.timestamp()[1], message.headers())


def read_batches(
    bootstrap: str,
    partition: Partition,
    start: int,
    end: int,
    *,
    extra_config: Mapping[str, str | int | float | bool] | None = None,
    places: bool = False,
) -> Iterator[Batch]:
    """The same as ``read_range``, committed records only, many at once: keys and values, without headers.

    Args:
        bootstrap: Kafka's bootstrap servers.
        partition: The partition to read.
        start: The first offset.
        end: The offset to stop before.
        extra_config: Security settings.
        places: Whether offsets and timestamps are wanted, too; else these lists are empty.

    Raises:
        KafkaFailed: See ``read_range``.
    """
    for messages in _message_range(bootstrap, partition, start, end, True, extra_config or {}):
        batch = Batch(partition, [each.key() for each in messages], [each.value() for each in messages])
        if places:
            batch.offsets = [each.offset() for each in messages]
            batch.timestamps = [each.timestamp()[1] for each in messages]
        yield batch


def _message_range(
    bootstrap: str,
    place: Partition,
    start: int,
    end: int,
    committed: bool,
    extra_config: Mapping[str, str | int | float | bool],
) -> Iterator[list[Message]]:
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
            **extra_config,
        },
        logger=library_logger(),
    )
    try:
        consumer.assign([TopicPartition(place.topic, place.number, start)])
        yield from _messages(consumer, place, end, principal_of(extra_config))
    finally:
        consumer.close()


def _messages(consumer: Consumer, place: Partition, end: int, principal: str) -> Iterator[list[Message]]:
    """Records below ``end``, in order; never an empty list."""
    topic, partition = place
    progress = time.monotonic()
    last = -1
    while True:
        messages, over = [], False
        for message in consumer.consume(MESSAGES_AT_ONCE, 0.2):
            error = message.error()
            if error is None:
                messages.append(message)
            else:
                over = over or (error.code() == KafkaError._PARTITION_EOF and message.offset() >= end)
                _check(error, place, end, principal)
        if messages and messages[-1].offset() >= end:
            messages, over = [message for message in messages if message.offset() < end], True
        if messages:
            last = messages[-1].offset()
            progress = time.monotonic()
            yield messages
        if over:
            return
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


def _check(error: KafkaError, place: Partition, end: int, principal: str) -> None:
    """Nothing for what passes or is no error at all; else what it means."""
    if error.code() == KafkaError._PARTITION_EOF or error.code() in WITHOUT_A_GROUP or error.retriable():
        return
    topic, partition = place
    missing = refusal_of(error, f"read {topic}[{partition}]", principal, operation="Read", names={"topic": topic})
    if missing is not None:
        raise missing
    raise KafkaFailed(
        f"Reading {topic}[{partition}] up to {end} failed: {error.str()}.",
        action="Read a range that is still there; see the topic's start offsets.",
        topic=topic,
        partition=partition,
    )
