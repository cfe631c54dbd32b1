"""Reads a few records of a topic for display: the newest records, or the first records from given offsets on.

Invariants:
    - Only committed records are read, without a consumer group.
    - A read stops at the end offsets that the topic had when the read started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics.reader import read_range_for_proof
from holdfast.infra.kafka.topics.topics import Topics

#: Number of offsets that are read for each wanted record at first. It is more than one, because transaction markers and
#: compaction leave offsets without a record.
OFFSETS_EACH = 4
#: Factor for the number of offsets in the next read, if a read found too few records.
WIDER = 16

#: A record, and the partition from which it was read.
Found = tuple[Partition, Record]
#: Function that reads the records of a partition from a start offset up to, but not including, an end offset.
Read = Callable[[Partition, int, int], Iterator[Record]]


def newest_of(topics: Topics, topic: str, count: int) -> list[Found]:
    """The newest ``count`` records of a topic, oldest first; fewer if the topic has fewer records."""
    starts, ends = topics.start_offsets(topic), topics.end_offsets(topic, committed=True)
    read = _reader(topics)
    found = [
        (Partition(topic, number), record)
        for number, end in sorted(ends.items())
        for record in _newest(read, Partition(topic, number), (starts.get(number, 0), end), count)
    ]
    return sorted(found, key=_by_time)[-count:]


def first_of(topics: Topics, topic: str, count: int, starts: Mapping[int, int]) -> list[Found]:
    """The first ``count`` records of a topic from the offsets ``starts`` (partition -> offset) on, oldest first."""
    ends, read = topics.end_offsets(topic, committed=True), _reader(topics)
    found = [
        (Partition(topic, number), record)
        for number, end in sorted(ends.items())
        for record in islice(read(Partition(topic, number), starts.get(number, 0), end), count)
    ]
    return sorted(found, key=_by_time)[:count]


def _newest(read: Read, place: Partition, held: tuple[int, int], count: int) -> list[Record]:
    """Returns the newest ``count`` records of one partition.

    ``held`` is the partition's first offset and end offset.
    """
    first, end = held
    offsets = count * OFFSETS_EACH
    while True:
        start = max(first, end - offsets)
        found = list(read(place, start, end))
        if len(found) >= count or start == first:
            return found[-count:]
        offsets *= WIDER


def _reader(topics: Topics) -> Read:
    def read(place: Partition, start: int, end: int) -> Iterator[Record]:
        config = topics.client_config
        return read_range_for_proof(topics.bootstrap, *place, start, end, extra_config=config)

    return read


def _by_time(found: Found) -> tuple[int, Partition, int]:
    place, record = found
    return record.timestamp_ms, place, record.offset
