"""Instances that Holdfast writes for itself: in stores, behind `group_by`, in outputs without a class."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field, SecretStr, field_serializer, field_validator

from holdfast import Application, InMemoryCluster, State
from holdfast.dataframe.windows import Reduce
from holdfast.infra.installation import ExtraMissing
from holdfast.infra.schemas.protobuf import is_message_class
from holdfast.processors.application.arguments import ApplicationInvalid
from holdfast.processors.engine.formats import typed
from holdfast.processors.engine.formats.topic_format import FormatInvalid
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.steps.store_options import StoreInvalid
from holdfast.processors.snapshots.column_reader import ColumnReader
from tests.parts.protobuf_messages import Order as ProtoOrder


class Scaled(BaseModel):
    amount: int

    @field_validator("amount")
    @classmethod
    def in_cents(cls, amount: int) -> int:
        return amount * 100


class Excluded(BaseModel):
    amount: int
    note: str = Field("none", exclude=True)


class Secret(BaseModel):
    amount: int
    note: SecretStr


class Shortened(BaseModel):
    amount: int

    @field_serializer("amount")
    def in_thousands(self, amount: int) -> int:
        return amount // 1_000


@dataclass
class Counted:
    amount: int

    def __post_init__(self) -> None:
        self.amount += 1


class Stepped(msgspec.Struct):
    amount: int

    def __post_init__(self) -> None:
        self.amount += 1


CHANGED = [Scaled, Excluded, Secret, Shortened, Counted, Stepped]


def amount_of(order: Any) -> int:
    return int(order.amount)


TOTAL = Reduce(
    lambda total, order: total + order.amount, amount_of, subtractor=lambda total, order: total - order.amount
)
PLACES: dict[str, Callable[[Application, Any, Any], Any]] = {
    "group_by": lambda app, orders, kind: app.dataframe(orders).group_by(lambda order: "all", "all").apply(amount_of),
    "sliding window": lambda app, orders, kind: app.dataframe(orders).sliding_window(1_000).agg(t=TOTAL).current(),
    "count window": lambda app, orders, kind: app.dataframe(orders).sliding_count_window(2).agg(t=TOTAL).current(),
    "groups of a table": lambda app, orders, kind: (
        app.table(orders).group_by(lambda order: "all", "all").aggregate(t=TOTAL).to_stream()
    ),
    "join_asof": lambda app, orders, kind: app.dataframe(app.topic("left")).join_asof(
        app.dataframe(orders), on_merge=lambda left, right: right.amount
    ),
    "join_interval": lambda app, orders, kind: app.dataframe(app.topic("left")).join_interval(
        app.dataframe(orders), on_merge=lambda left, right: right.amount
    ),
}


def sent(build: Callable[[Application], Any], *messages: tuple[str, Any]) -> tuple[list[Any], list[str]]:
    """The outputs of an application, and the errors of its dead letters."""
    cluster = InMemoryCluster()
    for topic in ("in", "left", "out", "refused"):
        cluster.create_topic(topic)
    app = Application(consumer_group="shop", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="refused")
    build(app).to_topic(app.topic("out"))
    for number, (topic, value) in enumerate(messages):
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        cluster.produce(topic, raw, b"k", timestamp_ms=number + 1)
    cluster.run(app)
    letters = [dict(record.headers or ())["holdfast.error"] or b"" for _, record in cluster.read("refused")]
    return [json.loads(record.value or b"null") for _, record in cluster.read("out")], [
        each.decode() for each in letters
    ]


@pytest.mark.parametrize("kind", CHANGED)
@pytest.mark.parametrize("place", PLACES)
def test_an_instance_that_would_come_back_as_another_one_fails_by_the_policy(kind: Any, place: str) -> None:
    order = {"amount": 5_000, "note": "a gift"}
    out, errors = sent(lambda app: PLACES[place](app, app.topic("in", value=kind), kind), ("in", order), ("left", {}))
    assert out == []
    assert len(errors) == 1
    assert f"An instance of {kind.__name__} is another one after it was written as JSON" in errors[0]


class Aliased(BaseModel):
    order_id: int = Field(alias="orderId")
    amount: int


def test_rows_of_a_model_with_aliases_have_the_names_of_its_json() -> None:
    def build(app: Application) -> Application:
        app.table(app.topic("in", value=Aliased), "orders")
        return app

    cluster = InMemoryCluster()
    cluster.create_topic("in")
    cluster.produce("in", b'{"orderId": 5, "amount": 7}', b"k")
    app = build(Application(consumer_group="shop", auto_offset_reset="earliest", loglevel=None))
    cluster.run(app)
    ((_, row),) = cluster.state(app, "orders").items()
    assert row == {"orderId": 5, "amount": 7}
    read = ColumnReader(schema_of(Aliased)).content("row", json.dumps(row).encode())
    assert read == {"order_id": 5, "amount": 7}


class Line(BaseModel):
    price: int


class Order(BaseModel):
    id: int
    customer: str = "ann"
    lines: list[Line] = []


ORDER = {"id": 1, "customer": "ann", "lines": [{"price": 3}]}


def test_an_output_without_a_class_takes_instances_of_every_kind() -> None:
    assert sent(lambda app: app.dataframe(app.topic("in", value=Order)), ("in", ORDER)) == ([ORDER], [])
    assert is_message_class(ProtoOrder)
    message = ProtoOrder(id=7)
    out, errors = sent(
        lambda app: app.dataframe(app.topic("in", value=ProtoOrder)), ("in", message.SerializeToString())
    )
    assert (out[0]["id"], errors) == ("7" if isinstance(out[0]["id"], str) else 7, [])


def test_a_projection_of_instances_may_have_nested_fields() -> None:
    out = sent(lambda app: app.dataframe(app.topic("in", value=Order))[["id", "lines"]], ("in", ORDER))
    assert out == ([{"id": 1, "lines": [{"price": 3}]}], [])


def test_a_join_by_a_foreign_key_takes_instances() -> None:
    def build(app: Application) -> Any:
        orders = app.table(app.topic("in", value=Order), "orders")
        customers = app.table(app.topic("left", key_deserializer="str"), "customers")
        joined = orders.join(customers, on="customer", on_merge=lambda order, customer: [order["id"], customer])
        return joined.to_stream()

    cluster = InMemoryCluster()
    for topic in ("in", "left", "out"):
        cluster.create_topic(topic)
    app = Application(consumer_group="shop", auto_offset_reset="earliest", loglevel=None)
    build(app).to_topic(app.topic("out"))
    cluster.produce("left", b'{"city": "Bonn"}', b"ann")
    cluster.produce("in", json.dumps(ORDER).encode(), b"1")
    cluster.run(app)
    newest = [json.loads(record.value or b"null") for _, record in cluster.read("out")][-1]
    assert newest == [1, {"city": "Bonn"}]


def test_fields_of_a_lookup_are_added_to_an_instance() -> None:
    async def city(key: Any) -> Any:
        return {"city": "Bonn"}

    def build(app: Application) -> Any:
        return app.dataframe(app.topic("in", value=Order)).join_lookup(city, on="customer", fields={"city": "city"})

    assert sent(build, ("in", ORDER)) == ([{**ORDER, "city": "Bonn"}], [])


class Own:
    """A class that no format knows."""


class WithOwn(msgspec.Struct):
    own: Own


@dataclass
class DataWithOwn:
    own: Own


@pytest.mark.parametrize("kind", [WithOwn, DataWithOwn])
def test_a_class_with_a_field_that_has_no_form_is_refused_where_it_is_declared(kind: Any) -> None:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    with pytest.raises(FormatInvalid, match=f"`value={kind.__name__}` can't be a model") as refused:
        app.topic("in", value=kind)
    assert ".Own'> is not supported" in refused.value.message


def test_a_missing_library_of_protobuf_is_named_with_the_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(extra: str) -> None:
        raise ExtraMissing("The library google is not installed.", action=f"Run `pip install 'holdfast[{extra}]'`.")

    monkeypatch.setattr(typed, "check_extras", missing)
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    with pytest.raises(ExtraMissing) as refused:
        app.topic("in", value=ProtoOrder)
    assert refused.value.action == "Run `pip install 'holdfast[protobuf]'`."


def test_a_class_is_examined_once_for_all_steps_that_use_it() -> None:
    assert typed.model_of(Order) is typed.model_of(Order)
    assert typed.model_of(Stepped) is typed.model_of(Stepped)


@pytest.mark.parametrize("kind", [Stepped, ProtoOrder])
def test_a_store_of_instances_that_pydantic_does_not_know_is_refused_with_the_line_to_write(kind: Any) -> None:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    with pytest.raises(StoreInvalid, match="expected a type that pydantic reads") as refused:
        app.store("carts", model=kind)
    assert "`state.set('cart', msgspec.to_builtins(cart))`" in refused.value.action
    app.store("carts")

    def put(order: Any, state: State) -> Any:
        state.set("cart", msgspec.to_builtins(order))
        return state.get("cart")

    if kind is Stepped:
        out = sent(
            lambda app: app.dataframe(app.topic("in", value=Stepped)).apply(put, stateful=True, store="carts"),
            ("in", {"amount": 1}),
        )
        assert out == ([{"amount": 2}], [])


def test_a_typed_table_with_its_topic_as_changelog_is_refused_by_the_name_of_its_class() -> None:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    with pytest.raises(ApplicationInvalid, match="`value=Order`") as refused:
        app.table(app.topic("in", value=Order), "orders", changelog="source")
    assert refused.value.action.startswith("Leave `value` out")
    app.table(app.topic("old"), "old", changelog="source")


def test_plain_values_are_the_way_out_for_a_class_that_does_not_read_what_it_writes() -> None:
    def build(app: Application) -> Any:
        plain = app.dataframe(app.topic("in", value=Scaled)).apply(lambda order: {"amount": order.amount})
        return plain.group_by(lambda order: "all", "all").apply(lambda order: order["amount"])

    assert sent(build, ("in", {"amount": 5})) == ([500], [])


class Paid(msgspec.Struct):
    amount: int


class PaidInCurrency(msgspec.Struct):
    amount: int
    currency: str


class PaidInEuros(msgspec.Struct):
    amount: int
    currency: str = "EUR"


def test_a_new_field_needs_a_default_where_older_messages_are_stored() -> None:
    def run(kind: Any, topic: str, value: Any) -> None:
        app = Application(consumer_group="shop", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead")
        right = app.dataframe(app.topic("right", value=kind))
        joined = app.dataframe(app.topic("left")).join_asof(
            right, on_merge=lambda left, right: [right.amount, getattr(right, "currency", None)]
        )
        joined.to_topic(app.topic("out"))
        cluster.produce(topic, json.dumps(value).encode(), b"k", timestamp_ms=next(times))
        cluster.run(app)

    cluster, times = InMemoryCluster(), iter(range(1_000, 9_000, 1_000))
    for topic in ("left", "right", "out", "dead"):
        cluster.create_topic(topic)
    run(Paid, "right", {"amount": 3})
    run(PaidInCurrency, "left", {})
    ((_, letter),) = cluster.read("dead")
    told = dict(letter.headers or ())
    assert b"no longer fits PaidInCurrency: Object missing required field `currency`" in (told["holdfast.error"] or b"")
    assert (told["holdfast.error.action"] or b"").startswith(b"Give new fields of PaidInCurrency a default")
    run(PaidInEuros, "left", {})
    assert [json.loads(record.value or b"") for _, record in cluster.read("out")] == [[3, "EUR"]]
