"""Counts misplaced messages: by its key, a misplaced message belongs to another partition of its topic.

The other messages of this key are in that partition, and another task processes them. The two tasks share no state, so
the key's state is split. A task with several inputs infers each input's partitioner from the first keys that it reads::

    keys of orders[3]     ──► murmur2 puts 98 % of them into 3 ──┐
    keys of customers[3]  ──► crc32 puts 99 % of them into 3 ────┴─► by murmur2, most customers are misplaced

If any input uses murmur2, as Java's clients, Kafka Connect and Holdfast do, all keys are checked by murmur2. Otherwise,
keys are checked by crc32 if any input uses crc32. If no input uses one of these two partitioners, for example because a
program chooses the partitions, nothing is counted.

Invariants:
    - A topic with one partition, a record without a key and a repartition topic are never checked.
    - Keys are checked in portions and at each commit, not one by one. A check takes about 0.3 us for each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.infra.kafka.records import TopicFacts
from holdfast.infra.kafka.topics.partitioners import CRC32, MURMUR2, partitions_of
from holdfast.processors.engine.same_partitioner import judged_topics
from holdfast.processors.engine.topology import Topology

#: Minimum number of different keys from which an input's partitioner is inferred. Fewer keys could fit both hashes by
#: chance.
SHOWN_BY = 32
#: Minimum fraction of an input's keys that a partitioner must map to this partition, to be inferred. It is below 1,
#: because a topic contains keys of two partitioners for a long time after a producer was corrected.
SHARE_MIN = 0.9
#: Maximum number of keys that are collected before a check for misplaced keys.
PORTION = 4_096


class Misplaced(NamedTuple):
    """A message in ``partition``, although its key belongs to partition ``belongs`` by the partitioner's hash."""

    topic: str
    partition: int
    key: bytes
    partitioner: str
    belongs: int


def key_places(
    topology: Topology, inputs: Sequence[str], partition: int, facts: Mapping[str, TopicFacts]
) -> KeyPlaces | None:
    """Returns an object that counts the misplaced messages of a task. ``facts`` has the partition counts of its inputs.

    Returns None if no store of the task has several inputs, or if each of these inputs has only one partition.
    """
    shared = {name for store in topology.stores if len(store.inputs) > 1 for name in store.inputs} & set(inputs)
    counts = {name: count for name, count in judged_topics(topology, facts).items() if name in shared}
    grouped = any(map(topology.is_repartition, shared))
    return KeyPlaces(partition, counts, is_grouped=grouped) if counts else None


def partitioner_of(keys: Iterable[bytes], partition: int, count: int) -> str | None:
    """Finds the partitioner (murmur2 or crc32) with which a producer sent ``keys``, all read from one partition.

    It is the partitioner that assigns nearly all of the keys to this partition of a topic with ``count`` partitions.
    Returns None if neither partitioner does.
    """
    seen = list(keys)
    for name in (MURMUR2, CRC32):
        if sum(place == partition for place in partitions_of(name, seen, count)) >= SHARE_MIN * len(seen):
            return name
    return None


def counting_partitioner(by_input: Iterable[str | None]) -> str | None:
    """Returns the partitioner by which keys are checked: murmur2 if an input uses it, else crc32 or None."""
    known = set(by_input)
    return next((name for name in (MURMUR2, CRC32) if name in known), None)


class KeyPlaces:
    """Counts the misplaced messages of one task since the task was opened.

    Args:
        partition: The number of the task's partition.
        counts: Maps each input whose keys are checked to its number of partitions.
        is_grouped: Whether an input is a repartition topic, whose keys Holdfast places by murmur2.
    """

    def __init__(self, partition: int, counts: Mapping[str, int], *, is_grouped: bool = False) -> None:
        self._partition, self._counts = partition, dict(counts)
        #: The different keys that were read so far, for each input whose partitioner is not known yet.
        self._first: dict[str, set[bytes]] = {name: set() for name in counts}
        self._found: dict[str, str | None] = {"group_by": MURMUR2} if is_grouped else {}
        self._waiting: list[tuple[str, list[bytes | None]]] = []
        self._size = 0
        self.count = 0
        #: The newest misplaced message; None if no message was misplaced.
        self.newest: Misplaced | None = None

    def saw(self, topic: str, keys: list[bytes | None]) -> None:
        """Collects the keys of processed messages of one input. ``judge`` later counts the misplaced keys."""
        if topic in self._counts and keys:
            self._waiting.append((topic, keys))
            self._size += len(keys)
            if self._size > PORTION:
                self.judge()

    def judge(self) -> None:
        """Counts the misplaced keys among the collected keys, once a partitioner is known for an input.

        Until then, the keys stay collected, but at most ``PORTION`` keys.
        """
        for topic, keys in self._waiting if self._first else ():
            self._look(topic, keys)
        by = counting_partitioner(self._found.values())
        if by is not None:
            for topic, keys in self._waiting:
                self._count(by, topic, [key for key in keys if key is not None])
        if by is not None or not self._first or self._size > PORTION:
            self.forget()

    def forget(self) -> None:
        """Drops the collected keys: they were checked, or can't be checked, or their messages will be read again."""
        self._waiting.clear()
        self._size = 0

    def _look(self, topic: str, keys: Iterable[bytes | None]) -> None:
        first = self._first.get(topic)
        if first is None:
            return
        first.update(key for key in keys if key is not None)
        if len(first) >= SHOWN_BY:
            self._found[topic] = partitioner_of(first, self._partition, self._counts[topic])
            del self._first[topic]

    def _count(self, by: str, topic: str, keys: Sequence[bytes]) -> None:
        places = partitions_of(by, keys, self._counts[topic])
        wrong = [index for index, place in enumerate(places) if place != self._partition]
        self.count += len(wrong)
        if wrong:
            last = wrong[-1]
            self.newest = Misplaced(topic, self._partition, keys[last], by, places[last])
