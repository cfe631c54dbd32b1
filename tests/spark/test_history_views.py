"""The views over a history table: validity times of values, changes, and the state at any time.

The changes are hand-made.
"""

import datetime as dt

import pytest
from pydantic import BaseModel

from holdfast.assets.spark.catalog.tables import create_history
from holdfast.assets.spark.history_views import create_views, held_at
from holdfast.infra.warehouse.catalog import TableUnknown
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.snapshots.names import history_name, quoted
from tests.mechanics.tiers import variants

T0 = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Counted(BaseModel):
    n: int


def at(minute):
    return T0 + dt.timedelta(minutes=minute)


#: Columns: partition, generation (counts the store's changelogs), offset, minute, op, key, value. A full snapshot adds
#: rows with ``base`` or ``base_delete``: the value of the store, or that it has none.
CHANGES = [
    (0, 0, 0, 0, "put", "a", 1),
    (0, 0, 1, 1, "put", "b", 1),
    (0, 0, 2, 3, "put", "a", 2),
    (0, 0, 3, 2, "put", "a", 3),  # an earlier time at a later offset, because the clock was set back
    (0, 0, 4, 5, "delete", "b", None),
    (0, 0, 4, 4, "base", "a", 3),  # this base row repeats a value that was already known
    (0, 0, 5, 6, "base", "c", 7),  # this base row has a value without a changelog record
    (0, 0, 5, 6, "base_delete", "b", None),  # this base row repeats a known deletion
    (0, 0, 5, 7, "put", "c", 8),
    (0, 0, 6, 8, "delete", "never", None),
    (0, 1, 0, 9, "base_delete", "a", None),  # the next changelog of the store, which lacks this key
    (0, 1, 0, 9, "base", "c", 8),
    (1, 0, 0, 0, "put", "a", "bad"),  # the same key in another partition is a different key
]


@pytest.fixture(scope="module")
def processor(spark, unique):
    name = unique("views").replace("-", "_")
    history = history_name(name, "s")
    create_history(spark, history)
    rows = [
        (
            *(partition, generation, offset, at(minute), op, key_prefix(key.encode()) + b"n"),
            None if value is None else encode_value({"n": value}, 1),
            *(key, "n"),
        )
        for partition, generation, offset, minute, op, key, value in CHANGES
    ]
    frame = spark.createDataFrame(rows, spark.table(quoted(history)).schema)
    frame.writeTo(quoted(history)).option("fanout-enabled", "true").append()
    create_views(spark, name, "s", schema_of(Counted))
    assert create_views(spark, name, "s", schema_of(Counted))
    return name


def minutes(moment):
    return None if moment is None else round((moment.astimezone(dt.UTC) - T0).total_seconds() / 60)


def test_each_value_has_the_time_that_it_held(spark, processor):
    rows = spark.table(f"holdfast.{processor}.s_scd2").orderBy(
        "store_partition", "message_key", "valid_from", "offset_from"
    )
    seen = [
        (row.store_partition, row.message_key, row.n, minutes(row.valid_from), minutes(row.valid_to), row.exact)
        for row in rows.collect()
    ]
    assert seen == [
        (0, "a", 1, 0, 3, True),
        (0, "a", 2, 3, 3, True),
        (0, "a", 3, 3, 9, True),
        (0, "b", 1, 1, 5, True),
        (0, "c", 7, 6, 7, False),
        (0, "c", 8, 7, None, True),
        (1, "a", None, 0, None, True),
    ]
    now = spark.table(f"holdfast.{processor}.s_scd2").where("is_current").collect()
    assert {(row.store_partition, row.message_key, row.json) for row in now} == {
        (0, "c", '{"n":8}'),
        (1, "a", '{"n":"bad"}'),
    }
    assert [row.why for row in now if row.store_partition == 1] == ["n is not bigint: bad"]


def test_views_are_made_anew_only_where_they_are_not_as_they_should_be(spark, spark_settings, unique):
    name = unique("made").replace("-", "_")
    create_history(spark, history_name(name, "s"))

    def files():
        return {path.name for path in spark_settings.paths.warehouse.rglob(f"{name}/*/metadata/*.metadata.json")}

    scd2, feed = map(quoted, create_views(spark, name, "s", None))
    made = files()
    create_views(spark, name, "s", None)
    assert files() == made
    create_views(spark, name, "s", schema_of(Counted))
    assert spark.table(scd2).columns[-2:] == ["n", "why"]
    assert len(files()) == len(made) + 2

    wanted = [spark.table(view).schema for view in (scd2, feed)]
    spark.sql(f"CREATE OR REPLACE VIEW {scd2} AS SELECT 1 AS `by hand`")
    spark.sql(f"DROP VIEW {feed}")
    create_views(spark, name, "s", schema_of(Counted))
    assert [spark.table(view).schema for view in (scd2, feed)] == wanted


def test_the_feed_tells_each_change_with_what_was_before(spark, processor):
    rows = spark.table(f"holdfast.{processor}.s_feed").where("store_partition = 0").orderBy("generation", "offset")
    seen = [(row.change, row.message_key, row.n, row.json_before, row.exact) for row in rows.collect()]
    assert seen == [
        ("insert", "a", 1, None, True),
        ("insert", "b", 1, None, True),
        ("update", "a", 2, '{"n":1}', True),
        ("update", "a", 3, '{"n":2}', True),
        ("delete", "b", None, '{"n":1}', True),
        ("insert", "c", 7, None, False),
        ("update", "c", 8, '{"n":7}', True),
        ("delete", "a", None, '{"n":3}', False),
    ] or sorted(seen[5:7], key=lambda row: row[2]) == [
        ("insert", "c", 7, None, False),
        ("update", "c", 8, '{"n":7}', True),
    ]


@pytest.mark.parametrize(
    ("minute", "held"), variants([(6, {"a": 3, "c": 7}), (0, {"a": 1}), (4, {"a": 3, "b": 1}), (99, {"c": 8})])
)
def test_the_state_of_any_moment_can_be_asked_for(spark, processor, minute, held):
    rows = held_at(spark, processor, "s", at(minute)).where("store_partition = 0").collect()
    assert {row.message_key: row.n for row in rows} == held
    one = held_at(spark, processor, "s", at(minute), key="a").where("store_partition = 0").collect()
    assert [row.n for row in one] == [value for key, value in held.items() if key == "a"]
    with pytest.raises(TableUnknown, match=f"{processor}.nothing_history"):
        held_at(spark, processor, "nothing", at(minute))
