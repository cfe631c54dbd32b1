"""Publishes versions of a store's table: a snapshot of the present state, and versions for past times.

A version is an Iceberg snapshot of the table. A version for a past time is built from the store's history table.

Invariants:
    - A snapshot has the state at the offsets of the newest checkpoint, so table, changelog and store can be compared
      exactly.
    - A snapshot is published only if it equals the worker's checkpoint, key by key.
    - Spark and RocksDB are imported only in a run, not when definitions are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.assets.ports import Cluster, Warehouse
from holdfast.assets.times import Window
from holdfast.infra.paths import Paths
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.audits.stores import checkpoint_manifests
from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.snapshots.facts import ChangelogNow, SnapshotFacts, StorePoint, points_of
from holdfast.processors.snapshots.gathering import changelog_now, table_topic_now
from holdfast.processors.snapshots.plan import SnapshotPlan, Wanted, plan_snapshot

if TYPE_CHECKING:
    from holdfast.assets.spark.past import PastVersion
    from holdfast.assets.spark.sources.changelog import ChangelogSource
    from holdfast.assets.spark.writing.snapshot import SnapshotResult
    from holdfast.processors.engine.state.fingerprint import Fingerprint
    from holdfast.processors.snapshots.manifest import SnapshotManifest


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a run that publishes versions (Iceberg snapshots) of a store's table."""

    #: The new snapshot of the present state; None if the run only built versions for past times.
    current: SnapshotResult | None
    #: Store partition -> fingerprint (hash of all keys and values) of the worker's checkpoint. The snapshot must have
    #: equal fingerprints.
    stored: dict[int, Fingerprint]
    #: The facts of the changelog when the snapshot was planned; None if the run wrote no snapshot.
    changelog: ChangelogNow | None
    #: The versions for past times that the run built.
    past: tuple[PastVersion, ...]
    #: The manifests of all Holdfast snapshots in the table, newest first.
    snapshots: tuple[SnapshotManifest, ...]
    #: The columns of the table, each as (name, SQL type, comment).
    columns: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class StorePublisher:
    """Publishes versions of the warehouse table of one store."""

    definition: ProcessorDefinition
    store: str
    cluster: Cluster
    paths: Paths
    warehouse: Warehouse
    tell: Callable[[str], None]

    def publish(self, windows: Sequence[Window], wanted: Wanted, full_every_s: float) -> Published:
        """Publish the table versions of these time partitions (windows).

        For the current window, a snapshot of the store is published. For a past window, a version is built from the
        history table. If the history ends before the end of the past window, a snapshot is published first, which
        continues the history.

        Raises:
            SnapshotImpossible: No source certainly gives the state of the checkpoint.
            NotCovered: The history lacks changes around the end of a window.
            SnapshotAuditFailed: The written table differs from the checkpoint.
        """
        from holdfast.assets.spark import past
        from holdfast.assets.spark.catalog.tables import table_shape
        from holdfast.assets.spark.catalog.versions import set_tag
        from holdfast.assets.spark.planning import look_at_table, planned_shape
        from holdfast.assets.spark.writing.snapshot import write_snapshot
        from holdfast.processors.snapshots.names import table_name, time_tag

        now, spark = time.time(), self.warehouse.session
        name, topology = self.definition.name, self.definition.topology
        schema = next(spec.schema for spec in topology.stores if spec.name == self.store)
        running = [window for window in windows if window.is_current(now)]
        ended = [window for window in windows if not window.is_current(now)]
        points = self._points()
        table = look_at_table(spark, name, self.store)
        reached = table.base.taken_at if table.base is not None else 0.0
        taken_at = min((point.taken_at for point in points), default=0.0)
        behind = any(reached < window.end <= taken_at for window in ended)
        result, stored, changelog = None, {}, None
        if running or behind:
            changelog = self._changelog_now({point.partition: point.end for point in points})
            facts = SnapshotFacts(
                processor=name,
                store=self.store,
                points=points,
                changelog=changelog,
                table=table,
                code_version=topology.code_version,
                state_format=STATE_FORMAT,
                schema_version=planned_shape(spark, name, self.store, schema),
                now=time.time(),
            )
            plan = plan_snapshot(facts, wanted, full_every_s=full_every_s)
            self.tell(f"Snapshot {plan.snapshot_id} of {plan.table}, {plan.source.name}: {plan.why}")
            stored = self._stored(plan)
            source, claims = self._source(), self.warehouse.registry
            result = write_snapshot(spark, plan, source, claims, stored=stored, schema=schema, tell=self.tell)
            for window in running:
                set_tag(spark, plan.table, time_tag(window.key), result.version)
        made = []
        for window in ended:
            made.append(past.write_past(spark, name, self.store, window.key, window.end, schema))
            self.tell(f"{made[-1].tag} of {table_name(name, self.store)}: {made[-1].manifest.rows} keys")
        snapshots = tuple(past.published(spark, name, self.store))
        columns = tuple(table_shape(spark, table_name(name, self.store)))
        return Published(result, stored, changelog, tuple(made), snapshots, columns)

    def _points(self) -> tuple[StorePoint, ...]:
        found = points_of(checkpoint_manifests(self.paths.checkpoints(self.definition.name)), self.store)
        return tuple(replace(point, files=(Path(point.path) / "CURRENT").is_file()) for point in found)

    def _changelog_now(self, upto: Mapping[int, int]) -> ChangelogNow | None:
        topology, topics = self.definition.topology, self.cluster.topics()
        if (log := topology.source_log_of(self.store)) is not None:
            return table_topic_now(topics, log.topic, topology.processor)
        return changelog_now(topics, topology.log_names[self.store], upto)

    def _stored(self, plan: SnapshotPlan) -> dict[int, Fingerprint]:
        """Maps each partition to the fingerprint (hash of all keys and values) of the checkpoint's RocksDB files."""
        from holdfast.processors.engine.state.databases.checkpoint_reader import fingerprint_checkpoint
        from holdfast.processors.engine.state.fingerprint import Fingerprint

        return {
            part.partition: fingerprint_checkpoint(Path(part.path), self.store) if part.path else Fingerprint()
            for part in plan.partitions
        }

    def _source(self) -> ChangelogSource:
        from holdfast.assets.spark.sources.changelog import ChangelogSource

        return ChangelogSource(
            self.cluster.bootstrap, dict(self.cluster.client_config), lambda: self._changelog_now({})
        )
