"""The table of a processor's snapshots: one row for each partition of each snapshot.

Invariants:
    - The table has each snapshot once: rows are appended on a branch, and main moves to it only if no other run did.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.assets.spark import versions
from holdfast.assets.spark.tables import SNAPSHOT_COLUMNS, create_snapshots
from holdfast.processors.snapshots.manifest import SnapshotManifest

_ATTEMPTS = 5
#: The most files that one task writes; more partitions are spread over several tasks.
_FILES_OF_A_TASK = 64


def record_snapshot(spark: SparkSession, manifest: SnapshotManifest) -> None:
    """Record a snapshot, once.

    Raises:
        TableMoved: Other runs wrote to the table during each of ``_ATTEMPTS`` attempts.
    """
    table = create_snapshots(spark, manifest.processor)
    for attempt in range(_ATTEMPTS):
        seen = versions.Versions.of(spark, table)
        head = next(seen.ancestors(), None)
        mine = f"snapshot_id = '{manifest.snapshot_id}'"
        # Main as the branch begins with: another run may record this snapshot at any moment.
        if head is not None and not versions.at_version(spark, table, head).where(mine).isEmpty():
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
    # One JSON text, because a DataFrame of Python rows needs a Spark job to convert them, which costs more than the
    # append. Not an argument of `spark.sql`, because older extensions of its parser drop arguments.
    timed = {name for name, kind, _ in SNAPSHOT_COLUMNS if kind == "timestamp"}
    shape = ", ".join(f"`{name}` {'bigint' if name in timed else kind}" for name, kind, _ in SNAPSHOT_COLUMNS)
    columns = [f"timestamp_micros(`{name}`) AS `{name}`" if name in timed else name for name, _, _ in SNAPSHOT_COLUMNS]
    parsed = F.from_json(F.lit(json.dumps(rows)), f"array<struct<{shape}>>", {"mode": "FAILFAST"})
    made = spark.range(0, 1, 1, 1).select(F.inline(parsed)).selectExpr(*columns)
    if len(rows) > _FILES_OF_A_TASK:  # each partition of the store is a file of its own
        made = made.repartition(-(-len(rows) // _FILES_OF_A_TASK))
    made.writeTo(versions.branch_table(table, branch)).option("fanout-enabled", "true").append()
