"""Maintenance assets: materialising one keeps a store's tables: old versions expire, small files become large ones.

Invariants:
    - What a kept tag leads to is never touched.
    - Spark is imported by a run that needs it, never by loading definitions.
"""

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.ports import Warehouse
from holdfast.processors.registration import ProcessorDefinition


def maintenance_asset(definition: ProcessorDefinition, store: str) -> dg.AssetsDefinition:
    """The asset that keeps the tables of one store."""

    @dg.asset(
        key=keys.maintenance_key(definition.name, store),
        deps=[keys.snapshot_key(definition.name, store)],
        description=f"Upkeep of the tables of store {store} of {definition.name}: tags beyond their time are dropped, "
        "versions that nobody keeps expire, small files are made into large ones, leftovers of dead runs are deleted.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"spark", "iceberg"},
        pool="spark",
        tags=keys.tags(keys.MAINTENANCE),
    )
    def maintain_tables(
        context: dg.AssetExecutionContext, warehouse: dg.ResourceParam[Warehouse]
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from holdfast.assets.spark.maintenance import maintain_store, upkeep_of

        upkeep = upkeep_of(warehouse.maintenance)
        done = maintain_store(warehouse.session, definition.name, store, upkeep, datetime.now(UTC))
        for each in done:
            context.log.info(f"{each.table}: {each.numbers()}")
        return dg.MaterializeResult(metadata=_metadata([{"table": each.table, **each.numbers()} for each in done]))

    return maintain_tables


def _metadata(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums of all tables as numbers that plot, and the tables one by one."""
    names = [name for name in (rows[0] if rows else {}) if name != "table"]
    metadata: dict[str, Any] = {name: dg.MetadataValue.int(sum(row[name] for row in rows)) for name in names}
    schema = [dg.TableColumn("table", "string"), *(dg.TableColumn(name, "int") for name in names)]
    metadata["tables"] = dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=dg.TableSchema(schema))
    metadata["tables_kept"] = dg.MetadataValue.int(len(rows))
    return metadata
