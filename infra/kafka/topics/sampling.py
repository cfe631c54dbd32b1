"""Reads samples of long topics: a limited number of records at given offsets.

Invariants:
    - The number of records for each offset, and the seconds for all offsets together, have a maximum. Offsets that are
      not reached in time are left out.
    - Only committed records are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.infra.kafka.records import ClientConfig, Partition
from holdfast.infra.kafka.topics.reader import RangeReader
from holdfast.infra.waiting import Deadline

#: Maximum number of records that are read at one offset.
RECORDS_MAX = 500
#: Maximum seconds for reading at one offset.
PLACE_S = 5.0
#: ``fetch.message.max.bytes``; it is small, because only few records are needed.
FETCH_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Sampled:
    """One record without its value; ``deletes`` is True for a tombstone. ``size_bytes`` counts key and value."""

    offset: int
    key: bytes | None
    timestamp_ms: int
    deletes: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """The sampled records of a partition with offsets from ``offset`` up to, but not including, ``end``."""

    partition: Partition
    offset: int
    end: int
    records: tuple[Sampled, ...]

    @property
    def density(self) -> float:
        """Number of records divided by number of offsets; 1 if compaction removed no record."""
        return min(1.0, len(self.records) / max(1, self.end - self.offset))


def sample(
    bootstrap: str,
    places: Iterable[tuple[Partition, int]],
    config: ClientConfig | None = None,
    *,
    records_max: int = RECORDS_MAX,
    timeout_s: float = 30.0,
) -> tuple[Window, ...]:
    """Read up to ``records_max`` records at each of the ``places`` (partition, offset); one window for each place.

    If an offset was deleted, reading starts at the first existing offset. ``timeout_s`` applies to all places together.

    Raises:
        AccessRefused: This client may not read the topic.
        KafkaFailed: A partition can't be read.
    """
    wanted = list(places)
    if not wanted:
        return ()
    deadline = Deadline(timeout_s)
    settings = {
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
        "fetch.message.max.bytes": FETCH_BYTES,
        "queued.max.messages.kbytes": 1024,
    }
    with RangeReader(bootstrap, config, settings=settings) as reader:
        windows = (_window(reader, *each, records_max, deadline) for each in wanted)
        return tuple(window for window in windows if window is not None)


def _window(reader: RangeReader, place: Partition, offset: int, records_max: int, deadline: Deadline) -> Window | None:
    if deadline.passed:
        return None
    reader.move_to(place, offset)
    records: list[Sampled] = []
    here = Deadline(min(PLACE_S, deadline.left_s))
    while len(records) < records_max and not here.passed:
        messages, met = reader.poll(records_max - len(records))
        for message in messages:
            key, value = message.key(), message.value()
            size = len(key or b"") + len(value or b"")
            records.append(Sampled(message.offset(), key, message.timestamp()[1], value is None, size))
        if met is not None:
            return Window(place, offset, max(offset, met), tuple(records))
    return Window(place, offset, records[-1].offset + 1, tuple(records)) if records else None
