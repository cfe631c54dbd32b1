"""Tables, one case per test: joined with streams, with each other and with themselves, and the changes they send."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from holdfast import Application, HoldfastError
from tests.unit.processors.engine.joins.test_joins import feed, made, sent, world


def test_a_table_of_a_stream_sends_its_changes() -> None:
    cluster = world("l", "r")
    feed(cluster, "r", (1, 5), (2, None))
    app, _, right = made()
    table = right.apply(lambda value: value).to_table("t")
    table.to_stream().to_topic(app.topic("changes"))
    cluster.run(app)
    assert sent(cluster, "changes") == [(1, 5), (2, None)]
    assert cluster.state(app, "t") == {}


def test_the_changes_of_a_table_are_its_rows_when_its_stream_is_updated_later() -> None:
    cluster = world("l", "r")
    feed(cluster, "l", (1, {"a": 1}))
    feed(cluster, "r", (2, {"b": 2}))
    app, left, right = made()
    rows, others = left.to_table("lt"), right.to_table("rt")
    left.update(lambda value: value.update(later=True)).to_topic(app.topic("seen"))
    rows.to_stream().to_topic(app.topic("changes"))
    rows.join(others, name="pairs").to_stream().to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster, "seen") == [(1, {"a": 1, "later": True})]
    assert sent(cluster, "changes") == [(1, {"a": 1})]
    assert sent(cluster) == [(2, {"a": 1, "b": 2})]


def test_a_joined_table_is_a_table_that_joins_go_on_from() -> None:
    cluster = world("l", "r", "o")
    feed(cluster, "l", (1, {"a": 1}))
    feed(cluster, "r", (2, {"b": 2}), (5, None))
    feed(cluster, "o", (3, {"c": 3}), (4, {"c": 4}), (6, {"c": 5}))
    app, left, right = made()
    orders = app.dataframe(app.topic("o"))
    pairs = left.to_table("lt").join(right.to_table("rt"))
    triples = pairs.join(orders.to_table("ot"), "left", name="triples")
    triples.to_stream().to_topic(app.topic("out"))
    orders.join_table(pairs, "left").to_topic(app.topic("seen"))
    assert [sub.inputs for sub in app.topology().subtopologies] == [("l", "r", "o")]
    cluster.run(app)
    assert sent(cluster) == [
        (2, {"a": 1, "b": 2}),
        (3, {"a": 1, "b": 2, "c": 3}),
        (4, {"a": 1, "b": 2, "c": 4}),
        (5, None),
    ]
    assert sent(cluster, "seen") == [(3, {"a": 1, "b": 2, "c": 3}), (4, {"a": 1, "b": 2, "c": 4}), (6, {"c": 5})]
    assert cluster.state(app, "lt-rt-join") == cluster.state(app, "triples") == {}


def test_a_table_is_joined_with_itself() -> None:
    cluster = world()
    feed(cluster, "l", (1, 0), (2, ""), (3, None), (4, None))
    app, left, _ = made()
    table = left.to_table("t")
    table.join(table, on_merge=lambda a, b: [a, b]).to_stream().to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(1, [0, 0]), (2, ["", ""]), (3, None)]


def test_two_tables_of_one_stream_change_one_after_the_other() -> None:
    cluster = world()
    feed(cluster, "l", (1, 1), (2, 5))
    app, left, _ = made()
    doubled = left.apply(lambda value: 2 * value)
    left.to_table("one").join(doubled.to_table("two"), "outer", lambda a, b: [a, b]).to_stream().to_topic(
        app.topic("out")
    )
    cluster.run(app)
    assert sent(cluster)[-1] == (2, [5, 10])
    assert cluster.state(app, "one-two-join") == {(b"k", "row"): [5, 10]}


def test_a_step_that_changes_the_value_in_place_does_not_change_the_row() -> None:
    cluster = world()
    feed(cluster, "l", (1, {"a": 1}))
    feed(cluster, "r", (2, {"b": 2}))
    app, left, right = made()
    table = left.to_table("lt")
    left.update(lambda value: value.update(a=9))
    table.join(right.to_table("rt"), "outer", name="j").to_stream().to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(1, {"a": 1}), (2, {"a": 1, "b": 2})]


def test_a_stream_that_was_grouped_is_joined_with_a_table_of_that_key() -> None:
    cluster = world("l", "r", partitions=3)
    for number, name in enumerate(("ann", "bob", "ann")):
        feed(cluster, "l", (10 + number, {"customer": name}), key=b"o%d" % number)
    for name in ("ann", "bob"):
        feed(cluster, "r", (1, {"name": name.title()}), key=name.encode())
    app, orders, customers = made()
    grouped = orders.group_by("customer")
    rows = customers.to_table("customers")
    grouped.join_table(rows).to_topic(app.topic("out"))
    grouped.to_table("newest").join(rows, name="both").to_stream().to_topic(app.topic("changes"))
    cluster.run(app)
    names = {"ann": "Ann", "bob": "Bob"}
    expected = [
        (10 + number, {"customer": each, "name": names[each]}) for number, each in enumerate(("ann", "bob", "ann"))
    ]
    assert sorted(sent(cluster), key=repr) == sorted(expected, key=repr)
    assert cluster.state(app, "both") == {
        (each.encode(), "row"): {"customer": each, "name": name} for each, name in names.items()
    }


def test_a_failed_merge_changes_no_table() -> None:
    cluster = world()
    feed(cluster, "l", (1, {"a": 1}), (3, {"b": 5}), (4, {"a": 2}))
    feed(cluster, "r", (2, {"b": 2}))
    app, left, right = made(dead_letter_topic="dead")
    left.to_table("lt").join(right.to_table("rt"), "outer", name="j").to_stream().to_topic(app.topic("out"))
    cluster.run(app)
    assert sent(cluster) == [(1, {"a": 1}), (2, {"a": 1, "b": 2}), (4, {"a": 2, "b": 2})]
    assert [json.loads(record.value or b"") for _, record in cluster.read("dead")] == [{"b": 5}]
    assert cluster.state(app, "lt") == {(b"k", "row"): {"a": 2}}


def test_the_model_of_a_joined_table_gives_its_columns() -> None:
    class Offer(BaseModel):
        a: int
        b: int

    app, left, right = made()
    left.to_table("lt").join(right.to_table("rt"), name="offers", model=Offer)
    (offers,) = [store for store in app.topology().stores if store.name == "offers"]
    assert offers.schema is not None
    assert [column.name for column in offers.schema.columns] == ["a", "b"]


def test_a_store_that_a_joined_table_and_something_else_use_is_refused() -> None:
    app, left, right = made()
    left.to_table("lt").join(right.to_table("rt"), name="lt")
    with pytest.raises(HoldfastError, match="of one join or table"):
        app.topology()
    app, left, right = made()
    left.to_table("lt").join(right.to_table("rt"), name="j")
    left.apply(lambda value, state: value, stateful=True, store="j")
    with pytest.raises(HoldfastError, match="of one join or table"):
        app.topology()


def test_a_table_whose_topic_was_made_anew_is_refused_by_name() -> None:
    cluster = world()
    feed(cluster, "r", (1, {"b": 1}))
    feed(cluster, "l", (2, {"a": 1}))

    def build() -> Application:
        app, left, right = made()
        left.join_table(right.to_table("t")).to_topic(app.topic("out"))
        return app

    cluster.run(build())
    cluster.delete_topic("r")
    cluster.create_topic("r")
    with pytest.raises(HoldfastError, match="r"):
        cluster.run(build())
