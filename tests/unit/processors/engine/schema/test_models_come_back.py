"""A value with a model is read back as it was set, or `app.store` or `set` refuses it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, Json, SecretStr, computed_field

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import ValueNotStorable, encode_value
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.round_trip import RoundTrip
from holdfast.processors.engine.schema.types import SchemaInvalid
from holdfast.processors.engine.state.methods import StateValueInvalid
from holdfast.processors.engine.state.typed import TypedValues
from holdfast.processors.engine.steps.store_options import StoreInvalid


class Base(BaseModel):
    n: int = 0


class Larger(Base):
    m: int = 0


class Holds(BaseModel):
    one: Base = Base()
    many: list[Base] = []


class Anything(BaseModel):
    value: Any = None


class Either(BaseModel):
    value: Decimal | float | str | None = None
    moment: datetime | str | int = 0


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int = 0


class Bounded(BaseModel):
    n: int = Field(default=0, ge=0)


class Colour(Enum):
    RED = "red"


class Plain(BaseModel):
    n: int = 0
    x: float = 0.0
    text: str | None = None
    day: date = date(2024, 2, 29)
    at: datetime = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    clock: time = time(1, 2, 3, 4)
    length: timedelta = timedelta(days=-1, microseconds=3)
    id: UUID = UUID(int=7)
    colour: Colour = Colour.RED
    kind: Literal["a", 1] = 1
    by_number: dict[int, list[str]] = {1: ["a"]}
    pair: tuple[int, ...] = (1, 2)
    names: set[str] = {"a"}
    either: int | str = "1"
    number: int | float = 1.0
    inner: Bounded | None = None


class Measured(BaseModel):
    x: float


@dataclasses.dataclass
class Place:
    name: str
    at: Decimal


def values(model: Any) -> TypedValues:
    return TypedValues("s", {"*": model}, {})


def stored(model: Any, value: Any) -> bytes:
    return encode_value(values(model).written("k", value), 0)


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (Plain, Plain()),
        (Plain, Plain(inner=Bounded(n=3), either=5, number=2)),
        (Holds, Holds(one=Base(n=2), many=[Base(), Base(n=1)])),
        (Either, Either(value=Decimal("1.50"))),
        (Either, Either(value=1.5, moment=datetime(2024, 1, 1, tzinfo=UTC))),
        (Either, Either(value="x", moment="soon")),
        (Anything, Anything(value={"a": [1, None, True, 1.5]})),
        (Loose, Loose(n=1, other=2)),
        (Place, Place("a", Decimal("1.10"))),
        (dict[str, Any], {"a": [1]}),
        (int, 5),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_value_comes_back_as_it_was_set(model: Any, value: Any) -> None:
    made = values(model).read("k", stored(model, value))
    assert type(made) is type(value)
    moments = (
        {"at"} if isinstance(value, Plain) else set()
    )  # in Python, a datetime with `fold` equals no datetime of another time zone
    if isinstance(value, BaseModel):
        assert made.model_dump(exclude=moments) == value.model_dump(exclude=moments)
    else:
        assert made == value
    if isinstance(value, Plain):
        assert (made.at.astimezone(UTC), made.at.utcoffset()) == (value.at.astimezone(UTC), value.at.utcoffset())


def changed(model: Any, **fields: Any) -> Any:
    """An instance with fields that were changed after its creation, which pydantic does not validate."""
    made = model()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("model", "value", "where"),
    [
        (Base, Larger(m=5), "the value"),
        (Holds, Holds(one=Larger(m=5)), "one"),
        (Holds, Holds(many=[Base(), Larger(m=5)]), "many.1"),
        (Anything, Anything(value=Decimal("1.5")), "value"),
        (Anything, Anything(value=datetime(2024, 1, 1, tzinfo=UTC)), "value"),
        (Anything, Anything(value=[{"a": (1, 2)}]), "value.0.a"),
        (Anything, Anything(value={1: "a"}), "value"),
        (Anything, Anything(value=b"x"), "value"),
        (Either, Either(value="1.5"), "value"),
        (Either, Either(moment="2024-01-01T00:00:00"), "moment"),
        (Loose, Loose(other=Decimal(1)), "extra fields.other"),
        (dict[str, Any], {"a": Decimal(1)}, "a"),
        (Bounded, changed(Bounded, n=-1), "n"),
        (Plain, changed(Plain, n="5"), "n"),
        (Plain, changed(Plain, n=None), "n"),
        (Plain, changed(Plain, day=datetime(2024, 1, 1, 5, tzinfo=UTC)), "day"),
        (Plain, changed(Plain, pair=[1]), "pair"),
    ],
)
def test_a_value_that_would_come_back_otherwise_is_refused_where_it_is_set(model: Any, value: Any, where: str) -> None:
    with pytest.raises(StateValueInvalid) as refused:
        stored(model, value)
    assert where in refused.value.message
    assert refused.value.fields["path"] == where


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_can_not_hold_is_refused(number: float) -> None:
    with pytest.raises(StateValueInvalid, match="could not be read again at x"):
        stored(Plain, changed(Plain, x=number))
    # instances of this type are always read back equal, so only the JSON encoder refuses the number
    with pytest.raises(ValueNotStorable, match="JSON"):
        stored(Measured, Measured(x=number))


class Excluded(BaseModel):
    hidden: int = Field(default=0, exclude=True)


class WrittenOtherwise(BaseModel):
    n: int = Field(default=0, serialization_alias="number")


class ReadOtherwise(BaseModel):
    n: int = Field(validation_alias="number")


class ReadDeep(BaseModel):
    n: int = Field(validation_alias=AliasPath("number", "value"))


class Secret(BaseModel):
    word: SecretStr | None = None


class Parsed(BaseModel):
    made: Json[list[int]]


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int = 0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.n


LOST = {
    Excluded: "Excluded.hidden has `exclude=True`",
    WrittenOtherwise: "WrittenOtherwise.n is written as 'number', and read as 'n'",
    ReadOtherwise: "ReadOtherwise.n is written as 'n', and read as 'number'",
    ReadDeep: "ReadDeep.n is written as 'n', and read as no plain name",
    Secret: "Secret.word is a secret",
    Parsed: "Parsed.made is of type `Json`",
    Computed: "Computed.twice is a computed field",
}


@pytest.mark.parametrize("model", LOST)
@pytest.mark.parametrize(
    "within", [lambda m: m, lambda m: list[m], lambda m: {"a": m | None}], ids=["it", "list", "key"]
)
def test_a_model_that_loses_every_value_is_refused_where_the_store_is_declared(
    model: Any, within: Callable[[Any], Any]
) -> None:
    with pytest.raises(StoreInvalid) as refused:
        Application(consumer_group="g").store("s", model=within(model))
    assert LOST[model] in refused.value.message
    assert "would not come back" in refused.value.message


@pytest.mark.parametrize(
    "model",
    [
        type("Mended", (BaseModel,), {"__annotations__": {"n": int}, "n": Field(alias="number")}),
        type(
            "Choices",
            (BaseModel,),
            {"__annotations__": {"n": int}, "n": Field(validation_alias=AliasChoices("n", "o"))},
        ),
    ],
)
def test_the_edits_that_the_errors_name_are_taken(model: Any) -> None:
    Application(consumer_group="g").store("s", model=model)
    name = "number" if model.__name__ == "Mended" else "n"
    assert values(model).read("k", stored(model, {name: 5})).n == 5


def test_a_secret_that_the_user_writes_out_is_kept() -> None:
    class Shown(BaseModel):
        word: Annotated[SecretStr, pydantic.PlainSerializer(lambda secret: secret.get_secret_value())]

    Application(consumer_group="g").store("s", model=Shown)
    assert values(Shown).read("k", stored(Shown, Shown(word=SecretStr("a")))).word.get_secret_value() == "a"


def test_what_types_tell_is_not_read_back() -> None:
    """If values of a type are always read back equal, `set` reads no value again.

    That would cost more than the write.
    """

    class Line(BaseModel):
        sku: str
        count: int | None = None

    class Cart(BaseModel):
        lines: list[Line] = []
        by_name: dict[str, float] = {}
        at: datetime | None = None

    trip = RoundTrip(pydantic.TypeAdapter(Cart))
    assert trip.decided

    class Marked(Line):
        mark: str = ""

    assert not trip.decided  # from now on, a subclass exists whose instances may lose fields
    with pytest.raises(StateValueInvalid, match=r"at lines\.0"):
        stored(Cart, Cart(lines=[Marked(sku="a")]))


def test_a_message_that_sets_such_a_value_fails_alone(tmp_path: Path) -> None:
    def keep(value: Any, state: Any) -> Any:
        state.set("last", Anything(value=Decimal(1) if value == 2 else value))
        return state.get("last").value

    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead"
    )
    store = app.store("kept", model=Anything)
    app.dataframe(app.topic("in")).apply(keep, stateful=True, store=store).to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    for number in (1, 2, 3):
        cluster.produce("in", json.dumps(number).encode(), b"k")
    cluster.run(app)
    assert [json.loads(record.value or b"") for _, record in cluster.read("out")] == [1, 3]
    (dead,) = cluster.read("dead")
    assert b"Decimal('1') of type Decimal comes back as '1' of type str" in (
        dict(dead[1].headers or ())["holdfast.error"] or b""
    )


class Swapped(BaseModel):
    a: int = Field(default=0, alias="b")
    b: int = Field(default=0, alias="c")


class Chosen(BaseModel):
    a: int = Field(default=0, validation_alias=AliasChoices("x", "b"))
    y: int = Field(default=0, serialization_alias="x")


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(default=0, alias="b")
    c: int = 0


@dataclasses.dataclass
class Aliased:
    a: Annotated[int, Field(alias="b")] = 0


@pytest.mark.parametrize("model", [Swapped, Chosen, Named, Aliased])
def test_a_column_is_read_from_the_names_that_its_model_reads(model: Any) -> None:
    """A column has the value that pydantic reads from the JSON.

    It does not have the value of another field with the column's name.
    """
    names = ["a", "b", "c", "x", "y"]
    adapter, columns = pydantic.TypeAdapter(model), schema_of(model).columns
    for chosen in range(2 ** len(names)):
        given = {name: number + 1 for number, name in enumerate(names) if chosen >> number & 1}
        made = adapter.validate_json(json.dumps(given))
        for column in columns:
            found = next((given[path[0]] for path in column.paths if path[0] in given), 0)
            assert found == getattr(made, column.name), (column, given)


def test_a_field_that_is_read_from_within_another_one_can_be_no_column() -> None:
    with pytest.raises(SchemaInvalid, match="can't be a column"):
        schema_of(ReadDeep)
