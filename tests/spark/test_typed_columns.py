"""Typed columns on real Spark and Iceberg.

Values that do not fit the model are quarantined; tables follow the model.
"""

import datetime as dt
import enum
import json
import re
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, BaseModel, Field, NaiveDatetime

from holdfast import Count, Max, Mean, Sum
from holdfast.assets.spark import typed as typed_sql
from holdfast.assets.spark.catalog.quarantine import keep_attempt, write_quarantine
from holdfast.assets.spark.catalog.tables import create_table
from holdfast.assets.spark.shapes import SchemaChangeRefused, reshape, resolve_schema, shape_for
from holdfast.assets.spark.typed import (
    type_rows,
    typed_columns,
    typed_query,
)
from holdfast.assets.spark.writing.typed_sample import misread_columns
from holdfast.dataframe import windows
from holdfast.infra.settings import PROJECT
from holdfast.infra.spark.session import short_errors
from holdfast.processors.engine.aggregates.aggregation import Aggregation
from holdfast.processors.engine.aggregates.window_aggregates import WindowAggregation
from holdfast.processors.engine.changelog.format import encode_bytes, encode_value, key_prefix
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import INFERRED
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE, ENDS, EXPIRES, TIMERS
from holdfast.processors.engine.state.time.window_keys import CLOCK, KEY_TIME, SESSION, due_key, session_key, window_key
from holdfast.processors.engine.windows.counts import WINDOW, CountSpec
from holdfast.processors.engine.windows.typed_columns import (
    aggregate_schema,
    count_window_schema,
    window_schema,
)
from holdfast.processors.snapshots.names import quoted


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leg(BaseModel):
    to: str
    cost: Annotated[Decimal, Field(max_digits=8, decimal_places=2)] = Decimal(0)


class Aircraft(BaseModel):
    flights: int
    share: float = 0.0
    active: bool = True
    seen: dt.datetime | None = None
    local: NaiveDatetime | None = None
    day: dt.date | None = None
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)] = Decimal(0)
    colour: Colour | None = None
    legs: list[Leg] = []
    by_day: dict[str, list[int]] = {}
    first: Leg | None = None
    note: Any = None


def rows(spark, values, state_keys=None):
    """Return a DataFrame with the rows of a full snapshot, before their values are typed."""
    data = []
    for number, value in enumerate(values):
        state_key = state_keys[number] if state_keys else "n"
        key = key_prefix(b"k%d" % number) + state_key.encode()
        stored = value if isinstance(value, bytes | None) else encode_value(json.loads(value), 1)
        text = None if stored is None or stored[1:2] != b"\x01" else stored[10:].decode(errors="replace")
        data.append((number % 2, key, stored, f"k{number}", state_key, text, number))
    shape = "store_partition int, key binary, value binary, message_key string, state_key string, json string, "
    return spark.createDataFrame(data, shape + "offset bigint")


def typed(spark, model, values, state_keys=None):
    schema = schema_of(model)
    names = [name for name, _, _ in typed_columns(schema)]
    frame = type_rows(rows(spark, values, state_keys), schema).orderBy("offset")
    return [({name: row[name] for name in names}, row["why"]) for row in frame.collect()]


def test_values_are_read_as_the_model_says(spark):
    whole = Aircraft(
        flights=3,
        share=0.5,
        active=False,
        seen=dt.datetime(2013, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        local=dt.datetime.fromisoformat("2013-01-01T12:00:00.000250"),
        day=dt.date(2013, 1, 1),
        price=Decimal("12345.60"),
        colour=Colour.BLUE,
        legs=[Leg(to="JFK", cost=Decimal("1.25")), Leg(to="LGA")],
        by_day={"mon": [1, 2]},
        first=Leg(to="EWR"),
        note={"x": [1]},
    )
    ((read, why), (least, why_least)) = typed(spark, Aircraft, [whole.model_dump_json(), '{"flights": 1}'])
    assert (why, why_least) == (None, None)
    assert read["seen"].astimezone(dt.UTC) == dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)
    assert read["local"] == dt.datetime.fromisoformat("2013-01-01T12:00:00.000250")
    assert (read["day"], read["price"], read["colour"]) == (dt.date(2013, 1, 1), Decimal("12345.60"), "blue")
    assert [leg.asDict() for leg in read["legs"]] == [
        {"to": "JFK", "cost": Decimal("1.25")},
        {"to": "LGA", "cost": Decimal("0.00")},
    ]
    assert (read["by_day"], read["first"]["to"], read["note"]) == ({"mon": [1, 2]}, "EWR", '{"x":[1]}')
    assert (read["flights"], read["share"], read["active"]) == (3, 0.5, False)
    assert least["flights"] == 1
    assert {name for name, value in least.items() if value is not None} == {"flights"}


def misread(frame, schema):
    return [(each.column, each.seen, each.expected) for each in misread_columns(frame, schema, {0: 1}, "v")]


MISFITS = [
    ('{"flights": "three"}', "flights is not bigint: three"),
    ('{"flights": 3.5}', "flights is not bigint: 3.5"),
    ('{"flights": 99999999999999999999}', "flights is not bigint: 99999999999999999999"),
    ("{}", "flights is missing or null"),
    ('{"flights": null}', "flights is missing or null"),
    ('{"flights": 1, "share": "x"}', "share is not double: x"),
    ('{"flights": 1, "active": 1}', "active is not boolean: 1"),
    ('{"flights": 1, "seen": 5}', "seen is no timestamp"),
    ('{"flights": 1, "seen": "2013-13-45T00:00:00"}', "seen is no timestamp"),
    ('{"flights": 1, "day": "2013-02-30"}', "day is no date"),
    ('{"flights": 1, "price": "x"}', "price is no decimal(12,2)"),
    ('{"flights": 1, "price": "12345678901.5"}', "price is no decimal(12,2)"),
    ('{"flights": 1, "price": "1.239"}', "price is no decimal(12,2)"),
    ('{"flights": 1, "colour": "green"}', "colour is none of red, blue"),
    ('{"flights": 1, "legs": [{"to": "A"}, {"cost": "1"}]}', "legs[].to is missing or null"),
    ('{"flights": 1, "legs": [{"to": "A", "cost": "1.001"}]}', "legs[].cost is no decimal(8,2)"),
    ('{"flights": 1, "legs": 5}', "legs is not array<struct<`to`:string,`cost`:decimal(8,2)>>: 5"),
    ('{"flights": 1, "by_day": {"mon": ["x"]}}', 'by_day is not map<string,array<bigint>>: {"mon":["x"]}'),
    ('{"flights": 1, "first": {"cost": "1"}}', "first.to is missing or null"),
    ("3", "it is not what the model says: 3"),
    ("null", "it is null"),
    ('[{"flights": 1}]', 'it is not what the model says: [{"flights":1}]'),
    (encode_bytes(b"raw", 1), "it is bytes, no JSON"),
    (b"\x01\x01" + bytes(8) + b"{no", "it is no JSON: {no"),
    (b"\x01\x01" + bytes(8) + b'{"flights": 1} x', 'it is no JSON: {"flights": 1} x'),
    (b"\x02\x01" + bytes(8) + b"{}", "its format version is 02, expected 01"),
    (b"\x01\x09" + bytes(8) + b"{}", "its codec is 09, which is unknown"),
    (None, None),
]


def test_what_does_not_fit_says_why_and_has_no_typed_column(spark):
    read = typed(spark, Aircraft, [value for value, _ in MISFITS])
    assert [why for _, why in read] == [why for _, why in MISFITS]
    assert {value for each, _ in read for value in each.values()} == {None}


def test_state_keys_have_models_of_their_own(spark):
    model = {"open": Leg, "count": int, "names": list[str], "*": str}
    values = ['{"to": "A"}', "5", '["x"]', '"text"', '"five"', "null"]
    read = typed(spark, model, values, ["open", "count", "names", "2013-01-01", "count", "names"])
    assert [why for _, why in read] == [None, None, None, None, 'it is not what the model says: "five"', "it is null"]
    assert read[0][0]["open"]["to"] == "A"
    assert (read[1][0]["count"], read[2][0]["names"], read[3][0]["others"]) == (5, ["x"], "text")
    assert [sum(value is not None for value in each.values()) for each, _ in read] == [1, 1, 1, 1, 0, 0]
    ((_, why),) = typed(spark, {"open": Leg}, ["5"], ["shut"])
    assert why == "its state key shut is none of the model"


@pytest.mark.parametrize("model", [Leg, int, {"*": Leg}, {"to": str, "*": Leg}], ids=str)
def test_records_that_a_store_keeps_for_itself_have_no_model(spark, model):
    own = [ENDS + "cart", f"{EXPIRES}000000000000005/6b/cart", CLOCK_OF_STORE]
    for columns, why in typed(spark, model, ["[5, 5]", "1", '{"time": 5, "to": "A"}'], own):
        assert why is None
        assert set(columns.values()) == {None}


def test_a_value_that_is_no_object_is_one_column(spark):
    assert typed(spark, int | None, ["5", "null", '"x"']) == [
        ({"content": 5}, None),
        ({"content": None}, None),
        ({"content": None}, 'it is not what the model says: "x"'),
    ]


def test_an_aggregation_has_the_columns_that_it_is_made_of(spark):
    made = Aggregation({"orders": Count(), "total": Sum("a"), "average": Mean("a"), "top": Max("b")})
    schema = aggregate_schema(made)
    values = [
        '{"format": 1, "count": {"orders": 3}, "sum": {"total": 4.5}, "mean": {"average": {"sum": 9, "count": 2}}}',
        '{"format": 1, "max": {"top": "z"}}',
        '{"format": 2, "count": {"orders": 3}}',
    ]
    frame = type_rows(rows(spark, values, ["aggregate"] * 3), schema).orderBy("offset")
    assert [tuple(row)[-5:] for row in frame.collect()] == [
        (3, 4.5, 4.5, None, None),
        (None, None, None, "z", None),
        (None, None, None, None, "its format is 2, expected 1"),
    ]


def test_windows_have_their_times_and_columns_and_internal_rows_have_none(spark):
    columns = {"n": Count(), "share": Mean("x"), "before": windows.First("x"), "newest": windows.Latest("x")}
    columns["all"] = windows.Collect("x")
    made = WindowAggregation({**columns, "window_start": Sum("x")})
    start, hour = 1_700_000_000_000, 3_600_000
    window = made.folded(made.folded(None, {"x": 2}, start + 5), {"x": 1}, start + 9)
    session = {**window, SESSION: {"start": start + 5, "end": start + 9, "entered": start}}
    there = [
        (window, window_key(start, start + hour)),
        (session, session_key(start + 5)),
        ({"format": 1, "time": start}, CLOCK),
        (1, due_key(start + hour, start, start + hour, b"k")),
        ({"time": start, "open": []}, KEY_TIME),
        ({"format": 9}, window_key(start, start + 1)),
        ({"other": 1}, window_key(start, start + 2)),
    ]
    values, keys = [json.dumps(value) for value, _ in there], [key for _, key in there]
    seen = type_rows(rows(spark, values, keys), window_schema(made))
    got = [row.asDict() for row in seen.orderBy("message_key").collect()]
    names = [name for name, _, _ in typed_columns(window_schema(made))]
    assert names == ["window_start", "window_end", *columns, "window_start_"]
    at = [dt.datetime.fromtimestamp(time / 1000, dt.UTC).replace(tzinfo=None) for time in (start, start + hour)]
    opened = [dt.datetime.fromtimestamp((start + plus) / 1000, dt.UTC).replace(tzinfo=None) for plus in (5, 9)]
    assert [tuple(each[name] for name in names) for each in got[:2]] == [
        (*at, 2, 1.5, "2", "1", ["2", "1"], 3.0),
        (*opened, 2, 1.5, "2", "1", ["2", "1"], 3.0),
    ]
    for each in got[2:]:
        assert [each[name] for name in names] == [None] * len(names)
    assert [each["why"] for each in got[:5]] == [None] * 5
    assert got[5]["why"] == "its format is 9, expected 1"
    assert got[6]["why"] == "its format is missing, expected 1"
    assert misread(seen, window_schema(made)) == []
    rows(spark, values, keys).createOrReplaceTempView("windows_untyped")
    viewed = spark.sql(typed_query("SELECT * FROM windows_untyped", window_schema(made)))
    assert viewed.select(*names).orderBy(*names).collect() == seen.select(*names).orderBy(*names).collect()


def query_of(page, table, view):
    """Return the query on a documentation page, with the table's name replaced by a view."""
    (query,) = re.findall(r"```sql\n(.+?);?\n```", (PROJECT / "docs" / page).read_text("utf-8"), re.DOTALL)
    assert table in query
    return query.replace(table, view)


def test_the_pages_tell_windows_that_are_closed_and_the_timers_of_a_store(spark):
    made = WindowAggregation({"orders": Count(), "total": Sum("amount")})
    start, hour = 1_700_000_000_000, 3_600_000
    window = made.folded(None, {"amount": 4}, start)
    there = [  # the rows belong alternately to partition 0 and partition 1
        *((window, window_key(start, start + hour)), (window, window_key(start, start + hour))),
        *(({"format": 1, "time": start + hour}, CLOCK), ({"format": 1, "time": start + hour - 1}, CLOCK)),
    ]
    frame = rows(spark, [json.dumps(value) for value, _ in there], [key for _, key in there])
    type_rows(frame, window_schema(made)).createOrReplaceTempView("minutes")
    found = spark.sql(query_of("windows.md", "holdfast.shop.minutes", "minutes")).orderBy("message_key").collect()
    assert [(row.message_key, row.orders, row.total, row.closed) for row in found] == [
        ("k0", 1, 4.0, True),
        ("k1", 1, 4.0, False),
    ]
    there = [(["stream", start], f"{TIMERS}unpaid"), ({"id": 1}, "order"), ([start, start], f"{ENDS}cart")]
    frame = rows(spark, [json.dumps(value) for value, _ in there], [key for _, key in there])
    frame.createOrReplaceTempView("payments")
    found = spark.sql(query_of("timers.md", "holdfast.payments.payments", "payments")).collect()
    at = dt.datetime.fromtimestamp(start / 1000, dt.UTC).replace(tzinfo=None)
    assert [tuple(row) for row in found] == [("k0", "unpaid", "stream", at)]


@pytest.mark.thorough
def test_count_windows_have_their_messages_and_columns(spark):
    made = WindowAggregation({"total": Sum("x"), "messages": windows.First("x")})
    start = 1_700_000_000_000
    stored = made.folded(made.folded(None, {"x": 2}, start), {"x": 1}, start + 9_000)
    open_window = {**stored, WINDOW: {"messages": 2, "start": start, "end": start + 9_000}}
    counted = {"format": 1, "messages": 7, "chunks": [0]}
    tumbling = count_window_schema(CountSpec("tumbling", 3, 3, made))
    sliding = count_window_schema(CountSpec("sliding", 3, 1, made))
    there = [(open_window, "n"), ({**open_window, "format": 9}, "n")]
    seen = type_rows(rows(spark, [json.dumps(value) for value, _ in there], [key for _, key in there]), tumbling)
    assert misread(seen, tumbling) == []
    good, bad = (row.asDict() for row in seen.orderBy("message_key").collect())
    at = [dt.datetime.fromtimestamp((start + plus) / 1000, dt.UTC).replace(tzinfo=None) for plus in (0, 9_000)]
    names = [name for name, _, _ in typed_columns(tumbling)]
    assert names == ["window_start", "window_end", "messages", "total", "messages_"]
    assert [good[name] for name in names] == [*at, 2, 3.0, "2"]
    assert (good["why"], bad["why"]) == (None, "its format is 9, expected 1")
    there = [(counted, "counted"), ([[start, {}]], "n/000000000000000")]
    seen = type_rows(rows(spark, [json.dumps(value) for value, _ in there], [key for _, key in there]), sliding)
    assert [(row["messages"], row["why"]) for row in seen.orderBy("message_key").collect()] == [(7, None), (None, None)]


class Shifted(BaseModel):
    a: int | None = Field(None, alias="b")
    b: int | None = Field(None, alias="c")


def test_the_audit_agrees_with_each_value_that_sql_reads_or_puts_aside(spark):
    """The audit agrees with Spark for each value that is read or quarantined.

    The values have times in all forms, numbers as texts, and fields that do not fit the model.
    """
    more = [
        '{"flights": 1, "seen": "2013-01-01 12:00:00.1234567+02:00", "local": "2013-01-01T12:00", "day": "2013-01-01"}',
        '{"flights": 2, "seen": "0001-01-01T00:00:00Z", "share": 3, "price": 1e1, "note": "5"}',
        '{"flights": 3, "share": "NaN", "note": {"x": null, "y": [1.10]}, "by_day": {"mon": [null, 1]}}',
        '{"flights": 4, "first": {"to": ""}, "legs": [null, {"to": "A"}], "note": 12345678901234567890.5}',
    ]
    for model, values in [
        (Aircraft, [*more, *(value for value, _ in MISFITS)]),
        (Shifted, ['{"b": 1}', '{"c": 2}', "null"]),
    ]:
        schema = schema_of(model)
        assert misread(type_rows(rows(spark, values), schema), schema) == []


def test_the_audit_finds_columns_that_sql_reads_by_the_name_of_another_field(spark, monkeypatch):
    schema, values = schema_of(Shifted), rows(spark, ['{"b": 1}', '{"c": 2}', '{"b": 3, "c": 4}'])
    with monkeypatch.context() as planted:
        # simulate SQL that reads a field also by the name of its column
        planted.setattr(typed_sql, "_first", lambda parsed, paths: f"coalesce({parsed}.`c`, {parsed}.`b`)")
        written = type_rows(values, schema)
    assert sorted(misread(written, schema), key=str) == [("a", 2, None), ("a", 4, 3), ("b", 1, None)]
    with monkeypatch.context() as planted:
        planted.setattr(typed_sql, "_first", lambda parsed, paths: "NULL")
        written = type_rows(values, schema)
    # these rows have only null columns, although their value fits the model
    assert sorted(misread(written, schema), key=str) == [("a", None, 1), ("a", None, 3), ("b", None, 2), ("b", None, 4)]


@pytest.mark.thorough
def test_a_view_says_the_same_as_the_dataframe(spark):
    frame = rows(spark, ['{"flights": 1, "legs": [{"to": "A"}]}', "{}", '{"flights": "x"}'])
    schema = schema_of(Aircraft)
    frame.createOrReplaceTempView("typed_rows_view")
    viewed = spark.sql(typed_query("SELECT * FROM typed_rows_view", schema))
    names = type_rows(frame, schema).columns
    assert sorted(viewed.columns) == sorted(names)
    assert viewed.select(*names).orderBy("offset").collect() == type_rows(frame, schema).orderBy("offset").collect()


@pytest.fixture
def table(spark, unique):
    name = f"holdfast.{unique('typed').replace('-', '_')}.s"
    create_table(spark, name)
    return name


def publish(spark, table, model, values, state_keys=None, attempt="one"):
    """Write a full snapshot, without its claims, branch and audit."""
    declared = schema_of(model) if model is not None else None
    fresh = rows(spark, values, state_keys)
    schema = resolve_schema(spark, table, declared, fresh)
    shape = shape_for(spark, table, schema, inferred=model == "infer")
    reshape(spark, table, shape)
    version = shape.version
    frame = type_rows(fresh, schema)
    found = write_quarantine(spark, f"{table}_quarantine", frame, f"snap{version}", attempt)
    if spark.catalog.tableExists(quoted(f"{table}_quarantine")):
        keep_attempt(spark, f"{table}_quarantine", f"snap{version}", attempt)
    names = {*spark.table(quoted(table)).columns} & {*frame.columns}
    missing = [f"CAST(NULL AS timestamp) AS {name}" for name in ("changelog_timestamp", "event_timestamp")]
    frame.selectExpr(*(f"`{name}`" for name in names), *missing).writeTo(quoted(table)).overwritePartitions()
    return version, found


class First(BaseModel):
    flights: int
    base_airport: str = ""
    gone: int = 0
    price: Annotated[Decimal, Field(max_digits=8, decimal_places=2)] = Decimal(0)
    leg: Leg | None = None


class LaterLeg(BaseModel):
    destination: str = Field(validation_alias=AliasChoices("destination", "to"))


class Second(BaseModel):
    flights: float
    home: str = Field(default="", validation_alias=AliasChoices("home", "base_airport"))
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)] = Decimal(0)
    leg: LaterLeg | None = None
    fresh: list[str] = []


def test_a_table_follows_its_model_and_older_versions_read_as_they_were(spark, table):
    value = '{"flights": 3, "base_airport": "JFK", "gone": 7, "price": "1.25", "leg": {"to": "A"}}'
    assert publish(spark, table, First, [value]) == (1, {})
    assert publish(spark, table, First, [value]) == (1, {})
    spark.sql(f"ALTER TABLE {quoted(table)} CREATE TAG before")
    newer = '{"flights": 3.5, "home": "LGA", "fresh": ["x"]}'
    assert publish(spark, table, Second, [value, newer]) == (2, {})
    read = spark.table(quoted(table)).orderBy("offset").collect()
    assert [(row.flights, row.home, row.price, row.fresh) for row in read] == [
        (3.0, "JFK", Decimal("1.25"), None),
        (3.5, "LGA", None, ["x"]),
    ]
    assert read[0].leg.asDict() == {"destination": "A"}
    before = spark.sql(f"SELECT * FROM {quoted(table)} VERSION AS OF 'before'").collect()[0]
    assert (before.flights, before.base_airport, before.gone, before.leg.to) == (3, "JFK", 7, "A")
    assert publish(spark, table, None, [value])[0] == 3
    assert "home" not in spark.table(quoted(table)).columns
    comments = {row["col_name"]: row["comment"] for row in spark.sql(f"DESCRIBE {quoted(table)}").collect()}
    assert comments["json"] == "the value as text, when it is JSON"


class Incompatible(BaseModel):
    flights: str
    leg: int


def test_an_incompatible_change_is_refused_and_the_table_stays_as_it_was(spark, table):
    publish(spark, table, First, ['{"flights": 3}'])
    before = spark.table(quoted(table)).schema
    with pytest.raises(SchemaChangeRefused) as refused, short_errors("evolve"):
        shape_for(spark, table, schema_of(Incompatible))
    assert f"Column flights of {table} is bigint, the store's model says string" in str(refused.value)
    assert "The same holds for 1 more columns." in str(refused.value)
    assert "give it a new name; flights then stays in the versions that have it" in str(refused.value)
    assert spark.table(quoted(table)).schema == before


def test_columns_are_found_in_the_values_and_widen_with_them(spark, table):
    assert publish(spark, table, "infer", ['{"a": 1, "b": {"c": "x"}}', '{"a": 2, "n": null}']) == (1, {})
    assert [(row.a, row.b) for row in spark.table(quoted(table)).orderBy("offset").collect()] == [
        (1, ("x",)),
        (2, None),
    ]
    assert publish(spark, table, "infer", ['{"a": 1.5, "b": {"d": true}, "w v": [1]}']) == (2, {})
    (row,) = [each for each in spark.table(quoted(table)).collect() if each.offset == 0 and each.a == 1.5]
    assert (row.b.asDict(), row.w_v) == ({"c": None, "d": True}, [1])
    assert publish(spark, table, "infer", ['{"a": "text", "b": [1]}'])[0] == 3
    types = {field.name: field.dataType.simpleString() for field in spark.table(quoted(table)).schema.fields}
    assert (types["a"], types["b"], types["w_v"]) == ("string", "string", "array<bigint>")
    assert INFERRED.columns == ()
    publish(spark, table, "infer", ['{"own": 1}', '{"a": "text"}'], [CLOCK_OF_STORE, "n"])
    assert "own" not in spark.table(quoted(table)).columns


def test_unreadable_values_are_in_quarantine_with_the_reason_and_counted(spark, table):
    quarantine = f"{table}_quarantine"
    bad = ['{"flights": 1}', '{"flights": "x"}', "{}", '{"flights": "y"}']
    assert publish(spark, table, First, bad) == (1, {1: 2, 0: 1})
    assert publish(spark, table, First, bad, attempt="two") == (1, {1: 2, 0: 1})
    kept = spark.table(quoted(quarantine)).orderBy("offset").collect()
    assert [(row.offset, row.why, row.snapshot_id) for row in kept] == [
        (1, "flights is not bigint: x", "snap1"),
        (2, "flights is missing or null", "snap1"),
        (3, "flights is not bigint: y", "snap1"),
    ]
    assert all(row.value[:1] == b"\x01" for row in kept)
    assert spark.table(quoted(table)).count() == len(bad)
    assert publish(spark, table, First, ['{"flights": 1}'], attempt="three") == (1, {})
    assert spark.table(quoted(quarantine)).isEmpty()
