"""Computes the state of a store at a past time from its history table: for one key, or for all keys.

The state of all keys is written as a version (Iceberg snapshot) of the store's table, with a tag. Such a version is
called a *past version*. A *snapshot* in this module is Holdfast's snapshot of the store.

In SQL, for the processor ``fleet``, its store ``aircraft`` and the key ``N14228``:

    SELECT op, value FROM holdfast.fleet.aircraft_history
    WHERE message_key = 'N14228' AND timestamp <= TIMESTAMP '2026-11-21 20:00:00'
    ORDER BY generation DESC, offset DESC, op IN ('put', 'delete') DESC LIMIT 1

    SELECT * FROM holdfast.fleet.aircraft VERSION AS OF 'at-2026-11-21'

Invariants:
    - A time that the history does not cover is refused.
    - The published table does not change. A past version is written on its own branch, audited, and tagged.
    - A past version is built from a snapshot (the base) and later changes, or from the whole history. The base has no
      checkpoint after the requested time, and has the table's present columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark import current, history
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.catalog.records import record_snapshot
from holdfast.assets.spark.catalog.tables import require_table
from holdfast.assets.spark.fingerprint import Prints, differing_partitions, prints_after, prints_of, typed_hash
from holdfast.assets.spark.shapes import resolve_schema, schema_version
from holdfast.assets.spark.sources.changelog import PartitionRange
from holdfast.assets.spark.writing.branch_audit import SnapshotAuditFailed, require_read_right
from holdfast.assets.spark.writing.snapshot import seal_branch
from holdfast.infra.spark.session import short_errors
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.snapshots.coverage import base_for, covering, seconds_of
from holdfast.processors.snapshots.manifest import HISTORY, SnapshotManifest
from holdfast.processors.snapshots.names import branch_name, history_name, snapshot_tag, table_name, time_tag

#: A number in the id of each past version (a table version with the state at a past time). Increase it if the method of
#: building past versions changes. Existing ones are then built again when their time partition is materialised.
#: Since 2, the base has no checkpoint after the requested time.
#: Since 3, the base also has the table's present columns.
_WAY = 3


@dataclass(frozen=True, slots=True)
class PastVersion:
    """The state at a past time, as a version (Iceberg snapshot) of the store's table.

    ``made`` is False if the version existed before this run.
    """

    tag: str
    version: int
    manifest: SnapshotManifest
    made: bool


@dataclass(frozen=True, slots=True)
class KeyState:
    """The state of one key at a past time."""

    store_partition: int
    state_key: str
    #: The stored bytes; None if the key was deleted.
    value: bytes | None
    #: Offset and time (seconds since 1970) of the changelog record; None if only a full snapshot has the value.
    offset: int | None
    since: float | None


def state_at(spark: SparkSession, processor: str, store: str, at: datetime | float) -> DataFrame:
    """All live keys of a store at a past time, with columns store_partition, key, value, offset, timestamp.

    ``at`` is a datetime with a zone, or seconds since 1970.

    Raises:
        TableUnknown: The store has no table.
        NotCovered: The history lacks changes around that time.
        MomentUnclear: A datetime without a zone.
    """
    return history.live(history.fold(_changes_up_to(spark, processor, store, at)))


def key_at(
    spark: SparkSession, processor: str, store: str, message_key: bytes | str, at: datetime | float
) -> list[KeyState]:
    """The states of one message key at a past time, one for each state key.

    A deleted state has value None. A key given as text is encoded as UTF-8.

    Raises:
        TableUnknown: The store has no table.
        NotCovered: The history lacks changes around that time.
        MomentUnclear: A datetime without a zone.
    """
    prefix = key_prefix(message_key.encode() if isinstance(message_key, str) else message_key)
    rows = _changes_up_to(spark, processor, store, at).where(f"substring(key, 1, {len(prefix)}) = X'{prefix.hex()}'")
    found = history.fold(rows).selectExpr("*", f"{history.STATE_KEY} AS state_key")
    return [
        KeyState(
            row["store_partition"],
            row["state_key"],
            None if row["value"] is None else bytes(row["value"]),
            row["offset"],
            None if row["at"] is None else row["at"] / 1e6,
        )
        for row in found.selectExpr("*", "unix_micros(timestamp) AS at").orderBy("store_partition", "key").collect()
    ]


def write_past(
    spark: SparkSession, processor: str, store: str, partition_key: str, at: float, schema: StoreSchema | None = None
) -> PastVersion:
    """Write the state at a past time as a table version (Iceberg snapshot), and tag it with the time partition's name.

    The version is written and audited on its own branch.

    ``at`` is the end of the time partition, seconds since 1970. ``schema`` is the declared schema of the store's
    values.

    Raises:
        NotCovered: The history lacks changes around that time.
        SnapshotAuditFailed: The written version differs from the history; nothing was tagged.
        SparkFailed: The read or the write failed; nothing was tagged.
    """
    table, tag = table_name(processor, store), time_tag(partition_key)
    with short_errors(f"make {table} as of {partition_key}"), current.aligned_plans(spark):
        seen = versions.Versions.of(spark, table)
        described = json.dumps([table, HISTORY, partition_key, at, _WAY])
        snapshot_id = hashlib.sha256(described.encode()).hexdigest()[:16]
        found = seen.tagged(tag)
        made = found is None or found.manifest.snapshot_id != snapshot_id
        if found is None or made:
            past = _Past(processor, store, snapshot_id, partition_key, at, schema)
            found = _write(spark, seen, past)
        record_snapshot(spark, found.manifest)
        for name in (tag, snapshot_tag(snapshot_id)):
            versions.set_tag(spark, table, name, found.version)
        if made:
            versions.drop_branches(spark, table, versions.branches_of(spark, table, branch_name(snapshot_id)))
    return PastVersion(tag, found.version, found.manifest, made)


def published(spark: SparkSession, processor: str, store: str) -> list[SnapshotManifest]:
    """The manifests (JSON descriptions) of the published Holdfast snapshots of a store, newest first."""
    return [each.manifest for each in versions.Versions.of(spark, table_name(processor, store)).published()]


def _changes_up_to(spark: SparkSession, processor: str, store: str, moment: datetime | float) -> DataFrame:
    at, table = seconds_of(moment), table_name(processor, store)
    require_table(spark, table)
    known = covering(published(spark, processor, store), at, table)
    return _changes(spark, history_name(processor, store), known, at)


def _changes(spark: SparkSession, table: str, known: SnapshotManifest, at: float) -> DataFrame:
    rows = versions.at_version(spark, table, versions.MAIN)
    return rows.where(f"generation <= {known.generation} AND timestamp <= timestamp_micros({round(at * 1e6)})")


@dataclass(frozen=True, slots=True)
class _Past:
    """The parameters of a past version (a table version with the state at a past time) that will be written."""

    processor: str
    store: str
    snapshot_id: str
    key: str
    at: float
    schema: StoreSchema | None

    def resolved(self, spark: SparkSession, rows: DataFrame) -> StoreSchema | None:
        """The schema with which the past version is written; an inferred one has the typed columns that ``rows`` need.

        The table already has these columns, because all rows of the history were published to the table.
        """
        return resolve_schema(spark, table_name(self.processor, self.store), self.schema, current.current_rows(rows))


def _write(spark: SparkSession, seen: versions.Versions, past: _Past) -> versions.Version:
    """Write and audit a branch: a Holdfast snapshot (the base), merged with the changes up to the requested time."""
    table, key, at, snapshot_id = table_name(past.processor, past.store), past.key, past.at, past.snapshot_id
    published = list(seen.published())
    manifests = [each.manifest for each in published]
    known = covering(manifests, at, table)
    changes = _changes(spark, history_name(past.processor, past.store), known, at)
    base = base_for(manifests, at, known)
    shape = schema_version(spark, table)
    if base is not None and base.schema_version != shape:
        # The base (the earlier snapshot to build on) has an older schema: it lacks a present column or has a former
        # column. The base's rows would have null in the present columns. So the version is built from the whole history
        # instead.
        base = None
    ranges = _ranges(known, base)
    if base is None:
        branch = versions.new_branch(spark, table, snapshot_id)
        rows = history.live(history.fold(changes))
        schema = past.resolved(spark, rows)
        current.replace_all(rows, table, branch, schema)
        expected = prints_of(current.typed_rows(rows, schema), typed_hash(schema))
    else:
        version = next(each.version for each in published if each.manifest is base)
        branch = versions.new_branch(spark, table, snapshot_id, version=version)
        changed = history.fold(changes.where(history.between(known.generation, ranges)))
        schema = past.resolved(spark, changed)
        current.merge(spark, changed, table, branch, schema)
        had = Prints(base.fingerprints, base.typed_fingerprints)
        typed = typed_hash(schema) if had.typed else None
        after = current.typed_rows(changed, schema, keep=("op",))
        expected = prints_after(had, versions.at_version(spark, table, version), after, history.LIVE, typed)
    written = versions.at_version(spark, table, branch)
    measured = prints_of(written, typed_hash(schema))
    _require_equal(table, key, expected.pairs, measured.pairs)
    if expected.typed:
        _require_equal(table, key, expected.typed, measured.typed)
    require_read_right(f"{table} at {key}", written, schema, measured)
    manifest = _manifest(known, base, snapshot_id, at, measured, _reached(changes, known, ranges))
    manifest = replace(manifest, why=f"the state at the end of {key}, from the history", schema_version=shape)
    seal_branch(spark, table, branch, manifest, base)
    sealed = versions.Versions.of(spark, table).snapshot(snapshot_id, branch)
    assert sealed is not None
    return sealed


def _ranges(known: SnapshotManifest, base: SnapshotManifest | None) -> list[PartitionRange]:
    """Offset ranges of the changes that a past version adds to its base; without a base, the ranges start at offset 0.

    A range ends at the end offset of its partition in ``known``.
    """
    return [
        PartitionRange(part.partition, 0 if base is None else base.ends[part.partition], part.end)
        for part in known.partitions
    ]


def _reached(
    changes: DataFrame, known: SnapshotManifest, ranges: Sequence[PartitionRange]
) -> dict[int, tuple[int, int, int]]:
    """Maps each partition to three numbers: offset after its last change, number of changes, number of deletions."""
    logged = f"{history.LOGGED} AND {history.between(known.generation, ranges)}"
    counted = changes.where(logged).groupBy("store_partition")
    rows = counted.agg({"offset": "max", "*": "count", "value": "count"}).collect()
    found = {part.partition: (part.start, 0, 0) for part in ranges}
    for row in rows:
        records = row["count(1)"]
        found[row["store_partition"]] = (row["max(offset)"] + 1, records, records - row["count(value)"])
    return found


def _manifest(
    known: SnapshotManifest,
    base: SnapshotManifest | None,
    snapshot_id: str,
    at: float,
    measured: Prints,
    reached: dict[int, tuple[int, int, int]],
) -> SnapshotManifest:
    """The manifest (JSON description) of a past version: a table version with the state at a past time.

    The manifest has no input offsets, because only checkpoints record input offsets.
    """
    parts = []
    for part in known.partitions:
        start = 0 if base is None else base.ends[part.partition]
        end, records, tombstones = reached[part.partition]
        found = measured.pairs.get(part.partition, Fingerprint())
        typed = measured.typed.get(part.partition, Fingerprint()) if measured.typed else None
        moved = replace(part, start=start, end=end, records=records, tombstones=tombstones, inputs={}, sources={})
        parts.append(replace(moved, live_keys=found.count, fingerprint=found, typed=typed))
    return replace(
        known,
        snapshot_id=snapshot_id,
        source=HISTORY,
        base=base.snapshot_id if base is not None else None,
        taken_at=at,
        latest_at=at,
        covers_from=at,
        partitions=tuple(parts),
    )


def _require_equal(
    table: str, key: str, expected: Mapping[int, Fingerprint], measured: Mapping[int, Fingerprint]
) -> None:
    differing = differing_partitions(expected, measured)
    if differing:
        raise SnapshotAuditFailed(
            f"{table} at {key} differs from its history in partitions {', '.join(map(str, differing))}. Nothing was "
            "tagged.",
            action="Materialise this time partition again. If it fails again, the storage loses or changes data.",
            table=table,
            partitions=differing,
        )
