"""The check `copies_equal` of each snapshot, and the conversion of audits to check results.

An audit compares three copies of a store: local store, changelog and warehouse table. The result has a heat map, the
keys that differ, and the repair plan.

Invariants:
    - Python code without Spark audits a snapshot, so that an error in the Spark code that wrote the snapshot is found.
    - RocksDB and the warehouse are imported only in a run, not when definitions are loaded.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult, check_of_each
from holdfast.assets.pages.heat_map import heat_map
from holdfast.assets.pages.metadata import table
from holdfast.assets.ports import Cluster, Lifecycle
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.audits.comparison import SHOWN, Side
from holdfast.processors.audits.repair import Subject
from holdfast.processors.audits.rows import UNJUDGED, key_row
from holdfast.processors.audits.stores import StoreAudit, audit_store, checkpoint_manifests
from holdfast.processors.audits.tables import SnapshotUnknown, subject_of, tabled
from holdfast.processors.engine.state.fingerprint import Fingerprint

COPIES_EQUAL = "copies_equal"


def audit_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """The check that compares each table with the store and the changelog; the check runs on demand.

    If the check fails, Dagster does not materialise the assets downstream of the snapshot.
    """
    return check_of_each(
        f"{keys.safe(definition.name)}_audits",
        COPIES_EQUAL,
        "Table, changelog and checkpoint hold the same keys and values at the snapshot's offsets. A failure names the "
        "keys that differ and the repair.",
        {keys.snapshot_key(definition.name, each.store): each for each in subjects(definition)},
        lambda _, wanted, cluster, lifecycle: _audited(wanted, cluster, lifecycle),
        blocking=True,
    )


def subjects(definition: ProcessorDefinition) -> list[Subject]:
    """The processor's stores with a changelog, each with the names that an audit and a repair need."""
    topology = definition.topology
    return [
        subject_of(definition.name, store, topic, topology.source_log_of(store))
        for store, topic in topology.log_names.items()
    ]


def _audited(wanted: Sequence[Subject], cluster: Cluster, lifecycle: Lifecycle) -> Iterator[CheckResult]:
    """Returns one check result for each of these stores. A store's three copies are compared at its table's offsets."""
    from holdfast.infra.warehouse.catalog import TableUnknown

    topics = cluster.topics()
    for subject in wanted:
        key = keys.snapshot_key(subject.processor, subject.store)
        kept = checkpoint_manifests(lifecycle.paths.checkpoints(subject.processor))
        try:
            published = tabled(lifecycle.paths, subject.processor, subject.store)
        except (TableUnknown, SnapshotUnknown) as absent:
            yield CheckResult(key, COPIES_EQUAL, False, absent.message, action=absent.action, warns=True)
            continue
        audit = audit_store(subject, (), topics, cluster.client_config, tabled=published, kept=kept)
        yield judge_audit(key, COPIES_EQUAL, audit)


def judge_audit(key: dg.AssetKey, check_name: str, audit: StoreAudit) -> CheckResult:
    """Converts an audit of one store to a check result; it fails if a key differs or a partition was not comparable."""
    metadata = describe_audit(audit)
    differences = list(audit.differences)
    notes = [*audit.warnings, *([UNJUDGED.format(audit.unjudged)] if audit.unjudged else [])]
    equal = f"All copies are equal; keys: {metadata['live_keys']:,}, partitions: {metadata['partitions_compared']}."
    return CheckResult(
        key,
        check_name,
        not differences,
        f"{'; '.join(differences)}." if differences else " ".join([equal, *notes]),
        "all copies hold the same keys and values",
        " ".join(audit.repair),
        metadata=metadata,
    )


def describe_audit(audit: StoreAudit) -> dict[str, Any]:
    """Dagster's metadata of an audit: numbers, heat map, the first keys that differ, and the repair plan."""
    wholes = {side: _whole(audit, side) for side in Side}
    metadata: dict[str, Any] = {
        "partitions_compared": len(audit.moments),
        "partitions_differing": sum(1 for moment in audit.moments if moment.differing) + len(audit.unproved),
        "live_keys": sum(moment.wholes[_first(moment.prints)].count for moment in audit.moments),
        "keys_differing": sum(moment.differing for moment in audit.moments),
        "keys_unjudged": audit.unjudged,
        "records_stray": sum(each.stray.records for each in audit.partitions if each.stray is not None),
        **{f"{side.value}_fingerprint": whole.hex for side, whole in wholes.items() if whole is not None},
    }
    if audit.moments:
        metadata["heat_map"] = dg.MetadataValue.md(heat_map(audit.moments))
    rows = [key_row(one) for moment in audit.moments for one in moment.first][:SHOWN]
    if rows:
        metadata["differing_keys"] = table(
            [{name: value if name == "partition" else str(value) for name, value in row.items()} for row in rows]
        )
    if audit.warnings:
        metadata["warnings"] = dg.MetadataValue.md("\n".join(f"- {sentence}" for sentence in audit.warnings))
    if audit.repair:
        steps = "\n".join(f"{number}. {sentence}" for number, sentence in enumerate(audit.repair, 1))
        metadata["repair_plan"] = dg.MetadataValue.md(steps)
    return metadata


def _whole(audit: StoreAudit, side: Side) -> Fingerprint | None:
    """The fingerprint (hash) of one copy of a store, for example of its changelog, over all partitions.

    None if the copy was not compared in a partition, or if it was compared twice there (at two offsets).
    """
    numbers = {moment.partition for moment in audit.moments}
    known = [whole for moment in audit.moments if (whole := moment.wholes.get(side)) is not None]
    return sum(known, Fingerprint()) if len(known) == len(audit.moments) == len(numbers) else None


def _first(prints: Any) -> Side:
    side: Side = next(iter(prints))
    return side
