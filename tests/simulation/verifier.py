"""The invariants of a simulation. The checks read the cluster's logs and the bytes on the disks, not the engine.

- databases: each database equals the committed changelog, compacted up to the offset that the database names.
- outputs: read_committed consumers see each result exactly once, and each result is right.
- dead letters: each message that raises an error becomes exactly one dead letter.
- state: the committed changelog equals a plain Python fold of the input, the owner's database, and a full restore.
- offsets: the group has committed the whole input.
- liveness: after all faults are healed, everything is processed in bounded time.
- exits: a processor stops only for reasons that the schedule gives it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.infra.kafka.records import Partition, Record
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.testing.cluster import InMemoryCluster
from holdfast.processors.testing.log import Entry
from tests.simulation.workload import DEAD, GROUP, JOINT, OUTPUT, Expected, Workload


class InvariantBroken(Exception):
    """Raised if an invariant of a simulation does not hold."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail


Content = Mapping[bytes, bytes]
#: The databases on the disks: (machine, path, content).
Databases = Sequence[tuple[str, Path, Content]]


class History:
    """Every committed record of every changelog. This includes records that compaction has removed since."""

    def __init__(self, cluster: InMemoryCluster, workload: Workload) -> None:
        self._cluster = cluster
        self._topics = {store: changelog_topic(GROUP, store) for store in workload.all_names}
        self._records: dict[Partition, dict[int, tuple[bytes, bytes | None]]] = {}
        #: The next offset to read, by topic id and partition.
        self._observed: dict[tuple[str, int], int] = {}

    def topic_id(self, store: str) -> str | None:
        """The id of a store's changelog topic; None if the topic does not exist."""
        topic = self._cluster._broker.topics.get(self._topics.get(store, ""))
        return None if topic is None else topic.topic_id

    def forget(self, store: str) -> None:
        """Forget the records of a store whose changelog was deleted."""
        self._records = {place: of for place, of in self._records.items() if place.topic != self._topics[store]}

    def observe(self) -> None:
        """Record all records that are committed now.

        Call it before each compaction, because compaction removes records.
        """
        for store, topic in self._topics.items():
            topic_id = self.topic_id(store)
            for place in self._cluster._broker.partitions_of(topic) if topic_id is not None else ():
                log, known = self._cluster._broker.log(place), (topic_id, place.number)
                entries, self._observed[known] = log.read(self._observed.get(known, 0), log.end, committed=True)
                records = self._records.setdefault(place, {})
                for entry in entries:
                    if (kept := self._kept(entry)) is not None:
                        records[entry.offset] = kept

    def _kept(self, entry: Entry) -> tuple[bytes, bytes | None] | None:
        """The state key and value that a record stands for; None if the record is not state."""
        assert entry.key is not None
        return entry.key, entry.value

    def partition(self, store: str, number: int) -> Partition:
        return Partition(self._topics[store], number)

    def stable(self, partition: Partition) -> int:
        """Return the offset below which all transactions are committed or aborted."""
        return self._cluster.last_stable_offset(partition)

    def fold(self, partition: Partition, end: int) -> dict[bytes, bytes]:
        """Return the state that results from the changelog's records before offset ``end``."""
        state: dict[bytes, bytes] = {}
        records = self._records.get(partition, {})
        for offset in sorted(records):
            key, value = records[offset]
            if offset >= end:
                break
            if value is None:
                state.pop(key, None)
            elif key != META_KEY:
                state[key] = value
        return state

    def last(self, partition: Partition) -> int:
        """The offset of the last committed record that is state; -1 for none."""
        records = self._records.get(partition, {})
        return max((offset for offset, (key, _) in records.items() if key != META_KEY), default=-1)

    def values(self, partition: Partition, key: bytes, first: int = 0) -> set[bytes | None]:
        """Return every value that was committed for a key at this changelog offset or later."""
        records = self._records.get(partition, {})
        return {value for offset, (seen, value) in records.items() if seen == key and offset >= first}


@dataclass(frozen=True, slots=True)
class _Snapshot:
    where: str
    partition: int
    content: Content
    meta: TaskMeta | None


class DatabaseCheck:
    """Checks that a database contains only committed data.

    A database may contain a commit that consumers do not see yet, because its markers are not written, or because its
    offsets are after an open transaction. Such databases are checked again at the end.

    Args:
        history: The committed records.
        workload: The messages and the processor.
        in_pieces: Whether a commit is written in several batches. Values may then be newer than the offset that the
            database names.
    """

    def __init__(self, history: History, workload: Workload, *, in_pieces: bool) -> None:
        self._history = history
        self._workload = workload
        self._in_pieces = in_pieces
        self._waiting: list[_Snapshot] = []

    def look(self, slot: str, path: Path, content: Content) -> None:
        """Check that the current content of a database was committed."""
        raw = content.get(META_KEY)
        meta = None if raw is None else TaskMeta.decode(raw)
        snapshot = _Snapshot(f"{slot}/{path.name}", _partition_of(path), content, meta)
        if self._in_pieces or not self._check(snapshot):
            self._waiting.append(snapshot)

    def settle(self) -> None:
        """Check the databases whose commits were not visible before.

        Raises:
            InvariantBroken: A database contains commits that never became visible.
        """
        for snapshot in self._waiting:
            if not self._check(snapshot):
                raise InvariantBroken("databases", f"{snapshot.where} names an offset that was never reached")
        self._waiting.clear()

    def _check(self, snapshot: _Snapshot) -> bool:
        history, meta = self._history, snapshot.meta
        at = {} if meta is None else meta.stores
        # State of a deleted changelog is skipped. The next process that opens it sees another topic id, and ignores the
        # state.
        stores = [
            store
            for store in self._workload.all_names
            if store not in at or at[store].topic_id == history.topic_id(store)
        ]
        for store in stores:
            if store in at and at[store].offset > history.stable(history.partition(store, snapshot.partition)):
                return False
        history.observe()
        for store in stores:
            self._check_store(snapshot, store)
        return True

    def _check_store(self, snapshot: _Snapshot, store: str) -> None:
        partition = self._history.partition(store, snapshot.partition)
        at = snapshot.meta.stores.get(store) if snapshot.meta is not None else None
        named = at.offset if at is not None else 0
        prefix = store_prefix(store)
        held = {key[len(prefix) :]: value for key, value in snapshot.content.items() if key.startswith(prefix)}
        folded = self._history.fold(partition, named)
        if held == folded:
            return
        for key in sorted(held.keys() | folded.keys()):
            value = held.get(key)
            if value == folded.get(key):
                continue
            if value not in self._allowed(snapshot, partition, key, named):
                raise InvariantBroken(
                    "databases",
                    f"{snapshot.where} names offset {named} of {partition.topic}[{partition.number}]; it holds "
                    f"{_shown(key)} = {_value(value)}, the committed changelog has {_value(folded.get(key))} there",
                )

    def _allowed(self, snapshot: _Snapshot, partition: Partition, key: bytes, named: int) -> set[bytes | None]:
        """The values that a database may hold for a key besides the value in the changelog.

        During a replay, values that compaction removed are missing until the newer value is read. Until then, the
        database may hold any older value.
        """
        if snapshot.meta is not None and snapshot.meta.restoring:
            return self._history.values(partition, key) | {None}
        return self._history.values(partition, key, named) if self._in_pieces else set()


class Seen(Protocol):
    """The records that consumers have read. ``cleared`` tells whether the input was set back."""

    cleared: bool

    def read(self, topic: str) -> list[tuple[int, Record]]:
        """The committed records of a topic, including records from before the topic was deleted."""

    def extent(self, topic: str) -> object:
        """A value that changes whenever the result of `read` changes."""


class FinalCheck:
    """Checks the final state, after the whole input is processed."""

    def __init__(
        self, cluster: InMemoryCluster, workload: Workload, expected: Expected, history: History, seen: Seen
    ) -> None:
        self._cluster = cluster
        self._seen = seen
        self._workload = workload
        self._expected = expected
        self._history = history

    def settled(self) -> bool:
        """Whether all results are sent.

        Functions send their results in the same commit as the input's offsets. So this is always True.
        """
        return True

    def run(self, databases: Databases, excused: Set[int] = frozenset()) -> None:
        """Check outputs, dead letters, changelogs, and the databases that the owners of tasks had at the end.

        Args:
            databases: The databases on all disks.
            excused: Partitions whose database may be missing, because a fault has damaged it.

        Raises:
            InvariantBroken: A check failed.
        """
        self._history.observe()
        self.check_outputs()
        self._check_dead_letters()
        for store in self._workload.names:
            for partition in range(len(self._workload.messages)):
                place = self._history.partition(store, partition)
                folded = self._history.fold(place, self._cluster.log_end(place))
                self._check_state("state", f"changelog {place.topic}[{partition}]", store, partition, folded)
                now = {
                    record.key: record.value
                    for number, record in self._cluster.read(place.topic)
                    if number == partition and record.key is not None and record.key != META_KEY
                }
                left = {key: value for key, value in now.items() if value is not None}
                if left != folded:
                    raise InvariantBroken("state", f"compacted changelog {place} differs from its whole history")
        self._check_joint()
        self.check_databases("state", databases, excused)

    def check_databases(self, invariant: str, databases: Databases, excused: Set[int] = frozenset()) -> None:
        """Check that each partition has a database at the end of the input, and that all such databases are correct."""
        for slot, path, content in self._at_the_end(databases):
            for store in self._stores_in(path):
                prefix = store_prefix(store)
                held = {key[len(prefix) :]: value for key, value in content.items() if key.startswith(prefix)}
                self._check_state(invariant, f"database {slot}/{path.name}", store, _partition_of(path), held)
        for partition in self.missing(databases) - excused:
            raise InvariantBroken(invariant, f"nobody has the state of partition {partition} at its end")

    def missing(self, databases: Databases) -> set[int]:
        """The partitions for which no database holds the state at the end of the input."""
        there = {
            (store, _partition_of(path))
            for _, path, _ in self._at_the_end(databases)
            for store in self._stores_in(path)
        }
        partitions = range(len(self._workload.messages))
        return {number for number in partitions for store in self._workload.names if (store, number) not in there}

    def _stores_in(self, path: Path) -> list[str]:
        """The stores in a task's database whose content follows from the input."""
        fed = {store for topic in _inputs_of(path) for store in self._workload.stores_of(topic)}
        return [store for store in self._workload.names if store in fed]

    def _check_joint(self) -> None:
        """Check that a message that raises an error has left no value in the store of the first step."""
        for partition in range(len(self._workload.messages)) if self._history.topic_id(JOINT) else ():
            place = self._history.partition(JOINT, partition)
            for key, value in self._history.fold(place, self._cluster.log_end(place)).items():
                if (partition, decode_value(value)) in self._expected.dead:
                    raise InvariantBroken("state", f"{place} holds {_shown(key)} of a message that raises")

    def _at_the_end(self, databases: Databases) -> Iterator[tuple[str, Path, Content]]:
        committed = self._cluster.committed_offsets(GROUP)
        for slot, path, content in databases:
            raw = content.get(META_KEY)
            meta = None if raw is None else TaskMeta.decode(raw)
            ends = {topic: committed.get(Partition(topic, _partition_of(path))) for topic in _inputs_of(path)}
            if (
                meta is not None
                and not meta.restoring
                and all(meta.inputs.get(name) == end for name, end in ends.items())
                and self._is_last(path, meta)
            ):
                yield slot, path, content

    def _is_last(self, path: Path, meta: TaskMeta) -> bool:
        """Whether a database at the end of its input will no longer change."""
        return True

    def _check_state(self, invariant: str, where: str, store: str, partition: int, held: Content) -> None:
        seen = {key: decode_value(value) for key, value in held.items()}
        expected = self._expected.states[(store, partition)]
        for key in sorted(seen.keys() | expected.keys()):
            if seen.get(key) != expected.get(key):
                raise InvariantBroken(
                    invariant,
                    f"{where}: {_shown(key)} is {seen.get(key)!r}, the input gives {expected.get(key)!r}",
                )

    def check_outputs(self) -> None:
        """Check that each result was sent, and none twice unless the schedule allows it.

        Raises:
            InvariantBroken: A result is lost, wrong, or sent twice.
        """
        counts: Counter[tuple[int, int, str]] = Counter()
        for _, record in self._seen.read(OUTPUT):
            assert record.value is not None
            assert record.key is not None
            value = json.loads(record.value)
            stage = self._workload.names[0] if self._workload.aggregated else record.key.decode()
            name = (value["p"], value["n"], stage)
            counts[name] += 1
            if name not in self._expected.outputs:
                raise InvariantBroken("outputs", f"{name} was sent, but its message raises")
            result = self._expected.outputs[name]
            if value[name[2]] != result:
                raise InvariantBroken("outputs", f"{name} is {value[name[2]]}, expected {result}")
        self._count("outputs", counts, self._expected.outputs)

    def _check_dead_letters(self) -> None:
        if not self._workload.dead_letters:
            return
        counts: Counter[tuple[int, int]] = Counter()
        for _, record in self._seen.read(DEAD):
            assert record.value is not None
            value = json.loads(record.value)
            counts[(value["p"], value["n"])] += 1
            if dict(record.headers or []).get("holdfast.partition") != str(value["p"]).encode():
                raise InvariantBroken("dead letters", f"the headers of {value} do not tell where it was")
        self._count("dead letters", counts, dict.fromkeys(self._expected.dead))

    def _count(self, invariant: str, counts: Counter[Any], expected: Mapping[Any, Any]) -> None:
        lost = [name for name in expected if not counts[name]]
        if lost:
            raise InvariantBroken(invariant, f"lost: {sorted(lost)[:5]} and more, {len(lost)} in all")
        wrong = [name for name in counts if name not in expected]
        if wrong:
            raise InvariantBroken(invariant, f"sent, but never to be: {sorted(wrong)[:5]}")
        twice = [name for name, count in counts.items() if count > 1]
        if twice and self._workload.exactly_once and not self._seen.cleared:
            raise InvariantBroken(invariant, f"more than once: {sorted(twice)[:5]}, {len(twice)} in all")


def _partition_of(path: Path) -> int:
    return int(path.name.rsplit("-", 1)[1])


def _inputs_of(path: Path) -> list[str]:
    """The input topics of the task to which a database belongs."""
    return path.name.rsplit("-", 1)[0].split("+")


def _shown(key: bytes) -> str:
    message_key, name = split_key(key)
    return f"{message_key.decode()}.{name}"


def _value(raw: bytes | None) -> str:
    return "nothing" if raw is None else repr(decode_value(raw))
