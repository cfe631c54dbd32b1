"""Typed columns are read from stored values in Python, by the names that the model reads, even if SQL names differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

import pytest
from pydantic import AfterValidator, AliasChoices, AliasPath, BaseModel, ConfigDict, Field, RootModel, model_validator
from typing_extensions import TypedDict

from holdfast import Count, Mean
from holdfast.dataframe import windows
from holdfast.processors.engine.aggregates.aggregation import Aggregation
from holdfast.processors.engine.aggregates.window_aggregates import WindowAggregation
from holdfast.processors.engine.schema.inference import inferred_schema
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.state.time.window_keys import window_key
from holdfast.processors.engine.windows.typed_columns import aggregate_schema, window_schema
from holdfast.processors.snapshots.column_reader import ColumnReader, is_same


class Shifted(BaseModel):
    """A model in which the name of each field is the alias of another field."""

    a: int | None = Field(None, alias="b")
    b: int | None = Field(None, alias="c")


class ByName(Shifted):
    model_config = ConfigDict(populate_by_name=True)


class Chosen(BaseModel):
    new: int | None = Field(None, validation_alias=AliasChoices("new", "old", AliasPath("in", "new")))
    key: str = ""  # the column of this field is named key_


class Outer(BaseModel):
    """A model with nested objects: optional, in a list, in a mapping. Each uses the field names of its own model."""

    one: Shifted | None = None
    many: list[Shifted] = []
    named: dict[str, Shifted | None] = {}
    # the column of this field holds the stored value, not the validated one
    doubled: Annotated[int, AfterValidator(lambda n: n * 2)] = 0
    note: Any = None

    @model_validator(mode="before")
    @classmethod
    def moved(cls, said: Any) -> Any:
        return {**said, "doubled": 7} if "moved" in said else said


class Size(TypedDict):
    width: NotRequired[Annotated[int, Field(alias="depth")]]
    depth: NotRequired[Annotated[int, Field(alias="height")]]


@dataclass
class Box:
    size: Size
    name: str = ""


class Node(BaseModel):
    """A recursive model. Below the first level, its column is text."""

    up: Node | None = Field(None, alias="above")


Wrapped = RootModel[Shifted]


@pytest.mark.parametrize(
    ("model", "value", "content"),
    [
        (Shifted, {"b": 1, "c": 2}, {"a": 1, "b": 2}),
        (Shifted, {"b": 1}, {"a": 1}),
        (Shifted, {"a": 1}, {}),
        (ByName, {"a": 1}, {"a": 1}),
        (Wrapped, {"b": 1}, {"a": 1}),
        (Shifted | None, None, {}),
        (Chosen, {"old": 1, "key": "k"}, {"new": 1, "key_": "k"}),
        (Chosen, {"new": None, "old": 1}, {"new": 1}),
        (Chosen, {"in": {"new": 1}}, {}),  # SQL cannot read a column from inside another column
        (Outer, {"one": {"b": 1}, "many": [{"b": 2}]}, {"one": {"a": 1}, "many": [{"a": 2}]}),
        (Outer, {"named": {"x": {"c": 1}, "y": None}}, {"named": {"x": {"b": 1}}}),
        (Outer, {"doubled": 2, "moved": 1, "note": {"b": 1}}, {"doubled": 2, "note": {"b": 1}}),
        (dict[str, ByName], {"x": {"a": 1}}, {"content": {"x": {"a": 1}}}),
        (list[RootModel[ByName]], [{"a": 1}, {"c": 2}], {"content": [{"a": 1}, {"b": 2}]}),
        (Box, {"size": {"depth": 1}}, {"size": {"width": 1}}),
        (list[Shifted], [{"b": 1}], {"content": [{"a": 1}]}),
        (int, 3, {"content": 3}),
        ({"open": Shifted, "*": int}, {"b": 1}, {"open": {"a": 1}}),
    ],
)
def test_names_are_those_that_the_model_reads(model: Any, value: Any, content: dict[str, Any]) -> None:
    assert ColumnReader(schema_of(model)).content("open", json.dumps(value).encode()) == content


@pytest.mark.parametrize("model", [Shifted, ByName])
def test_the_model_itself_reads_the_same(model: type[BaseModel]) -> None:
    reader = ColumnReader(schema_of(model))
    for bits in range(8):
        value = {name: at for at, name in enumerate("abc") if bits >> at & 1}
        read = model.model_validate(value).model_dump(exclude_unset=True)
        assert reader.content("n", json.dumps(value).encode()) == read


def test_a_model_within_itself_is_a_text_that_keeps_its_names() -> None:
    said = {"above": {"above": {"above": None}}}
    assert ColumnReader(schema_of(Node)).content("n", json.dumps(said).encode()) == {"up": {"above": {}}}


def test_a_model_that_pydantic_has_not_built_is_read_by_the_names_of_its_columns() -> None:
    class Late(BaseModel):
        model_config = ConfigDict(defer_build=True)
        a: int | None = Field(None, alias="b")

    assert ColumnReader(schema_of(Late)).content("n", b'{"b": 1}') == {"a": 1}


@pytest.mark.parametrize("payload", [b"{", b"[" * 100_000, b"3", b'{"b": "\\uD800"}'])
def test_what_python_cannot_read_for_sure_is_not_judged(payload: bytes) -> None:
    assert ColumnReader(schema_of(Shifted)).content("n", payload) is None


def test_rows_without_columns_have_no_content() -> None:
    assert ColumnReader(schema_of(Shifted)).content("__holdfast/clock", b'{"b": 1}') == {}
    assert ColumnReader(schema_of({"open": int})).content("other", b"1") == {}


def test_aggregates_and_windows_are_read_by_their_paths() -> None:
    made = Aggregation({"mean": Mean("x"), "n": Count(), "empty": Mean("y")})
    stored = {"mean": {"mean": {"sum": 3, "count": 2}, "empty": {"sum": 0, "count": 0}}, "count": {"n": 2}}
    reader = ColumnReader(aggregate_schema(made))
    (state_key,) = {each.state_key for each in aggregate_schema(made).values}
    assert reader.content(str(state_key), json.dumps(stored).encode()) == {"mean": 1.5, "n": 2}
    reader = ColumnReader(window_schema(WindowAggregation({"n": Count(), "first": windows.First("x")})))
    stored = {"count": {"n": 2}, "first": {"first": [{"b": 1}, 5]}}
    content = reader.content(window_key(0, 3_600_000), json.dumps(stored).encode())
    times = {"window_start": "1970-01-01T00:00:00+00:00", "window_end": "1970-01-01T01:00:00+00:00"}
    assert content == {**times, "n": 2, "first": {"b": 1}}
    assert reader.content("closed", b"1") == {}


def test_inferred_columns_are_read_by_their_names_in_json() -> None:
    schema = inferred_schema("OBJECT<x: BIGINT, X: BIGINT>", None, "BIGINT")
    names = {each.name: each.paths for each in schema.columns}
    reader = ColumnReader(schema)
    (upper,) = [name for name, paths in names.items() if paths == (("X",),)]
    assert reader.content("n", b'{"x": 1, "X": 2}') == {"x": 1, upper: 2}
    assert reader.content("n", b"3") == {"content": 3}


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("2026-01-01T10:00:00.000000Z", "2026-01-01 12:00+02:00"),
        ("2026-01-01T10:00:00.000000", "2026-01-01T10:00:00"),
        ("2026-01-01T10:00:00.000000Z", "2026-01-01T10:00:00[UTC]"),  # SQL can parse this text, Python cannot
        (1.5, "1.50"),
        (3.0, 3),
        ("NaN", float("nan")),
        ("1.5", 1.5),
        ('{"x": [1], "y": null}', {"x": [1]}),
        ({"a": None, "b": [{"c": None}]}, {"b": [{}]}),
        ("x", "x"),
        (None, None),
    ],
)
def test_what_is_the_same_in_another_form(seen: Any, said: Any) -> None:
    assert is_same(seen, said)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("2026-01-01T10:00:00.000000Z", "2026-01-01T10:00:01Z"),
        ("2026-01-01T10:00:00.000000Z", "x"),
        (1, 2),
        (1, None),
        (None, 1),
        (True, 1),
        ("x", "y"),
        ("1", [1]),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (1.0, 10**400),
    ],
)
def test_what_differs(seen: Any, said: Any) -> None:
    assert not is_same(seen, said)
