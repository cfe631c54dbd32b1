"""The audit of typed columns: a version with any typed value that differs from its JSON is not published."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field

from holdfast.assets.spark import current, past
from holdfast.assets.spark.catalog.quarantine import write_quarantine
from holdfast.assets.spark.catalog.versions import Versions, branch_table
from holdfast.assets.spark.maintenance import maintain_store
from holdfast.assets.spark.planning import planned_shape
from holdfast.assets.spark.writing import branch_audit
from holdfast.assets.spark.writing.branch_audit import SnapshotAuditFailed
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.engine.schema import models
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.snapshots.names import quarantine_name, quoted
from holdfast.processors.snapshots.plan import Wanted
from tests.mechanics.tiers import variants


class Leg(BaseModel):
    to: str
    seats: dict[str, list[dict[str, int]]] = {}


class Flown(BaseModel):
    """A model with a column of each kind; maps are hashed in a different way."""

    flights: int
    price: Decimal = Decimal(0)
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    tags: dict[str, int] = {}
    legs: list[Leg] = []


SCHEMA = schema_of(Flown)
ONE = {"flights": 1, "price": "1.5", "at": "2026-01-01T00:00:00Z", "tags": {"x": 1}}
LEGS = {"flights": 2, "tags": {}, "legs": [{"to": "JFK", "seats": {"a": [{"b": 1}]}}, {"to": "LGA"}]}


def snapshot(changelog: Any, wanted: Wanted = Wanted.AUTO, schema: Any = SCHEMA) -> Any:
    shape = planned_shape(changelog.spark, changelog.processor, "s", schema)
    return changelog.snapshot(changelog.plan(wanted=wanted, schema_version=shape), schema=schema)


def spoil(monkeypatch: pytest.MonkeyPatch, changelog: Any, write: str, column: str) -> None:
    """Corrupt each write of a branch: set the column of an unchanged row to null."""
    written = getattr(current, write)

    def spoiled(*arguments: Any, **options: Any) -> None:
        written(*arguments, **options)
        table, branch = arguments[2:4] if write == "merge" else arguments[1:3]
        changelog.spark.sql(f"UPDATE {branch_table(table, branch)} SET {column} = NULL WHERE message_key = 'one'")

    monkeypatch.setattr(current, write, spoiled)


@pytest.mark.thorough
@pytest.mark.parametrize("column", variants(["flights", "tags", "price", "at"]))
def test_a_typed_column_that_changed_in_another_row_is_not_published(
    changelog: Any, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    changelog.write(0, [(b"one", ONE), (b"two", LEGS)])
    first = snapshot(changelog)
    assert first.manifest.typed_fingerprints[0].count == 2
    changelog.write(0, [(b"two", {"flights": 3})])
    with monkeypatch.context() as patched:
        spoil(patched, changelog, "merge", column)
        with pytest.raises(SnapshotAuditFailed, match="differs from its JSON in the typed columns: partition 0"):
            snapshot(changelog)
    with monkeypatch.context() as patched:
        spoil(patched, changelog, "replace_all", column)
        with pytest.raises(SnapshotAuditFailed, match="differs from its JSON in the typed columns: partition 0"):
            snapshot(changelog, Wanted.CHANGELOG)
    assert next(Versions.of(changelog.spark, f"holdfast.{changelog.processor}.s").published()).version == first.version
    assert snapshot(changelog).manifest.source == "incremental"
    rows = changelog.spark.table(changelog.table_name).select("message_key", column).collect()
    assert {row["message_key"]: row[column] for row in rows}["one"] is not None


class Shifted(BaseModel):
    """A model in which the name of each field is the alias of another field."""

    a: int | None = Field(None, alias="b")
    b: int | None = Field(None, alias="c")


@pytest.mark.thorough
def test_a_column_that_sql_reads_from_the_name_of_another_field_is_not_published(
    changelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that SQL reads from the name of another field must not be published.

    The same wrong SQL parsed table and expectation, so their fingerprints agree. Only reading with the model shows the
    error.
    """

    def with_the_own_name(name: str, field: Any, config: Any) -> tuple[str, ...]:
        return (field.alias, name)

    with monkeypatch.context() as planted:
        planted.setattr(models, "_sources", with_the_own_name)
        wrong = schema_of(Shifted)
    changelog.write(0, [(b"one", {"b": 1})])
    with pytest.raises(SnapshotAuditFailed, match="key one, state key n: column b is 1, expected None"):
        snapshot(changelog, schema=wrong)
    snapshot(changelog, schema=schema_of(Shifted))
    assert [(row["a"], row["b"]) for row in changelog.spark.table(changelog.table_name).collect()] == [(1, None)]
    changelog.write(0, [(b"two", {"b": 2})])
    with monkeypatch.context() as former:
        former.setattr(branch_audit, "misread_columns", lambda *arguments: [])
        snapshot(changelog, schema=wrong)
    rows = changelog.spark.table(changelog.table_name).where("message_key = 'two'").collect()
    assert [(row["a"], row["b"]) for row in rows] == [(2, 2)]
    snapshot(changelog, Wanted.CHANGELOG, schema_of(Shifted))
    rows = changelog.spark.table(changelog.table_name).orderBy("message_key").collect()
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (2, None)]


@pytest.mark.thorough
def test_a_past_version_has_the_audit_too(changelog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changelog.write(0, [(b"one", ONE), (b"two", LEGS)])
    snapshot(changelog)
    changelog.write(0, [(b"two", None)])
    at = time.time()
    while time.time() < at + 0.002:
        pass
    changelog.write(0, [(b"two", LEGS)])
    snapshot(changelog)
    with monkeypatch.context() as patched:
        spoil(patched, changelog, "merge", "flights")
        with pytest.raises(SnapshotAuditFailed, match="differs from its history in partitions 0"):
            past.write_past(changelog.spark, changelog.processor, "s", "2026-02-03", at, SCHEMA)
    made = past.write_past(changelog.spark, changelog.processor, "s", "2026-02-03", at, SCHEMA)
    assert made.manifest.base is not None
    assert {number: each.count for number, each in made.manifest.typed_fingerprints.items()} == {0: 1, 1: 0}


@pytest.mark.thorough
def test_a_base_of_an_earlier_version_has_no_fingerprint_of_typed_columns(
    changelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base snapshot is from an older version of Holdfast and has no fingerprint of typed columns.

    In this case, the audit compares all rows once with their own JSON.
    """
    changelog.write(0, [(b"one", ONE), (b"two", LEGS)])
    snapshot(changelog)
    changelog.write(0, [(b"two", {"flights": 3})])
    shape = planned_shape(changelog.spark, changelog.processor, "s", SCHEMA)
    plan = changelog.plan(schema_version=shape)
    parts = tuple(replace(each, typed=None) for each in plan.base.partitions)
    old = replace(plan, base=replace(plan.base, partitions=parts))
    with monkeypatch.context() as patched:
        spoil(patched, changelog, "merge", "flights")
        with pytest.raises(SnapshotAuditFailed, match="differs from its JSON in the typed columns: partition 0"):
            changelog.snapshot(old, schema=SCHEMA)
    made = changelog.snapshot(old, schema=SCHEMA)
    full = snapshot(changelog, Wanted.CHANGELOG)
    assert made.manifest.source == "incremental"
    assert made.manifest.typed_fingerprints == full.manifest.typed_fingerprints


@pytest.mark.thorough
def test_unreadable_values_of_a_snapshot_that_was_never_published_leave_quarantine(
    changelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unreadable values of an unpublished snapshot stay in quarantine while their branch may belong to a live run.

    Afterwards maintenance deletes them.
    """
    changelog.write(0, [(b"one", ONE), (b"odd", {"flights": "three"})])
    published = snapshot(changelog).manifest.snapshot_id
    changelog.write(0, [(b"odd", {"flights": "four"}), (b"strange", {"flights": []})])
    with monkeypatch.context() as patched:
        spoil(patched, changelog, "merge", "flights")
        with pytest.raises(SnapshotAuditFailed):
            snapshot(changelog)
    (failed,) = quarantined(changelog).keys() - {published}
    assert quarantined(changelog) == {published: 1, failed: 2}
    assert maintained(changelog, after=timedelta(hours=1)) == 0
    assert quarantined(changelog) == {published: 1, failed: 2}
    assert maintained(changelog, after=timedelta(days=2)) == 2
    assert quarantined(changelog) == {published: 1}


def test_two_attempts_at_a_snapshot_leave_the_values_that_the_published_one_read(changelog: Any) -> None:
    """Maintenance deletes the quarantined values of an unpublished attempt, and keeps those of the published attempt.

    The other attempt read all rows, because the columns had changed, and it ended without a publish.
    """
    changelog.write(0, [(b"one", ONE), (b"odd", {"flights": "three"})])
    snapshot(changelog)
    changelog.write(0, [(b"one", {"flights": "four"})])
    made = snapshot(changelog)
    table = quarantine_name(changelog.processor, "s")
    rows = changelog.spark.table(quoted(table)).where(f"snapshot_id = '{made.manifest.snapshot_id}'")
    assert {row["attempt"][:6] for row in rows.collect()} == {"audit_"}
    # rows as another attempt at the snapshot would have written them
    other = rows.selectExpr("* EXCEPT (attempt, snapshot_id)")
    write_quarantine(changelog.spark, table, other.union(other), made.manifest.snapshot_id, "audit_other")
    assert quarantined(changelog)[made.manifest.snapshot_id] == 3
    assert maintained(changelog, after=timedelta(hours=1)) == 2
    assert quarantined(changelog)[made.manifest.snapshot_id] == made.manifest.quarantined == 1


@pytest.mark.thorough
def test_a_quarantine_of_an_earlier_version_gets_the_column_of_attempts(changelog: Any) -> None:
    changelog.write(0, [(b"odd", {"flights": "three"})])
    first = snapshot(changelog).manifest.snapshot_id
    table = quoted(quarantine_name(changelog.processor, "s"))
    changelog.spark.sql(f"ALTER TABLE {table} DROP COLUMN attempt")
    assert maintained(changelog, after=timedelta(hours=1)) == 0
    changelog.write(0, [(b"more", {"flights": "four"})])
    second = snapshot(changelog).manifest.snapshot_id
    assert quarantined(changelog) == {first: 1, second: 1}
    assert maintained(changelog, after=timedelta(hours=1)) == 0


def quarantined(changelog: Any) -> Counter[str]:
    """The number of values in quarantine, by snapshot id."""
    rows = changelog.spark.table(quoted(quarantine_name(changelog.processor, "s"))).select("snapshot_id").collect()
    return Counter(row["snapshot_id"] for row in rows)


def maintained(changelog: Any, after: timedelta) -> int:
    """The number of values that maintenance removes from quarantine when it runs this long after now."""
    keep, later = MaintenanceSettings(leftovers_hours=24), datetime.now(UTC) + after
    done = maintain_store(changelog.spark, changelog.processor, "s", keep, later)
    return next(each for each in done if each.table == quarantine_name(changelog.processor, "s")).quarantined_dropped
