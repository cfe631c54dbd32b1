"""Samples of a long log: short runs of records at given offsets.

Invariants:
    - Records for each place and seconds altogether are bounded; places that were not reached are left out.
    - Only committed records are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.infra.kafka.reader import RangeReader
from holdfast.infra.kafka.records import ClientConfig, Partition
from holdfast.infra.waiting import Deadline

#: Most records that are read at one place.
RECORDS_MAX = 500
#: Longest time at one place, seconds.
PLACE_S = 5.0
#: ``fetch.message.max.bytes``: short runs need small fetches.
FETCH_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Sampled:
    """One record without its value; ``deletes`` marks a tombstone."""

    offset: int
    key: bytes | None
    timestamp_ms: int
    deletes: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """The records from ``offset`` up to ``end``, the first offset that was not read."""

    partition: Partition
    offset: int
    end: int
    records: tuple[Sampled, ...]

    @property
    def density(self) -> float:
        """Records divided by offsets: 1 where compaction removed nothing."""
        return min(1.0, len(self.records) / max(1, self.end - self.offset))


def sample(
    bootstrap: str,
    places: Iterable[tuple[Partition, int]],
    config: ClientConfig | None = None,
    *,
    records_max: int = RECORDS_MAX,
    timeout_s: float = 30.0,
) -> tuple[Window, ...]:
    """Up to ``records_max`` records at each place (a partition and an offset), in the order of the places.

    If the offset of a place was deleted, reading starts at the first existing offset.

    Raises:
        AccessRefused: This client may not read the topic.
        KafkaFailed: A place can't be read.
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
