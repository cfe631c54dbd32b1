"""Snapshots with the typed columns of a store's model: full, incremental, past; and values that don't fit it."""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel

from holdfast.assets.spark import past, versions
from holdfast.assets.spark.planning import shape_table
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.snapshots.names import time_tag


class Flights(BaseModel):
    flights: int
    airport: str | None = None


def typed(changelog: Any, ref: str = "main") -> dict[str, tuple[int | None, str | None]]:
    rows = versions.at_version(changelog.spark, f"holdfast.{changelog.processor}.s", ref)
    found = rows.select("message_key", "flights", "airport").collect()
    return {row["message_key"]: (row["flights"], row["airport"]) for row in found}


def test_typed_columns_are_in_every_kind_of_snapshot_and_misfits_in_quarantine(changelog: Any) -> None:
    spark, schema = changelog.spark, schema_of(Flights)

    def snapshot() -> Any:
        shape = shape_table(spark, changelog.processor, "s", schema)
        return changelog.snapshot(changelog.plan(schema_version=shape), schema=schema)

    changelog.write(0, [(b"a", {"flights": 1}), (b"odd", {"flights": "three"})])
    first = snapshot()
    assert typed(changelog) == {"a": (1, None), "odd": (None, None)}
    assert first.manifest.quarantined == 1
    changelog.write(0, [(b"a", {"flights": 2, "airport": "JFK"}), (b"odd", {"flights": 3}), (b"b", 7)])
    at = time.time()
    while time.time() < at + 0.002:
        pass
    changelog.write(0, [(b"a", None)])
    second = snapshot()
    assert second.manifest.source == "incremental"
    assert typed(changelog) == {"odd": (3, None), "b": (None, None)}
    assert second.manifest.quarantined == 1
    kept = spark.table(f"holdfast.`{changelog.processor}`.s_quarantine").collect()
    assert {(row["snapshot_id"], bytes(row["key"])[5:-1]) for row in kept} == {
        (first.manifest.snapshot_id, b"odd"),
        (second.manifest.snapshot_id, b"b"),
    }
    past.write_past(spark, changelog.processor, "s", "2026-02-03", at, schema)
    assert typed(changelog, time_tag("2026-02-03"))["a"] == (2, "JFK")
