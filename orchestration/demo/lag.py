"""Computes the lag of the demo's processors from committed offsets and end offsets in Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.application.registration import ProcessorDefinition


def lag_of(topics: Topics, definitions: Sequence[ProcessorDefinition]) -> int:
    """The number of unprocessed messages in source topics; if it is 0, the number of those in repartition topics.

    The lag of a repartition topic can't be computed from its end offset, because watermarks arrive all the time, and
    transaction markers take offsets. So the messages after the topic's committed offset are read and counted.
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
    """The messages of a repartition topic after the committed offsets; without a committed offset, all messages."""
    starts = topics.start_offsets(topic)
    for number, end in topics.end_offsets(topic, committed=True).items():
        first = committed.get(Partition(topic, number), starts[number])
        found = read_range(topics.bootstrap, topic, number, first, end)
        yield from (record for record in found if record.key is not None)
