"""A table's columns change. Readers see the old columns and values until both change in one commit."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, Field

from holdfast.assets.spark import current, past
from holdfast.assets.spark.catalog import sides, versions
from holdfast.assets.spark.maintenance import maintain_store
from holdfast.assets.spark.planning import planned_shape
from holdfast.assets.spark.writing import snapshot as steps
from holdfast.infra.settings import MaintenanceSettings
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import INFERRED, StoreSchema
from holdfast.processors.snapshots.names import SIDES, quoted, snapshot_tag, time_tag


class First(BaseModel):
    flights: int
    airport: str = ""
    gone: int = 0


class Second(BaseModel):
    flights: float
    home: str = Field(default="", validation_alias=AliasChoices("home", "airport"))
    added: int = 5


FIRST, SECOND = schema_of(First), schema_of(Second)
OLD = {"a": (1, "JFK", 7), "b": (2, "LGA", None)}


def planned(changelog: Any, schema: StoreSchema) -> Any:
    return changelog.plan(schema_version=planned_shape(changelog.spark, changelog.processor, "s", schema))


def read(changelog: Any, ref: str = "main") -> Any:
    """The names of the typed columns, and their values by message key, as readers get them."""
    frame = changelog.spark.table(changelog.table_name) if ref == "main" else None
    rows = (
        frame if frame is not None else versions.at_version(changelog.spark, changelog.table_name.replace("`", ""), ref)
    )
    names = rows.columns[9:]
    return names, {row["message_key"]: tuple(row[name] for name in names) for row in rows.collect()}


def side_tables(changelog: Any) -> list[str]:
    if not changelog.spark.catalog.databaseExists(quoted(SIDES)):
        return []
    rows = changelog.spark.sql(f"SHOW TABLES IN {quoted(SIDES)} LIKE '{changelog.processor}__*'").collect()
    return [row["tableName"] for row in rows]


@pytest.fixture
def changed(changelog: Any) -> Any:
    """A store with a snapshot of the first model, and with newer values that only the second model describes."""
    changelog.write(0, [(b"a", {"flights": 1, "airport": "JFK", "gone": 7})])
    changelog.write(1, [(b"b", {"flights": 2, "airport": "LGA"})])
    changelog.first = changelog.snapshot(planned(changelog, FIRST), schema=FIRST)
    assert read(changelog) == (["flights", "airport", "gone"], OLD)
    changelog.write(1, [(b"b", {"flights": 2.5, "home": "LGA", "added": 4})])
    return changelog


def attempt(changelog: Any, plan: Any, schema: StoreSchema) -> steps.Work:
    """A run that has done every step except the last, which publishes."""
    work = steps.Work(changelog.spark, plan, changelog.source, None, schema)
    with current.aligned_plans(changelog.spark):
        steps.feed_history(work)
        steps.write_branch(work)
        steps.seal(work, steps.audit_branch(work))
    return work


@pytest.mark.thorough
def test_columns_change_for_readers_with_their_values_or_not_at_all(changed: Any) -> None:
    plan = planned(changed, SECOND)
    assert read(changed) == (["flights", "airport", "gone"], OLD)
    dead = attempt(changed, plan, SECOND)
    assert read(changed) == (["flights", "airport", "gone"], OLD)
    assert len(side_tables(changed)) == 1
    steps.publish_history(dead)  # the run publishes its changes in the history table, and then dies
    assert read(changed) == (["flights", "airport", "gone"], OLD)
    assert changed.snapshot(planned(changed, SECOND), schema=SECOND).manifest.source == "changelog"
    names, rows = read(changed)
    assert {name: [rows[key][at] for key in "ab"] for at, name in enumerate(names)} == {
        "flights": [1.0, 2.5],
        "home": ["JFK", "LGA"],
        "added": [None, 4],
    }
    assert read(changed, snapshot_tag(changed.first.manifest.snapshot_id)) == (["flights", "airport", "gone"], OLD)


@pytest.mark.thorough
def test_the_side_table_of_a_run_that_died_is_removed_a_day_later(changed: Any) -> None:
    steps.publish_history(attempt(changed, planned(changed, SECOND), SECOND))
    changed.snapshot(planned(changed, SECOND), schema=SECOND)
    _, rows = read(changed)
    keep = MaintenanceSettings(leftovers_hours=24)
    maintain_store(changed.spark, changed.processor, "s", keep, dt.datetime.now(dt.UTC) + dt.timedelta(hours=20))
    assert len(side_tables(changed)) == 1
    maintain_store(changed.spark, changed.processor, "s", keep, dt.datetime.now(dt.UTC) + dt.timedelta(hours=30))
    assert side_tables(changed) == []
    assert read(changed)[1] == rows
    changed.write(0, [(b"a", {"flights": 9, "added": 1})])
    assert changed.snapshot(planned(changed, SECOND), schema=SECOND).manifest.source == "incremental"
    assert changed.stored() == changed.model


@pytest.mark.thorough
def test_of_two_runs_that_change_the_columns_one_publishes(changed: Any) -> None:
    plan = planned(changed, SECOND)
    slow = attempt(changed, plan, SECOND)
    fast = changed.snapshot(plan, schema=SECOND)
    assert fast.committed
    with pytest.raises(versions.TableMoved):
        steps.publish_table(slow)
    again = changed.snapshot(plan, schema=SECOND)
    assert (again.committed, again.version) == (False, fast.version)
    assert changed.stored() == changed.model


@pytest.mark.thorough
def test_a_commit_of_another_run_meanwhile_is_kept(changed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance tags, compacts and expires versions of the table during a snapshot.

    The change of columns is done again on top of these commits, so that the commits stay.
    """
    seal, sealed = steps.seal, []

    def tagged(work: steps.Work, measured: Any) -> None:
        seal(work, measured)
        if not sealed:
            versions.set_tag(changed.spark, work.plan.table, "by-another", changed.first.version)
        sealed.append(work.side)

    monkeypatch.setattr(steps, "seal", tagged)
    made = changed.snapshot(planned(changed, SECOND), schema=SECOND)
    assert (made.committed, len(sealed)) == (True, 2)
    assert read(changed, "by-another") == (["flights", "airport", "gone"], OLD)
    assert read(changed)[1]["b"][read(changed)[0].index("flights")] == 2.5
    assert side_tables(changed) == []


@pytest.mark.thorough
def test_an_inferred_column_that_is_made_again_changes_with_its_values(changelog: Any) -> None:
    changelog.write(0, [(b"a", {"n": 1})])
    changelog.snapshot(planned(changelog, INFERRED), schema=INFERRED)
    changelog.write(0, [(b"b", {"n": "text"})])
    attempt(changelog, planned(changelog, INFERRED), INFERRED)
    assert read(changelog) == (["n"], {"a": (1,)})
    sides.forget(changelog.spark, f"{SIDES}.{side_tables(changelog)[0]}")
    assert changelog.snapshot(planned(changelog, INFERRED), schema=INFERRED).manifest.source == "incremental"
    assert read(changelog) == (["n"], {"a": ("1",), "b": ("text",)})


@pytest.mark.thorough
def test_a_past_version_over_a_change_of_columns_has_the_values_of_its_json(changelog: Any) -> None:
    changelog.write(0, [(b"a", {"flights": 1, "airport": "JFK"})])
    first = changelog.snapshot(planned(changelog, FIRST), schema=FIRST)
    changelog.write(0, [(b"b", {"flights": 2, "airport": "LGA"})])
    at = time.time()
    while time.time() < at + 0.002:
        pass
    changelog.write(0, [(b"a", None)])
    changelog.snapshot(planned(changelog, SECOND), schema=SECOND)
    made = past.write_past(changelog.spark, changelog.processor, "s", "2026-02-03", at, SECOND)
    assert (made.manifest.base, made.manifest.schema_version) == (None, 2)
    names, rows = read(changelog, time_tag("2026-02-03"))
    assert {key: (row[names.index("flights")], row[names.index("home")]) for key, row in rows.items()} == {
        "a": (1.0, "JFK"),
        "b": (2.0, "LGA"),
    }
    assert first.manifest.schema_version == 1
