"""A store without a name belongs to one stream. Other streams do not share it.

Two streams share a store only if both name it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, Count, HoldfastError, InMemoryCluster


def count(value: Any, state: Any) -> int:
    state.set("n", state.get("n", 0) + 1)
    return int(state.get("n"))


def build(*topics: str, store: str | None = None) -> Application:
    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None)
    for topic in topics:
        app.dataframe(app.topic(topic)).apply(count, stateful=True, store=store).to_topic(app.topic(f"{topic}-out"))
    return app


def tasks(app: Application) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(sub.inputs, sub.stores) for sub in app.topology().subtopologies]


def test_each_stream_has_a_store_and_a_task_of_its_own() -> None:
    assert tasks(build("orders")) == [(("orders",), ("orders",))]
    assert tasks(build("orders", "payments")) == [(("orders",), ("orders",)), (("payments",), ("payments",))]
    assert [spec.topic.name for spec in build("orders").topology().changelogs] == ["p-orders-changelog"]


def test_a_name_shares_a_store_on_purpose() -> None:
    assert tasks(build("orders", "payments", store="both")) == [(("orders", "payments"), ("both",))]


def test_the_same_key_of_two_streams_is_counted_apart() -> None:
    cluster = InMemoryCluster()
    for topic, messages in (("orders", 3), ("payments", 2)):
        cluster.create_topic(topic)
        for _ in range(messages):
            cluster.produce(topic, b"1", b"alice")
    app = build("orders", "payments")
    cluster.run(app)
    assert cluster.state(app, "orders") == {(b"alice", "n"): 3}
    assert cluster.state(app, "payments") == {(b"alice", "n"): 2}
    assert [json.loads(record.value or b"") for _, record in cluster.read("payments-out")] == [1, 2]


def test_state_under_the_former_name_is_not_left_behind_without_a_deploy() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    cluster.produce("orders", b"1", b"alice")
    cluster.run(build("orders", store="default"))
    with pytest.raises(HoldfastError, match="store orders holds nothing of it") as refused:
        cluster.run(build("orders"))
    assert "such as `default`" in (refused.value.action or "")
    cluster.produce("orders", b"1", b"alice")
    cluster.run(build("orders", store="default"))
    assert cluster.state(build("orders", store="default"), "default") == {(b"alice", "n"): 2}


def test_functions_of_one_stream_share_its_store_and_an_aggregation_has_one_of_its_own() -> None:
    app = Application(consumer_group="p")
    frame = app.dataframe(app.topic("orders"))
    frame.update(count, stateful=True)
    frame.filter(count, stateful=True)
    frame.aggregate(n=Count())
    assert tasks(app) == [(("orders",), ("orders", "orders-aggregate"))]


@pytest.mark.parametrize("aggregated", [False, True])
def test_the_store_of_a_stream_is_not_shared_by_accident(aggregated: bool) -> None:
    app = build("orders")
    other = app.dataframe(app.topic("payments"))
    if aggregated:
        other.aggregate(n=Count(), store="orders")
    else:
        other.apply(count, stateful=True, store="orders")
    with pytest.raises(HoldfastError, match="orders") as refused:
        app.topology()
    assert "store=" in (refused.value.action or "")
