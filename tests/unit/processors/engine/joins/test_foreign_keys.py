"""Joins of tables by a key inside the row, one case per test: retractions, kinds of keys, chains, refusals."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, Count, HoldfastError, InMemoryCluster, ProcessingFailed
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.dataframe.groups import GroupByInvalid
from holdfast.processors.engine.joins import foreign_keys
from holdfast.processors.engine.joins.merge import JoinInvalid
from holdfast.processors.engine.provisioning import plan
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.topology_drawing import drawing_of
from holdfast.processors.proof.documents import Material, Message
from holdfast.processors.proof.run import prove
from tests.mechanics.tiers import variants

BEGIN = 1_690_000_000_000


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="shop", auto_offset_reset="earliest", loglevel=None, **options)


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def world(orders: int = 3, products: int = 2) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("orders", partitions=orders)
    cluster.create_topic("products", partitions=products)
    return cluster


class Feed:
    """Sends rows; each row gets a later time than the one before."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self.cluster, self.at = cluster, BEGIN

    def __call__(self, topic: str, key: bytes, row: Any) -> None:
        self.at += 1
        value = row if row is None or isinstance(row, bytes) else json.dumps(row).encode()
        self.cluster.produce(topic, value, key, timestamp_ms=self.at)


def joined(app: Application, on: Any = "product", how: Any = "inner", **options: Any) -> Any:
    orders, products = app.table(app.topic("orders")), app.table(app.topic("products"))
    made = orders.join(products, how, both, "offers", on=on, **options)
    made.to_stream().to_topic(app.topic("out"))
    return made


def changes(cluster: InMemoryCluster) -> list[tuple[bytes | None, Any]]:
    return [(record.key, json.loads(record.value or b"null")) for _, record in cluster.read("out")]


@pytest.mark.parametrize("how", variants(["left", "inner"]))
def test_each_change_of_both_tables_changes_the_rows_it_concerns(how: str) -> None:
    cluster = world()
    feed = Feed(cluster)

    left = how == "left"
    tea, mate = {"name": "tea"}, {"name": "mate"}
    first, second = {"product": "tea", "n": 1}, {"product": "mate", "n": 2}
    steps: list[tuple[str, bytes, Any, dict[bytes, Any]]] = [
        ("orders", b"o1", first, {b"o1": [first, None]} if left else {}),
        ("products", b"tea", tea, {b"o1": [first, tea]}),
        ("orders", b"o2", first, {b"o1": [first, tea], b"o2": [first, tea]}),
        ("products", b"mate", mate, {b"o1": [first, tea], b"o2": [first, tea]}),
        ("orders", b"o1", second, {b"o1": [second, mate], b"o2": [first, tea]}),
        ("products", b"tea", None, {b"o1": [second, mate], **({b"o2": [first, None]} if left else {})}),
        ("orders", b"o2", {"n": 5}, {b"o1": [second, mate], **({b"o2": [{"n": 5}, None]} if left else {})}),
        ("orders", b"o1", None, {b"o2": [{"n": 5}, None]} if left else {}),
        ("orders", b"o2", None, {}),
        ("orders", b"o1", second, {b"o1": [second, mate]}),
    ]
    for topic, key, row, expected in steps:
        feed(topic, key, row)
        cluster.run(application_with(how))
        kept = cluster.state(application_with(how), "offers")
        assert {place: found for (place, name), found in kept.items() if name == "row"} == expected


def application_with(how: str) -> Application:
    app = application()
    joined(app, how=how)
    return app


@pytest.mark.thorough
def test_a_row_that_is_gone_is_told_once_and_a_row_that_never_was_is_not() -> None:
    cluster, app = world(), application()
    feed = Feed(cluster)
    joined(app)
    for topic, key, row in [
        ("orders", b"o1", {"product": "tea"}),
        ("orders", b"o1", {"product": "mate"}),
        ("orders", b"o1", None),
        ("orders", b"o2", {"product": "tea"}),
        ("products", b"tea", {}),
        ("products", b"tea", None),
        ("products", b"tea", None),
    ]:
        feed(topic, key, row)
        cluster.run(app)
    assert changes(cluster) == [(b"o2", [{"product": "tea"}, {}]), (b"o2", None)]


def test_a_change_has_the_time_of_the_message_that_made_it() -> None:
    cluster, app = world(), application()
    feed = Feed(cluster)
    joined(app)
    for topic, key, row in [
        ("orders", b"o1", {"product": "tea"}),
        ("products", b"tea", {}),
        ("orders", b"o1", {"product": "tea", "n": 2}),
    ]:
        feed(topic, key, row)
        cluster.run(app)
    assert [record.timestamp_ms for _, record in cluster.read("out")] == [BEGIN + 2, BEGIN + 3]


@pytest.mark.parametrize(
    ("on", "key"),
    [
        (lambda row: row["p"], b"7"),
        (lambda row: str(row["p"]), b"7"),
        (lambda row: b"\xff\x00", b"\xff\x00"),
        (lambda row: "ö/l\x00", "ö/l\x00".encode()),
        (lambda row: "", b""),
        ("p", b"7"),
    ],
)
def test_keys_are_texts_bytes_and_whole_numbers(on: Any, key: bytes) -> None:
    cluster, app = world(), application()
    feed = Feed(cluster)
    joined(app, on)
    feed("products", key, "row")
    feed("orders", b"\x80o", {"p": 7})
    cluster.run(app)
    assert changes(cluster) == [(b"\x80o", [{"p": 7}, "row"])]


def test_another_kind_of_key_fails_its_message_by_name() -> None:
    cluster, app = world(), application()
    joined(app)
    Feed(cluster)("orders", b"o1", {"product": 1.5})
    with pytest.raises(ProcessingFailed, match="foreign key that can't be a key"):
        cluster.run(app)


def test_a_merge_that_fails_is_told_as_a_record_of_the_join_with_how_to_send_it_again() -> None:
    def strict(left: Any, right: Any) -> list[Any]:
        if right["price"] < 0:
            raise ValueError("no price")
        return [left, right]

    def build(**options: Any) -> Application:
        app = application(**options)
        orders, products = app.table(app.topic("orders")), app.table(app.topic("products"))
        orders.join(products, "inner", strict, "offers", on="product").to_stream().to_topic(app.topic("out"))
        return app

    cluster = world()
    send = Feed(cluster)
    send("products", b"tea", {"price": -1})
    send("orders", b"o1", {"product": "tea"})
    with pytest.raises(ProcessingFailed, match=r"shop-offers-answers-repartition\[.\].*no price") as stopped:
        cluster.run(build())
    assert "the message. Or" not in stopped.value.action
    cluster.run(build(dead_letter_topic="dead"))
    [(_, letter)] = cluster.read("dead")
    assert json.loads(letter.value or b"")[2:] == [[{"product": "tea"}], [{"price": -1}]]
    assert b"send the message of the source again" in dict(letter.headers)["holdfast.error.action"]
    send("products", b"tea", {"price": 1})
    cluster.run(build(dead_letter_topic="dead"))
    assert changes(cluster) == [(b"o1", [{"product": "tea"}, {"price": 1}])]


def test_a_join_that_is_declared_later_names_how_all_state_is_built_again() -> None:
    def build(*, joins: bool) -> Application:
        app = application()
        orders, products = app.table(app.topic("orders")), app.table(app.topic("products"))
        if joins:
            orders.join(products, on="product", name="offers", on_merge=both)
        return app

    cluster = world()
    Feed(cluster)("orders", b"o1", {"product": "tea"})
    cluster.run(build(joins=False))
    with pytest.raises(HoldfastError, match="offers-foreign-keys holds nothing of it") as refused:
        cluster.run(build(joins=True))
    assert "clear PROCESSOR --all --rewind earliest" in refused.value.action


def test_the_result_is_a_table_for_streams_joins_and_further_joins() -> None:
    cluster, app = world(), application()
    cluster.create_topic("makers")
    cluster.create_topic("events", partitions=3)
    orders, products, makers = (app.table(app.topic(name)) for name in ("orders", "products", "makers"))
    offers = orders.join(products, on="product", on_merge="keep-left", name="offers")
    made = offers.join(makers, "left", both, "made", on="maker")
    made.to_stream().to_topic(app.topic("out"))
    app.dataframe(app.topic("events")).join_table(made, "left", both).to_topic(app.topic("seen"))
    feed = Feed(cluster)
    feed("orders", b"o1", {"product": "tea"})
    feed("products", b"tea", {"maker": "m"})
    feed("makers", b"m", "Ann")
    cluster.run(app)
    feed("events", b"o1", "event")
    cluster.run(app)
    row = [{"product": "tea", "maker": "m"}, "Ann"]
    assert changes(cluster)[-1] == (b"o1", row)
    assert [json.loads(record.value or b"") for _, record in cluster.read("seen")] == [["event", row]]


def test_a_table_with_a_history_is_joined_by_its_newest_rows() -> None:
    cluster, app = world(), application()
    orders = app.table(app.topic("orders"), history_retention=timedelta(days=1))
    products = app.table(app.topic("products"), history_retention=timedelta(days=1))
    orders.join(products, on="product", on_merge=both).to_stream().to_topic(app.topic("out"))
    feed = Feed(cluster)
    feed("orders", b"o1", {"product": "tea"})
    feed("products", b"tea", 2)
    cluster.produce("orders", b'{"product": "older"}', b"o1", timestamp_ms=BEGIN)
    cluster.produce("products", b"1", b"tea", timestamp_ms=BEGIN)
    cluster.run(app)
    assert changes(cluster) == [(b"o1", [{"product": "tea"}, 2])]


# A change of a row is sent to the rows that refer to it (its subscribers), two at a time. The last part has two
# subscribers or one.
@pytest.mark.parametrize("subscribers", variants([11, 1, 2, 3, 10]))
def test_very_many_subscribers_are_answered_in_parts(subscribers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_keys, "ANSWERED_AT_ONCE", 2)
    cluster, app = world(), application()
    joined(app)
    feed = Feed(cluster)
    for number in range(subscribers):
        feed("orders", b"o%d" % number, {"product": "tea"})
    cluster.run(app)
    feed("products", b"tea", "green")
    cluster.run(app)
    rows = {key: row for (key, name), row in cluster.state(app, "offers").items() if name == "row"}
    assert rows == {b"o%d" % number: [{"product": "tea"}, "green"] for number in range(subscribers)}
    assert {record.timestamp_ms for _, record in cluster.read("out")} == {feed.at}
    left = [name for _, name in cluster.state(app, "offers-subscriptions") if name == "next" or "timer" in name]
    assert left == []


def test_a_key_that_was_cleared_while_it_was_answered_ends_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_keys, "ANSWERED_AT_ONCE", 1)
    former = foreign_keys.Subscriptions.on_timer

    def clears(self: Any, name: str, time: int, context: Any) -> None:
        context.state.delete("next")
        former(self, name, time, context)

    monkeypatch.setattr(foreign_keys.Subscriptions, "on_timer", clears)
    cluster, app = world(), application()
    joined(app)
    feed = Feed(cluster)
    for number in range(3):
        feed("orders", b"o%d" % number, {"product": "tea"})
    cluster.run(app)
    feed("products", b"tea", "green")
    cluster.run(app)
    assert len(changes(cluster)) == 1


def test_a_rewind_of_all_state_has_the_same_rows() -> None:
    cluster, app = world(), application()
    feed = Feed(cluster)
    joined(app, how="left")
    for number in range(30):
        feed("orders", b"o%d" % (number % 7), None if number % 5 == 0 else {"product": "tea", "n": number})
        feed("products", b"tea", number)
    cluster.run(app, count=31)
    cluster.clear_state(application_with("left"), rewind="earliest")
    assert cluster.state(app, "offers") == {}
    cluster.run(application_with("left"))
    rows = {key: row for (key, name), row in cluster.state(app, "offers").items() if name == "row"}
    newest = {number % 7: number for number in range(30)}
    assert rows == {b"o%d" % key: [{"product": "tea", "n": number}, 29] for key, number in newest.items() if number % 5}


def test_the_topology_draws_both_topics() -> None:
    topology = application_with("inner").topology()
    assert [spec.topic for spec in topology.repartitions] == [
        "shop-offers-subscriptions-repartition",
        "shop-offers-answers-repartition",
    ]
    assert [sub.stores for chain in topology.chains() for sub in chain] == [
        ("orders-table", "offers-foreign-keys"),
        ("products-table", "offers-subscriptions"),
        ("offers",),
    ]
    drawing = drawing_of(topology)
    assert "  │ join offers-subscriptions" in drawing.splitlines()
    assert drawing.index("orders-table") < drawing.index("offers-subscriptions (") < drawing.index("  stores  offers (")


def test_a_topic_of_a_join_that_is_too_narrow_is_refused_with_what_to_do() -> None:
    topology = application_with("inner").topology()
    facts = {
        spec.name: TopicFacts(spec.name, f"id of {spec.name}", 3, 1, {})
        for spec in topology.inputs
        if spec.name != "shop-offers-answers-repartition"
    }
    narrow = "shop-offers-subscriptions-repartition"
    facts[narrow] = TopicFacts(narrow, "narrow", 2, 1, {})
    refused = next(each for each in plan(topology, facts, 1).refusals if each.topic == narrow)
    assert "has 2 partitions, expected 3" in refused.sentence
    assert refused.action.startswith("Stop the processor, delete the topic")


def test_a_proof_of_a_version_joins_the_last_messages() -> None:
    app = application_with("left")
    partitions = {spec.name: 2 for spec in app.topology().sources}
    messages = {
        topic: {0: (Message(7, key, json.dumps(row).encode(), BEGIN),)}
        for topic, key, row in [("orders", b"o1", {"product": "tea"}), ("products", b"tea", "green")]
    }
    outcome = prove(app, Material("shop", partitions, messages, {}))
    assert (outcome.processed, outcome.failures, outcome.broken) == (2, (), "")
    assert outcome.outputs >= 1


def test_steps_with_state_behind_it_have_stores_of_their_own() -> None:
    cluster, app = world(), application()
    joined(app).to_stream().aggregate(n=Count()).to_topic(app.topic("counted"))
    feed = Feed(cluster)
    feed("orders", b"o1", {"product": "tea"})
    feed("products", b"tea", 1)
    cluster.run(app)
    assert [json.loads(record.value or b"") for _, record in cluster.read("counted")] == [{"n": 1}]


def test_another_rule_or_function_is_another_version() -> None:
    def version(on: Any, how: Any = "inner") -> str:
        app = application()
        joined(app, on, how)
        return app.topology().code_version

    def one(row: Any) -> Any: ...

    def other(row: Any) -> Any: ...

    versions = [version("a"), version("b"), version(one), version(other), version("a", "left")]
    assert len(set(versions)) == len(versions)


def self_join(app: Application) -> None:
    table = app.table(app.topic("people"))
    table.join(table, on="manager", on_merge=both)


def joined_twice(app: Application) -> None:
    orders, products = app.table(app.topic("orders")), app.table(app.topic("products"))
    orders.join(products, on_merge=both)
    orders.join(products, on="product", on_merge=both, name="offers")
    app.topology()


def named_twice(app: Application) -> None:
    orders, products = app.table(app.topic("orders")), app.table(app.topic("products"))
    orders.join(products, on="product", on_merge=both)
    orders.join(products, on="second", on_merge=both)


def in_a_circle(app: Application) -> None:
    orders, products = app.table(app.topic("orders")), app.table(app.topic("products"))
    orders.join(products, on="product", on_merge=both, name="one")
    products.join(orders, on="order", on_merge=both, name="two")
    app.topology()


@pytest.mark.parametrize(
    ("declare", "error", "said"),
    [
        (lambda app: joined(app, how="outer"), JoinInvalid, "no key in the result"),
        (lambda app: joined(app, how="right"), JoinInvalid, "`how` is 'right'"),
        (lambda app: joined(app, 5), JoinInvalid, "expected a field's name or a function"),
        (lambda app: joined(app, lambda: 1), StepInvalid, "can't be called with (row)"),
        (self_join, JoinInvalid, "wait for itself"),
        (joined_twice, JoinInvalid, "wait for itself"),
        (in_a_circle, JoinInvalid, "wait for itself"),
        (named_twice, GroupByInvalid, "Give the join another `name`"),
    ],
)
def test_what_can_not_run_is_refused(declare: Any, error: type[HoldfastError], said: str) -> None:
    with pytest.raises(error) as refused:
        declare(application())
    assert said in f"{refused.value.message} {refused.value.action}"


@pytest.mark.parametrize(("keys", "raw"), [("long", (7).to_bytes(8, "big")), ("msgpack", b"\x07")])
def test_keys_that_are_no_texts_are_refused_and_grouped_by_a_field_they_match(keys: str, raw: bytes) -> None:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    orders, products = app.table(app.topic("orders")), app.table(app.topic("products", key_deserializer=keys))
    with pytest.raises(JoinInvalid, match=f"products of the other table has keys in '{keys}'") as refused:
        orders.join(products, on="product")
    grouped = app.dataframe(app.topic("others", key_deserializer=keys)).group_by("id").to_table("by-id")
    assert "group_by(field)" in str(refused.value.action)
    orders.join(grouped, on="product").to_stream().to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for topic in ("orders", "others", "out"):
        cluster.create_topic(topic)
    cluster.produce("others", b'{"id": 7, "name": "tea"}', raw)
    cluster.produce("orders", b'{"product": 7}', b"o")
    cluster.run(app)
    found = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert found == [{"product": 7, "id": 7, "name": "tea"}]
