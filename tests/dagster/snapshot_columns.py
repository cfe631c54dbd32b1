"""What a snapshot's metadata says of its columns and rows, beside the table as pyiceberg reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import load_table

if TYPE_CHECKING:
    from tests.dagster.test_snapshot_assets import Control

#: Spark's words for Iceberg's types.
_SPARK = {"long": "bigint", "timestamptz": "timestamp"}


def table_columns(settings: Settings, processor: str) -> list[tuple[str, str, str | None]]:
    """Name, type and meaning of the columns that the table has."""
    fields = load_table(settings, processor, "counts").schema().fields
    return [(each.name, _SPARK.get(str(each.field_type), str(each.field_type)), each.doc) for each in fields]


def described_columns(control: Control, told: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """The same as the metadata has it, whose lineage is of these columns, and leads to assets that there are."""
    columns = [(each.name, each.type, each.description) for each in told["dagster/column_schema"].columns]
    lineage = told["dagster/column_lineage"].deps_by_column
    # the partition is no column of a changelog or a store, but where a record of them is
    assert set(lineage) == {name for name, _, _ in columns} - {"store_partition"}
    upstream = {dep.asset_key for deps in lineage.values() for dep in deps}
    assert upstream == control.job.asset_layer.asset_graph.get(control.snapshot).parent_keys
    return columns


def rows_by_partition(control: Control, *partitions: str) -> list[int]:
    """How many rows Dagster shows for each time partition, newest materialisation."""
    found = []
    for partition in partitions:
        wanted = dg.AssetRecordsFilter(asset_key=control.snapshot, asset_partitions=[partition])
        (record,) = control.instance.fetch_materializations(wanted, limit=1).records
        assert record.asset_materialization is not None
        found.append(record.asset_materialization.metadata["dagster/partition_row_count"].value)
    return found
