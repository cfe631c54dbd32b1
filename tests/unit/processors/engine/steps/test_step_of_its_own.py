"""A new kind of step (here a join) is added as one class, without a change of general modules.

The class contains everything that the step needs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.state.interface import State
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.step import Step, StoreForm, StoreUse


class Offer:
    """The declaration of a join. The join finds the best offer that has arrived so far."""


class Offers(Step):
    """The step of the offers' stream. It stores the best offer of each key."""

    __name__ = "join_best"
    order = "feeds"

    def __init__(self, join: Offer) -> None:
        self._use = StoreUse(StoreForm.JOIN, join=join)

    @property
    def store_use(self) -> StoreUse:
        return self._use

    def __call__(self, value: Any, state: State) -> None:
        state.set("best", max(value["price"], state.get("best", 0)))


class Best(Offers):
    """The step of the orders' stream. It reads the best offer of the key."""

    order = "reads"

    def __init__(self, join: Offer, text: Any) -> None:
        self._use = StoreUse(StoreForm.JOIN, writes=False, join=join)
        self._text = text

    @property
    def functions(self) -> tuple[Any, ...]:
        return (self._text,)

    def describe(self) -> str:
        return "best offer, rule 1"

    def __call__(self, value: Any, state: State) -> str:  # type: ignore[override]
        return str(self._text(value, state.get("best")))


def shown(value: Any, best: Any) -> str:
    return f"{value['id']}: {best}"


def join_best(left: StreamingDataFrame, right: StreamingDataFrame, text: Any = shown) -> StreamingDataFrame:
    """Declare the join, as a method of a stream would do it for users."""
    join, store = Offer(), "best"
    right._in_place(Node("update", Offers(join), store))
    return left._then(Node("apply", Best(join, text), store))


def declared(text: Any = shown) -> tuple[Application, StreamingDataFrame]:
    app = Application(consumer_group="buyers", auto_offset_reset="earliest", loglevel=None, state_backend="memory")
    orders, offers = app.dataframe(app.topic("orders")), app.dataframe(app.topic("offers"))
    joined = join_best(orders, offers, text)
    joined.to_topic(app.topic("joined"))
    return app, joined


def test_it_reads_in_the_order_of_times_keeps_its_state_and_is_restored() -> None:
    cluster = InMemoryCluster()
    for topic in ("orders", "offers", "joined"):
        cluster.create_topic(topic, 1)
    for at, topic, value in (
        (10, "offers", {"price": 5}),
        (40, "offers", {"price": 9}),
        (20, "orders", {"id": "a"}),
        (50, "orders", {"id": "b"}),
    ):
        cluster.produce(topic, json.dumps(value).encode(), b"k", timestamp_ms=at)
    cluster.run(declared()[0])
    cluster.produce("orders", json.dumps({"id": "c"}).encode(), b"k", timestamp_ms=60)
    # a new process has no memory of the first one, so it restores the state from the changelog
    cluster.run(declared()[0])
    sent = [json.loads(record.value or b"") for _, record in cluster.read("joined")]
    assert sent == ["a: 5", "b: 9", "c: 9"]


def test_its_rule_and_its_function_are_part_of_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(value: Any, best: Any) -> str:
        return f"{best}!"

    before = declared()[0].topology().code_version
    assert declared(other)[0].topology().code_version != before
    assert declared()[0].topology().code_version == before
    monkeypatch.setattr(Best, "describe", lambda self: "best offer, rule 2")
    assert declared()[0].topology().code_version != before


def test_its_store_is_of_one_join() -> None:
    app, joined = declared()
    joined.apply(lambda value, state: value, stateful=True, store="best")
    with pytest.raises(StepInvalid, match="Store 'best' is of one join or table"):
        app.topology()
