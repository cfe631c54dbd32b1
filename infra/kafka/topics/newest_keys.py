"""Reads the keys of the newest records of topics: a sample that shows which partitioner the producers use.

Invariants:
    - The sample has a maximum number of partitions, records and seconds. Partitions not reached in time are left out.
    - A topic that this client has no right to read is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, TopicPartition

from holdfast.infra.kafka.clients.client import library_logger
from holdfast.infra.kafka.clients.rights import REFUSALS
from holdfast.infra.kafka.records import ClientConfig, KeysOf, Partition
from holdfast.infra.waiting import Deadline

#: Maximum number of partitions of a topic, and of newest records of each partition, in a sample.
PARTITIONS_MAX = 16
RECORDS_EACH = 100
#: Maximum seconds for all topics together. It is short, because each start of a worker waits for the sample.
SAMPLE_S = 3.0
_POLL_S = 0.02


def newest_keys(
    bootstrap: str,
    config: ClientConfig,
    starts: Mapping[str, Mapping[int, int]],
    ends: Mapping[str, Mapping[int, int]],
) -> dict[str, KeysOf]:
    """Topic -> partition -> distinct keys of its newest committed records.

    Args:
        bootstrap: Bootstrap servers.
        config: Security settings of the client.
        starts: Topic -> partition -> first offset.
        ends: Topic -> partition -> last stable offset (end of the committed records).
    """
    places = {
        Partition(topic, number): max(start, ends[topic].get(number, 0) - RECORDS_EACH)
        for topic, offsets in starts.items()
        for number, start in _spread(offsets).items()
        if ends[topic].get(number, 0) > start
    }
    if not places:
        return {}
    consumer = Consumer(
        {
            "fetch.message.max.bytes": 256 * 1024,
            "queued.max.messages.kbytes": 16 * 1024,
            **config,
            "bootstrap.servers": bootstrap,
            "group.id": "holdfast-reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        },
        logger=library_logger(),
    )
    try:
        return _read(consumer, places)
    finally:
        consumer.close()


def _read(consumer: Consumer, places: Mapping[Partition, int]) -> dict[str, KeysOf]:
    consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in places.items()])
    found: dict[str, dict[int, set[bytes]]] = {}
    unread, unreadable, deadline = set(places), set[str](), Deadline(SAMPLE_S)
    while unread and not deadline.passed:
        for message in consumer.consume(RECORDS_EACH, _POLL_S):
            place, error, key = Partition(message.topic(), message.partition()), message.error(), message.key()
            if error is None:
                if key is not None:
                    found.setdefault(place.topic, {}).setdefault(place.number, set()).add(key)
                if message.offset() - places[place] >= RECORDS_EACH - 1:
                    unread.discard(place)
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(place)
            elif error.code() in REFUSALS and place.topic is not None:
                unreadable.add(place.topic)
                unread = {each for each in unread if each.topic != place.topic}
    return {
        topic: {number: frozenset(keys) for number, keys in of.items()}
        for topic, of in found.items()
        if topic not in unreadable
    }


def _spread(offsets: Mapping[int, int]) -> dict[int, int]:
    """Chooses at most ``PARTITIONS_MAX`` partitions of a topic, evenly spread over its partition numbers."""
    numbers = sorted(offsets)
    step = -(-len(numbers) // PARTITIONS_MAX) or 1
    return {number: offsets[number] for number in numbers[::step]}
