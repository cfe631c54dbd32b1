"""Computes the floor of each key: the offset of the input topic at which the key's count starts.

The processor counts input records by key. Records before the floor of a key do not count, because a command such as a
clear removed them from the state. Commands therefore change the floors. This module reads the changelog, and computes
which floors were valid at each changelog offset.

A life is the time from the creation of the changelog topic to its deletion. In each life, the topic has another topic
id. When the topic is created again, its next life starts.

The worker executes a command in transactions of their own, apart from the input records that it processes. Such a
transaction keeps the input offset, or moves it back. It must belong to a running command.

    clear            deletes keys: they count from the input offset of that transaction
    clear, rewound   deletes all keys, and the last transaction moves the input to 0: all keys count from 0
    rebuild          sets and deletes keys as the whole input gives them: they count from 0
    reseed, restore  write the state into a recreated topic with another topic id, which starts the next life
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.changelog.format import META_KEY, split_key
from tests.spark.endurance.definition import PARTITIONS

CLEAR, REWIND, REBUILD, RESEED, RESTORE = "clear", "rewind", "rebuild", "reseed", "restore"


@dataclass(frozen=True)
class Action:
    """A command that was carried out. ``keys`` are the keys that it may delete; None means any key."""

    kind: str
    keys: frozenset[str] | None = None


@dataclass
class Floors:
    """The floors of one partition: the input offsets from which records count.

    ``keys`` has the floors of single keys, and ``others`` is the floor of all other keys.
    """

    others: int = 0
    keys: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Transaction:
    """One committed transaction in a partition of the changelog.

    ``offset`` is its last offset in the changelog. ``input`` is the input offset that it stored. ``keys`` maps each
    written key to True if the transaction deleted it, else to False.
    """

    offset: int
    input: int
    keys: dict[str, bool]


@dataclass
class Life:
    """One life of a changelog topic: the time from its creation to its deletion.

    ``begin`` has the floors (input offsets from which records count) at the start of this life, by partition.
    """

    topic_id: str
    begin: dict[int, Floors]
    #: Partition -> the changes of floors by commands, in order. Each change has the last changelog offset of the
    #: command's transaction, the keys (None: all keys), and their new floor (the input offset from which they count).
    events: dict[int, list[tuple[int, frozenset[str] | None, int]]] = field(default_factory=dict)

    def floors(self, partition: int, end: int) -> Floors:
        """The floors (input offsets from which records count) of a table version that ends at this changelog offset."""
        found = copy.deepcopy(self.begin[partition])
        for offset, keys, floor in self.events.get(partition, []):
            if offset < end:
                if keys is None:
                    found = Floors(floor)
                else:
                    found.keys |= dict.fromkeys(keys, floor)
        return found


class Lives:
    """Reads the changelog topic of a store through all its lives, and keeps the floors of each life.

    A life ends when the topic is deleted; the next life starts when the topic is created again. A floor is the input
    offset from which the records of a key count.
    """

    def __init__(self, topics: Topics, changelog: str, source: str) -> None:
        self._topics, self._changelog, self._source = topics, changelog, source
        self.lives: list[Life] = []
        self._at: dict[int, int] = {}
        self._inputs: dict[int, int | None] = {}
        self.begin({number: Floors() for number in range(PARTITIONS)})

    def begin(self, floors: dict[int, Floors]) -> None:
        """Record that the changelog topic was created again, with these floors (input offsets) by partition.

        The creation starts another life of the changelog.
        """
        self.lives.append(Life(self._topics.describe([self._changelog])[self._changelog].topic_id, floors))
        self._at = dict.fromkeys(range(PARTITIONS), 0)
        self._inputs = dict.fromkeys(range(PARTITIONS), 0 if len(self.lives) == 1 else None)

    def now(self) -> dict[int, Floors]:
        """The floors (input offsets from which records count) that are valid now, by partition."""
        return {number: self.lives[-1].floors(number, self._at[number]) for number in range(PARTITIONS)}

    def of(self, topic_id: str) -> Life:
        """The life (time from creation to deletion) in which the changelog topic had this topic id."""
        return next(life for life in self.lives if life.topic_id == topic_id)

    def advance(self, action: Action | None = None) -> None:
        """Read the changelog to its present end.

        Some transactions do not move the input offset forward. They must belong to the command ``action``.
        """
        for number, end in self._topics.settled_end_offsets(self._changelog, 60.0).items():
            for each in self._transactions(number, end):
                self._take(number, each, action)
            self._at[number] = max(end, self._at[number])

    def _take(self, number: int, each: Transaction, action: Action | None) -> None:
        before, self._inputs[number] = self._inputs[number], each.input
        back = before is not None and each.input < before
        apart = bool(each.keys) and (before is None or each.input <= before)
        if not (apart or back) or (action is not None and action.kind in (RESEED, RESTORE)):
            return
        where = f"{self._changelog}[{number}] at {each.offset}, input {before} to {each.input}: {each.keys}"
        assert action is not None, f"a transaction apart from the input, without a command: {where}"
        events = self.lives[-1].events.setdefault(number, [])
        if action.kind == REBUILD:
            events.append((each.offset, frozenset(each.keys), 0))
            return
        assert all(each.keys.values()), f"a clear sets keys: {where}"
        assert action.keys is None or set(each.keys) <= action.keys, f"a clear deletes others: {where}"
        if back:
            assert action.kind == REWIND, f"the input goes back: {where}"
            assert each.input == 0, where
            events.append((each.offset, None, 0))
        else:
            events.append((each.offset, frozenset(each.keys), each.input))

    def _transactions(self, number: int, end: int) -> Iterator[Transaction]:
        keys: dict[str, bool] = {}
        start = self._at[number]
        if start >= end:
            return
        for record in read_range(self._topics.bootstrap, self._changelog, number, start, end):
            assert record.key is not None
            if record.key != META_KEY:
                keys[split_key(record.key)[0].decode()] = record.value is None
                continue
            told = msgspec.json.decode(record.value or b"{}")
            yield Transaction(record.offset, told["inputs"].get(self._source, 0), keys)
            keys = {}
        assert not keys, f"records without a meta record before {end}: {sorted(keys)[:3]}"


def topic_ids(parts: Collection[Any]) -> str:
    """The topic id of the changelog from which a table version was made. All partitions must have the same one."""
    (found,) = {part.topic_id for part in parts}
    return str(found)
