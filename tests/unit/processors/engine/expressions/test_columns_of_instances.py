"""Columns of typed messages. The generated loop and the plain loop read attributes of instances like object fields."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import google.protobuf.json_format
import msgspec
import pytest
from pydantic import BaseModel

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.expressions.failures import ColumnInvalid
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from tests.parts import protobuf_messages


@dataclass
class City:
    name: str
    tags: list[str]


@dataclass
class OfDataclass:
    id: str
    price: float
    city: City | None = None


class CityStruct(msgspec.Struct):
    name: str
    tags: list[str]


class OfStruct(msgspec.Struct):
    id: str
    price: float
    city: CityStruct | None = None


class CityModel(BaseModel):
    name: str
    tags: list[str]


class OfModel(BaseModel):
    id: str
    price: float
    city: CityModel | None = None


MODELS = [OfDataclass, OfStruct, OfModel]
BONN = {"name": "Bonn", "tags": ["west", "old"]}
ORDERS = [{"id": "a", "price": 2.0, "city": BONN}, {"id": "b", "price": 0.5, "city": None}]


def application() -> Application:
    return Application(consumer_group="orders", auto_offset_reset="earliest")


def results(app: Application, orders: list[dict[str, Any]]) -> list[Any]:
    cluster = InMemoryCluster()
    for name in ("orders", "out"):
        cluster.create_topic(name)
    for order in orders:
        cluster.produce("orders", json.dumps(order).encode(), b"k")
    cluster.run(app)
    return [json.loads(record.value) for _, record in cluster.read("out")]


@pytest.mark.parametrize("model", MODELS)
def test_a_filter_keeps_instances_and_a_projection_makes_objects(model: Any) -> None:
    app = application()
    orders = app.dataframe(app.topic("orders", value=model))
    kept = orders[(orders["price"] > 1) & orders["city"].notnull() & orders.contains(["id", "city"])]
    kept = kept[kept["city"]["name"].isin(["Bonn"]) & (kept["city"]["tags"][0] == "west")]
    seen: list[Any] = []
    kept.update(lambda value: seen.append(type(value)))[["id", "price"]].to_topic(app.topic("out"))
    assert results(app, ORDERS) == [{"id": "a", "price": 2.0}]
    assert seen == [model]


@pytest.mark.parametrize("model", MODELS)
def test_columns_are_set_in_the_objects_of_a_projection(model: Any) -> None:
    app = application()
    orders = app.dataframe(app.topic("orders", value=model))
    orders = orders[["id", "price"]]
    orders["twice"] = orders["price"] * 2
    orders.to_topic(app.topic("out"))
    assert results(app, ORDERS)[0] == {"id": "a", "price": 2.0, "twice": 4.0}


def test_streams_with_and_without_instances_are_read_together() -> None:
    app = application()
    typed = app.dataframe(app.topic("orders", value=OfDataclass))
    both = typed.concat(typed.apply(lambda order: {"id": order.id + "2", "price": order.price}))
    both[both["price"] > 1][["id"]].to_topic(app.topic("out"))
    assert sorted(each["id"] for each in results(app, ORDERS)) == ["a", "a2"]


CHANGES: list[Callable[[Any], Any]] = [
    lambda sdf: sdf.__setitem__("total", 1),
    lambda sdf: sdf.fill(price=1),
    lambda sdf: sdf.drop("id"),
    lambda sdf: sdf.rename({"id": "number"}),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("model", [*MODELS, protobuf_messages.Order])
def test_fields_of_instances_are_not_changed_and_the_named_line_helps(model: Any, change: Any) -> None:
    app = application()
    orders = app.dataframe(app.topic("orders", value=model))
    with pytest.raises(ColumnInvalid, match="; columns can be set") as refused:
        change(orders)
    written = re.search(r"`sdf = sdf.apply\((.*?)\)`", refused.value.action)
    assert written is not None
    orders = orders.apply(eval(written[1], {"dataclasses": dataclasses, "google": google, "msgspec": msgspec}))
    change(orders)
    orders.to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for name in ("orders", "out"):
        cluster.create_topic(name)
    is_protobuf = model is protobuf_messages.Order
    raw = model(id=1).SerializeToString() if is_protobuf else json.dumps(ORDERS[0]).encode()
    cluster.produce("orders", raw, b"k")
    cluster.run(app)
    assert len(cluster.read("out")) == 1


def test_a_field_that_the_model_lacks_is_named_with_those_that_are_there() -> None:
    app = application()
    orders = app.dataframe(app.topic("orders", value=OfStruct))
    orders[orders["prise"] > 1].to_topic(app.topic("out"))
    with pytest.raises(ProcessingFailed, match=r"no column 'prise'.* 'city', 'id', 'price'"):
        results(app, ORDERS)


def test_a_part_that_is_none_fails_with_its_path() -> None:
    app = application()
    orders = app.dataframe(app.topic("orders", value=OfModel))
    orders[orders["city"]["name"] == "Bonn"][["id"]].to_topic(app.topic("out"))
    with pytest.raises(ProcessingFailed, match=r"sdf\['city'\]` is of type NoneType"):
        results(app, ORDERS)
