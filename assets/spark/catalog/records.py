"""Writes the snapshots table of a processor: one row for each partition of each Holdfast snapshot.

In this module, a *snapshot* is Holdfast's snapshot of a store. An Iceberg snapshot of the snapshots table is called a
*version*.

Invariants:
    - The table has each snapshot only once. Rows are appended on a branch, and main moves to the branch only if no
      other run has changed main.
"""

from __future__ import annotations

import json
from itertools import takewhile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.catalog.tables import SNAPSHOT_COLUMNS, create_snapshots
from holdfast.processors.snapshots.manifest import ID_PROPERTY, SnapshotManifest

_ATTEMPTS = 5
#: Maximum number of files that one Spark task writes; more files are distributed over several tasks.
_FILES_OF_A_TASK = 64


def record_snapshot(
    spark: SparkSession, manifest: SnapshotManifest, unpublished: versions.Versions | None = None
) -> None:
    """Record a snapshot if it is not recorded yet.

    Args:
        spark: The Spark session.
        manifest: The snapshot's manifest.
        unpublished: The versions (Iceberg snapshots) of the snapshots table that were read before the publish of this
            snapshot. They cannot contain its rows, so they are not searched. None if they were not read.

    Raises:
        TableMoved: Other runs wrote to the table during each of ``_ATTEMPTS`` attempts.
    """
    table = create_snapshots(spark, manifest.processor)
    for attempt in range(_ATTEMPTS):
        seen = versions.Versions.of(spark, table)
        # The branch starts from the newest version in ``seen``. If another run records a snapshot after ``seen`` was
        # read, the branch cannot be published, and the next attempt reads the versions again.
        if _is_recorded(spark, table, seen, manifest.snapshot_id, unpublished):
            return
        branch = ""
        try:
            branch = versions.branch_from(spark, table, manifest.snapshot_id, seen)
            _append(spark, table, branch, manifest)
            versions.fast_forward(spark, table, branch)
        except versions.TableMoved:
            if attempt == _ATTEMPTS - 1:
                raise
        finally:
            versions.drop_branches(spark, table, filter(None, [branch]))


def recorded_so_far(spark: SparkSession, processor: str) -> versions.Versions:
    """Returns the present versions (Iceberg snapshots) of the processor's snapshots table.

    The table is created if it is missing.
    """
    return versions.Versions.of(spark, create_snapshots(spark, processor))


def _is_recorded(
    spark: SparkSession,
    table: str,
    seen: versions.Versions,
    snapshot_id: str,
    unpublished: versions.Versions | None,
) -> bool:
    """Whether main of the snapshots table already has the rows of the Holdfast snapshot ``snapshot_id``.

    The summary of each version (Iceberg snapshot) names the Holdfast snapshot whose rows the version added. Normally,
    only the summaries of the versions that are not in ``unpublished`` are read. In three cases, the table's rows are
    scanned instead:

    - ``unpublished`` is None.
    - Maintenance expired one of these versions.
    - A summary names no Holdfast snapshot, because a compaction or an earlier Holdfast release wrote the version.

    Versions without rows are ignored, because the first branch of an empty table begins with such a version.
    """
    head = next(seen.ancestors(), None)
    if head is None:
        return False
    if unpublished is not None:
        since = list(takewhile(lambda version: version not in unpublished.summaries, seen.ancestors()))
        before = seen.parents[since[-1]] if since else head
        held = (seen.summaries[version] for version in since)
        said = [each.get(ID_PROPERTY) for each in held if each.get("total-records") != "0"]
        whole = before in unpublished.summaries or (before is None and not unpublished.summaries)
        if whole and None not in said:
            return snapshot_id in said
    return not versions.at_version(spark, table, head).where(f"snapshot_id = '{snapshot_id}'").isEmpty()


def _append(spark: SparkSession, table: str, branch: str, manifest: SnapshotManifest) -> None:
    whole = {
        "snapshot_id": manifest.snapshot_id,
        "store": manifest.store,
        "table_name": manifest.table,
        "source": manifest.source,
        "base": manifest.base,
        "why": manifest.why,
        "taken_at": round(manifest.taken_at * 1_000_000),
        "code_version": manifest.code_version,
        "state_format": manifest.state_format,
        "schema_version": manifest.schema_version,
        "topic": manifest.topic,
        "generation": manifest.generation,
    }
    rows = [
        whole
        | {
            "store_partition": part.partition,
            "topic_id": part.topic_id,
            "log_start": part.log_start,
            "start_offset": part.start,
            "end_offset": part.end,
            "records": part.records,
            "tombstones": part.tombstones,
            "live_keys": part.live_keys,
            "fingerprint": part.fingerprint.hex,
            "inputs": json.dumps(dict(part.inputs)),
            "quarantined": part.quarantined,
        }
        for part in manifest.partitions
    ]
    # All rows are passed as one JSON text, because converting Python rows to a DataFrame needs an additional Spark job.
    # The text is not passed as an argument of `spark.sql`, because old versions of parser extensions lose arguments.
    timed = {name for name, kind, _ in SNAPSHOT_COLUMNS if kind == "timestamp"}
    shape = ", ".join(f"`{name}` {'bigint' if name in timed else kind}" for name, kind, _ in SNAPSHOT_COLUMNS)
    columns = [f"timestamp_micros(`{name}`) AS `{name}`" if name in timed else name for name, _, _ in SNAPSHOT_COLUMNS]
    parsed = F.from_json(F.lit(json.dumps(rows)), f"array<struct<{shape}>>", {"mode": "FAILFAST"})
    made = spark.range(0, 1, 1, 1).select(F.inline(parsed)).selectExpr(*columns)
    # Each store partition becomes one file. The rows are split, because one Spark task must not write too many files.
    if len(rows) > _FILES_OF_A_TASK:
        made = made.repartition(-(-len(rows) // _FILES_OF_A_TASK))
    writer = made.writeTo(versions.branch_table(table, branch)).option("fanout-enabled", "true")
    writer.option(f"snapshot-property.{ID_PROPERTY}", manifest.snapshot_id).append()
