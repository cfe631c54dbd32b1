"""The check of each snapshot, that its three copies are equal; and any audit as a check's result: a heat map of
partitions and buckets, the keys that differ, and the repair plan.

Invariants:
    - A snapshot is audited by other code than wrote it: Python, without Spark.
    - RocksDB and the warehouse are imported by a run that needs them, never by loading definitions.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.heat_map import heat_map
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.processors.audits.comparison import SHOWN, Side
from holdfast.processors.audits.stores import StoreAudit, audit_store, checkpoint_manifests
from holdfast.processors.audits.tables import SnapshotUnknown, subject_of, tabled
from holdfast.processors.audits.telling import UNJUDGED, told_key
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.registration import ProcessorDefinition

COPIES_EQUAL = "copies_equal"


def audit_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """A check of each table against store and changelog: with every snapshot, where it blocks, and on demand."""
    changelogs = {spec.store: spec.topic.name for spec in definition.topology.changelogs}
    by_key = {keys.snapshot_key(definition.name, store): store for store in changelogs}

    @dg.multi_asset_check(
        name=f"{keys.safe(definition.name)}_audits",
        specs=[
            dg.AssetCheckSpec(
                COPIES_EQUAL,
                asset=key,
                blocking=True,
                description="Table, changelog and the owner's checkpoint hold the same keys and values, at the "
                "snapshot's offsets; if not, which keys differ, and what mends it.",
            )
            for key in by_key
        ],
        can_subset=True,
    )
    def audits(
        context: dg.AssetCheckExecutionContext,
        cluster: dg.ResourceParam[Cluster],
        lifecycle: dg.ResourceParam[Lifecycle],
    ) -> Iterable[dg.AssetCheckResult]:
        stores = [by_key[key.asset_key] for key in sorted(context.selected_asset_check_keys)]
        chosen = {store: changelogs[store] for store in stores}
        yield from audit_results(definition.name, chosen, cluster, lifecycle)

    return audits


def audit_results(
    processor: str, changelogs: Mapping[str, str], cluster: Cluster, lifecycle: Lifecycle
) -> Iterator[dg.AssetCheckResult]:
    """Audit the tables of stores, at their own offsets, with the checkpoints that are still kept.

    Args:
        processor: Whose stores.
        changelogs: Store -> its changelog.
        cluster: Kafka.
        lifecycle: Where checkpoints and the warehouse are.
    """
    from holdfast.infra.warehouse.catalog import TableUnknown

    topics = cluster.topics()
    kept = checkpoint_manifests(lifecycle.paths.checkpoints(processor))
    for store, changelog in changelogs.items():
        key = keys.snapshot_key(processor, store)
        try:
            table = tabled(lifecycle.paths, processor, store)
        except (TableUnknown, SnapshotUnknown) as absent:
            yield dg.AssetCheckResult(
                asset_key=key,
                check_name=COPIES_EQUAL,
                passed=False,
                severity=dg.AssetCheckSeverity.WARN,
                description=str(absent),
            )
            continue
        audit = audit_store(
            subject_of(processor, store, changelog), (), topics, cluster.client_config, tabled=table, kept=kept
        )
        yield judge_audit(key, COPIES_EQUAL, audit)


def judge_audit(
    key: dg.AssetKey,
    check_name: str,
    audit: StoreAudit,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    """What an audit means for an asset."""
    said = list(audit.differences)
    notes = [*audit.warnings, *([UNJUDGED.format(audit.unjudged)] if audit.unjudged else [])]
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=check_name,
        passed=not said,
        severity=severity,
        description=f"{'; '.join(said)}. {' '.join(audit.repair)}" if said else " ".join(notes),
        metadata=describe_audit(audit),
    )


def describe_audit(audit: StoreAudit) -> dict[str, Any]:
    """The figures, the heat map, the keys that differ and the repair plan, as metadata."""
    wholes = {side: _whole(audit, side) for side in Side}
    metadata: dict[str, Any] = {
        "partitions_compared": len(audit.moments),
        "partitions_differing": sum(1 for moment in audit.moments if moment.differing) + len(audit.unproved),
        "live_keys": sum(moment.wholes[_first(moment.prints)].count for moment in audit.moments),
        "keys_differing": sum(moment.differing for moment in audit.moments),
        "keys_unjudged": audit.unjudged,
        "records_stray": sum(each.stray.records for each in audit.partitions if each.stray is not None),
        **{f"{side.value}_fingerprint": found.hex for side, found in wholes.items() if found is not None},
    }
    if audit.moments:
        metadata["heat_map"] = dg.MetadataValue.md(heat_map(audit.moments))
    rows = [told_key(one) for moment in audit.moments for one in moment.first][:SHOWN]
    if rows:
        kinds = {name: "int" if name == "partition" else "string" for name in rows[0]}
        records = [
            dg.TableRecord({**{name: str(value) for name, value in row.items()}, "partition": row["partition"]})
            for row in rows
        ]
        columns = [dg.TableColumn(name, kind) for name, kind in kinds.items()]
        metadata["differing_keys"] = dg.MetadataValue.table(records, schema=dg.TableSchema(columns))
    if audit.warnings:
        metadata["warnings"] = dg.MetadataValue.md("\n".join(f"- {sentence}" for sentence in audit.warnings))
    if audit.repair:
        steps = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(audit.repair, 1))
        metadata["repair_plan"] = dg.MetadataValue.md(steps)
    return metadata


def _whole(audit: StoreAudit, side: Side) -> Fingerprint | None:
    """The fingerprint of one copy over all partitions; None where it was not compared in all of them."""
    found = [moment.wholes.get(side) for moment in audit.moments]
    numbers = {moment.partition for moment in audit.moments}
    there = [each for each in found if each is not None]
    return sum(there, Fingerprint()) if len(there) == len(found) == len(numbers) else None


def _first(prints: Any) -> Side:
    side: Side = next(iter(prints))
    return side
