"""Snapshot assets: materialising a time partition publishes the store as a table version, or makes it from its history.

Invariants:
    - One run does all partitions of a range, with one session of Spark.
    - Without a partition the running one is meant, as a materialisation of all assets does it.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.pictures import snapshot_picture
from holdfast.assets.ports import Cluster, Lifecycle, Warehouse
from holdfast.assets.publishing import Published, StorePublisher
from holdfast.assets.times import Window, current_key, snapshot_freshness, snapshot_partitions, windows
from holdfast.infra.settings import SnapshotSettings
from holdfast.processors.audits.stores import MIB
from holdfast.processors.registration import ProcessorDefinition
from holdfast.processors.snapshots.manifest import SnapshotManifest
from holdfast.processors.snapshots.names import time_tag
from holdfast.processors.snapshots.plan import Wanted

if TYPE_CHECKING:
    from holdfast.processors.engine.state.fingerprint import Fingerprint

MATCHES_STATE = "matches_state"


class SnapshotConfig(dg.Config):
    """How a snapshot is taken."""

    source: str = Field(
        default=Wanted.AUTO.value,
        pattern=f"^({'|'.join(Wanted)})$",
        description="auto: only what is new, where that is safe. full, checkpoint, changelog: everything, from there.",
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """What an asset's pages are about."""

    processor: str
    store: str

    @property
    def key(self) -> dg.AssetKey:
        return keys.snapshot_key(self.processor, self.store)


def snapshot_asset(
    definition: ProcessorDefinition, store: str, settings: SnapshotSettings | None = None
) -> dg.AssetsDefinition:
    """The asset of one store's warehouse table."""
    chosen = settings or SnapshotSettings()
    partitions = snapshot_partitions(chosen)
    shown = _Shown(definition.name, store)

    @dg.asset(
        key=shown.key,
        deps=[keys.state_key(definition.name, store), keys.changelog_key(definition.name, store)],
        description=f"Iceberg table of store {store} of {definition.name}: each version is the store at one exact "
        "offset vector. The partition that is running is published; one that has ended is made from the history.",
        partitions_def=partitions,
        backfill_policy=dg.BackfillPolicy.single_run(),
        freshness_policy=snapshot_freshness(chosen),
        group_name=keys.safe(definition.name),
        owners=list(definition.owners),
        kinds={"spark", "iceberg"},
        pool="spark",
        tags=keys.tags(keys.WAREHOUSE),
        code_version=definition.topology.code_version,
        check_specs=[
            dg.AssetCheckSpec(
                MATCHES_STATE,
                asset=shown.key,
                blocking=True,
                description="What is published holds what the store's checkpoint holds, key by key.",
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
        from holdfast.assets.spark.snapshot import SnapshotAuditFailed

        wanted = list(context.partition_keys) if context.has_partition_key_range or context.has_partition_key else []
        tell = context.log.info
        publisher = StorePublisher(definition, store, cluster, lifecycle.paths, warehouse, tell)
        asked = windows(partitions, wanted or [current_key(partitions)])
        try:
            done = publisher.publish(asked, Wanted(config.source), chosen.full_every_hours * 3600.0)
        except SnapshotAuditFailed as failure:
            yield dg.AssetCheckResult(
                asset_key=shown.key, check_name=MATCHES_STATE, passed=False, description=str(failure)
            )
            raise
        newest = done.current.manifest if done.current is not None else done.past[-1].manifest
        for key, rows in _rows_by_window(asked, done) if wanted else ():
            context.add_asset_metadata({"dagster/partition_row_count": rows}, partition_key=key)
        yield dg.MaterializeResult(
            asset_key=shown.key,
            metadata=_describe(shown, done, newest),
            data_version=dg.DataVersion(newest.snapshot_id),
            check_results=[_judge(shown.key, done)],
        )

    return write_table


def _describe(shown: _Shown, done: Published, newest: SnapshotManifest) -> dict[str, Any]:
    from holdfast.assets.spark.tables import COLUMNS

    kinds = [dg.TableColumn(name, kind, description=text or None) for name, kind, text in done.columns]
    fixed = {name for name, _, _ in COLUMNS}
    typed = [name for name, _, _ in done.columns if name not in fixed]
    told: dict[str, Any] = {
        "dagster/row_count": newest.rows,
        "dagster/table_name": newest.table,
        "dagster/column_schema": dg.TableSchema(kinds),
        "dagster/column_lineage": _lineage(shown, typed),
        "snapshot_rows": dg.MetadataValue.int(newest.rows),
        "snapshot_quarantined": dg.MetadataValue.int(newest.quarantined),
        "snapshot_id": dg.MetadataValue.text(newest.snapshot_id),
        "source": dg.MetadataValue.text(newest.source),
        "why": dg.MetadataValue.text(newest.why),
        "taken_at": dg.MetadataValue.timestamp(newest.taken_at),
        "partitions": _table(_rows(newest)),
        "picture": dg.MetadataValue.md(snapshot_picture(newest, done.changelog, done.snapshots)),
    }
    if done.current is not None:
        result, log = done.current, done.changelog
        told |= {
            "snapshot_seconds": dg.MetadataValue.float(result.seconds),
            "snapshot_records": dg.MetadataValue.int(newest.records),
            "snapshot_tombstones": dg.MetadataValue.int(sum(part.tombstones for part in newest.partitions)),
            "snapshot_rows_per_s": dg.MetadataValue.float(round(result.rows_per_s, 1)),
            "snapshot_mib": dg.MetadataValue.float(round(result.size / MIB, 3)),
            "history_corrections": dg.MetadataValue.int(result.corrections),
            "versions_committed": dg.MetadataValue.int(int(result.committed)),
            "lag_seconds": dg.MetadataValue.float(round(time.time() - newest.taken_at, 1)),
            # as text: it has more digits than a browser's numbers
            "iceberg_snapshot_id": dg.MetadataValue.text(str(result.version)),
        }
        if log is not None:
            behind = sum(max(0, part.end - newest.ends.get(number, 0)) for number, part in log.partitions.items())
            told["lag_offsets"] = dg.MetadataValue.int(behind)
    if done.past:
        told["time_partitions"] = _table(
            [
                {"tag": each.tag, "rows": each.manifest.rows, "snapshot_id": each.manifest.snapshot_id}
                for each in done.past
            ]
        )
    return told


def _rows_by_window(asked: Sequence[Window], done: Published) -> Iterator[tuple[str, int]]:
    """How many rows each time partition that was asked for has; those that are running have the store's, now."""
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


def _table(rows: list[dict[str, Any]]) -> dg.TableMetadataValue:
    columns = [dg.TableColumn(name, "string" if isinstance(value, str) else "int") for name, value in rows[0].items()]
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=dg.TableSchema(columns))


def _lineage(shown: _Shown, typed: list[str]) -> dg.TableColumnLineage:
    """What each column of the table is made from, in the store and in its changelog."""
    state = keys.state_key(shown.processor, shown.store)
    changelog = keys.changelog_key(shown.processor, shown.store)
    sources = {"key": "key", "message_key": "key", "state_key": "key"}
    sources |= dict.fromkeys(("value", "json", "event_timestamp", *typed), "value")
    made = {column: [dg.TableColumnDep(asset_key=state, column_name=source)] for column, source in sources.items()}
    made |= {
        column: [dg.TableColumnDep(asset_key=changelog, column_name=source)]
        for column, source in {"offset": "offset", "changelog_timestamp": "timestamp"}.items()
    }
    return dg.TableColumnLineage(made)


def _judge(key: dg.AssetKey, done: Published) -> dg.AssetCheckResult:
    """What is published was compared before it was; where only the past was made, it was audited with its history."""
    tabled = done.current.manifest.fingerprints if done.current is not None else {}
    said = _differences(tabled, done.stored)
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=MATCHES_STATE,
        passed=not said,
        description="; ".join(said) or ("" if tabled else f"{', '.join(map(_tag, done.past))}: as the history tells"),
        metadata={
            "partitions_compared": len(done.stored),
            "partitions_differing": len(said),
            "rows": sum(each.count for each in tabled.values()),
        },
    )


def _tag(past: Any) -> str:
    return str(past.tag)


def _differences(tabled: "dict[int, Fingerprint]", stored: "dict[int, Fingerprint]") -> list[str]:
    return [
        f"partition {number}: the table is {tabled[number].hex if number in tabled else 'absent'}, "
        f"the store is {stored[number].hex}"
        for number in sorted(stored)
        if tabled.get(number) != stored[number]
    ]
