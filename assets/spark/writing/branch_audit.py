"""Audits an Iceberg branch to which Holdfast wrote a new snapshot of a store, before the branch is published.

Keys and values must equal the worker's checkpoint. Without a checkpoint, they must equal the records that were read.
Typed columns must equal the JSON values. A full snapshot compares the typed columns with the values that it parsed. An
incremental snapshot adds the parsed values to the fingerprint of the base. So the audit also finds an error in a row
that the snapshot should not change.

The same Spark SQL computes the typed columns and the expected fingerprints, so both can have the same error. For this
reason, Python also reads the values of some rows, without that SQL (``assets.spark.writing.typed_sample``).

Invariants:
    - The code that computes the expected fingerprints is not the code that wrote the branch.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from holdfast.assets.spark import history
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.catalog.tables import COLUMNS
from holdfast.assets.spark.fingerprint import Prints, differing_partitions, prints_after, prints_of, typed_hash
from holdfast.assets.spark.typed import type_rows
from holdfast.assets.spark.writing.attempt import Work
from holdfast.assets.spark.writing.typed_sample import misread_columns
from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.schema.types import StoreSchema, tick
from holdfast.processors.engine.state.fingerprint import Fingerprint

#: Maximum number of columns that an error lists.
SHOWN = 5


class SnapshotAuditFailed(HoldfastError):
    """The written table differs from the checkpoint, from the records that were read, or from its own JSON values."""


def audit_branch(work: Work) -> Prints:
    """Compares the fingerprints (hashes of all rows) of the written branch with the expected ones, and returns them.

    Raises:
        SnapshotAuditFailed: The fingerprints differ; the published table is unchanged.
    """
    work.doing(f"auditing {work.plan.table} as it was written")
    written = versions.at_version(work.spark, work.target, work.branch)
    found = prints_of(written, typed_hash(work.schema))
    expected = _expected(work)
    against = "the worker's checkpoint" if work.stored is not None else "the records that were read"
    _require_equal(work, expected.pairs, found.pairs, against)
    _require_equal(work, expected.typed, found.typed, "its JSON in the typed columns")
    require_read_right(f"Snapshot {work.plan.snapshot_id} of {work.plan.table}", written, work.schema, found)
    return found


def require_read_right(what: str, written: DataFrame, schema: StoreSchema | None, found: Prints) -> None:
    """Raises SnapshotAuditFailed if typed columns of a sample of rows differ from what the store's model reads.

    ``what`` names the table version in the error. ``found`` has the fingerprints of all rows that were written.
    """
    rows = {number: each.count for number, each in found.pairs.items()}
    misread = misread_columns(written, schema, rows, what) if schema is not None and schema.columns else []
    if misread:
        raise SnapshotAuditFailed(
            f"{what} differs from its values as their model reads them, in {len(misread)} columns of the rows that "
            f"were compared: {'; '.join(map(str, misread[:SHOWN]))}. Nothing was published.",
            action="Materialise the snapshot asset with the config `source: full`: it reads all rows again. If that "
            "fails, too, give each field of the model a name that is no alias of another field. The stored values are "
            "right; SQL reads these columns from another place than the model does.",
            columns=sorted({each.column for each in misread}),
        )


def _require_equal(
    work: Work, expected: Mapping[int, Fingerprint], found: Mapping[int, Fingerprint], against: str
) -> None:
    plan, empty = work.plan, Fingerprint()
    differing = differing_partitions(expected, found)
    if not differing:
        return
    prints = ((n, found.get(n, empty).hex, expected.get(n, empty).hex) for n in differing)
    partitions = "; ".join(f"partition {n} has {seen}, expected {wanted}" for n, seen, wanted in prints)
    raise SnapshotAuditFailed(
        f"Snapshot {plan.snapshot_id} of {plan.table} ({plan.source.name}) differs from {against}: {partitions}. "
        "Nothing was published.",
        action=f"Compare the store with its changelog: `holdfast audit {plan.processor}`. If they are equal, "
        "materialise the snapshot asset with the config `source: full`. If that fails, too, the storage loses or "
        "changes data.",
        table=plan.table,
        partitions=differing,
    )


def _expected(work: Work) -> Prints:
    """The fingerprints (hashes of all rows) that the branch must have if it was written correctly."""
    plan, pairs = work.plan, work.stored
    base = plan.builds_on
    if base is None:
        if pairs is None:
            whole = history.live(history.fold(work.changes())) if work.history_tells_all() else work.full()
            pairs = prints_of(whole).pairs
        return Prints(pairs, work.typed or {})
    found = work.merged
    if found is None:
        found = Prints(base.fingerprints)
        if pairs is None:
            found = prints_after(found, work.before(), work.quick_to_join(work.changed()), history.LIVE)
    typed = found.typed if work.merged is not None else _typed(work)
    return Prints(found.pairs if pairs is None else pairs, typed)


def _typed(work: Work) -> Mapping[int, Fingerprint]:
    """The expected fingerprints (hashes) of typed columns.

    Normally they were computed when the values were parsed for this snapshot. If they were not, the values on the
    branch are parsed again.
    """
    typed = typed_hash(work.schema)
    if typed is None or work.typed is not None:
        return work.typed or {}
    fixed = [tick(name) for name, _, _ in COLUMNS]
    rows = versions.at_version(work.spark, work.target, work.branch).selectExpr(*fixed)
    return prints_of(type_rows(rows, work.schema), typed).typed
