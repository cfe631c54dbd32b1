"""Checks whether topics that share state put equal keys into partitions with the same number.

The check reads the newest records.

A task reads partition n of all inputs of a store. Java's clients, Kafka Connect and Holdfast choose the partition of a
key by murmur2. confluent-kafka and librdkafka choose it by crc32, unless `partitioner` is set. If two topics have
different partitioners, the messages of one key can reach two tasks, which do not share state.

Invariants:
    - A worker's start is refused only if the keys prove that each topic has one partitioner, and that these
      partitioners differ. Any other difference gives only a warning. The reason is that a topic has keys of two
      partitioners for some time after an operator has corrected the producers.
    - No problem is reported for a topic without keys, or for a topic that this client may not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import KeysOf, TopicFacts
from holdfast.infra.kafka.topics.partitioners import BOTH, CRC32, MURMUR2, NEITHER, Placing, placing_of
from holdfast.infra.log import get_logger
from holdfast.processors.engine.provisioning import TopicWorld
from holdfast.processors.engine.topology import Topology

_log = get_logger("application")

#: The clients that normally use each partitioner.
_CLIENTS = {MURMUR2: "Java, Kafka Connect and Holdfast", CRC32: "confluent-kafka and librdkafka by default"}


@dataclass(frozen=True, slots=True)
class Parted:
    """A problem that the check found: messages with the same key are processed by different tasks.

    ``sentence`` describes the problem, and ``action`` says how to correct it.
    """

    topic: str
    sentence: str
    action: str
    #: Whether the problem prevents the processor's start.
    is_refused: bool = False

    @property
    def text(self) -> str:
        """The observation and the action as one text."""
        return f"{self.sentence} {self.action}"


def judged_topics(topology: Topology, facts: Mapping[str, TopicFacts]) -> dict[str, int]:
    """Returns the partition counts of those topics whose partitioner is checked.

    These topics feed stores, have more than one partition, and are no repartition topics.
    """
    names = dict.fromkeys(name for store in topology.stores for name in store.inputs)
    counts = {name: facts[name].partitions for name in names if name in facts and not topology.is_repartition(name)}
    return {name: count for name, count in counts.items() if count > 1}


def judge(topology: Topology, facts: Mapping[str, TopicFacts], keys: Mapping[str, KeysOf]) -> tuple[Parted, ...]:
    """Returns the problems that the topics' newest ``keys`` show. Problems that prevent a start come first."""
    counts = judged_topics(topology, facts)
    placed = {name: placing_of(keys.get(name, {}), count) for name, count in counts.items()}
    alone = {name: found for name, each in placed.items() if (found := _alone(name, each)) is not None}
    pairs: dict[tuple[str, str], Parted] = {}
    for store in topology.stores:
        grouped = any(topology.is_repartition(name) for name in store.inputs)
        for one, other in combinations([name for name in store.inputs if name in placed], 2):
            if counts[one] == counts[other] and (found := _pair(store.name, (one, other), placed)) is not None:
                pairs.setdefault((one, other), found)
        if grouped:
            pairs |= {(name, name): each for name, each in _beside_grouped(store.name, store.inputs, placed)}
    told = [each for names, each in pairs.items() if each.is_refused or not alone.keys() & set(names)]
    return tuple(sorted([*told, *alone.values()], key=lambda each: not each.is_refused))


def check_at_start(topics: TopicWorld, topology: Topology, facts: Mapping[str, TopicFacts]) -> tuple[str, ...]:
    """Logs and returns the warnings about the topics of a starting worker.

    Raises:
        TopicUnusable: Topics that share a store have equal keys in partitions of different tasks.
    """
    found = judge(topology, facts, topics.newest_keys(judged_topics(topology, facts)))
    for each in found:
        if each.is_refused:
            raise TopicUnusable(each.sentence, action=each.action, cause="bad-configuration", topic=each.topic)
        _log.warning(each.text)
    return tuple(each.text for each in found)


def _alone(topic: str, placed: Placing) -> Parted | None:
    """Returns a problem if the producers of one topic use different partitioners for its keys; otherwise None."""
    moved = placed.moved
    if moved is not None:
        lies = " and ".join(map(str, sorted(placed.places[moved])))
        how = f"Key {_shown(moved)} of topic {topic} lies in partitions {lies}"
    elif placed.by == BOTH and placed.is_sure:
        how = f"Some keys of topic {topic} lie where murmur2 puts them, all others where crc32 does"
    else:
        return None
    sentence = (
        f"{how}: its producers use different partitioners, or it got more partitions. State of such a key is in "
        "several tasks, and a message finds only what is in its own."
    )
    return Parted(topic, sentence, _ways_out(topic))


def _pair(store: str, names: tuple[str, str], placed: Mapping[str, Placing]) -> Parted | None:
    """Returns a problem if two topics of a store have equal keys in different partitions; otherwise None."""
    one, other = (placed[name] for name in names)
    apart = next((key for key, at in sorted(one.places.items()) if other.places.get(key, at) != at), None)
    known = one.by in _CLIENTS and other.by in _CLIENTS and one.by != other.by
    differ = one.is_sure and other.is_sure and one.by != other.by and BOTH not in (one.by, other.by)
    if apart is None and not differ:
        return None
    wrong = next((name for name in reversed(names) if placed[name].by != MURMUR2), names[1])
    if known:
        return Parted(wrong, _different(store, {name: placed[name].by for name in names}), _ways_out(wrong), True)
    if apart is None:
        return Parted(wrong, _different(store, {name: placed[name].by for name in names}), _ways_out(wrong))
    lies = (f"in partition {'/'.join(map(str, sorted(placed[name].places[apart])))} of {name}" for name in names)
    sentence = f"Key {_shown(apart)} lies {' and '.join(lies)}, which share store {store}: {_SO}"
    return Parted(wrong, sentence, _ways_out(wrong))


def _beside_grouped(store: str, inputs: tuple[str, ...], placed: Mapping[str, Placing]) -> Iterator[tuple[str, Parted]]:
    """Yields a problem for each source topic with another partitioner than the repartition topic of the same store."""
    for name in inputs:
        if name in placed and placed[name].is_sure and placed[name].by in (CRC32, NEITHER):
            sentence = _different(store, {name: placed[name].by, "the `group_by` beside it": MURMUR2})
            yield name, Parted(name, sentence, _ways_out(name), placed[name].by == CRC32)


_SO = "the messages of a key are in two tasks, and don't find each other."


def _different(store: str, by: Mapping[str, str]) -> str:
    lies = (
        f"those of {name} where {how} puts them ({_CLIENTS[how]})"
        if how in _CLIENTS
        else f"those of {name} where neither murmur2 nor crc32 puts them"
        for name, how in by.items()
    )
    return f"The topics of store {store} have their keys in different partitions, {' and '.join(lies)}: {_SO}"


def _ways_out(topic: str) -> str:
    return (
        f'Bring the stream of {topic} to the right partitions by the field that is its key: `sdf.group_by("field")`. '
        f"Or set `partitioner` to `murmur2_random` in all producers of {topic} (Java has it), and write its records "
        "again: a record stays in its partition."
    )


def _shown(key: bytes) -> str:
    return repr(key[:40])[1:]
