"""How many messages the demo's processors have still to process, by the offsets that Kafka has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics import Topics
from holdfast.processors.application.registration import ProcessorDefinition


def lag_of(topics: Topics, definitions: Sequence[ProcessorDefinition]) -> int:
    """The offsets of their sources that they have not committed; if there are none, the messages of repartition topics.

    The end of a repartition topic is behind watermarks, which come without end, and behind the marker of its last
    transaction, which is no record and no offset to commit. So its records are read.
    """
    lag, grouped = 0, list[tuple[str, Mapping[Partition, int]]]()
    for one in definitions:
        committed = topics.committed_offsets(one.name)
        sources = {spec.name for spec in one.topology.sources}
        lag -= sum(offset for place, offset in committed.items() if place.topic in sources)
        lag += sum(sum(topics.end_offsets(name, committed=True).values()) for name in sources)
        grouped += [(spec.topic, committed) for spec in one.topology.repartitions]
    return lag or sum(1 for topic, committed in grouped for _ in _behind(topics, topic, committed))


def _behind(topics: Topics, topic: str, committed: Mapping[Partition, int]) -> Iterator[Record]:
    """The messages of a repartition topic that are not committed: all, where nothing is."""
    starts = topics.start_offsets(topic)
    for number, end in topics.end_offsets(topic, committed=True).items():
        first = committed.get(Partition(topic, number), starts[number])
        found = read_range(topics.bootstrap, topic, number, first, end)
        yield from (record for record in found if record.key is not None)
