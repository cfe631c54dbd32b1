"""The frozen description of an application: its topics, stores, changelogs and subtopologies.

Provisioning, deployment, assets, checks and the start-up log read this description; no other module counts partitions
or names changelogs. A *subtopology* is a set of input topics whose streams share stores. A *task* is one partition of
one subtopology.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.engine.store_uses import TimeUse, WindowUse

#: The kind of a store that users' functions read and write.
KEY_VALUE = "key-value"


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A store.

    ``inputs`` are the topics whose streams use the store. ``columns`` has one line for each column of a built-in
    aggregation, and for each part of a declaration that state depends on, such as a TTL. ``schema`` has the typed
    columns of its table in the warehouse; None if it has none.
    """

    name: str
    inputs: tuple[str, ...]
    kind: str = KEY_VALUE
    codec: str = "json"
    format_version: int = 1
    columns: tuple[str, ...] = ()
    schema: StoreSchema | None = None
    #: The meaning of earlier steps' arguments for the store's state, in the lines of ``steps.meaning``.
    meaning: tuple[str, ...] = ()
    #: The store's content about time; not part of the version, because ``columns`` contains it. Empty for a recorded
    #: description.
    uses: tuple[TimeUse, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether the store's values expire, or its keys have timers."""
        return any(not isinstance(use, WindowUse) for use in self.uses)

    @property
    def has_windows(self) -> bool:
        """Whether it stores windows with a start and an end in event time: tumbling, hopping or session windows."""
        return any(isinstance(use, WindowUse) and use.has_span for use in self.uses)


@dataclass(frozen=True, slots=True)
class ChangelogSpec:
    """The changelog of one store; its partition count equals that of the store's inputs."""

    store: str
    topic: TopicSpec


@dataclass(frozen=True, slots=True)
class SourceLog:
    """The topic of a table that is also the changelog of its store; the processor only reads it.

    ``values`` and ``keys`` are the names of the topic's deserializers: a record that they refuse is no row.
    """

    store: str
    topic: str
    values: str = "json"
    keys: str = "bytes"


@dataclass(frozen=True, slots=True)
class RepartitionSpec:
    """The topic of one ``group_by``: the processor writes it from its inputs ``sources``, and reads it again.

    ``label`` is its name without the processor; the names of later stores begin with it.
    """

    name: str
    topic: str
    sources: tuple[str, ...]
    label: str

    @property
    def step(self) -> str:
        """The step around the topic.

        ``group_by``, or ``join`` for a join by a foreign key, which names the topic itself.
        """
        return "join" if self.label == self.name else "group_by"


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Input topics that share stores; one worker processes partition n of all of them."""

    name: str
    inputs: tuple[str, ...]
    stores: tuple[str, ...]

    def task(self, partition: int) -> str:
        """The name of its task for one partition."""
        return f"{self.name}-{partition}"

    def width(self, partitions: Mapping[str, int]) -> int:
        """The number of tasks, given the partition count of each input topic."""
        return max((partitions.get(name, 0) for name in self.inputs), default=0)


@dataclass(frozen=True, slots=True)
class Topology:
    """The frozen description of a processor, as ``Application.topology()`` returns it.

    ``inputs`` are all topics that its workers read, including its repartition topics; ``outputs`` has no repartition
    topic.
    """

    processor: str
    inputs: tuple[TopicSpec, ...]
    outputs: tuple[TopicSpec, ...]
    dead_letter: TopicSpec | None
    stores: tuple[StoreSpec, ...]
    changelogs: tuple[ChangelogSpec, ...]
    subtopologies: tuple[Subtopology, ...]
    code_version: str = field(default="")
    #: Whether a deploy proves a new version on the last messages; no part of the version.
    prove: bool = True
    #: The topics of global tables: read whole by every worker, outside of the group's offsets.
    global_tables: tuple[TopicSpec, ...] = ()
    #: The inputs that are tables; no part of the version.
    table_topics: tuple[str, ...] = ()
    repartitions: tuple[RepartitionSpec, ...] = ()
    #: The topics of tables that are also the changelogs of their stores; ``changelogs`` has no entry for these stores.
    source_logs: tuple[SourceLog, ...] = ()

    @property
    def sources(self) -> tuple[TopicSpec, ...]:
        """The inputs that other programs write: all except repartition topics."""
        own = {spec.topic for spec in self.repartitions}
        return tuple(spec for spec in self.inputs if spec.name not in own)

    def is_repartition(self, topic: str) -> bool:
        """Whether a topic is the repartition topic of a ``group_by``."""
        return any(spec.topic == topic for spec in self.repartitions)

    def chains(self) -> tuple[tuple[Subtopology, ...], ...]:
        """The groups of subtopologies that feed each other through repartition topics, upstream first.

        To read a subtopology again from its beginning, its whole chain must be read again.
        """
        groups = [{sub.name} for sub in self.subtopologies]
        for spec in self.repartitions:
            touched = {self.subtopology_of(name).name for name in (spec.topic, *spec.sources)}
            joined = [group for group in groups if group & touched]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
        chains = [tuple(sub for sub in self.subtopologies if sub.name in group) for group in groups]
        return tuple(sorted(chains, key=lambda chain: self.subtopologies.index(chain[0])))

    def feeds_itself(self, topic: str) -> bool:
        """Whether messages of a repartition topic come from its reader's subtopology, also through other topics."""
        goal, seen, before = self.subtopology_of(topic), set[str](), [topic]
        while before:
            name = before.pop()
            spec = next(each for each in self.repartitions if each.topic == name)
            for source in (self.subtopology_of(name) for name in spec.sources):
                if source is goal:
                    return True
                if source.name not in seen:
                    seen.add(source.name)
                    before += [each for each in source.inputs if self.is_repartition(each)]
        return False

    def chain_of(self, store: str) -> tuple[Subtopology, ...]:
        """The chain of the subtopology that has a store; empty for an unknown store."""
        return next((chain for chain in self.chains() if any(store in sub.stores for sub in chain)), ())

    def changelog_of(self, store: str) -> TopicSpec | None:
        """The changelog topic of a store; None without changelogs."""
        return next((spec.topic for spec in self.changelogs if spec.store == store), None)

    def source_log_of(self, store: str) -> SourceLog | None:
        """The topic that restores a table's store; None for a store with a separate changelog, or without one."""
        return next((log for log in self.source_logs if log.store == store), None)

    @property
    def log_names(self) -> dict[str, str]:
        """By store, the topic that restores it: its changelog, or the topic of a table."""
        topics = {log.store: log.topic for log in self.source_logs}
        return {spec.store: spec.topic.name for spec in self.changelogs} | topics

    @property
    def logged(self) -> frozenset[str]:
        """The stores that survive the loss of a disk."""
        return frozenset(self.log_names)

    def inputs_of(self, store: str) -> tuple[str, ...]:
        """The input topics of a store; empty for an unknown one."""
        return next((spec.inputs for spec in self.stores if spec.name == store), ())

    def store_of(self, changelog: str) -> str | None:
        """The store of a changelog topic; None for any other topic."""
        return next((spec.store for spec in self.changelogs if spec.topic.name == changelog), None)

    def read(self) -> tuple[str, ...]:
        """The topics that the processor reads: its inputs and the topics of its global tables, without repeats."""
        return tuple(dict.fromkeys(spec.name for spec in (*self.inputs, *self.global_tables)))

    def written(self) -> list[str]:
        """The topics that the processor writes to."""
        own = [spec.topic for spec in self.repartitions]
        return [*own, *(spec.name for spec in self._made())]

    def subtopology(self, name: str) -> Subtopology:
        """The subtopology with this name."""
        return next(sub for sub in self.subtopologies if sub.name == name)

    def subtopology_of(self, topic: str) -> Subtopology:
        """The subtopology that reads an input topic."""
        return next(sub for sub in self.subtopologies if topic in sub.inputs)

    def tasks(self, partitions: Mapping[str, int]) -> tuple[str, ...]:
        """The names of all tasks, given the partition count of each input topic."""
        return tuple(sub.task(number) for sub in self.subtopologies for number in range(sub.width(partitions)))

    def tasks_with(self, stores: Sequence[str], partitions: Mapping[str, int]) -> frozenset[tuple[str, int]]:
        """The tasks that have all of these stores, as name of the subtopology and partition."""
        subs = [sub for sub in self.subtopologies if set(stores) <= set(sub.stores)]
        return frozenset((sub.name, number) for sub in subs for number in range(sub.width(partitions)))

    def topics(self) -> tuple[TopicSpec, ...]:
        """All topics that the processor reads or writes, inputs first."""
        return (*self.inputs, *self.global_tables, *self._made())

    def _made(self) -> tuple[TopicSpec, ...]:
        """The topics that the processor writes, without repartition topics, which are inputs, too."""
        extra = () if self.dead_letter is None else (self.dead_letter,)
        return (*self.outputs, *extra, *(spec.topic for spec in self.changelogs))


def subtopologies_of(inputs: tuple[str, ...], stores: tuple[StoreSpec, ...]) -> tuple[Subtopology, ...]:
    """Groups input topics that share a store, directly or through other topics."""
    groups: list[set[str]] = [{topic} for topic in inputs]
    for store in stores:
        touched = [group for group in groups if group & set(store.inputs)]
        merged = set().union(*touched)
        groups = [group for group in groups if group not in touched] + [merged]
    result = []
    for group in groups:
        ordered = tuple(topic for topic in inputs if topic in group)
        used = tuple(store.name for store in stores if set(store.inputs) & group)
        result.append(Subtopology(name="+".join(ordered), inputs=ordered, stores=used))
    return tuple(sorted(result, key=lambda sub: inputs.index(sub.inputs[0])))


def code_version_of(topology: Topology, code: str) -> str:
    """A short hash of the description and the functions' source.

    A new hash means that a deployment is due.
    """
    described = asdict(topology)
    for name in ("code_version", "prove", "table_topics"):
        described.pop(name)
    if not topology.global_tables:  # the versions of other processors stay unchanged
        described.pop("global_tables")
    for name in ("repartitions", "source_logs"):
        if not described[name]:  # earlier versions have no such field
            described.pop(name)
    for store in described["stores"]:  # typed columns concern the warehouse only: workers need no deployment
        store.pop("schema")
        store.pop("meaning")  # the rules of steps and the source of functions already contain it
        store.pop("uses")  # the lines of ``columns`` already contain it
    text = json.dumps(described, sort_keys=True, default=str) + code
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def source_of(function: Any) -> str:
    """A function's source text; its name if the source is not available."""
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
        return inspect.getsource(function) if code is None else _text_of(code)
    except (OSError, TypeError):
        return getattr(function, "__qualname__", "")


@lru_cache(maxsize=1024)
def _text_of(code: CodeType) -> str:
    """Cached, because reading the source accesses the file each time, and a program reads the same functions often."""
    return inspect.getsource(code)
