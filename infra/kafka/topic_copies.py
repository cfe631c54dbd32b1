"""A topic as files, and back: what its archive holds, and what it is put back from.

    partition-<n>.jsonl.gz      a line of JSON for each record: offset, timestamp_ms, key, value, headers (Base64)

Invariants:
    - Copying only reads: committed records, up to an end that no open transaction holds back.
    - What is put back has the partition, order, key, value, headers and timestamp that it had; offsets count from 0, so
      that a partition's end offset says how many of its records are back.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.client import admin_client, library_logger
from holdfast.infra.kafka.errors import BrokerUnreachable, KafkaFailed
from holdfast.infra.kafka.producer import BATCH_BYTES_MAX
from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.records import Headers, Record
from holdfast.infra.kafka.topics import Topics

#: The largest record that the client library takes; what was in a topic has to go into it again.
RECORD_BYTES_MAX = 1_000_000_000
#: How long the last records may take to be acknowledged, in seconds.
FLUSH_TIMEOUT_S = 60.0
#: After so many records it is looked at what was acknowledged.
POLL_EVERY = 1_000
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class CopyUnreadable(HoldfastError):
    """A file of a topic's archive is not there, damaged, or of another version."""


class _Line(msgspec.Struct, omit_defaults=True):
    """One record as a line; bytes are Base64."""

    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None


def file_of(partition: int) -> str:
    """The name of a partition's file."""
    return f"partition-{partition}.jsonl.gz"


def own_config(topics: Topics, name: str) -> dict[str, str]:
    """The configuration that was set for this very topic, without what it takes from the brokers."""
    admin = admin_client(topics.bootstrap, topics.client_config)
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        (entries,) = [future.result(20) for future in admin.describe_configs([resource]).values()]
    except KafkaException as failure:
        raise KafkaFailed(
            f"The configuration of topic {name} can't be read: {failure.args[0].str()}.",
            action="Check that the topic is there, and the rights of this client.",
            topic=name,
        ) from failure
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {entry.name: entry.value for entry in entries.values() if entry.source == own and entry.value is not None}


def copy_partition(topics: Topics, topic: str, partition: int, offsets: tuple[int, int], file: Path) -> int:
    """Write the committed records of an offset range to a new file, and have it survive the machine; how many.

    Raises:
        KafkaFailed: The range can't be read.
        OSError: The file can't be written.
    """
    encoder, count = msgspec.json.Encoder(), 0
    records = read_range(topics.bootstrap, topic, partition, *offsets, extra_config=topics.client_config)
    with file.open("wb") as raw:
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0) as packed:
            for each in records:
                headers: Any = each.headers  # values may be null, whatever the library says
                packed.write(encoder.encode(_Line(each.offset, each.timestamp_ms, each.key, each.value, headers)))
                packed.write(b"\n")
                count += 1
        raw.flush()
        os.fsync(raw.fileno())
    return count


def copied_records(file: Path) -> Iterator[Record]:
    """The records of a file, in order.

    Raises:
        CopyUnreadable: It is damaged, or not there.
    """
    decoder = msgspec.json.Decoder(_Line)
    try:
        with gzip.open(file, "rb") as lines:
            for line in lines:
                found = decoder.decode(line)
                headers: Any = found.headers
                yield Record(found.key, found.value, found.offset, found.timestamp_ms, headers)
    except (OSError, EOFError, msgspec.MsgspecError) as failure:
        raise CopyUnreadable(
            f"{file} can't be read: {failure}.",
            action="Take the archive from a backup of its folder; an older archive of the topic may lie beside it.",
            path=str(file),
        ) from failure


def write_records(
    topics: Topics, topic: str, records: Mapping[int, Iterable[Record]], batch_bytes: int = BATCH_BYTES_MAX
) -> None:
    """Write records to the partitions that they were in, in their order; returns when all are acknowledged.

    Args:
        topics: The cluster.
        topic: The topic, which is there.
        records: By partition.
        batch_bytes: What the topic takes in one batch.

    Raises:
        KafkaFailed: A record was refused.
        BrokerUnreachable: Some were not answered in time.
    """
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None and error.code() not in _PURGED:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": topics.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": min(batch_bytes, BATCH_BYTES_MAX),
            "message.max.bytes": RECORD_BYTES_MAX,
            "reconnect.backoff.max.ms": 1000,
            **topics.client_config,
            "on_delivery": delivered,
        },
        logger=library_logger(),
    )
    try:
        for partition, each in sorted(records.items()):
            for number, record in enumerate(each):
                _produce(producer, topic, partition, record)
                if number % POLL_EVERY == 0:
                    producer.poll(0)
                    _check(refused, topic)
        left = producer.flush(FLUSH_TIMEOUT_S)
        _check(refused, topic)
    finally:
        producer.purge()  # only what an error left
        producer.flush(0.2)
    if left:
        raise BrokerUnreachable(
            f"{left} records put back into {topic} were not acknowledged within {FLUSH_TIMEOUT_S:g} s.",
            action="Check that the brokers run, then put the topic back again: it goes on where it was.",
            topic=topic,
        )


def _produce(producer: Producer, topic: str, partition: int, record: Record) -> None:
    headers: Headers = record.headers
    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                timestamp=max(record.timestamp_ms, 0),
                headers=headers or [],
            )
            return
        except BufferError:
            producer.poll(0.1)
        except KafkaException as failure:
            _check([failure.args[0]], topic)


def _check(refused: list[KafkaError], topic: str) -> None:
    if refused:
        error = refused[0]
        raise KafkaFailed(
            f"A record was not put back into {topic}: {error.name()} ({error.str()}).",
            action="Check the topic's size limit and the rights of this client, then put the topic back again.",
            topic=topic,
            error=error.name(),
        )
