"""The facts that plans are made from: one frozen view of a processor's deployment, workers, topics and state.

The facts are read in this order: the recorded deployment, running instances (workers), the group, topics with their
offsets, local state. A fact is compared with facts that were read before it, for example local state with offsets.

Invariants:
    - A topic that does not exist is absent from the facts.
    - If a service does not answer, reading raises an error. An unreadable fact is never reported as missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

import msgspec

from holdfast.infra.kafka.records import KeysOf, Member, Partition, TopicFacts, worker_of
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.certificates import ErasureSource, FactsOfErasures
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.plans.facts.dead_letters import LetterFacts
from holdfast.processors.lifecycle.plans.facts.files import FileFacts
from holdfast.processors.lifecycle.plans.facts.shape import Shape
from holdfast.processors.lifecycle.plans.facts.warehouse import OtherTable, StoreTable
from holdfast.processors.lifecycle.plans.requests import Selection

#: Value of ``Counted.where`` for a count in local state. Such a count is used only if the local state is complete.
LOCAL = "local state"


class InstanceFacts(msgspec.Struct, frozen=True):
    """The facts of one slot, which is the place of one worker; ``alive`` is true if the slot has a process.

    All other fields come from the status of the process, and are empty if the process does not answer. ``tasks`` has
    the names of its tasks. ``paused`` is true if the process reads no input.
    """

    slot: str
    alive: bool
    phase: str | None = None
    code_version: str | None = None
    paused: bool = False
    tasks: tuple[str, ...] = ()
    store_bytes: int | None = None


class DeploymentFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The recorded deployment of a processor; each new deployment has a greater number, its ``generation``."""

    code_version: str
    slots: tuple[str, ...]
    desired: str
    generation: int
    worked_instead: str = ""


class ReleaseFacts(msgspec.Struct, frozen=True):
    """A release of a processor.

    ``copied`` is true if the release's code was copied, so that the release can be started again. ``worked`` is true if
    the release once processed every partition.
    """

    release_id: str
    code_version: str
    copied: bool
    shape: Shape
    worked: bool = True


class CodeFacts(msgspec.Struct, frozen=True):
    """The present files of a processor's definition.

    ``release_id`` is the id of a release of these files. ``why_not`` is the reason why the files are not copied; empty
    if they are copied. ``left`` has the paths of project files that the code reads but that are not copied. ``unseen``
    has a text for each place that names a module or a file only at runtime.
    """

    release_id: str
    target: str
    why_not: str = ""
    left: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


class LocalTask(msgspec.Struct, frozen=True):
    """The local state of one task in one slot; ``stores`` and ``inputs`` are None while a process uses the state.

    A slot is the place of one worker.

    Args:
        slot: The slot.
        task: ``<subtopology>-<partition>``.
        size_bytes: Size of the state on disk; None while a process uses the state.
        stores: Store -> [changelog topic, its topic id, next changelog offset].
        inputs: Input topic -> next input offset; the state contains the effects of all earlier records.
        complete_at: When the state was last known to be complete, seconds since 1970.
        restoring: Whether the state's last restore did not finish.
    """

    slot: str
    task: str
    size_bytes: int | None = None
    stores: dict[str, tuple[str, str, int]] | None = None
    inputs: dict[str, int] | None = None
    complete_at: float = 0.0
    restoring: bool = False


class Rate(msgspec.Struct, frozen=True):
    """A measured rate: a number of units of work, and the seconds that this work took."""

    units: float
    seconds: float


class HangingTransaction(msgspec.Struct, frozen=True):
    """An open transaction that no coordinator knows, and that has been open for longer than any transaction timeout.

    ``silent_s`` is the number of seconds since its last write.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    silent_s: float


class Counted(msgspec.Struct, frozen=True):
    """Number of keys in a selection, and bytes of their keys and values; ``where`` is the source of the count."""

    keys: int
    size_bytes: int
    where: str


class Facts(FactsOfErasures, msgspec.Struct, frozen=True, kw_only=True):
    """All facts of a processor at one moment (``now``, seconds since 1970).

    Args:
        processor: The processor's name, which is also its consumer group.
        topics: Topic name -> facts of the topic; only existing topics.
        brokers: Number of brokers; None if it was not requested.
        others: Names of all topics, to suggest the right name for a misspelled topic; read only if an input topic is
            missing.
        starts: Topic -> partition -> first existing offset.
        ends: Topic -> partition -> high watermark.
        members: Number of live members of the consumer group.
        strangers: Members of the group that are not workers of this installation, as texts.
        committed: Topic -> partition -> committed offset of the group.
        deployment: The recorded deployment; None if the processor was never deployed.
        behind: The finding that Holdfast's registry lacks the processor's newest deployment; None if it has it.
        instances: The recorded slots (places of workers), and further slots that have a process.
        local: The local state of every task on this machine.
        counted: Store -> keys and bytes of the request's selection; only for requests that select keys.
        hanging: Hanging transactions on the changelogs; only for ``compact``.
        rates: Kind of a stage (step of a plan) -> measured rate of stages of this kind.
        released: The release that worked last; None if none is recorded. ``released`` and ``code`` are read only for
            deployments.
        code: The present files of the definition.
        file: The export file whose entries are put back; only for restores from a file.
        releases: Every recorded release; the releases that worked last come first. Only for ``restart`` and
            ``rollback``.
        before: The release that worked before the present version was deployed; None if there is none. Only for
            ``rollback``.
        letters: The dead letters that were not sent again; None without a dead-letter topic. Only for ``replay``.
        tables: Store -> its table in the warehouse; only for restores from the warehouse.
        other: The table that a store is filled from. ``other`` and ``spread`` are read only for backfills from a table.
        held: Store -> partition -> input topic -> next input offset, from the store's changelog; only for
            ``reposition``.
        workers: The number of workers in the settings; None if not set. Only for ``deploy`` and ``scale``.
        settings: Differences between the present settings for workers and the deployed settings, as texts; only for
            ``deploy``.
        spread: Input topic -> partitioner of its writers (``infra.kafka.topics.partitioners``).
        keys: Topic -> partition -> keys of its newest records; only for ``provision`` and ``deploy``.
    """

    processor: str
    now: float
    topics: dict[str, TopicFacts] = {}
    brokers: int | None = None
    others: tuple[str, ...] = ()
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    members: int = 0
    strangers: tuple[str, ...] = ()
    committed: dict[str, dict[int, int]] = {}
    deployment: DeploymentFacts | None = None
    behind: Behind | None = None
    instances: tuple[InstanceFacts, ...] = ()
    local: tuple[LocalTask, ...] = ()
    counted: dict[str, Counted] = {}
    hanging: tuple[HangingTransaction, ...] = ()
    rates: dict[str, Rate] = {}
    released: ReleaseFacts | None = None
    code: CodeFacts | None = None
    releases: tuple[ReleaseFacts, ...] = ()
    before: ReleaseFacts | None = None
    letters: LetterFacts | None = None
    file: FileFacts | None = None
    tables: dict[str, StoreTable] = {}
    other: OtherTable | None = None
    spread: dict[str, str] = {}
    keys: Mapping[str, KeysOf] = {}
    held: dict[str, dict[int, dict[str, int]]] = {}
    workers: int | None = None
    settings: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        """Whether at least one worker process of the processor exists."""
        return any(each.alive for each in self.instances)

    @property
    def working(self) -> bool:
        """Whether the worker in every slot is in phase ``running``: its tasks are assigned and restored."""
        return bool(self.instances) and all(each.phase == "running" for each in self.instances)

    @property
    def alive(self) -> dict[str, bool]:
        """Maps each slot (one for each worker) to whether it has a process."""
        return {each.slot: each.alive for each in self.instances}

    @property
    def beyond(self) -> tuple[str, ...]:
        """The slots (places of workers) that have a process, but are not in the recorded deployment.

        An interrupted apply (execution of a plan) left these processes.
        """
        recorded = () if self.deployment is None else self.deployment.slots
        return tuple(each.slot for each in self.instances if each.slot not in recorded)

    @property
    def deployed(self) -> str | None:
        """The deployed code version; None if the processor was never deployed."""
        return None if self.deployment is None else self.deployment.code_version

    @property
    def desired(self) -> str | None:
        """The desired state of the deployment, for example ``stopped``; None if the processor was never deployed."""
        return None if self.deployment is None else self.deployment.desired

    @property
    def widths(self) -> dict[str, int]:
        """Topic -> number of partitions."""
        return {name: each.partitions for name, each in self.topics.items()}

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """The topic ids of these topics; missing topics are left out."""
        return {name: self.topics[name].topic_id for name in names if name in self.topics}

    def seconds_for(self, stage: str, units: float, assumed_per_s: float, unit: str) -> tuple[float, str]:
        """Returns the expected seconds for ``units`` of work, and a text about the measured or assumed rate."""
        rate = self.rates.get(stage)
        if rate is not None and rate.units > 0 and rate.seconds > 0:
            return units * rate.seconds / rate.units, "at the measured rate"
        return units / assumed_per_s, f"no rate measured yet, {assumed_per_s:,.0f} {unit} per second assumed"


class FactSource(ErasureSource, Protocol):
    """Reads facts; changes nothing."""

    def now(self) -> float:
        """The present time, seconds since 1970."""

    def deployment(self, processor: str) -> DeploymentFacts | None:
        """The recorded deployment; None if the processor was never deployed."""

    def behind(self, processor: str) -> Behind | None:
        """The finding that Holdfast's registry lacks the processor's newest deployment; None if the registry has it."""

    def instances(self, processor: str, slots: Sequence[str]) -> tuple[InstanceFacts, ...]:
        """The facts of the workers in these slots (places of workers), and in all other slots that have a process."""

    def members(self, group: str) -> Sequence[Member]:
        """The live members of the consumer group."""

    def client_ids(self, processor: str) -> Set[str]:
        """The client ids of all workers of the processor in this installation, whether alive or dead."""

    def committed_offsets(self, group: str) -> Mapping[Partition, int]:
        """Waits until the group's pending transactions have ended, and returns the committed offsets."""

    def ping(self) -> int:
        """Sends a request to the brokers, and returns their number."""

    def names(self) -> Sequence[str]:
        """The names of all topics that this client may see."""

    def describe(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """Topic name -> facts, for existing topics only."""

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> first offset that still exists."""

    def end_offsets(self, topic: str, *, committed: bool) -> dict[int, int]:
        """Partition -> high watermark; with ``committed``, the last stable offset."""

    def local_tasks(self, processor: str) -> tuple[LocalTask, ...]:
        """The state of all tasks of the processor on this machine."""

    def count(self, processor: str, store: str, selection: Selection, partitions: tuple[int, ...]) -> Counted | None:
        """Keys and bytes of a selection; None if neither workers nor local state can count them."""

    def hanging(self, partitions: Mapping[str, int]) -> tuple[HangingTransaction, ...]:
        """The hanging transactions on these topics; ``partitions`` maps topic names to the number of partitions."""

    def rates(self, processor: str) -> dict[str, Rate]:
        """Kind of a stage, such as ``load_table`` -> the measured rate of stages of this kind."""

    def released(self, processor: str) -> ReleaseFacts | None:
        """The release that worked last; None if no release worked."""

    def releases(self, processor: str) -> tuple[ReleaseFacts, ...]:
        """Every recorded release; the releases that worked last come first."""

    def letters(self, processor: str, topic: str, inputs: tuple[str, ...]) -> LetterFacts | None:
        """The dead letters in a topic that were not sent again; None if the topic does not exist."""

    def before(self, processor: str) -> ReleaseFacts | None:
        """The release that worked before the present version was deployed; None if there is none."""

    def code(self, processor: str, code_version: str) -> CodeFacts:
        """The facts about the files of the processor's definition, whose version is ``code_version``."""

    def store_table(self, processor: str, store: str) -> StoreTable:
        """The table of a store in the warehouse, with its snapshots."""

    def other_table(self, name: str) -> OtherTable:
        """A table of the warehouse that may belong to any program."""

    def file(self, path: str) -> FileFacts:
        """The facts of an export file on this machine."""

    def held_inputs(self, changelog: str) -> dict[int, dict[str, int]]:
        """Partition -> input topic -> next input offset.

        The offsets come from the last committed meta record (record with a commit's input offsets) of the changelog.
        """

    def settings(self, processor: str) -> tuple[str, ...]:
        """Differences between the present settings for workers and the deployed settings, one text for each."""

    def spread(self, topic: str) -> str:
        """The partitioner that the writers of a topic use."""

    def newest_keys(self, partitions: Mapping[str, int]) -> Mapping[str, KeysOf]:
        """Topic -> keys of its newest records; ``partitions`` maps topic names to the number of partitions."""

    def workers(self, processor: str) -> int | None:
        """The number of workers in the settings; None if not set."""


def read_facts(
    topology: Topology,
    source: FactSource,
    *,
    count: tuple[tuple[str, ...], Selection, tuple[int, ...]] | None = None,
    releases: bool = False,
    hanging: bool = False,
    also: Sequence[str] = (),
) -> Facts:
    """Reads the facts of one processor that most commands need; the function ``read`` of each command adds more facts.

    Args:
        topology: The processor's present definition.
        source: The source of the facts.
        count: Stores, selection and partitions whose keys are counted; None for no counting.
        releases: Whether to read the definition's files and the release that worked last.
        hanging: Whether to look for hanging transactions on the changelogs.
        also: Names of further topics whose facts are read.

    Raises:
        HoldfastError: A service does not answer.
    """
    name = topology.processor
    worked_last = source.released(name)
    deployment = _with_worked_instead(name, source, source.deployment(name), worked_last)
    instances = () if deployment is None else source.instances(name, deployment.slots)
    members = source.members(name)
    strangers = strangers_in(members, source.client_ids(name), sum(each.alive for each in instances))
    committed: dict[str, dict[int, int]] = {}
    for place, offset in source.committed_offsets(name).items():
        committed.setdefault(place.topic, {})[place.number] = offset
    topics = source.describe([*dict.fromkeys([*(spec.name for spec in topology.topics()), *also])])
    logs = [*(spec.name for spec in topology.inputs), *(spec.topic.name for spec in topology.changelogs), *also]
    there = [topic for topic in dict.fromkeys(logs) if topic in topics]
    starts = {topic: source.start_offsets(topic) for topic in there}
    ends = {topic: source.end_offsets(topic, committed=False) for topic in there}
    local = source.local_tasks(name)
    logged = {
        spec.topic.name: topics[spec.topic.name].partitions for spec in topology.changelogs if spec.topic.name in topics
    }
    counted: dict[str, Counted] = {}
    if count is not None:
        stores, selection, partitions = count
        for store in stores:
            found = source.count(name, store, selection, partitions)
            if found is not None and (found.where != LOCAL or _is_whole(topology, store, partitions, local, committed)):
                counted[store] = found
    return Facts(
        processor=name,
        now=source.now(),
        topics=topics,
        brokers=source.ping(),
        others=() if all(spec.name in topics for spec in topology.sources) else tuple(source.names()),
        starts=starts,
        ends=ends,
        members=len(members),
        strangers=tuple(map(str, strangers)),
        committed=committed,
        deployment=deployment,
        behind=source.behind(name),
        instances=instances,
        local=local,
        counted=counted,
        hanging=source.hanging(logged) if hanging else (),
        rates=source.rates(name),
        released=worked_last if releases else None,
        code=source.code(name, topology.code_version) if releases else None,
    )


def _with_worked_instead(
    name: str, source: FactSource, deployed: DeploymentFacts | None, last: ReleaseFacts | None
) -> DeploymentFacts | None:
    """The recorded deployment. If its version never worked, ``worked_instead`` is the version that worked last."""
    if deployed is None or last is None or last.code_version == deployed.code_version:
        return deployed
    own = (each for each in source.releases(name) if each.code_version == deployed.code_version)
    worked = any(each.worked for each in own)
    return deployed if worked else msgspec.structs.replace(deployed, worked_instead=last.code_version)


def strangers_in(members: Sequence[Member], own: Set[str], alive: int) -> list[Member]:
    """The members of a group that are not workers of this installation.

    ``own`` has the client ids of the processor's workers; ``alive`` is the number of its slots (places of workers) with
    a process. Workers of earlier Holdfast versions, and workers with a ``client.id`` in their settings, have client ids
    that are not in ``own``. So each live slot without a member in ``own`` may explain one member with an unknown client
    id. If there are more unknown members than such slots, all unknown members are returned; otherwise none.
    """
    named = [each for each in members if worker_of(each.client_id) in own]
    others = [each for each in members if worker_of(each.client_id) not in own]
    return others if len(others) > max(0, alive - len(named)) else []


def _is_whole(
    topology: Topology,
    store: str,
    partitions: Sequence[int],
    local: Sequence[LocalTask],
    committed: Mapping[str, Mapping[int, int]],
) -> bool:
    """Whether local state contains all input that is committed for a store.

    If local state lacks input, a count of its keys would be too low.
    """
    for sub in topology.subtopologies:
        for number in {number for topic in sub.inputs for number in committed.get(topic, {})}:
            if store not in sub.stores or (partitions and number not in partitions):
                continue
            copies = [each for each in local if each.task == sub.task(number) and each.stores is not None]
            furthest = max(copies, key=lambda each: (each.stores or {}).get(store, ("", "", 0))[2], default=None)
            if furthest is None or furthest.restoring:
                return False
            held = furthest.inputs or {}
            if any(held.get(topic) != committed.get(topic, {}).get(number, held.get(topic)) for topic in sub.inputs):
                return False
    return True


def partition_of(task: str) -> int:
    """The number of the partition, read from a task's name ``<subtopology>-<partition>``."""
    return int(task.rpartition("-")[2])


def selected(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The entries of ``facts`` with these names; missing names are left out. A plan's hash is computed from them."""
    return {name: facts[name] for name in names if name in facts}
