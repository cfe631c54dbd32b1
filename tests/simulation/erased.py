"""Erasures of a key in the simulation: the places that may have copies, and the check that certificates are true.

Kafka's log cleaner is simulated: it compacts a changelog when an operator reads it, if its configuration asks for that.
Checkpoints in the object store and tables are left out, because the simulated workers serve no request for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.infra.kafka.records import Partition, Record
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.erasing import Checkpoints, Erasing, Places, Run
from holdfast.processors.lifecycle.erasure.finding import Found
from holdfast.processors.lifecycle.erasure.local_copies import Copy
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.plans.certificates import decode
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys
from holdfast.processors.lifecycle.verbs.state.erase import EAGER
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, INPUT

if TYPE_CHECKING:
    from tests.simulation.lifecycle_operator import Operator
    from tests.simulation.lifecycle_world import LifecycleWorld

#: The keys that courses erase.
KEYS = ("k0", "k1")


class SimulatedCopies:
    """The state folders on the simulated disk. Implements ``local_copies.LocalCopies``."""

    def __init__(self, world: LifecycleWorld, operator: Operator) -> None:
        self._world, self._operator = world, operator

    def copies(self, stores: Sequence[str], entries: KeyEntries) -> Iterator[Copy]:
        """Reads all copies; the read passes a point, at which the operator may be killed."""
        self._operator.process.point("disk:copies")
        yield from copies_on_disk(self._world, stores, entries)

    def delete(self, copy: Copy) -> bool:
        """Delete a copy; returns False if a process has it open."""
        self._operator.process.point("disk:delete")
        try:
            self._world.disk.attach(self._operator.process).delete(copy.path)
        except OSError:
            return False
        return True


def copies_on_disk(world: LifecycleWorld, stores: Sequence[str], entries: KeyEntries) -> list[Copy]:
    """All copies of tasks on the simulated disk."""
    found = []
    for path in world.disk.paths:
        number = path.name.rpartition("-")[2]
        content = world.disk.content(path)
        raw = content.get(META_KEY)
        meta = None if raw is None else TaskMeta.decode(raw)
        offsets = {} if meta is None else {name: at.offset for name, at in meta.stores.items()}
        is_task = number.isdigit() and not path.parent.name.startswith(".")
        with_key = tuple(
            store
            for store in stores
            if any(
                key.startswith(store_prefix(store)) and entries.has(key[len(store_prefix(store)) :]) for key in content
            )
        )
        found.append(Copy(path, int(number) if is_task else None, offsets, with_key))
    return found


def erasing_in_memory(world: LifecycleWorld, operator: Operator, registry: Any, topics: Any) -> Erasing:
    """The executor of an erasure's stages, on the simulated parts."""

    def read_all(topic: str, number: int, start: int, end: int) -> Iterator[Record]:
        operator.process.point("kafka:read")
        if world.cluster._broker.topics[topic].config.get("min.compaction.lag.ms") == "0":
            world.cluster.compact(Partition(topic, number), drop_tombstones=False)
        for partition, record in world.cluster.read(topic, committed=False):
            if partition == number and start <= record.offset < end:
                yield record

    def read(place: Partition, start: int, end: int) -> Iterator[Record]:
        return (
            record
            for number, record in world.cluster.read(place.topic)
            if number == place.number and start <= record.offset < end
        )

    nothing: Any = None
    tasks = {
        sub.task(number): number
        for sub in world.topology.subtopologies
        for number in range(sub.width({INPUT: world.schedule.partitions}))
    }
    return Erasing(
        Places(
            registry=registry,
            topics=topics,
            owners=operator.owners,
            topology=lambda name: world.topology,
            cluster=operator._loading,  # type: ignore[arg-type]
            local=lambda name: SimulatedCopies(world, operator),
            tasks=lambda name: tasks,
            checkpoints=Checkpoints(lambda name: None, None, nothing),
            table=lambda place, key, ends: Found("absent", "the simulation has no table"),
            archive=Archive(world.paths.archive),
            paths=world.paths,
            read_all=read_all,
            read=read,
            run=Run(lambda: operator.hold.step, operator.hold.check, operator._now),
        )
    )


def check_erased(world: LifecycleWorld) -> None:
    """Check that each certificate that says "erased" is true.

    Raises:
        InvariantBroken: The changelog, or a copy on the disk, has a value of the key from before the deletes. Or a
            changelog is still compacted at once, although no erasure is open.
    """
    _check_compaction(world)
    erased = ErasedKeys.of(world.registry, world.paths, GROUP)
    marks = {erased.mark(key.encode()): key for key in KEYS} if erased.times else {}
    for record in world.registry.erasures.of(GROUP):
        certificate = decode(record.document) if record.document else None
        if certificate is None or not certificate.proven:
            continue
        entries = KeyEntries(marks[record.mark])
        sinks = {each.name for each in world.topology.connectors if each.role == "sink"}
        if told := sinks - {each.name for each in certificate.proofs if each.kind == "sink"}:
            raise InvariantBroken("erased", f"the certificate does not name the sinks {told}: {certificate}")
        for topic, ends in certificate.ends.items():
            if topic not in world.cluster._broker.topics:
                continue
            for number, entry in world.cluster.read(topic, committed=False):
                if entry.offset < ends.get(number, 0) and entry.value is not None and entries.has(entry.key):
                    raise InvariantBroken("erased", f"{topic}[{number}] has a value at {entry.offset}: {certificate}")
        _check_disk(world, entries, certificate.ends)


def _check_compaction(world: LifecycleWorld) -> None:
    if world.registry.journal.applies(1, processor=GROUP, open_only=True):
        return
    for spec in world.topology.changelogs:
        topic = world.cluster._broker.topics.get(spec.topic.name)
        if topic is not None and topic.config.get("segment.ms") == EAGER["segment.ms"]:
            raise InvariantBroken("erased", f"{spec.topic.name} still has the compaction of an erasure")


def _check_disk(world: LifecycleWorld, entries: KeyEntries, ends: Any) -> None:
    for spec in world.topology.changelogs:
        for copy in copies_on_disk(world, (spec.store,), entries):
            end = ends.get(spec.topic.name, {}).get(copy.partition, 0)
            if (
                copy.partition is not None
                and copy.with_key
                and copy.offsets
                and copy.offsets.get(spec.store, end) < end
            ):
                raise InvariantBroken("erased", f"{copy.path} has the key, and is at {copy.offsets} before {end}")
