"""Joins of streams of typed messages: functions get instances on both sides, whichever side came first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.joins.merge import JoinInvalid

PLACED = datetime(2026, 1, 2, tzinfo=UTC)


class OrderStruct(msgspec.Struct):
    price: Decimal
    placed: datetime


class OrderModel(BaseModel):
    price: Decimal
    placed: datetime


@dataclass
class OrderDataclass:
    price: Decimal
    placed: datetime


class Rate(msgspec.Struct):
    rate: Decimal


KINDS = [OrderStruct, OrderModel, OrderDataclass]


def paid(order: Any, rate: Any) -> dict[str, Any]:
    """The price at a rate; fails for anything but instances, or None for a side without a match."""
    assert order is None or (type(order) in KINDS and order.placed == PLACED)
    assert rate is None or type(rate) is Rate
    return {
        "price": None if order is None else str(order.price),
        "paid": None if order is None or rate is None else str(order.price * rate.rate),
    }


def joined(kind: Any, join: Callable[[Any, Any], Any], sent: list[tuple[str, int, str]]) -> list[Any]:
    """The outputs of a join. The application is restarted after each message."""
    cluster = InMemoryCluster()
    for topic in ("orders", "rates", "out"):
        cluster.create_topic(topic)
    for topic, at, number in sent:
        body = {"price": number, "placed": PLACED.isoformat()} if topic == "orders" else {"rate": number}
        cluster.produce(topic, json.dumps(body).encode(), b"k", timestamp_ms=at * 1_000)
        app = Application(consumer_group="shop", auto_offset_reset="earliest", loglevel=None)
        orders = app.dataframe(app.topic("orders", value=kind))
        join(orders, app.dataframe(app.topic("rates", value=Rate))).to_topic(app.topic("out"))
        cluster.run(app)
    return [json.loads(record.value or b"null") for _, record in cluster.read("out")]


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_as_of_joins_get_instances(kind: Any) -> None:
    sent = [("rates", 1, "2"), ("orders", 2, "1.10"), ("rates", 5, "3"), ("orders", 4, "0.10"), ("orders", 6, "0.10")]
    assert joined(kind, lambda orders, rates: orders.join_asof(rates, on_merge=paid), sent) == [
        {"price": "1.10", "paid": "2.20"},
        {"price": "0.10", "paid": "0.20"},
        {"price": "0.10", "paid": "0.30"},
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_interval_joins_get_instances(kind: Any) -> None:
    def join(orders: Any, rates: Any) -> Any:
        return orders.join_interval(rates, how="outer", on_merge=paid, grace_ms=0, backward_ms=2_000, forward_ms=2_000)

    sent = [("orders", 1, "1.10"), ("rates", 2, "2"), ("orders", 3, "0.10"), ("orders", 60, "5"), ("rates", 120, "1")]
    assert joined(kind, join, sent) == [
        {"price": "1.10", "paid": "2.20"},
        {"price": "0.10", "paid": "0.20"},
        {"price": "5", "paid": None},
    ]


@pytest.mark.parametrize("join", ["join_asof", "join_interval"])
def test_rules_merge_the_fields_of_instances(join: str) -> None:
    sent = [("rates", 1, "2"), ("orders", 1, "1.10")]
    (row,) = joined(OrderStruct, lambda orders, rates: getattr(orders, join)(rates), sent)
    assert row == {"price": "1.10", "placed": "2026-01-02T00:00:00Z", "rate": "2"}


@pytest.mark.parametrize("join", ["join_asof", "join_interval"])
def test_a_function_of_values_of_several_classes_is_refused(join: str) -> None:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    orders = app.dataframe(app.topic("orders", value=OrderStruct))
    both = app.dataframe(app.topic("rates", value=Rate)).concat(app.dataframe(app.topic("old", value=OrderModel)))
    with pytest.raises(JoinInvalid, match="different `value=`") as refused:
        getattr(orders, join)(both, on_merge=paid)
    assert "`sdf.apply(msgspec.to_builtins)`" in refused.value.action
    getattr(orders, join)(both, on_merge="keep-left")
