"""Snapshot assets: materialising one publishes the store, at its newest checkpoint's offsets, as a table version.

Invariants:
    - The offsets are the checkpoint's, so table, changelog and store can be compared exactly.
    - Spark and RocksDB are imported by a run that needs them, never by loading definitions.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets import keys
from assets.ports import Cluster, Lifecycle, Warehouse
from assets.state import StorePartition, store_partitions
from infra.errors import HoldfastError
from processors.registration import ProcessorDefinition

if TYPE_CHECKING:
    from assets.spark.snapshot import SnapshotResult
    from processors.state.fingerprint import Fingerprint

MATCHES_STATE = "matches_state"


class NoCheckpoint(HoldfastError):
    """There is no complete checkpoint to take a snapshot at."""


def manifests_of(folder: Path) -> list[dict[str, Any]]:
    """The manifests of the checkpoints below a folder, newest first."""
    found = []
    for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():
        try:
            found.append(json.loads((path / "manifest.json").read_text()))
        except (OSError, ValueError):
            continue
    return found


def snapshot_asset(definition: ProcessorDefinition, store: str) -> dg.AssetsDefinition:
    """The asset of one store's warehouse table."""
    key = keys.snapshot_key(definition.name, store)

    @dg.asset(
        key=key,
        deps=[keys.state_key(definition.name, store), keys.changelog_key(definition.name, store)],
        description=f"Iceberg table of store {store} of {definition.name}: each version is the fold of the changelog "
        "at one exact offset vector.",
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"spark", "iceberg"},
        pool="spark",
        tags=keys.tags(keys.WAREHOUSE),
        code_version=definition.topology.code_version,
        check_specs=[
            dg.AssetCheckSpec(
                MATCHES_STATE,
                asset=key,
                blocking=True,
                description="The published table holds what the store's checkpoint holds, key by key.",
            )
        ],
    )
    def write_table(
        context: dg.AssetExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
        warehouse: dg.ResourceParam[Warehouse],
    ) -> dg.MaterializeResult:  # type: ignore[type-arg]
        from assets.spark.snapshot import PartitionRange, plan_snapshot, table_fingerprints, write_snapshot
        from processors.state.checkpoint_reader import fingerprint_checkpoint

        parts = _parts(lifecycle.paths.checkpoints(definition.name), definition.name, store)
        starts = cluster.topics().start_offsets(parts[0].changelog)
        ranges = [
            PartitionRange(
                topic=part.changelog,
                partition=part.partition,
                start=starts.get(part.partition, 0),
                end=part.offset,
                topic_id=part.topic_id,
            )
            for part in parts
        ]
        plan = plan_snapshot(definition.name, store, ranges)
        context.log.info(f"Snapshot {plan.snapshot_id} of {plan.table} at {[part.offset for part in parts]}")
        result = write_snapshot(
            warehouse.session, plan, cluster.bootstrap, dict(cluster.client_config), warehouse.registry
        )
        tabled = table_fingerprints(warehouse.session, plan)
        stored = {part.partition: fingerprint_checkpoint(part.path, store) for part in parts}
        return dg.MaterializeResult(
            asset_key=key,
            metadata={**_describe(result), "dagster/column_lineage": _lineage(definition.name, store)},
            data_version=dg.DataVersion(result.snapshot_id),
            check_results=[_judge(key, tabled, stored)],
        )

    return write_table


def _parts(folder: Path, processor: str, store: str) -> list[StorePartition]:
    parts = store_partitions(manifests_of(folder), store)
    if not parts:
        raise NoCheckpoint(
            f"There is no checkpoint of store {store} of {processor} below {folder}.",
            action=f"Materialise {keys.state_key(processor, store).to_user_string()} first; it takes one.",
            processor=processor,
            store=store,
        )
    return parts


def _describe(result: "SnapshotResult") -> dict[str, Any]:
    from assets.spark.tables import COLUMNS

    table = [
        dg.TableRecord(
            {
                "partition": part.partition,
                "rows": part.live_keys,
                "changelog_start": part.start,
                "changelog_end": part.end,
                "changelog_records": part.rows_read,
                "tombstones": part.tombstones,
                "fingerprint": part.fingerprint.hex,
            }
        )
        for part in result.partitions
    ]
    names = list(table[0].data) if table else []
    kinds = ["string" if name == "fingerprint" else "int" for name in names]
    return {
        "dagster/row_count": result.rows,
        "dagster/table_name": result.table,
        "dagster/column_schema": dg.TableSchema(
            [dg.TableColumn(name, kind, description=text) for name, kind, text in COLUMNS]
        ),
        "snapshot_rows": dg.MetadataValue.int(result.rows),
        "snapshot_seconds": dg.MetadataValue.float(result.seconds),
        "snapshot_records_per_s": dg.MetadataValue.float(round(result.rows_per_s, 1)),
        "versions_committed": dg.MetadataValue.int(int(result.committed)),
        "snapshot_id": dg.MetadataValue.text(result.snapshot_id),
        # as text: it has more digits than a browser's numbers
        "iceberg_snapshot_id": dg.MetadataValue.text(str(result.iceberg_snapshot_id)),
        "partitions": dg.MetadataValue.table(
            table, schema=dg.TableSchema([dg.TableColumn(*pair) for pair in zip(names, kinds, strict=True)])
        ),
    }


def _lineage(processor: str, store: str) -> dg.TableColumnLineage:
    """What each column of the table is made from, in the store."""
    state = keys.state_key(processor, store)
    sources = {"key": "key", "message_key": "key", "state_key": "key"}
    sources |= {"value": "value", "json": "value", "event_timestamp": "value"}
    return dg.TableColumnLineage(
        {column: [dg.TableColumnDep(asset_key=state, column_name=source)] for column, source in sources.items()}
    )


def _judge(key: dg.AssetKey, tabled: "dict[int, Fingerprint]", stored: "dict[int, Fingerprint]") -> dg.AssetCheckResult:
    differing = [number for number in sorted(stored) if tabled.get(number) != stored[number]]
    said = [
        f"partition {number}: the table is {tabled[number].hex if number in tabled else 'absent'}, "
        f"the store is {stored[number].hex}"
        for number in differing
    ]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=MATCHES_STATE,
        passed=not said,
        description="; ".join(said),
        metadata={
            "partitions_compared": len(stored),
            "partitions_differing": len(differing),
            "rows": sum(each.count for each in tabled.values()),
        },
    )
