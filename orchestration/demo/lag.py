"""How many messages the demo's processors have still to process, by the offsets that Kafka has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics import Topics
from holdfast.processors.registration import ProcessorDefinition


def lag_of(topics: Topics, definitions: Sequence[ProcessorDefinition]) -> int:
    """The offsets of their sources that they have not committed; if there are none, the messages of repartition topics.

    The end of a repartition topic is behind watermarks, which come without end, and behind the marker of its last
    transaction, which is no record and no offset to commit. So its records are read.
    """
    lag, grouped = 0, []
    for one in definitions:
        committed = topics.committed_offsets(one.name)
        sources = {spec.name for spec in one.topology.sources}
        lag -= sum(offset for place, offset in committed.items() if place.topic in sources)
        lag += sum(sum(topics.end_offsets(name, committed=True).values()) for name in sources)
        grouped += [(place, offset) for place, offset in committed.items() if one.topology.is_repartition(place.topic)]
    return lag or sum(1 for place, offset in grouped for _ in _behind(topics, place, offset))


def _behind(topics: Topics, place: Partition, offset: int) -> Iterator[Record]:
    end = topics.end_offsets(place.topic, committed=True)[place.number]
    found = read_range(topics.bootstrap, place.topic, place.number, offset, end)
    return (record for record in found if record.key is not None)
