"""A Spark data source for RocksDB checkpoints: reads the keys and values of a store from its checkpoints' files.

Executors read large checkpoints, one store partition per Spark partition. The driver reads small checkpoints. Folders
are opened read-only, so their files never change. Executors need this package, and must find the folders at the given
paths. On a cluster, use shared storage, or ``processors.engine.checkpoints.fetch.obtain_checkpoint`` on each machine.

Invariants:
    - A missing or damaged checkpoint makes the read fail, and the error names the checkpoint. A read never returns only
      a part of its keys.
    - One Spark partition has one store partition, sorted by key, so a write by partition needs no sort.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from holdfast.infra.errors import HoldfastError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from holdfast.processors.snapshots.plan import SnapshotPlan

#: The name of the data source in Spark.
FORMAT = "holdfast_checkpoint"
SCHEMA = "store_partition int, key binary, value binary"
#: Number of rows of one Arrow batch; larger batches take more memory and are not faster.
BATCH_ROWS = 8192
#: Maximum bytes of keys and values in checkpoints that the driver reads.
#: Larger checkpoints are read by Spark's Python workers, which start more slowly.
SMALL_BYTES = 16 << 20


class CheckpointMissing(HoldfastError):
    """A folder is missing or has no RocksDB checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """One store partition to read: the store, and the checkpoint folder of the task that has the partition.

    Several parts may have the same folder.
    """

    partition: int
    path: Path
    store: str


def checkpoint_rows(spark: SparkSession, plan: SnapshotPlan) -> DataFrame:
    """The rows of all partitions of a snapshot's plan, with the columns of ``read_checkpoints``.

    The driver reads small checkpoints; executors read larger checkpoints. Without any checkpoint, there are no rows.
    """
    parts = [CheckpointPart(part.partition, Path(part.path), plan.store) for part in plan.partitions if part.path]
    small = _small(parts)
    return read_checkpoints(spark, parts) if small is None else spark.createDataFrame(small)


def _small(parts: Sequence[CheckpointPart]) -> pa.Table | None:
    """The rows of all parts if they have at most ``SMALL_BYTES`` together; otherwise None, so executors read them."""
    import pyarrow as pa

    batches, size = [], 0
    for part in parts:
        _require(part)
        for batch in _batches(part.partition, part.path, part.store):
            size += batch.nbytes
            if size > SMALL_BYTES:
                return None
            batches.append(batch)
    return pa.Table.from_batches(batches, _arrow_schema())


def read_checkpoints(spark: SparkSession, parts: Sequence[CheckpointPart]) -> DataFrame:
    """The rows of a store's partitions: store_partition, key and value.

    Key and value are encoded as in the changelog.

    Raises:
        CheckpointMissing: A folder is missing or has no checkpoint.
        ValueError: ``parts`` is empty or names a partition twice.
    """
    numbers = [part.partition for part in parts]
    if not parts or len(set(numbers)) < len(numbers):
        raise ValueError(f"parts must name each partition once, not {numbers}")
    for part in parts:
        _require(part)
    spark.dataSource.register(CheckpointSource)
    listed = [[part.partition, str(part.path), part.store] for part in parts]
    return spark.read.format(FORMAT).option("parts", json.dumps(listed)).load()


def _require(part: CheckpointPart) -> None:
    if (part.path / "CURRENT").is_file():
        return
    seen = "has no RocksDB in it" if part.path.is_dir() else "is not there"
    raise CheckpointMissing(
        f"The checkpoint of partition {part.partition} of store {part.store}, {part.path}, {seen}.",
        action="Materialise the store's state asset, which takes a new checkpoint and removes the oldest.",
        partition=part.partition,
        path=str(part.path),
        store=part.store,
    )


class _Part(InputPartition):
    """One store partition to read, as plain data that Spark can pickle and send to executors."""

    def __init__(self, partition: int, path: str, store: str) -> None:
        self.partition, self.path, self.store = partition, path, store


class CheckpointSource(DataSource):
    """The Spark data source; its option ``parts`` is JSON, ``[[partition, path, store], ...]``."""

    @classmethod
    def name(cls) -> str:
        """The name that ``spark.read.format`` uses."""
        return FORMAT

    def schema(self) -> str:
        """The columns of the rows that this data source reads; they are the same for every store."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader for all requested store partitions (parts)."""
        return CheckpointReader([_Part(*part) for part in json.loads(self.options["parts"])])


class CheckpointReader(DataSourceReader):
    """Reads the requested store partitions (parts); Spark runs one task for each."""

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts

    def partitions(self) -> Sequence[InputPartition]:
        """The store partitions (parts) to read; each becomes one Spark partition."""
        return self._parts

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one store partition (part); runs on an executor."""
        yield from _batches(partition.partition, Path(partition.path), partition.store)


def _arrow_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("store_partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])


def _batches(partition: int, path: Path, store: str) -> Iterator[pa.RecordBatch]:
    """The rows of one store partition (part), sorted by key."""
    import pyarrow as pa

    from holdfast.processors.engine.state.databases.checkpoint_reader import checkpoint_pages

    schema, number = _arrow_schema(), pa.repeat(pa.scalar(partition, pa.int32()), BATCH_ROWS)
    for keys, values in checkpoint_pages(path, store, BATCH_ROWS):
        columns = [number[: len(keys)], pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
