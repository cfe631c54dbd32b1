"""Snapshot assets: each materialisation publishes a version (Iceberg snapshot) of a store's table.

For the current time partition, the version is a snapshot of the store's present state. For a past time partition, the
version has the state at the end of that time. It is built from the history table.

Invariants:
    - One run handles all partitions of a range, with one Spark session.
    - A run without a partition, as "materialize all" starts it, handles the current partition.
"""

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.pages.metadata import docs, table
from holdfast.assets.pages.pictures import snapshot_picture
from holdfast.assets.ports import Cluster, Lifecycle, Warehouse
from holdfast.assets.publishing import Published, StorePublisher
from holdfast.assets.times import Window, current_key, snapshot_freshness, snapshot_partitions, windows
from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import SnapshotSettings
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.audits.stores import MIB
from holdfast.processors.snapshots.manifest import SnapshotManifest
from holdfast.processors.snapshots.names import table_name, time_tag
from holdfast.processors.snapshots.plan import Wanted

if TYPE_CHECKING:
    from holdfast.processors.engine.state.fingerprint import Fingerprint

MATCHES_STATE = "matches_state"


class SnapshotConfig(dg.Config):
    """The config of a run: the source of the snapshot, and whether it reads all state or only new changes."""

    source: str = Field(
        default=Wanted.AUTO.value,
        pattern=f"^({'|'.join(Wanted)})$",
        description="auto: only new changes where that is safe, otherwise all state. full, checkpoint, changelog: all "
        "state, from the source of that name; full chooses the source.",
    )


def snapshot_asset(
    definition: ProcessorDefinition,
    store: str,
    settings: SnapshotSettings | None = None,
    began: datetime | None = None,
) -> dg.AssetsDefinition:
    """The asset of a store's warehouse table.

    Its first time partition contains the time ``began`` (of the earliest deployment), unless the settings name the
    first partition.
    """
    chosen = settings or SnapshotSettings()
    partitions = snapshot_partitions(chosen, began)
    key = keys.snapshot_key(definition.name, store)

    @dg.asset(
        key=key,
        deps=[keys.state_key(definition.name, store), _log_key(definition, store)],
        description=f"Iceberg table of store {store} of {definition.name}: each version is the store at one exact "
        "offset vector. The current time partition is published from the store, a past one is built from the history.",
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        freshness_policy=snapshot_freshness(chosen),
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"spark", "iceberg"},
        pool="spark",
        tags=keys.tags(keys.WAREHOUSE),
        code_version=definition.topology.code_version,
        metadata={"dagster/table_name": table_name(definition.name, store), **docs("warehouse.md")},
        check_specs=[
            dg.AssetCheckSpec(
                MATCHES_STATE,
                asset=key,
                blocking=True,
                description="The published table holds the same keys and values as the store's checkpoint.",
            )
        ],
    )
    def write_table(
        context: dg.AssetExecutionContext,
        config: SnapshotConfig,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
        warehouse: dg.ResourceParam[Warehouse],
    ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:  # type: ignore[type-arg]
        wanted = list(context.partition_keys) if context.has_partition_key_range or context.has_partition_key else []
        tell = context.log.info
        publisher = StorePublisher(definition, store, cluster, lifecycle.paths, warehouse, tell)
        asked = windows(partitions, wanted or [current_key(partitions)])
        try:
            done = publisher.publish(asked, Wanted(config.source), chosen.full_every_hours * 3600.0)
        except HoldfastError as failure:
            # A failed check result is yielded, so that the check's page shows the error. Without a result, the page
            # would show only "did not run".
            yield CheckResult(key, MATCHES_STATE, False, failure.message, action=failure.action).result()
            raise
        newest = done.current.manifest if done.current is not None else done.past[-1].manifest
        for window, rows in _rows_by_window(asked, done) if wanted else ():
            context.add_asset_metadata({"dagster/partition_row_count": rows}, partition_key=window)
        yield dg.MaterializeResult(
            asset_key=key,
            metadata=_describe(definition, store, done, newest),
            data_version=dg.DataVersion(newest.snapshot_id),
            check_results=[_judge(key, done)],
        )

    return write_table


def _log_key(definition: ProcessorDefinition, store: str) -> dg.AssetKey:
    """The asset key of the snapshot's source: the changelog, or the source topic that restores the table."""
    log = definition.topology.source_log_of(store)
    return keys.changelog_key(definition.name, store) if log is None else keys.topic_key(log.topic)


def _describe(definition: ProcessorDefinition, store: str, done: Published, newest: SnapshotManifest) -> dict[str, Any]:
    from holdfast.assets.spark.catalog.tables import COLUMNS

    kinds = [dg.TableColumn(name, kind, description=text or None) for name, kind, text in done.columns]
    fixed = {name for name, _, _ in COLUMNS}
    typed = [name for name, _, _ in done.columns if name not in fixed]
    metadata: dict[str, Any] = {
        "dagster/row_count": newest.rows,
        "dagster/table_name": newest.table,
        "dagster/column_schema": dg.TableSchema(kinds),
        "dagster/column_lineage": _lineage(definition, store, typed),
        "snapshot_rows": dg.MetadataValue.int(newest.rows),
        "snapshot_quarantined": dg.MetadataValue.int(newest.quarantined),
        "snapshot_id": dg.MetadataValue.text(newest.snapshot_id),
        "source": dg.MetadataValue.text(newest.source),
        "why": dg.MetadataValue.text(newest.why),
        "taken_at": dg.MetadataValue.timestamp(newest.taken_at),
        "partitions": table(_rows(newest)),
        "picture": dg.MetadataValue.md(snapshot_picture(newest, done.changelog, done.snapshots)),
    }
    if done.current is not None:
        result, log = done.current, done.changelog
        metadata |= {
            "snapshot_seconds": dg.MetadataValue.float(result.seconds),
            "snapshot_records": dg.MetadataValue.int(newest.records),
            "snapshot_tombstones": dg.MetadataValue.int(sum(part.tombstones for part in newest.partitions)),
            "snapshot_rows_per_s": dg.MetadataValue.float(round(result.rows_per_s, 1)),
            "snapshot_mib": dg.MetadataValue.float(round(result.size / MIB, 3)),
            "history_corrections": dg.MetadataValue.int(result.corrections),
            "versions_committed": dg.MetadataValue.int(int(result.committed)),
            "lag_seconds": dg.MetadataValue.float(round(max(0.0, time.time() - newest.taken_at), 1)),
            # The id is a text, because it has more digits than a number in JavaScript can represent.
            "iceberg_snapshot_id": dg.MetadataValue.text(str(result.version)),
        }
        if log is not None:
            behind = sum(max(0, part.end - newest.ends.get(number, 0)) for number, part in log.partitions.items())
            metadata["lag_offsets"] = dg.MetadataValue.int(behind)
    if done.past:
        built = [(each.tag, each.manifest) for each in done.past]
        metadata["time_partitions"] = table(
            [{"tag": tag, "rows": each.rows, "snapshot_id": each.snapshot_id} for tag, each in built]
        )
    return metadata


def _rows_by_window(asked: Sequence[Window], done: Published) -> Iterator[tuple[str, int]]:
    """Yields each requested time partition with the number of rows in its table version.

    For the current time partition, it is the number of rows of the new snapshot.
    """
    past = {each.tag: each.manifest.rows for each in done.past}
    for window in asked:
        if (tag := time_tag(window.key)) in past:
            yield window.key, past[tag]
        elif done.current is not None:
            yield window.key, done.current.manifest.rows


def _rows(manifest: SnapshotManifest) -> list[dict[str, Any]]:
    return [
        {
            "partition": part.partition,
            "rows": part.live_keys,
            "changelog_start": part.start,
            "changelog_end": part.end,
            "changelog_records": part.records,
            "tombstones": part.tombstones,
            "fingerprint": part.fingerprint.hex,
        }
        for part in manifest.partitions
    ]


def _lineage(definition: ProcessorDefinition, store: str, typed: list[str]) -> dg.TableColumnLineage:
    """For each table column, the asset that it comes from: the state of the store, or its changelog."""
    state, changelog = keys.state_key(definition.name, store), _log_key(definition, store)
    sources = {"key": "key", "message_key": "key", "state_key": "key"}
    sources |= dict.fromkeys(("value", "json", "event_timestamp", *typed), "value")
    made = {column: [dg.TableColumnDep(asset_key=state, column_name=source)] for column, source in sources.items()}
    made |= {
        column: [dg.TableColumnDep(asset_key=changelog, column_name=source)]
        for column, source in {"offset": "offset", "changelog_timestamp": "timestamp"}.items()
    }
    return dg.TableColumnLineage(made)


def _judge(key: dg.AssetKey, done: Published) -> dg.AssetCheckResult:
    """Returns the result of the check that compares the published table with the worker's checkpoint.

    The check passes if only versions for past times were built, because these cannot be compared with present state.
    """
    tabled = done.current.manifest.fingerprints if done.current is not None else {}
    differing, rows = _differences(tabled, done.stored), sum(each.count for each in tabled.values())
    if tabled:
        equal = f"Table and checkpoint are equal; keys: {rows:,}, partitions: {len(done.stored)}."
    else:
        equal = f"Built from the audited history: {', '.join(str(each.tag) for each in done.past) or 'nothing'}."
    return CheckResult(
        key,
        MATCHES_STATE,
        not differing,
        f"{'; '.join(differing)}." if differing else equal,
        "equal fingerprints in each partition",
        "Materialise this asset with the config `source: full`.",
        metadata={"partitions_compared": len(done.stored), "partitions_differing": len(differing), "rows": rows},
    ).result()


def _differences(tabled: "dict[int, Fingerprint]", stored: "dict[int, Fingerprint]") -> list[str]:
    return [
        f"partition {number}: the table is {tabled[number].hex if number in tabled else 'absent'}, "
        f"the store is {stored[number].hex}"
        for number in sorted(stored)
        if tabled.get(number) != stored[number]
    ]
