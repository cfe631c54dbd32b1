"""One life in the model: a sequence of actions on a store, with its owner, its tables, and the expected versions.

A version is an Iceberg snapshot of the store's table.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.assets.spark import maintenance, past, planning
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.writing import snapshot as steps
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
#: A full snapshot is due this many seconds after the last one.
FULL_EVERY_S = 3 * 86_400.0


class Claims:
    """Keeps claimed and finished snapshots in memory, in place of the registry (Holdfast's database)."""

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
    """A planned snapshot: its checkpoints, and the store's content at their offsets."""

    points: Mapping[int, StorePoint]
    content: Content


@dataclass(slots=True)
class World:
    """The objects that all lives (sequences of actions on a store) of a test process share."""

    spark: Any
    #: The Spark session for a second, concurrent run.
    other: Any
    catalog: Any
    seams: Seams
    #: The folder of the tables' data files.
    data: Path
    #: Maximum number of random actions on one store, including its first snapshot. A life (sequence of actions) with a
    #: fixed course has as many actions as its course.
    steps: int
    lives: int = 0


@dataclass
class Life:
    """The life of one store: the sequence of actions on it. ``note`` logs a line for each action."""

    world: World
    schema: StoreSchema | None
    note: Callable[[str], None]
    clock: Clock = field(default_factory=Clock)
    claims: Claims = field(default_factory=Claims)
    #: The expected content of every snapshot that was ever planned, by snapshot id.
    taken: dict[str, Taken] = field(default_factory=dict)
    #: The id of the newest published snapshot. If runs are unfinished or have died, it may instead be one of
    #: ``unsure``.
    newest: str | None = None
    unsure: set[str] = field(default_factory=set)
    #: By the tag of a time partition: the moment whose state the tag shows, or the id of the tagged snapshot.
    times: dict[str, float | str] = field(default_factory=dict)
    #: Whether the columns of the branch main are those of its newest snapshot, because no other run has changed them
    #: since.
    shape_known: bool = True
    #: The table versions (Iceberg snapshots) that an unfinished restore reads.
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
        """The Spark session in which the actions of this life (sequence of actions) run."""
        return self.world.spark

    @property
    def table(self) -> str:
        """The full name of the store's table."""
        return table_name(self.processor, STORE)

    def forget(self) -> None:
        """Delete the table files of this life (sequence of actions), because they take memory."""
        shutil.rmtree(self.world.data / self.processor, ignore_errors=True)

    def checkpoint(self, partition: int, *, files: bool = True) -> None:
        """Let the owner take a checkpoint of a partition."""
        self.owner.checkpoint(partition, files=files)
        point, content = self.owner.points[partition]
        self.world.seams.checkpoints[point.path] = partition, content

    # -- checkpoints and snapshots -----------------------------------------------------------------------------------

    def plan(self, wanted: Wanted) -> SnapshotPlan:
        """The product's plan for a snapshot of the newest checkpoints."""
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
        """Write a planned snapshot. ``beside``: at the same time as another run.

        Even if this method raises an error, the snapshot may be published.
        """
        self.unsure.add(plan.snapshot_id)
        spark = self.world.other if beside else self.spark
        result = steps.write_snapshot(spark, plan, source_of(self.log), self.claims, schema=self.schema)
        manifest = result.manifest
        self.note(f"{manifest.source} snapshot {manifest.snapshot_id} gen {manifest.generation}: {manifest.why}")

    def published(self) -> str | None:
        """The id of the Holdfast snapshot that the branch main shows."""
        seen = self.tables.seen(STORE)
        found = seen.published() if seen is not None else None
        return None if found is None else found[1].snapshot_id

    def branches(self, *, but: str = "") -> set[str]:
        """The table's branches, without the branches of one snapshot's attempts."""
        seen = self.tables.seen(STORE)
        found = seen.branches if seen is not None else {}
        return {name for name in found if not but or not name.startswith(branch_name(but))}

    def settle(self) -> None:
        """Accept the snapshot of the branch main as the newest one, because no run is unfinished."""
        found = self.published()
        if found in {self.newest, *self.unsure}:
            self.newest = found
        self.unsure = set()

    def tag_time(self) -> None:
        """Tag the newest snapshot for the current time partition, as the snapshot asset does."""
        seen = self.tables.seen(STORE)
        found = seen.published() if seen is not None else None
        if found is None:
            return
        tag = time_tag(self.window(self.clock.time()))
        if not isinstance(self.times.get(tag), float):
            versions.set_tag(self.spark, self.table, tag, found[0])
            self.times[tag] = found[1].snapshot_id

    # -- past versions ----------------------------------------------------------------------------------------------

    @staticmethod
    def window(at: float) -> str:
        """The key of the time partition that contains a moment."""
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d-%H:%M")

    def write_past(self, at: float, *, beside: bool = False) -> past.PastVersion | None:
        """Write the state at a past moment as a table version. Returns None if its time partition has another one."""
        key = self.window(at)
        if self.times.setdefault(time_tag(key), at) != at:
            return None
        made = past.write_past(self.world.other if beside else self.spark, self.processor, STORE, key, at, self.schema)
        self.note(f"past version at {at}: base {made.manifest.base}, made {made.made}")
        return made

    # -- maintenance of the tables -----------------------------------------------------------------------------------

    def maintain(self, keep: MaintenanceSettings, *, beside: bool = False) -> None:
        """Run maintenance at the current time of the clock."""
        spark = self.world.other if beside else self.spark
        maintenance.maintain_store(spark, self.processor, STORE, keep, self.clock.moment(), self.needed)
