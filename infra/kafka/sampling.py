"""Looking into a long log at a few places: short runs of records, from given offsets on.

Invariants:
    - Bounded: so many records a place, so many seconds altogether; what was not come to is left out, never guessed.
    - Committed records only: what was aborted overwrites nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from holdfast.infra.kafka.client import library_logger
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.rights import WITHOUT_A_GROUP, Kind, principal_of, refusal_of

#: Records at one place.
RECORDS_MAX = 500
#: A place that gives nothing for so many seconds is left.
PLACE_S = 5.0
_FETCH_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Sampled:
    """One record, without its value; ``deletes`` when it has none."""

    offset: int
    key: bytes | None
    timestamp_ms: int
    deletes: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """The records from an offset on; ``end`` is the offset after what was looked at, which need not be a record's."""

    partition: Partition
    offset: int
    end: int
    records: tuple[Sampled, ...]

    @property
    def density(self) -> float:
        """Records for each offset: 1 where nothing was compacted."""
        return min(1.0, len(self.records) / max(1, self.end - self.offset))


def sample(
    bootstrap: str,
    places: Iterable[tuple[Partition, int]],
    config: Mapping[str, str | int | float | bool] | None = None,
    *,
    records_max: int = RECORDS_MAX,
    timeout_s: float = 30.0,
) -> tuple[Window, ...]:
    """Read up to ``records_max`` records at each place (a partition and an offset), in their order.

    Raises:
        KafkaFailed: A place can't be read.
    """
    wanted = list(places)
    if not wanted:
        return ()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "holdfast-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "queued.max.messages.kbytes": 1024,
            **(config or {}),
        },
        logger=library_logger(),
    )
    deadline = time.monotonic() + timeout_s
    found = []
    try:
        for place, offset in wanted:
            if time.monotonic() > deadline:
                break
            window = _window(consumer, place, offset, records_max, min(deadline, time.monotonic() + PLACE_S))
            if window is not None:
                found.append(window)
    except KafkaException as failure:
        topic = wanted[0][0].topic
        what = f"look into topic {topic}"
        names: dict[Kind, str] = {"topic": topic}
        missing = refusal_of(failure.args[0], what, principal_of(config or {}), operation="Read", names=names)
        if missing is not None:
            raise missing from failure
        raise KafkaFailed(
            f"{wanted[0][0].topic} could not be looked into: {failure.args[0].str()}.",
            action="Check the rights of this client on the topic (Read).",
            topic=wanted[0][0].topic,
        ) from failure
    finally:
        consumer.close()
    return tuple(found)


def _window(consumer: Consumer, place: Partition, offset: int, records_max: int, deadline: float) -> Window | None:
    consumer.assign([TopicPartition(place.topic, place.number, offset)])
    records: list[Sampled] = []
    while len(records) < records_max and time.monotonic() < deadline:
        for message in consumer.consume(records_max - len(records), 0.2):
            error = message.error()
            if error is None:
                key, value = message.key(), message.value()
                size = len(key or b"") + len(value or b"")
                records.append(Sampled(message.offset(), key, message.timestamp()[1], value is None, size))
            elif error.code() == KafkaError._PARTITION_EOF:
                return Window(place, offset, max(offset, message.offset()), tuple(records))
            elif not error.retriable() and error.code() not in WITHOUT_A_GROUP:
                raise KafkaException(error)
    return Window(place, offset, records[-1].offset + 1, tuple(records)) if records else None
