"""Copies the records of a topic into files of an archive, and writes the records of these files to a topic again.

    partition-<n>.jsonl.gz      one line of JSON for each record: offset, timestamp_ms, key, value, headers (Base64)

Invariants:
    - A copy has the committed records up to an end offset, before which no transaction is open. Copying only reads.
    - A restored record keeps partition, order, key, value, headers and timestamp. Offsets start at 0 again, so the end
      offset of a partition is the number of its restored records.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.clients.client import admin_client
from holdfast.infra.kafka.clients.feeder import Feeder
from holdfast.infra.kafka.clients.producer import BATCH_BYTES_MAX
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Record
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics

#: Maximum size of a record that librdkafka can send, bytes; used because the archive may have very large records.
RECORD_BYTES_MAX = 1_000_000_000
#: Number of records after which the acknowledgements that have arrived are checked.
POLL_EVERY = 1_000
#: Timeout of the request for a topic's configuration, seconds.
DESCRIBE_WITHIN_S = 20.0


class CopyUnreadable(HoldfastError):
    """A file in the archived copy of a topic is missing, damaged, or has another format."""


class _Line(msgspec.Struct, omit_defaults=True):
    """One record as a line of JSON; key, value and header values are Base64."""

    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None


def file_of(partition: int) -> str:
    """The name of the file with the archived records of a partition."""
    return f"partition-{partition}.jsonl.gz"


def own_config(topics: Topics, name: str) -> dict[str, str]:
    """The configuration entries that were set on this topic, without entries inherited from the brokers.

    Raises:
        KafkaFailed: The topic does not exist, or Kafka refused the request.
    """
    admin = admin_client(topics.bootstrap, topics.client_config)
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        (entries,) = [future.result(DESCRIBE_WITHIN_S) for future in admin.describe_configs([resource]).values()]
    except KafkaException as failure:
        raise KafkaFailed(
            f"Kafka did not describe the configuration of topic {name}: {failure.args[0].str()}.",
            action="Check that the topic exists, and that this client has the right `DescribeConfigs` on it.",
            topic=name,
        ) from failure
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {entry.name: entry.value for entry in entries.values() if entry.source == own and entry.value is not None}


def copy_partition(topics: Topics, topic: str, partition: int, offsets: tuple[int, int], file: Path) -> int:
    """Write the committed records of an offset range (start, end) to a new file; returns the number of records.

    The file is synced to the disk.

    Raises:
        KafkaFailed: The range can't be read.
        OSError: The file can't be written.
    """
    records = read_range(topics.bootstrap, topic, partition, *offsets, extra_config=topics.client_config)
    return write_copy(records, file)


def write_copy(records: Iterable[Record], file: Path) -> int:
    """Write records to a new file of an archived topic, and sync it to the disk; returns the number of records."""
    encoder, count = msgspec.json.Encoder(), 0
    with file.open("wb") as raw:
        with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0) as packed:
            for each in records:
                headers: Any = each.headers  # `Any`: a header's value may be None, against the library's types
                packed.write(encoder.encode(_Line(each.offset, each.timestamp_ms, each.key, each.value, headers)))
                packed.write(b"\n")
                count += 1
        raw.flush()
        os.fsync(raw.fileno())
    return count


def copied_records(file: Path) -> Iterator[Record]:
    """Yields the records in a file of an archived topic, in order.

    Raises:
        CopyUnreadable: The file is missing or damaged.
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
            f"The archive file {file} can't be read: {failure}.",
            action="Restore the archive's folder from a backup, or use an older archive of the topic beside it.",
            path=str(file),
        ) from failure


def write_records(
    topics: Topics, topic: str, records: Mapping[int, Iterable[Record]], batch_bytes: int = BATCH_BYTES_MAX
) -> None:
    """Write the records of each partition to an existing topic, in order; returns when all are acknowledged.

    ``batch_bytes`` is the maximum size of a batch that the topic accepts.

    Raises:
        KafkaFailed: Kafka refused a record.
        BrokerUnreachable: Records were not acknowledged in time.
    """
    settings: dict[str, str | int | float | bool] = {
        "batch.size": min(batch_bytes, BATCH_BYTES_MAX),
        "compression.type": "none",
        "message.max.bytes": RECORD_BYTES_MAX,
        **topics.client_config,
    }
    then = f"Then put {topic} back again: it continues after the records that are there."
    with Feeder(topics.bootstrap, settings, then=then) as feeder:
        for partition, each in sorted(records.items()):
            for number, record in enumerate(each):
                time_ms, headers = max(record.timestamp_ms, 0), record.headers
                feeder.send(topic, record.key, record.value, time_ms, partition=partition, headers=headers)
                if number % POLL_EVERY == 0:
                    feeder.poll()
