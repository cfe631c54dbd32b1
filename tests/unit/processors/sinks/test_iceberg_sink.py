"""``IcebergSink`` on a SQL catalog: each row once, whatever is killed and whoever publishes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.sinks.errors import SinkFailed, SinkInvalid
from holdfast.processors.engine.sinks.staging import SinkTask, StagedPart
from holdfast.sinks import IcebergSink, SinkBatch
from holdfast.testing import PausingSinkContract

pytestmark = pytest.mark.slow  # pyiceberg imports for seconds
TASK = SinkTask("g", "iceberg", 0)


def catalog(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder}"}


def loaded(folder: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("holdfast", **catalog(folder))


def rows_of(folder: Path, table: str = "sales.orders") -> list[dict[str, Any]]:
    found = loaded(folder)
    if not found.table_exists(table):
        return []
    rows: list[dict[str, Any]] = found.load_table(table).scan().to_arrow().to_pylist()
    return sorted(rows, key=str)


class TestIcebergSink(PausingSinkContract):
    keeps = "each"

    def make_sink(self) -> IcebergSink:
        return IcebergSink("sales.orders", catalog(self.folder / "lake"), create=True)

    def stored(self) -> Counter[tuple[str, int]]:
        return Counter((row["_key"], row["n"]) for row in rows_of(self.folder / "lake"))

    @contextmanager
    def away(self) -> Iterator[None]:
        lake, aside = self.folder / "lake", self.folder / "aside"
        lake.rename(aside)
        lake.write_text("a disk that is not mounted")
        yield
        lake.unlink()
        aside.rename(lake)


def run(sink: IcebergSink, *values: Any, **given: Any) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    for number, value in enumerate(values):
        cluster.produce("in", json.dumps(value).encode(), b"k%d" % number)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)
    app.dataframe(app.topic("in", key_deserializer="str")).sink(sink)
    cluster.run(app)
    return cluster


def part_of(sink: IcebergSink, *numbers: int) -> StagedPart:
    sink.assigned("g", [Partition("in", 0)])
    batch = SinkBatch("in", 0)
    for number in numbers:
        batch.append({"n": number}, "k", 0, None, number)
    return StagedPart(numbers[0], (sink.stage(batch),))


def numbers(folder: Path) -> list[int]:
    return sorted(row["n"] for row in rows_of(folder))


def test_no_row_comes_twice_whoever_appends_and_however_often(tmp_path: Path) -> None:
    sink = IcebergSink("sales.orders", catalog(tmp_path), create=True)
    assert sink.published(TASK) == 0
    first, second = part_of(sink, 1, 2), part_of(sink, 3)
    sink.publish(TASK, [first])
    sink.publish(TASK, [first])
    successor = IcebergSink("sales.orders", catalog(tmp_path))
    successor.recover(TASK, [first, second])
    assert successor.published(TASK) == 3
    sink.publish(TASK, [first])  # a frozen worker that wakes up
    assert numbers(tmp_path) == [1, 2, 3]
    table = loaded(tmp_path).load_table("sales.orders")
    assert table.properties["holdfast.sink.g-iceberg-0"] == "3"
    assert table.current_snapshot().summary["holdfast.sink.g-iceberg-0"] == "3"


def test_two_workers_that_append_the_same_files_at_the_same_time(tmp_path: Path) -> None:
    """The second commit is refused. pyiceberg must not repeat it without another look at the position."""
    sink, frozen = (IcebergSink("sales.orders", catalog(tmp_path), create=True) for _ in range(2))
    part = part_of(sink, 1, 2)
    real = frozen._table._loaded

    def loaded_late() -> Any:
        frozen._table._loaded = real  # type: ignore[method-assign]
        table = real()
        sink.publish(TASK, [part])
        return table

    frozen._table._loaded = loaded_late  # type: ignore[method-assign]
    frozen.publish(TASK, [part])
    assert numbers(tmp_path) == [1, 2]


def test_other_writers_and_other_tasks_do_not_disturb(tmp_path: Path) -> None:
    sink = IcebergSink("sales.orders", catalog(tmp_path), create=True)
    sink.publish(TASK, [part_of(sink, 5)])
    sink.publish(SinkTask("g", "iceberg", 1), [part_of(sink, 1)])
    table = loaded(tmp_path).load_table("sales.orders")
    table.append(table.scan().to_arrow())
    sink.publish(TASK, [part_of(sink, 4), part_of(sink, 7)])
    assert numbers(tmp_path) == [1, 1, 5, 5, 7]


def test_a_partitioned_table_gets_a_file_for_each_partition(tmp_path: Path) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import LongType, NestedField, StringType

    made = loaded(tmp_path)
    made.create_namespace("sales")
    schema = Schema(NestedField(1, "city", StringType()), NestedField(2, "n", LongType(), required=True))
    made.create_table(
        "sales.orders", schema, partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "city"))
    )
    values = [{"city": "Bonn", "n": 1}, {"city": "Ulm", "n": 2}, {"city": "Bonn", "n": 3}, {"city": "Ulm"}, {"n": "x"}]
    cluster = run(IcebergSink("sales.orders", catalog(tmp_path), metadata=False), *values, dead_letter_topic="dead")
    assert [(row["city"], row["n"]) for row in rows_of(tmp_path)] == [("Bonn", 1), ("Bonn", 3), ("Ulm", 2)]
    assert len({each.file.file_path for each in made.load_table("sales.orders").scan().plan_files()}) == 2
    assert [json.loads(record.value or b"") for _, record in cluster.read("dead")] == values[3:]


def test_a_missing_table_names_its_columns(tmp_path: Path) -> None:
    with pytest.raises(SinkFailed, match="Table sales.orders is not in the catalog") as failed:
        run(IcebergSink("sales.orders", catalog(tmp_path)), {"n": 1})
    assert "n int64" in failed.value.action
    run(IcebergSink("sales.orders", catalog(tmp_path), create=True), {"n": 1})
    assert numbers(tmp_path) == [1]


def test_a_table_in_buckets_and_a_name_without_a_namespace_are_refused(tmp_path: Path) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import LongType, NestedField

    made = loaded(tmp_path)
    made.create_namespace("sales")
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "n_bucket"))
    made.create_table("sales.orders", Schema(NestedField(1, "n", LongType())), partition_spec=spec)
    with pytest.raises(SinkFailed, match=r"is partitioned by bucket\[4\]; data files can't be added"):
        run(IcebergSink("sales.orders", catalog(tmp_path), metadata=False), {"n": 1})
    with pytest.raises(SinkInvalid, match="expected a namespace and a name"):
        IcebergSink("orders", {})
