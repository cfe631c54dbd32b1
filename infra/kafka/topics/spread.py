"""Detects the partitioner that a topic's producers use, from a sample of the topic's newest keys."""

from __future__ import annotations

from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.partitioners import spread_of
from holdfast.infra.kafka.topics.sampling import sample
from holdfast.infra.kafka.topics.topics import Topics

#: Maximum number of newest offsets that are read in each partition.
KEYS_EACH = 200


def spread_in(topics: Topics, topic: str) -> str:
    """The name of the partitioner that matches the newest keys of all partitions, or ``UNKNOWN``, or ``NEITHER``.

    Raises:
        KafkaFailed: The topic can't be read.
    """
    starts, ends = topics.start_offsets(topic), topics.end_offsets(topic, committed=True)
    places = [
        (Partition(topic, number), max(start, ends.get(number, 0) - KEYS_EACH))
        for number, start in sorted(starts.items())
        if ends.get(number, 0) > start
    ]
    windows = sample(topics.bootstrap, places, topics.client_config, records_max=KEYS_EACH)
    keys = ((each.partition.number, record.key) for each in windows for record in each.records)
    return spread_of(((number, key) for number, key in keys if key is not None), len(starts))
