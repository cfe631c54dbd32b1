"""Full, incremental and past snapshots with the typed columns of a store's model, and values that don't fit it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.assets.spark import current, past
from holdfast.assets.spark.catalog import versions
from holdfast.assets.spark.planning import planned_shape
from holdfast.assets.spark.writing import snapshot as steps
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import INFERRED
from holdfast.processors.snapshots.names import time_tag
from tests.mechanics.tiers import variants


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
        shape = planned_shape(spark, changelog.processor, "s", schema)
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


@pytest.mark.thorough
def test_a_time_before_1970_is_kept_and_one_that_is_none_is_in_quarantine(changelog: Any) -> None:
    """An event time before 1970 is kept. A time that no timestamp column can hold goes to quarantine.

    A producer that sends nanoseconds instead of milliseconds must not stop the snapshots of a store.
    """
    spark, schema = changelog.spark, schema_of(Flights)
    times = {b"old": -86_400_000, b"first": -62_135_596_800_000, b"last": 253_402_300_799_999}
    strange = {b"nanoseconds": 1_700_000_000_000_000_000, b"before": -62_135_596_800_001, b"least": -(2**63)}
    for key, time_ms in {**times, **strange}.items():
        changelog.write_raw(0, key_prefix(key) + b"n", encode_value({"flights": 1}, time_ms))
    shape = planned_shape(spark, changelog.processor, "s", schema)
    made = changelog.snapshot(changelog.plan(schema_version=shape), schema=schema)
    assert (made.manifest.rows, made.manifest.quarantined) == (6, 3)
    rows = spark.table(f"holdfast.`{changelog.processor}`.s")
    found = rows.selectExpr("message_key", "unix_millis(event_timestamp) AS at", "flights").collect()
    expected = {key.decode(): time_ms for key, time_ms in times.items()} | dict.fromkeys(map(bytes.decode, strange))
    assert {row["message_key"]: row["at"] for row in found} == expected
    assert {row["flights"] for row in found if row["message_key"].encode() in times} == {1}
    assert {row["flights"] for row in found if row["message_key"].encode() in strange} == {None}
    why = spark.table(f"holdfast.`{changelog.processor}`.s_quarantine").select("why").collect()
    assert {row["why"] for row in why} == {
        f"its event time is {time_ms} ms since 1970, expected a time of the years 1 to 9999"
        for time_ms in strange.values()
    }


#: For each column: its values in the order of the snapshots, and its type after each snapshot. Most values widen the
#: type. Where the second list is shorter, the last types are not checked.
WIDENED = {
    "number": ([1, 1.5, "one"], ["bigint", "double", "string"]),
    "truth": ([True, 2], ["boolean", "string"]),
    "items": ([[1], [1.5], ["x"], [[1]]], ["array<bigint>", "array<double>", "array<string>", "array<string>"]),
    "thing": ([{"a": 1}, {"a": 1.5}, [1]], ["struct<a:bigint>", "struct<a:double>", "string"]),
    "deep": ([{"in": {"b": [1]}}, {"in": {"b": [True]}}], ["struct<in:struct<b:array<bigint>>>"]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("column", variants(list(WIDENED)))
def test_an_inferred_column_that_widens_keeps_its_values_in_unchanged_rows(changelog: Any, column: str) -> None:
    spark, name = changelog.spark, f"holdfast.`{changelog.processor}`.s"
    values, types = WIDENED[column]
    for number, value in enumerate(values):
        changelog.write(number % 2, [(b"k%d" % number, {column: value})])
        shape = planned_shape(spark, changelog.processor, "s", INFERRED)
        made = changelog.snapshot(changelog.plan(schema_version=shape), schema=INFERRED)
        assert made.manifest.source == ("incremental" if number else "changelog")
        assert made.manifest.quarantined == 0
        table = spark.table(name)
        if number < len(types):
            assert table.schema[column].dataType.simpleString() == types[number]
        rows = table.selectExpr("message_key", "json", f"to_json(struct(`{column}`)) AS typed").collect()
        assert {row["message_key"] for row in rows} == {f"k{each}" for each in range(number + 1)}
        for row in rows:
            assert loose(json.loads(row["typed"])[column]) == loose(json.loads(row["json"])[column])


@pytest.mark.thorough
def test_after_a_column_was_made_again_the_next_increment_changes_its_rows(changelog: Any) -> None:
    """An incremental snapshot correctly changes rows of a table in which a column was recreated.

    The recreated column is the last column of the table, and a row's fingerprint depends on the column order.
    """

    def snapshot() -> Any:
        shape = planned_shape(changelog.spark, changelog.processor, "s", INFERRED)
        return changelog.snapshot(changelog.plan(schema_version=shape), schema=INFERRED)

    changelog.write(0, [(b"one", {"a": 1, "b": 2, "c": 3}), (b"two", {"a": 1, "b": 2, "c": 3})])
    snapshot()
    changelog.write(0, [(b"two", {"a": "text", "b": 2.5, "c": 3})])
    made = snapshot()
    table = changelog.spark.table(f"holdfast.`{changelog.processor}`.s")
    assert table.columns[-3:] == [each.name for each in made.schema.columns] == ["c", "a", "b"]
    changelog.write(0, [(b"one", {"a": 5, "b": 6, "c": 7})])
    assert snapshot().manifest.source == "incremental"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "after", "columns"),
    variants(
        [
            ([(b"empty", {}), (b"text", "x")], [(b"object", {"a": 1})], {"empty": None, "text": "x", "object": None}),
            ([(b"empty", {}), (b"none", None)], [(b"text", "x"), (b"number", -3)], {"empty": "{}", "text": "x"}),
        ]
    ),
    ids=["the first column of a field", "the first column is of whole values"],
)
def test_an_object_that_does_not_change_has_what_a_full_snapshot_gives_it(
    changelog: Any, before: Any, after: Any, columns: dict[str, str | None]
) -> None:
    """An object that does not change has the same typed columns as after a full snapshot.

    If the table has no columns for fields, the column of whole values also has objects, as JSON text.
    """

    def snapshot(**options: Any) -> Any:
        shape = planned_shape(changelog.spark, changelog.processor, "s", INFERRED)
        return changelog.snapshot(changelog.plan(schema_version=shape, **options), schema=INFERRED)

    def content() -> dict[str, str | None]:
        rows = changelog.spark.table(f"holdfast.`{changelog.processor}`.s").select("message_key", "content").collect()
        return {row["message_key"]: row["content"] for row in rows if row["message_key"] in columns}

    changelog.write(0, before)
    snapshot()
    changelog.write(0, after)
    assert snapshot().manifest.source == "incremental"
    assert content() == columns
    changelog.write(0, [(b"later", "y")])
    assert snapshot().manifest.source == "incremental"
    assert content() == columns


def loose(value: Any) -> Any:
    """A value as a wider type shows it: numbers compare equal, and a text is parsed if it is JSON."""
    if isinstance(value, dict):
        return {name: loose(each) for name, each in value.items()}
    if isinstance(value, list):
        return [loose(each) for each in value]
    if isinstance(value, str):
        try:
            return loose(json.loads(value))
        except ValueError:
            return value
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.mark.thorough
def test_a_run_that_died_after_it_widened_a_column_leaves_nothing_null(changelog: Any) -> None:
    spark = changelog.spark

    def plan() -> Any:
        return changelog.plan(schema_version=planned_shape(spark, changelog.processor, "s", INFERRED))

    changelog.write(0, [(b"a", {"n": 1})])
    changelog.snapshot(plan(), schema=INFERRED)
    changelog.write(0, [(b"b", {"n": 1.5})])
    planned = plan()
    work = steps.Work(spark, planned, changelog.source, None, INFERRED)
    with current.aligned_plans(spark):
        steps.feed_history(work)
        steps.write_branch(work)
    for made in (lambda: planned, plan):
        changelog.snapshot(made(), schema=INFERRED)
        rows = spark.table(f"holdfast.`{changelog.processor}`.s").select("message_key", "n").collect()
        assert {row["message_key"]: row["n"] for row in rows} == {"a": 1.0, "b": 1.5}


@pytest.mark.thorough
def test_names_that_differ_in_case_only_are_columns_apart(changelog: Any) -> None:
    """Top-level fields whose names differ only in case have separate columns, whichever field came first.

    Fields inside an object whose names differ only in case stay JSON text.
    """
    spark = changelog.spark
    steps_of_it = [
        [(b"a", {"X": 1, "deep": {"y": 1}})],
        [(b"b", {"x": "text", "a b": 1}), (b"c", {"X": 2, "x": 3, "deep": {"y": 1, "Y": 2}})],
        [(b"d", {"a_b": 2.5, "x": None}), (b"a", {"X": 1.5})],
    ]
    for entries in steps_of_it:
        changelog.write(0, entries)
        plan = changelog.plan(schema_version=planned_shape(spark, changelog.processor, "s", INFERRED))
        assert changelog.snapshot(plan, schema=INFERRED).manifest.quarantined == 0
    rows = spark.table(f"holdfast.`{changelog.processor}`.s")
    found = {row["message_key"]: row.asDict() for row in rows.collect()}
    columns = ["X", "x_2d71", "deep", "a_b", "a_b_648f"]
    assert sorted(rows.columns[9:]) == sorted(columns)
    assert {key: [row[name] for name in columns] for key, row in found.items()} == {
        "a": [1.5, None, None, None, None],
        "b": [None, "text", None, 1, None],
        "c": [2.0, "3", '{"y":1,"Y":2}', None, None],
        "d": [None, None, None, None, 2.5],
    }
    view = spark.table(f"holdfast.`{changelog.processor}`.s_scd2").where("is_current").collect()
    assert {row["message_key"]: row["x_2d71"] for row in view} == {"a": None, "b": "text", "c": "3", "d": None}


@pytest.mark.thorough
def test_objects_whose_names_differ_in_case_only_have_columns_apart_though_their_types_agree(changelog: Any) -> None:
    """Two objects of one snapshot have fields whose names differ only in case. Each name has its own column.

    This also holds if a value is null, or if both fields have the same type.
    """
    for entries in (
        [(b"a", {"x": 1}), (b"b", {"X": 2})],
        [(b"c", {"y": None, "z": []}), (b"d", {"Y": -1.25, "z": None})],
        [(b"e", {"items": [{"p": 1}, {"P": 2}]})],
    ):
        changelog.write(0, entries)
        plan = changelog.plan(schema_version=planned_shape(changelog.spark, changelog.processor, "s", INFERRED))
        changelog.snapshot(plan, schema=INFERRED)
    rows = changelog.spark.table(f"holdfast.`{changelog.processor}`.s")
    found = {row["message_key"]: {name: row[name] for name in rows.columns[9:]} for row in rows.collect()}
    said = {key: [value for value in row.values() if value not in (None, [])] for key, row in found.items()}
    assert {key: said[key] for key in "abcd"} == {"a": [1], "b": [2], "c": [], "d": [-1.25]}
    assert loose(found["e"]["items"]) == [{"p": 1}, {"P": 2}]


@pytest.mark.thorough
def test_values_of_several_kinds_have_columns_for_objects_and_one_for_the_rest(changelog: Any) -> None:
    spark = changelog.spark
    for entries in ([(b"a", {"n": 1}), (b"b", 7)], [(b"c", [1]), (b"d", None), (b"e", {"m": "x"})], [(b"b", "text")]):
        changelog.write(0, entries)
        plan = changelog.plan(schema_version=planned_shape(spark, changelog.processor, "s", INFERRED))
        assert changelog.snapshot(plan, schema=INFERRED).manifest.quarantined == 0
    rows = spark.table(f"holdfast.`{changelog.processor}`.s").select("message_key", "n", "m", "content").collect()
    assert {row["message_key"]: (row["n"], row["m"], row["content"]) for row in rows} == {
        "a": (1, None, None),
        "b": (None, None, "text"),
        "c": (None, None, "[1]"),
        "e": (None, "x", None),
    }
