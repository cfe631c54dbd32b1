"""Compares the columns and rows in a snapshot's metadata with the table as pyiceberg reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import load_table

if TYPE_CHECKING:
    from tests.dagster.test_snapshot_assets import Control

#: Spark's names of Iceberg's types.
_SPARK = {"long": "bigint", "timestamptz": "timestamp"}


def table_columns(settings: Settings, processor: str) -> list[tuple[str, str, str | None]]:
    """The name, type and description of each column of the table."""
    fields = load_table(settings, processor, "counts").schema().fields
    return [(each.name, _SPARK.get(str(each.field_type), str(each.field_type)), each.doc) for each in fields]


def described_columns(control: Control, told: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """The columns according to the metadata. Asserts that their lineage leads to existing assets."""
    columns = [(each.name, each.type, each.description) for each in told["dagster/column_schema"].columns]
    lineage = told["dagster/column_lineage"].deps_by_column
    # `store_partition` has no upstream column: it is the partition of the record
    assert set(lineage) == {name for name, _, _ in columns} - {"store_partition"}
    upstream = {dep.asset_key for deps in lineage.values() for dep in deps}
    assert upstream == control.job.asset_layer.asset_graph.get(control.snapshot).parent_keys
    return columns


def rows_by_partition(control: Control, *partitions: str) -> list[int]:
    """The number of rows that Dagster shows for each time partition, by its newest materialisation."""
    found = []
    for partition in partitions:
        wanted = dg.AssetRecordsFilter(asset_key=control.snapshot, asset_partitions=[partition])
        (record,) = control.instance.fetch_materializations(wanted, limit=1).records
        assert record.asset_materialization is not None
        found.append(record.asset_materialization.metadata["dagster/partition_row_count"].value)
    return found
