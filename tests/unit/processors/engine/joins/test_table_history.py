"""Tables with a history, one case per test: the row that a message finds, what is stored, upgrades of plain tables."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.joins.tables import Table
from holdfast.processors.engine.steps.durations import DurationInvalid

HOUR = 3_600_000


class Price(BaseModel):
    price: int


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def shop(history: Any = timedelta(hours=1), model: Any = None) -> tuple[Application, Table[Any]]:
    app = Application("in-memory", consumer_group="shop", auto_offset_reset="earliest", loglevel=None)
    prices = app.table(app.topic("prices"), "prices", model=model, history_retention=history)
    app.dataframe(app.topic("orders")).join_table(prices, "left", both).to_topic(app.topic("out"))
    return app, prices


def world() -> InMemoryCluster:
    cluster = InMemoryCluster()
    for topic in ("prices", "orders"):
        cluster.create_topic(topic)
    return cluster


def feed(cluster: InMemoryCluster, topic: str, *messages: tuple[int, Any], key: bytes = b"tea") -> None:
    for time_ms, value in messages:
        cluster.produce(topic, json.dumps(value).encode(), key, timestamp_ms=time_ms)


def joined(cluster: InMemoryCluster) -> list[Any]:
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


def test_a_late_message_finds_the_row_of_its_time() -> None:
    cluster = world()
    feed(cluster, "prices", (1_000, 1), (2_000, None), (3_000, 3), (4_000, 0))
    feed(cluster, "orders", *((at, at) for at in (9_000, 999, 1_000, 1_999, 2_000, 2_999, 3_000, 4_000)))
    cluster.run(shop()[0])
    rows = {9_000: 0, 999: None, 1_000: 1, 1_999: 1, 2_000: None, 2_999: None, 3_000: 3, 4_000: 0}
    assert joined(cluster) == [[at, row] for at, row in rows.items()]


def test_a_late_row_does_not_replace_a_newer_one() -> None:
    cluster = world()
    feed(cluster, "prices", (1_000, 1), (5_000, 5), (3_000, 3))
    feed(cluster, "orders", *((at, at) for at in (9_000, 2_999, 3_000, 4_999)))
    app, prices = shop()
    prices.to_stream().to_topic(app.topic("changes"))
    cluster.run(app)
    assert joined(cluster) == [[9_000, 5], [2_999, 1], [3_000, 3], [4_999, 3]]
    assert [json.loads(record.value or b"") for _, record in cluster.read("changes")] == [1, 5]


def test_what_is_older_than_the_retention_is_found_no_longer_and_leaves_the_store() -> None:
    cluster = world()
    feed(cluster, "prices", (1_000, 1), (2_000, 2))
    feed(cluster, "prices", (1_000, 1), (2_000, None), key=b"gone")
    feed(cluster, "orders", (2_000 + HOUR - 1, "in time"), (1_500, "late"), (2_000 + HOUR, "over"), (1_500, "too late"))
    feed(cluster, "orders", (2_001, "of the newest row"))
    app, _ = shop()
    cluster.run(app)
    assert [row for _, row in joined(cluster)] == [2, 1, 2, None, 2]
    cluster.run(app)
    feed(cluster, "orders", (2 * HOUR, "moves the time"))
    cluster.run(app)
    kept = {place: value for place, value in cluster.state(app, "prices").items() if place[0] in (b"tea", b"gone")}
    assert kept == {(b"tea", "row"): 2, (b"tea", "since"): 2_000}


def test_a_deletion_is_remembered_for_the_retention() -> None:
    cluster = world()
    feed(cluster, "prices", (5_000, None), (4_000, 4))
    feed(cluster, "orders", (6_000, 1), (4_500, 2))
    app, _ = shop()
    cluster.run(app)
    assert joined(cluster) == [[1, None], [2, 4]]


def test_rows_of_a_plain_table_stay_when_it_gets_a_history() -> None:
    cluster = world()
    feed(cluster, "prices", (1_000, 1))
    cluster.run(shop(history=None)[0])
    feed(cluster, "orders", (2_000, "before"))
    feed(cluster, "prices", (3_000, 3))
    feed(cluster, "orders", (3_500, "behind"), (2_500, "late"))
    cluster.run(shop()[0])
    assert joined(cluster) == [["before", 1], ["behind", 3], ["late", 1]]


def test_a_model_is_of_the_rows() -> None:
    app, _ = shop(model=Price)
    (store,) = app.topology().stores
    assert store.schema is not None
    assert [each.state_key for each in store.schema.values] == ["row"]


def test_two_tables_are_joined_by_their_newest_rows() -> None:
    cluster = world()
    feed(cluster, "prices", (1_000, {"price": 1}), (5_000, {"price": 5}), (3_000, {"price": 3}))
    feed(cluster, "orders", (6_000, {"amount": 2}))
    app = Application("in-memory", consumer_group="shop", auto_offset_reset="earliest", loglevel=None)
    prices = app.table(app.topic("prices"), history_retention=HOUR)
    orders = app.table(app.topic("orders"), history_retention=HOUR)
    orders.join(prices, "outer").to_stream().to_topic(app.topic("out"))
    cluster.run(app)
    assert joined(cluster) == [{"price": 1}, {"price": 5}, {"amount": 2, "price": 5}]


@pytest.mark.parametrize("history", [0, -1, timedelta(0)])
def test_a_history_without_a_length_is_refused(history: Any) -> None:
    with pytest.raises(DurationInvalid, match="history_retention"):
        shop(history)


def test_another_length_is_another_version_with_the_same_store() -> None:
    topologies = [shop(hours)[0].topology() for hours in (HOUR, 2 * HOUR)]
    assert topologies[0].code_version != topologies[1].code_version
    plain = [[replace(store, meaning=()) for store in each.stores] for each in topologies]
    assert plain[0] == plain[1]
