"""One modelled life: a store, its owner, its tables, and what the model says that each version must be."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.assets.spark import maintenance, past, planning, versions
from holdfast.assets.spark import snapshot as steps
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.snapshots.facts import SnapshotFacts, StorePoint
from holdfast.processors.snapshots.names import branch_name, table_name, time_tag
from holdfast.processors.snapshots.plan import SnapshotPlan, Wanted, plan_snapshot
from tests.spark.model.changelog import MemoryChangelog
from tests.spark.model.clock import Clock
from tests.spark.model.owner import PARTITIONS, Content, Owner
from tests.spark.model.reading import Tables
from tests.spark.model.seams import Seams, source_of

STORE = "s"
#: Full snapshots follow each other after this, seconds.
FULL_EVERY_S = 3 * 86_400.0


class Claims:
    """Remembers what was claimed and finished, as the registry does."""

    def __init__(self) -> None:
        self.claimed: set[str] = set()
        self.finished: dict[str, int] = {}

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Any, now: Any) -> bool:
        new = snapshot_id not in self.claimed
        self.claimed.add(snapshot_id)
        return new

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: Any) -> bool:
        return self.finished.setdefault(snapshot_id, iceberg_snapshot_id) == iceberg_snapshot_id


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot as its checkpoints have it: the vector, and what the store held there."""

    points: Mapping[int, StorePoint]
    content: Content


@dataclass(slots=True)
class World:
    """What all lives of a test process share."""

    spark: Any
    #: The session of a second run.
    other: Any
    catalog: Any
    seams: Seams
    #: The folder of the tables' files.
    data: Path
    #: Things that happen to one store, its first snapshot among them, at most; a life of a course has its own number.
    steps: int
    lives: int = 0


@dataclass
class Life:
    """A store's life so far. ``note`` gets a line for each thing that happened."""

    world: World
    schema: StoreSchema | None
    note: Callable[[str], None]
    clock: Clock = field(default_factory=Clock)
    claims: Claims = field(default_factory=Claims)
    #: Snapshot id -> what it has to hold, of all that were ever planned.
    taken: dict[str, Taken] = field(default_factory=dict)
    #: The newest published snapshot; while runs are under way, or just died, it may be one of ``unsure``.
    newest: str | None = None
    unsure: set[str] = field(default_factory=set)
    #: Tag of a time partition -> the moment that it shows, or the snapshot.
    times: dict[str, float | str] = field(default_factory=dict)
    #: Whether main has the columns of its newest snapshot: no other run changed them since.
    shape_known: bool = True
    #: Versions that an unfinished restore reads.
    needed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.world.lives += 1
        self.processor = f"m{self.world.lives}"
        self.log = MemoryChangelog(f"{self.processor}-{STORE}-changelog", PARTITIONS)
        self.owner = Owner(self.log, self.clock)
        self.tables = Tables(self.world.catalog, self.processor)
        self.world.seams.begin(self.clock)

    @property
    def spark(self) -> Any:
        """The session."""
        return self.world.spark

    @property
    def table(self) -> str:
        """The table's full name."""
        return table_name(self.processor, STORE)

    def forget(self) -> None:
        """The life is over: its files are deleted, because they are in memory."""
        shutil.rmtree(self.world.data / self.processor, ignore_errors=True)

    def checkpoint(self, partition: int, *, files: bool = True) -> None:
        """The owner takes a checkpoint of a partition."""
        self.owner.checkpoint(partition, files=files)
        point, content = self.owner.points[partition]
        self.world.seams.checkpoints[point.path] = partition, content

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def plan(self, wanted: Wanted) -> SnapshotPlan:
        """The product's plan of a snapshot of the newest checkpoints."""
        points = {number: point for number, (point, _) in sorted(self.owner.points.items())}
        facts = SnapshotFacts(
            processor=self.processor,
            store=STORE,
            points=tuple(points.values()),
            changelog=self.log.look(),
            schema_version=planning.planned_shape(self.spark, self.processor, STORE, self.schema),
            table=planning.look_at_table(self.spark, self.processor, STORE),
            code_version="code",
            state_format=STATE_FORMAT,
            now=self.clock.time(),
        )
        plan = plan_snapshot(facts, wanted, full_every_s=FULL_EVERY_S)
        if not plan.published:
            held = ((number, content) for number, (_, content) in self.owner.points.items())
            content = {(number, key): value for number, each in held for key, value in each.items()}
            self.taken[plan.snapshot_id] = Taken(points, content)
        return plan

    def write(self, plan: SnapshotPlan, *, beside: bool = False) -> None:
        """Write a planned snapshot, ``beside`` another run; it may be published even if this ends by an exception."""
        self.unsure.add(plan.snapshot_id)
        spark = self.world.other if beside else self.spark
        result = steps.write_snapshot(spark, plan, source_of(self.log), self.claims, schema=self.schema)
        manifest = result.manifest
        self.note(f"{manifest.source} snapshot {manifest.snapshot_id} gen {manifest.generation}: {manifest.why}")

    def published(self) -> str | None:
        """The snapshot that main shows."""
        seen = self.tables.seen(STORE)
        found = seen.published() if seen is not None else None
        return None if found is None else found[1].snapshot_id

    def branches(self, *, but: str = "") -> set[str]:
        """The table's branches, without those of one snapshot's attempts."""
        seen = self.tables.seen(STORE)
        found = seen.branches if seen is not None else {}
        return {name for name in found if not but or not name.startswith(branch_name(but))}

    def settle(self) -> None:
        """No run is under way: what main has now is the newest, and nothing else becomes it."""
        found = self.published()
        if found in {self.newest, *self.unsure}:
            self.newest = found
        self.unsure = set()

    def tag_time(self) -> None:
        """The running time partition shows the newest snapshot, as the snapshot asset does it."""
        seen = self.tables.seen(STORE)
        found = seen.published() if seen is not None else None
        if found is None:
            return
        tag = time_tag(self.window(self.clock.time()))
        if not isinstance(self.times.get(tag), float):
            versions.set_tag(self.spark, self.table, tag, found[0])
            self.times[tag] = found[1].snapshot_id

    # -- the past ----------------------------------------------------------------------------------------------------

    @staticmethod
    def window(at: float) -> str:
        """The key of the time partition of a moment."""
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d-%H:%M")

    def write_past(self, at: float, *, beside: bool = False) -> past.PastVersion | None:
        """A version of a moment; None if its window has another one."""
        key = self.window(at)
        if self.times.setdefault(time_tag(key), at) != at:
            return None
        made = past.write_past(self.world.other if beside else self.spark, self.processor, STORE, key, at, self.schema)
        self.note(f"past version at {at}: base {made.manifest.base}, made {made.made}")
        return made

    # -- maintenance -------------------------------------------------------------------------------------------------

    def maintain(self, keep: MaintenanceSettings, *, beside: bool = False) -> None:
        """Maintenance at this moment."""
        spark = self.world.other if beside else self.spark
        maintenance.maintain_store(spark, self.processor, STORE, keep, self.clock.moment(), self.needed)
