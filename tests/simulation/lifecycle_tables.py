"""A simulated warehouse. It takes snapshots of all stores while workers are idle, and restores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.infra.kafka.records import GroupMetadata, Partition
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.lifecycle.plans.facts.warehouse import OtherTable, Rows, StoreTable, StoreVersion
from holdfast.processors.snapshots.manifest import CHECKPOINT, PartitionManifest, SnapshotManifest
from holdfast.processors.snapshots.names import snapshot_tag, table_name
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.workload import GROUP, INPUT, Message

if TYPE_CHECKING:
    from tests.simulation.lifecycle_world import LifecycleWorld

#: The content of stores: changelog keys and values, by store and partition.
Contents = Mapping[tuple[str, int], Mapping[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All stores at one moment. ``effective`` are the messages whose effect they contain, according to the model."""

    number: int
    contents: Contents
    inputs: Mapping[int, int]
    effective: Mapping[tuple[str, int], Sequence[Message]]


class SimulatedTables:
    """The snapshots taken so far, with the interface ``processors.lifecycle.plans.facts.warehouse.Tables``."""

    def __init__(self, world: LifecycleWorld) -> None:
        self._world = world
        self.taken: list[Snapshot] = []

    def take(self, contents: Contents, effective: Mapping[tuple[str, int], Sequence[Message]]) -> None:
        """Take a snapshot of the current content. No worker processes input meanwhile."""
        committed = self._world.cluster.committed_offsets(GROUP)
        inputs = {place.number: at for place, at in committed.items() if place.topic == INPUT}
        kept = {place: tuple(messages) for place, messages in effective.items()}
        self.taken.append(Snapshot(len(self.taken) + 1, contents, inputs, kept))

    def store_table(self, processor: str, store: str) -> StoreTable:
        """The table of a store, as ``Tables.store_table`` describes it.

        The table has one version (Iceberg snapshot) for each simulated snapshot, newest first.
        """
        versions = []
        for each in reversed(self.taken):
            manifest = self._manifest(each, store)
            tags = (snapshot_tag(manifest.snapshot_id),)
            versions.append(StoreVersion(each.number, tags, each is self.taken[-1], 0.0, 1, manifest))
        return StoreTable(table_name(processor, store), tuple(versions))

    def other_table(self, name: str) -> OtherTable:
        """Always raises LookupError, because the simulated warehouse has only snapshots and no other tables."""
        raise LookupError(f"the simulated warehouse has no table {name}")

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[Rows]:
        """The rows of a snapshot, one at a time, so that the operator may be killed between any two rows of a load."""
        store = next(name for name in self._world.workload.names if table == table_name(GROUP, name))
        for key, value in self.taken[version - 1].contents[store, partition].items():
            yield [key], [value]

    def _manifest(self, taken: Snapshot, store: str) -> SnapshotManifest:
        source = self._world.cluster._broker.topics[INPUT].topic_id
        parts = []
        for number in range(self._world.schedule.partitions):
            held = taken.contents[store, number]
            parts.append(
                PartitionManifest(
                    partition=number,
                    topic_id="",
                    log_start=0,
                    start=0,
                    end=0,
                    records=0,
                    tombstones=0,
                    live_keys=len(held),
                    fingerprint=fingerprint_of(held.items()),
                    inputs={INPUT: taken.inputs[number]} if number in taken.inputs else {},
                    sources={INPUT: source},
                )
            )
        return SnapshotManifest(
            snapshot_id=f"s{taken.number}",
            processor=GROUP,
            store=store,
            table=table_name(GROUP, store),
            source=CHECKPOINT,
            base=None,
            why="",
            taken_at=float(taken.number),
            code_version="",
            state_format=STATE_FORMAT,
            schema_version=1,
            topic="",
            generation=1,
            covers_from=0.0,
            partitions=tuple(parts),
        )


class Loading:
    """Producers with which an operator writes changelogs (``processors.lifecycle.rebuild.from_tables.Loading``).

    Args:
        world: The simulated installation.
        process: The operator's process.
        setting: Called with the offsets that are about to be committed.
    """

    def __init__(
        self, world: LifecycleWorld, process: SimulatedProcess, setting: Callable[[Mapping[Partition, int]], None]
    ) -> None:
        self._cluster, self._broker = world.cluster.connect(process), world.cluster._broker
        self._setting = setting

    def producer(self, transactional_id: str | None) -> Any:
        """Make a new producer. It passes the offsets that it sends to ``setting``."""
        made, setting = self._cluster.producer(transactional_id), self._setting
        send = made.send_offsets

        def send_offsets(offsets: Mapping[Partition, int], metadata: GroupMetadata) -> None:
            send(offsets, metadata)
            setting(offsets)

        made.send_offsets = send_offsets  # type: ignore[method-assign]
        return made

    def outside_metadata(self, group: str) -> GroupMetadata:
        """The group metadata of a client that is no member of the group."""
        return self._broker.group(group), "", -1


def held_by_owners(world: LifecycleWorld, stores: Sequence[str]) -> dict[str, dict[int, Fingerprint]]:
    """Fingerprints of stores in local databases, by store and partition.

    Databases of deleted changelogs are left out.
    """
    ids = {name: each.topic_id for name, each in world.cluster._broker.topics.items()}
    found: dict[str, dict[int, Fingerprint]] = {store: {} for store in stores}
    for path in world.disk.paths:
        if path.parent.name.startswith(".") or not path.name.rpartition("-")[2].isdigit():
            continue
        content = world.disk.content(path)
        raw = content.get(META_KEY)
        meta = None if raw is None else TaskMeta.decode(raw)
        if meta is None or meta.restoring:
            continue
        for store in stores:
            at, prefix = meta.stores.get(store), store_prefix(store)
            if at is not None and ids.get(at.topic) == at.topic_id:
                own = {key[len(prefix) :]: value for key, value in content.items() if key.startswith(prefix)}
                found[store][int(path.name.rpartition("-")[2])] = fingerprint_of(own.items())
    return found
