"""Typed columns of models, aggregations and JSON values, and how tables follow their changes."""

import datetime as dt
import enum
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired

import msgspec
import pytest
from pydantic import AliasChoices, BaseModel, Field, NaiveDatetime, PositiveInt, RootModel
from typing_extensions import TypedDict

from holdfast import Application, Collect, Count, Last, Max, Mean, Sum
from holdfast.processors.engine.schema.evolution import (
    Add,
    Drop,
    Refused,
    Rename,
    Replace,
    Widen,
    changes,
    from_spark,
    plain,
)
from holdfast.processors.engine.schema.inference import inferred_schema, parse_variant, unify
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import (
    FLOATING,
    INFERRED,
    TEXT,
    WHOLE,
    Items,
    Member,
    Record,
    SchemaInvalid,
)
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.snapshots.column_reader import ColumnReader


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Leg(BaseModel):
    to: str
    miles: int = 0


class Tree(BaseModel):
    children: list["Tree"] = []


class Size(TypedDict):
    width: int
    depth: NotRequired[float]


@dataclass
class Point:
    x: float
    y: float = 0.0


class Aircraft(BaseModel):
    flights: int
    share: float = Field(description="of all flights")
    active: bool | None
    seen: dt.datetime
    local: NaiveDatetime
    day: dt.date | None = None
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)]
    plain_price: Decimal
    colour: Colour
    mode: Literal["a", "b"] | None = None
    legs: list[Leg] = []
    by_day: dict[str, list[int]] = {}
    size: Size
    point: Point
    tree: Tree
    id: uuid.UUID
    anything: Any = None
    either: int | str = 0
    number: int | float = 0
    seats: PositiveInt = 1
    pair: tuple[int, int] = (0, 0)
    names: set[str] = set()
    tail: str = Field(alias="tailNum", default="")
    home: str = Field(validation_alias=AliasChoices("home", "base_airport"), default="")
    value: int = 0


def sql(schema):
    return {column.name: plain(column.type).sql for column in schema.columns}


def test_every_kind_of_field_has_its_type():
    schema = schema_of(Aircraft)
    assert sql(schema) == {
        "flights": "bigint",
        "share": "double",
        "active": "boolean",
        "seen": "timestamp",
        "local": "timestamp_ntz",
        "day": "date",
        "price": "decimal(12,2)",
        "plain_price": "decimal(38,18)",
        "colour": "string",
        "mode": "string",
        "legs": "array<struct<`to`:string,`miles`:bigint>>",
        "by_day": "map<string,array<bigint>>",
        "size": "struct<`width`:bigint,`depth`:double>",
        "point": "struct<`x`:double,`y`:double>",
        "tree": "struct<`children`:array<string>>",
        "id": "string",
        "anything": "string",
        "either": "string",
        "number": "double",
        "seats": "bigint",
        "pair": "array<bigint>",
        "names": "array<string>",
        "tail": "string",
        "home": "string",
        "value_": "bigint",
    }
    by_name = {column.name: column for column in schema.columns}
    assert by_name["colour"].type.allowed == ("red", "blue")
    assert by_name["share"].comment == "of all flights"
    assert [name for name, column in by_name.items() if not column.required][:2] == ["active", "day"]
    assert by_name["tail"].paths == (("tailNum",),)
    assert by_name["home"].former == ("base_airport",)


class Line(msgspec.Struct, rename="camel"):
    item_name: str
    price: Decimal
    pieces: int = 1


class Pair(msgspec.Struct, array_like=True):
    left: int
    right: int


class Cart(msgspec.Struct, tag="cart"):
    lines: list[Line]
    newest: Line | None
    pair: Pair
    at: dt.datetime | msgspec.UnsetType = msgspec.UNSET
    under: "Cart | None" = None


def test_a_struct_has_the_columns_that_its_json_has():
    line = Record(
        (
            Member("item_name", TEXT, True, ("itemName",)),
            Member("price", schema_of(Decimal).columns[0].type, True, ("price",)),
            Member("pieces", WHOLE, False, ("pieces",)),
        )
    )
    columns = {each.name: each for each in schema_of(Cart).columns}
    assert [(name, each.type, each.required) for name, each in columns.items()] == [
        ("lines", Items(line), True),
        ("newest", line, False),
        ("pair", TEXT, True),
        ("at", schema_of(dt.datetime).columns[0].type, False),
        ("under", TEXT, False),
    ]
    assert [each.paths for each in schema_of(Line).columns] == [(("itemName",),), (("price",),), (("pieces",),)]


def test_the_columns_of_a_stored_struct_are_read_by_the_names_of_its_json():
    cart = Cart([Line("tea", Decimal("1.50"))], None, Pair(1, 2), at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC))
    seen = ColumnReader(schema_of(Cart)).content("row", msgspec.json.encode(cart))
    assert seen == {
        "lines": [{"item_name": "tea", "price": "1.50", "pieces": 1}],
        "pair": [1, 2],
        "at": "2026-01-02T00:00:00Z",
    }


@pytest.mark.parametrize("form", ["filter", "plain"])
def test_a_table_of_typed_messages_has_the_columns_of_a_struct(form):
    app = Application(consumer_group="carts", auto_offset_reset="earliest")
    table = app.table(app.topic("lines", value=Line), "lines")
    store = table.filter(lambda line: line.pieces > 1).name if form == "filter" else table.name
    (spec,) = [each for each in app.topology().stores if each.name == store]
    assert spec.schema == schema_of(Line)


def test_a_model_that_is_no_object_is_one_column_and_state_keys_have_one_each():
    assert sql(schema_of(int)) == {"content": "bigint"}
    assert sql(schema_of(RootModel[list[int]])) == {"content": "array<bigint>"}
    schema = schema_of({"open": Leg, "n": int | None, "*": str})
    assert sql(schema) == {"open": "struct<`to`:string,`miles`:bigint>", "n": "bigint", "others": "string"}
    assert [(value.state_key, value.nullable) for value in schema.values] == [
        ("open", False),
        ("n", True),
        ("*", False),
    ]
    assert schema_of("infer") == INFERRED


class Odd(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    lock: Application


class Twins(BaseModel):
    name: int
    Name: int


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Odd, "lock is Application"),
        (Twins, "two columns with the same name: name and Name"),
        ({}, "expected at least one"),
        ("inferred", "can't be a column"),
        ({"a b": int, "a-b": int}, "two columns with the same name"),
    ],
)
def test_what_can_not_be_columns_is_refused_by_name(model, said):
    with pytest.raises(SchemaInvalid, match=said):
        schema_of(model)


def stream(app):
    return app.dataframe(app.topic("in"))


def step(value, state):
    return value


def test_steps_declare_the_models_of_their_stores():
    app = Application(consumer_group="a")
    sdf = stream(app)
    sdf = sdf.apply(step, stateful=True, store="legs", model=Leg)
    sdf = sdf.filter(step, stateful=True, store="found", model="infer")
    sdf.update(step, stateful=True, store="bare")
    sdf = sdf.aggregate(
        {"orders": Count(), "total": Sum("a"), "mean": Mean("a"), "top": Max("a"), "l": Collect("a", limit=2)},
        store="agg",
        model=TypedDict("Columns", {"total": int, "top": Decimal}),
        model_name=Last("b"),
    )
    schemas = {store.name: store.schema for store in app.topology().stores}
    assert schemas["legs"] == schema_of(Leg)
    assert (schemas["found"], schemas["bare"]) == (INFERRED, None)
    assert sql(schemas["agg"]) == {
        "orders": "bigint",
        "total": "bigint",
        "mean": "double",
        "top": "decimal(38,18)",
        "l": "array<string>",
        "model_name": "string",
    }
    assert schemas["agg"].values[0].columns[0].paths == (("count", "orders"),)


def test_a_model_asks_for_no_deployment():
    versions = set()
    for model in (None, Leg, int):
        app = Application(consumer_group="a")
        stream(app).apply(step, stateful=True, model=model)
        versions.add(app.topology().code_version)
    assert len(versions) == 1


def test_models_that_contradict_each_other_or_have_no_store_are_refused():
    app = Application(consumer_group="a")
    sdf = stream(app).apply(step, stateful=True, model=Leg)
    sdf.update(step, stateful=True)
    sdf.apply(step, stateful=True, model=Aircraft)
    with pytest.raises(StepInvalid, match="different models"):
        app.topology()
    with pytest.raises(StepInvalid, match="without state"):
        stream(Application(consumer_group="b")).apply(lambda value: value, model=Leg)
    app = Application(consumer_group="c")
    stream(app).aggregate(n=Count(), model=Leg)
    with pytest.raises(SchemaInvalid, match="has miles, to; its columns are n"):
        app.topology()


def test_a_column_may_be_called_model():
    app = Application(consumer_group="a")
    stream(app).aggregate(model=Count())
    assert sql(app.topology().stores[0].schema) == {"model": "bigint"}


def record(**kinds):
    return Record(tuple(Member(name, kind, False, (name,)) for name, kind in kinds.items()))


class Before(BaseModel):
    same: int
    gone: str
    old: str
    grows: Annotated[Decimal, Field(max_digits=10, decimal_places=2)]
    floats: int
    legs: list[Leg]


class NewLeg(BaseModel):
    where: str = Field(validation_alias=AliasChoices("where", "to"))
    miles: float
    stops: int = 0


class After(BaseModel):
    same: int
    new: str = Field(validation_alias=AliasChoices("new", "old"))
    grows: Annotated[Decimal, Field(max_digits=14, decimal_places=2)]
    floats: float
    legs: list[NewLeg]
    fresh: dict[str, int]


def table_of(model):
    return record(**{column.name: plain(column.type) for column in schema_of(model).columns})


def test_a_table_follows_its_model_by_the_ids_of_columns():
    has = table_of(Before)
    assert set(changes(has, schema_of(After).columns)) == {
        Rename(("old",), "new"),
        Drop(("gone",)),
        Widen(("grows",), schema_of(After).columns[2].type),
        Replace(("floats",), FLOATING),
        Rename(("legs", "element", "to"), "where"),
        Replace(("legs", "element", "miles"), FLOATING),
        Add(("legs", "element", "stops"), WHOLE),
        Add(("fresh",), schema_of(After).columns[5].type),
    }
    assert changes(has, schema_of(Before).columns) == ()
    assert changes(has, ()) == tuple(Drop((each.name,)) for each in has.members)


@pytest.mark.parametrize(
    ("has", "wanted"),
    [(WHOLE, TEXT), (TEXT, WHOLE), (FLOATING, WHOLE), (Items(WHOLE), Items(FLOATING)), (record(a=TEXT), TEXT)],
)
def test_a_type_that_does_not_hold_the_former_one_is_refused(has, wanted):
    column = schema_of(Leg).columns[0]
    wanted_column = type(column)("a", wanted, False, (("a",),))
    (change,) = changes(record(a=has), (wanted_column,))
    assert isinstance(change, Refused)
    assert {has.sql, wanted.sql} >= {change.has, change.wants} or change.path == ("a", "element")


def test_types_are_found_in_values_and_only_ever_widen():
    said = (
        "OBJECT<a: DECIMAL(22,2), `d e`: DOUBLE, l: ARRAY<DECIMAL(21,1)>, n: VOID, o: OBJECT<k: BOOLEAN>, v: VARIANT>"
    )
    schema = inferred_schema(said)
    assert sql(schema) == {
        "a": "double",
        "d_e": "double",
        "l": "array<double>",
        "o": "struct<`k`:boolean>",
        "v": "string",
    }
    assert schema.columns[1].paths == (("d e",),)
    known = record(a=WHOLE, o=record(j=WHOLE), z=TEXT)
    assert sql(inferred_schema(said, known)) == {
        "a": "double",
        "o": "struct<`j`:bigint,`k`:boolean>",
        "z": "string",
        "d_e": "double",
        "l": "array<double>",
        "v": "string",
    }
    assert sql(inferred_schema("BIGINT")) == {"content": "bigint"}
    assert inferred_schema("BIGINT").columns[0].paths == ((),)
    assert inferred_schema("VOID").columns == ()
    assert unify(Items(WHOLE), TEXT) == TEXT
    many = ", ".join(f"k{number}: BIGINT" for number in range(500))
    assert parse_variant(f"OBJECT<a: OBJECT<{many}>, b: OBJECT<>>") == record(a=TEXT, b=TEXT)


def test_the_columns_of_a_table_are_read_from_sparks_description():
    described = {
        "fields": [
            {"name": "key", "type": "binary"},
            {"name": "a", "type": "long"},
            {"name": "d", "type": "decimal(10,2)"},
            {"name": "m", "type": {"type": "map", "valueType": {"type": "array", "elementType": "date"}}},
            {"name": "s", "type": {"type": "struct", "fields": [{"name": "x", "type": "timestamp_ntz"}]}},
        ]
    }
    found = from_spark(described, frozenset({"key"}))
    assert [(each.name, each.type.sql) for each in found.members] == [
        ("a", "bigint"),
        ("d", "decimal(10,2)"),
        ("m", "map<string,array<date>>"),
        ("s", "struct<`x`:timestamp_ntz>"),
    ]
