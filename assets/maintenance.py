"""Maintenance assets. Materialising one expires old versions of a store's tables and compacts small files.

Invariants:
    - A table version (Iceberg snapshot) is never removed while one of its tags is kept.
    - Spark is imported only in a run, not when definitions are loaded.
"""

# tidy: allow-crumb because each kind of asset has a file of its own

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.pages.metadata import docs, table
from holdfast.assets.ports import Warehouse
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.plans.plan import decode, versions_read
from holdfast.processors.snapshots.names import table_name


def maintenance_asset(definition: ProcessorDefinition, store: str) -> dg.AssetsDefinition:
    """The Dagster asset that maintains the warehouse tables of one store."""

    @dg.asset(
        key=keys.maintenance_key(definition.name, store),
        deps=[keys.snapshot_key(definition.name, store)],
        description=f"Maintenance of the tables of store {store} of {definition.name}: drops expired tags, expires "
        "versions without a tag, compacts small files, and deletes files of runs that were killed.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"spark", "iceberg"},
        pool="spark",
        tags=keys.tags(keys.MAINTENANCE),
        metadata={"dagster/table_name": table_name(definition.name, store), **docs("warehouse-storage.md")},
    )
    def maintain_tables(
        context: dg.AssetExecutionContext, warehouse: dg.ResourceParam[Warehouse]
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from holdfast.assets.spark.maintenance import maintain_store

        open_applies = warehouse.registry.journal.applies(open_only=True)
        needed = frozenset().union(*(versions_read(decode(each.plan)) for each in open_applies))
        done = maintain_store(
            warehouse.session, definition.name, store, warehouse.maintenance, datetime.now(UTC), needed
        )
        for each in done:
            context.log.info(f"{each.table}: {each.numbers()}")
        return dg.MaterializeResult(metadata=_metadata([{"table": each.table, **each.numbers()} for each in done]))

    return maintain_tables


def _metadata(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns metadata: sums over all warehouse tables, which Dagster plots, and a row of numbers for each table."""
    names = [name for name in (rows[0] if rows else {}) if name != "table"]
    sums = {name: sum(row[name] for row in rows) for name in names}
    return {**sums, "tables": table(rows, ["table"]), "tables_kept": len(rows)}
