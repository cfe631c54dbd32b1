"""User functions of aggregates get instances of a typed topic, also where the message comes from the state."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, Field
from pydantic.dataclasses import dataclass as validated

from holdfast import Application, Count, InMemoryCluster
from holdfast.dataframe.windows import Reduce
from holdfast.dataframe.windows.aggregations import Aggregator, Collector

PLACED = datetime(2026, 1, 2, tzinfo=UTC)


class AsStruct(msgspec.Struct, rename="camel"):
    the_shop: str
    amount: Decimal
    placed: datetime


class AsModel(BaseModel):
    the_shop: str = Field(alias="theShop")
    amount: Decimal
    placed: datetime


@dataclass
class AsDataclass:
    theShop: str
    amount: Decimal
    placed: datetime

    @property
    def the_shop(self) -> str:
        return self.theShop


@validated
class AsValidated:
    theShop: str
    amount: Decimal
    placed: datetime

    @property
    def the_shop(self) -> str:
        return self.theShop


KINDS = [AsStruct, AsModel, AsDataclass, AsValidated]


def cents(order: Any) -> int:
    """The amount of an order; fails for anything but an instance with the types of its fields."""
    assert type(order) in KINDS
    assert (type(order.amount), order.placed, order.the_shop) == (Decimal, PLACED, "north")
    return int(order.amount * 100)


class Largest(Aggregator):
    def initialize(self) -> Any:
        return 0

    def agg(self, old: Any, new: Any) -> Any:
        return max(old, cents(new))

    def merge(self, earlier: Any, later: Any) -> Any:
        return max(earlier, later)

    def result(self, value: Any) -> Any:
        return value


class LargestAt(Largest):
    def agg(self, old: Any, new: Any, timestamp: int) -> Any:  # type: ignore[override]
        assert timestamp > 0
        return super().agg(old, new)


class Every(Collector):
    def result(self, items: list[Any]) -> Any:
        return [cents(item) for item in items]


def columns() -> dict[str, Any]:
    return {
        "total": Reduce(
            lambda total, order: total + cents(order), lambda order: cents(order), lambda one, other: one + other
        ),
        "newest": Reduce(lambda held, order: order, lambda order: order, lambda one, other: other),
        "largest": Largest(),
        "at": LargestAt(),
        "every": Every(),
    }


WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda frame: frame.tumbling_window(timedelta(minutes=1)),
    "hopping": lambda frame: frame.hopping_window(timedelta(minutes=1), timedelta(minutes=1)),
    "sliding": lambda frame: frame.sliding_window(timedelta(minutes=1)),
    "session": lambda frame: frame.session_window(timedelta(minutes=1)),
    "count": lambda frame: frame.tumbling_count_window(3),
    "sliding count": lambda frame: frame.sliding_count_window(3),
}


def body(amount: str) -> bytes:
    return json.dumps({"theShop": "north", "amount": amount, "placed": PLACED.isoformat()}).encode()


def results(build: Callable[[Application], Any], sent: list[tuple[bytes, bytes | None]]) -> list[Any]:
    """The outputs of an application that is restarted after each message, so that all it knows comes from its state."""
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    cluster.create_topic("out")
    for number, (key, value) in enumerate(sent):
        cluster.produce("orders", value, key, timestamp_ms=1_000 * (number + 1))
        app = Application(consumer_group="shop", auto_offset_reset="earliest", loglevel=None)
        build(app).to_topic(app.topic("out"))
        cluster.run(app)
    return [json.loads(record.value or b"null") for _, record in cluster.read("out")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_functions_of_windows_get_instances(kind: Any, window: str) -> None:
    def build(app: Application) -> Any:
        return WINDOWS[window](app.dataframe(app.topic("orders", value=kind))).agg(**columns()).current()

    seen = results(build, [(b"a", body(amount)) for amount in ("1.10", "3.30", "2.20")])
    whole = max(seen, key=lambda each: len(each["every"]))
    assert {name: whole[name] for name in ("total", "largest", "at", "every")} == {
        "total": 660,
        "largest": 330,
        "at": 330,
        "every": [110, 330, 220],
    }
    assert whole["newest"]["amount"] == "2.20"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["plain", "filter"])
def test_functions_of_groups_of_rows_get_instances(kind: Any, form: str) -> None:
    def build(app: Application) -> Any:
        table = app.table(app.topic("orders", value=kind), "orders")
        if form == "filter":
            table = table.filter(lambda order: cents(order) > 0)
        total = Reduce(
            reducer=lambda total, order: total + cents(order),
            initializer=cents,
            subtractor=lambda total, order: total - cents(order),
        )
        shops = table.group_by(lambda order: order.the_shop, name="shop")
        return shops.aggregate(n=Count(), total=total).to_stream()

    seen = results(build, [(b"1", body("1.10")), (b"2", body("3.30")), (b"1", body("0.10")), (b"2", None)])
    assert seen == [
        {"n": 1, "total": 110},
        {"n": 2, "total": 440},
        {"n": 2, "total": 340},
        {"n": 1, "total": 10},
    ]


def test_rows_of_another_table_stay_objects_of_json() -> None:
    def build(app: Application) -> Any:
        table = app.table(app.topic("orders", value=AsStruct), "orders")
        mapped = table.map(lambda order: {"cents": cents(order)})
        total = Reduce(
            reducer=lambda total, row: total + row["cents"],
            initializer=lambda row: row["cents"],
            subtractor=lambda total, row: total - row["cents"],
        )
        return mapped.group_by(lambda row: "all", name="all").aggregate(total=total).to_stream()

    assert results(build, [(b"1", body("1.10")), (b"2", body("3.30"))]) == [{"total": 110}, {"total": 440}]
