"""The frozen description of an application: its topics, stores, changelogs and subtopologies.

Provisioning, deployment, assets, checks and the start-up log use this description. A *subtopology* is a set of input
topics whose streams share stores. A *task* is one partition of one subtopology.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import Any

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.codec_table import CODECS, DEFAULT
from holdfast.processors.engine.connectors import ConnectorSpec
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.engine.store_uses import CallUse, TimeUse, WindowUse

#: The kind of a store whose values user functions read and write, in contrast to windows and joins.
KEY_VALUE = "key-value"
#: The kind of a store of schedules. It holds the last slot (time) at which each schedule fired, and the values that the
#: schedules' functions keep.
SCHEDULES = "schedules"
#: The kind of a source's store. It holds the source's own state and the progress of its output. The store's only input
#: is the topic to which the source produces.
SOURCE = "source"
#: The kind of a store with the answers of durable calls (``apply_async``) whose messages are not committed yet.
CALLS = "calls"
#: The kind of a sink's store. It holds the list of what the sink has staged for the next commits.
SINK = "sink"
#: The kinds of stores whose content does not follow from the messages of the input topics.
INTERNAL_KINDS = (SCHEDULES, SOURCE, CALLS, SINK)


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """The description of one store.

    ``inputs`` are the topics whose streams use the store. ``columns`` has one line for each column of a built-in
    aggregation. ``columns`` also has a line for each argument of a declaration on which state depends, such as a TTL.
    ``schema`` has the typed columns of the store's warehouse table; None without typed columns.
    """

    name: str
    inputs: tuple[str, ...]
    kind: str = KEY_VALUE
    codec: str = DEFAULT
    format_version: int = 1
    columns: tuple[str, ...] = ()
    schema: StoreSchema | None = None
    #: Text lines about arguments of earlier steps on which the store's state depends (``steps.meaning``).
    meaning: tuple[str, ...] = ()
    #: How the store's content depends on time. The version hash leaves this field out, because ``columns`` has the same
    #: facts. The field is empty if the description was read from Holdfast's registry of deployments.
    uses: tuple[TimeUse, ...] = ()
    #: Whether groups of a table's rows (``group_by``) depend on the store. If so, a command must not change this store
    #: without the other stores of the groups. The version hash leaves this field out, because it covers the steps.
    retracts: bool = False

    @property
    def timed(self) -> bool:
        """Whether values of the store expire, or its keys have timers."""
        return any(not isinstance(use, WindowUse | CallUse) for use in self.uses)

    @property
    def has_windows(self) -> bool:
        """Whether the store has windows with a start and an end in event time: tumbling, hopping or session windows."""
        return any(isinstance(use, WindowUse) and use.has_span for use in self.uses)

    def has_value_at(self, state_key: str) -> bool:
        """Whether a state key is one of a window, a row or a user's value, and not of a record about windows."""
        prefixes = () if self.schema is None else tuple(one for each in self.schema.values for one in each.prefixes)
        return not prefixes or state_key.startswith(prefixes)

    @property
    def follows_input(self) -> bool:
        """Whether the content follows from the messages of the input topics, so that it can be built again from them.

        False for a store of schedules, because the clock fires them. False for a source's store, because the source
        sets its own state. False for a store of calls, because another system gave the answers. False for a sink's
        store, because its list names what a worker has staged.
        """
        return self.kind not in INTERNAL_KINDS


@dataclass(frozen=True, slots=True)
class ChangelogSpec:
    """The changelog of one store. The changelog has as many partitions as the store's inputs."""

    store: str
    topic: TopicSpec


@dataclass(frozen=True, slots=True)
class SourceLog:
    """A table's source topic, if the topic also serves as the changelog of the table's store.

    The processor only reads this topic.

    ``values`` and ``keys`` are the names of the topic's deserializers. A record that a deserializer refuses gives no
    row.
    """

    store: str
    topic: str
    values: str = "json"
    keys: str = "bytes"


@dataclass(frozen=True, slots=True)
class RepartitionSpec:
    """The repartition topic of one ``group_by``.

    The processor reads the inputs ``sources``, writes their messages to this topic with another key, and reads this
    topic, too.

    ``label`` is the topic's name without the processor's name. Default names of stores after the ``group_by`` begin
    with ``label``.
    """

    name: str
    topic: str
    sources: tuple[str, ...]
    label: str

    @property
    def step(self) -> str:
        """The name of the step that writes to the topic: ``group_by``, or ``join`` for a join by a foreign key."""
        return "join" if self.label == self.name else "group_by"


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Input topics that share stores. One worker processes partition n of all these topics."""

    name: str
    inputs: tuple[str, ...]
    stores: tuple[str, ...]

    def task(self, partition: int) -> str:
        """Returns the name of the task for one partition, for example ``orders-3``."""
        return f"{self.name}-{partition}"

    def width(self, partitions: Mapping[str, int]) -> int:
        """Returns the number of tasks. ``partitions`` maps each input topic to its partition count."""
        return max((partitions.get(name, 0) for name in self.inputs), default=0)


@dataclass(frozen=True, slots=True)
class Topology:
    """The frozen description of a processor, which ``Application.topology()`` returns.

    ``inputs`` are all topics that the workers read, including repartition topics. ``outputs`` does not include
    repartition topics.
    """

    processor: str
    inputs: tuple[TopicSpec, ...]
    outputs: tuple[TopicSpec, ...]
    dead_letter: TopicSpec | None
    stores: tuple[StoreSpec, ...]
    changelogs: tuple[ChangelogSpec, ...]
    subtopologies: tuple[Subtopology, ...]
    code_version: str = field(default="")
    #: Whether a deployment first tests a new version on the newest input messages. The version hash does not include
    #: this field.
    prove: bool = True
    #: The topics of global tables. Every worker reads them completely, and does not use the consumer group's offsets
    #: for them.
    global_tables: tuple[TopicSpec, ...] = ()
    #: The inputs that are tables. The version hash does not include this field.
    table_topics: tuple[str, ...] = ()
    repartitions: tuple[RepartitionSpec, ...] = ()
    #: The topics of tables that also serve as changelogs. ``changelogs`` has no entry for the stores of these tables.
    source_logs: tuple[SourceLog, ...] = ()
    #: The sources and sinks, for the lineage. The version hash does not include this field, because the functions'
    #: source and the stores are in the hash. The field is empty if the description was read from Holdfast's registry.
    connectors: tuple[ConnectorSpec, ...] = ()

    @property
    def sources(self) -> tuple[TopicSpec, ...]:
        """The inputs that other programs write: all inputs except repartition topics."""
        own = {spec.topic for spec in self.repartitions}
        return tuple(spec for spec in self.inputs if spec.name not in own)

    def is_repartition(self, topic: str) -> bool:
        """Whether a topic is a repartition topic of this processor."""
        return any(spec.topic == topic for spec in self.repartitions)

    def chains(self) -> tuple[tuple[Subtopology, ...], ...]:
        """Returns groups of subtopologies. The subtopologies of a group are connected by repartition topics.

        In a group, upstream subtopologies are listed before downstream subtopologies. To read a subtopology again from
        the beginning, its whole group must be read again.
        """
        groups = [{sub.name} for sub in self.subtopologies]
        for spec in self.repartitions:
            touched = {self.subtopology_of(name).name for name in (spec.topic, *spec.sources)}
            joined = [group for group in groups if group & touched]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
        chains = [tuple(sub for sub in self.subtopologies if sub.name in group) for group in groups]
        return tuple(sorted(chains, key=lambda chain: self.subtopologies.index(chain[0])))

    def feeds_itself(self, topic: str) -> bool:
        """Whether messages of a repartition topic come from the subtopology that reads the topic.

        This is also true if the messages pass through other repartition topics in between.
        """
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
        """Returns the group of ``chains`` that contains the subtopology of a store; empty for an unknown store."""
        return next((chain for chain in self.chains() if any(store in sub.stores for sub in chain)), ())

    def changelog_of(self, store: str) -> TopicSpec | None:
        """Returns the changelog topic of a store; None without a changelog."""
        return next((spec.topic for spec in self.changelogs if spec.store == store), None)

    def source_log_of(self, store: str) -> SourceLog | None:
        """Returns the source topic from which a table's store is restored.

        Returns None for a store with its own changelog, and for a store without any changelog.
        """
        return next((log for log in self.source_logs if log.store == store), None)

    @property
    def log_names(self) -> dict[str, str]:
        """Maps each store to the topic from which it is restored: the store's changelog, or the topic of a table."""
        topics = {log.store: log.topic for log in self.source_logs}
        return {spec.store: spec.topic.name for spec in self.changelogs} | topics

    @property
    def logged(self) -> frozenset[str]:
        """The stores that can be restored from Kafka after the loss of a disk."""
        return frozenset(self.log_names)

    def inputs_of(self, store: str) -> tuple[str, ...]:
        """Returns the input topics of a store; empty for an unknown store."""
        return next((spec.inputs for spec in self.stores if spec.name == store), ())

    def store_of(self, changelog: str) -> str | None:
        """Returns the store of a changelog topic; None for any other topic."""
        return next((spec.store for spec in self.changelogs if spec.topic.name == changelog), None)

    def read(self) -> tuple[str, ...]:
        """Returns the topics that the processor reads: its inputs, and the topics of its global tables."""
        return tuple(dict.fromkeys(spec.name for spec in (*self.inputs, *self.global_tables)))

    def written(self) -> list[str]:
        """Returns the topics that the processor writes to, including repartition topics and topics of sources."""
        own = [*(spec.topic for spec in self.repartitions), *fed_by_sources(self)]
        return [*own, *(spec.name for spec in self._made())]

    def subtopology(self, name: str) -> Subtopology:
        """Returns the subtopology with this name."""
        return next(sub for sub in self.subtopologies if sub.name == name)

    def subtopology_of(self, topic: str) -> Subtopology:
        """Returns the subtopology that reads an input topic."""
        return next(sub for sub in self.subtopologies if topic in sub.inputs)

    def tasks(self, partitions: Mapping[str, int]) -> tuple[str, ...]:
        """Returns the names of all tasks. ``partitions`` has the partition count of each input topic."""
        return tuple(sub.task(number) for sub in self.subtopologies for number in range(sub.width(partitions)))

    def tasks_with(self, stores: Sequence[str], partitions: Mapping[str, int]) -> frozenset[tuple[str, int]]:
        """Returns the tasks that have all of these stores.

        Each task is a pair: name of the subtopology, and partition.
        """
        subs = [sub for sub in self.subtopologies if set(stores) <= set(sub.stores)]
        return frozenset((sub.name, number) for sub in subs for number in range(sub.width(partitions)))

    def topics(self) -> tuple[TopicSpec, ...]:
        """Returns all topics that the processor reads or writes, inputs first."""
        return (*self.inputs, *self.global_tables, *self._made())

    def _made(self) -> tuple[TopicSpec, ...]:
        """Returns the topics that the processor only writes: outputs, dead letters and changelogs."""
        extra = () if self.dead_letter is None else (self.dead_letter,)
        return (*self.outputs, *extra, *(spec.topic for spec in self.changelogs))


def subtopologies_of(inputs: tuple[str, ...], stores: tuple[StoreSpec, ...]) -> tuple[Subtopology, ...]:
    """Groups the input topics that share a store, directly or through other topics, into subtopologies."""
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


def fed_by_sources(topology: Topology) -> tuple[str, ...]:
    """Returns the inputs to which sources of this processor produce."""
    return tuple(dict.fromkeys(store.inputs[0] for store in topology.stores if store.kind == SOURCE))


def codecs_of(topology: Topology) -> dict[str, str]:
    """Maps each store with another codec than JSON to the codec's name and version."""
    return {store.name: CODECS[store.codec].label for store in topology.stores if store.codec != DEFAULT}


def code_version_of(topology: Topology, code: str) -> str:
    """Returns a short hash of the description and of the functions' source.

    A changed hash means that the processor must be deployed again.
    """
    described = asdict(topology)
    for name in ("code_version", "prove", "table_topics", "connectors"):
        described.pop(name)
    if not topology.global_tables:  # an empty field is left out, so that older processors keep their version hash
        described.pop("global_tables")
    for name in ("repartitions", "source_logs"):
        if not described[name]:  # an empty field is left out, because earlier Holdfast versions did not have it
            described.pop(name)
    for store in described["stores"]:  # left out: a change of typed columns needs no deployment
        store.pop("schema")
        store.pop("meaning")  # left out, because the hash has the rules of the steps and the functions' source
        store.pop("retracts")
        store.pop("uses")  # left out, because ``columns`` describes the same facts and is in the hash
    text = json.dumps(described, sort_keys=True, default=str) + code
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def source_of(function: Any) -> str:
    """Returns the source text of a function, or its name if the source is not available."""
    try:
        inner = inspect.unwrap(function)
        code = getattr(inner, "__code__", None)
        return inspect.getsource(function) if code is None else _text_of(code, getattr(inner, "__module__", None) or "")
    except (OSError, TypeError):
        return getattr(function, "__qualname__", "")


@lru_cache(maxsize=1024)
def _text_of(code: CodeType, module: str) -> str:
    """Returns the source text of a code object. The result is cached, because each call reads the source file.

    A temporary function with the module's name is passed to ``inspect``. For a bare code object, ``inspect`` would
    compare its file with the file of every imported module, which takes 10 ms.
    """
    cells = tuple(CellType() for _ in code.co_freevars)
    return inspect.getsource(FunctionType(code, {"__name__": module}, closure=cells))
