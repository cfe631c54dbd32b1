"""The worker's checkpoint as rows of a snapshot."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from holdfast.processors.snapshots.plan import SnapshotPlan


def checkpoint_rows(spark: SparkSession, plan: SnapshotPlan) -> DataFrame:
    """Columns store_partition, key, value of all partitions of the plan; empty if no partition has a checkpoint."""
    from holdfast.assets.spark.checkpoint_source import CheckpointPart, read_checkpoints

    if not any(part.path for part in plan.partitions):  # no state was ever written
        return spark.createDataFrame([], "store_partition int, key binary, value binary")
    parts = [CheckpointPart(part.partition, Path(part.path), plan.store) for part in plan.partitions if part.path]
    return read_checkpoints(spark, parts)
