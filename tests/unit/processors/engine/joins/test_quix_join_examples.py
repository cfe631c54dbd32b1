"""The join examples from the documentation of Quix Streams, and those for several streams.

Names, order of calls and arguments are as in that documentation. Only the import, the data and the comments differ.
``docs/coming-from/quix-examples.md`` lists the examples with these tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, StreamingDataFrame
from holdfast.dataframe.windows import Mean
from tests.quix_page import listed_under

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
#: A time in milliseconds that is a whole number of days after 1970.
START = 1_690_000_000_000 // DAY * DAY


def application() -> Application:
    return Application(broker_address="in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)


def results(app: Application, sdf: StreamingDataFrame, **topics: list[tuple[int, Any]]) -> list[Any]:
    """The outputs of a stream for the messages of each topic. Their times are milliseconds after ``START``."""
    sdf.to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for topic in sorted({spec.name for spec in app.topology().inputs}):
        cluster.create_topic(topic)
        for at, value in topics.get(topic.replace("-", "_"), []):
            cluster.produce(topic, json.dumps(value).encode(), b"sensor", timestamp_ms=START + at)
    cluster.run(app)
    return [json.loads(record.value or b"") for _, record in cluster.read("out")]


# -- joins -------------------------------------------------------------------------------------------------------------


def test_join_asof() -> None:
    app = application()
    sdf_measurements = app.dataframe(app.topic("measurements"))
    sdf_metadata = app.dataframe(app.topic("metadata"))
    sdf_joined = sdf_measurements.join_asof(
        right=sdf_metadata,
        how="inner",
        on_merge="keep-left",
        grace_ms=timedelta(days=14),
    )
    found = results(
        app,
        sdf_joined,
        metadata=[(10, {"unit": "C", "t": 0}), (30, {"unit": "F", "t": 0})],
        measurements=[(5, {"t": 1}), (20, {"t": 2}), (30, {"t": 3}), (13 * DAY, {"t": 4}), (25, {"t": 5})],
    )
    assert [(each["t"], each["unit"]) for each in found] == [(2, "C"), (3, "F"), (4, "F"), (5, "C")]


def test_join_asof_left() -> None:
    app = application()
    sdf_measurements = app.dataframe(app.topic("measurements"))
    sdf_joined = sdf_measurements.join_asof(right=app.dataframe(app.topic("metadata")), how="left")
    found = results(app, sdf_joined, metadata=[(10, {"unit": "C"})], measurements=[(5, {"t": 1}), (20, {"t": 2})])
    assert found == [{"t": 1}, {"t": 2, "unit": "C"}]


def test_on_merge_callback() -> None:
    app = application()
    sdf_measurements = app.dataframe(app.topic("measurements"))
    sdf_metadata = app.dataframe(app.topic("metadata"))

    def on_merge(left: int, right: str | None) -> dict[str, Any]:
        return {"measurement": left, "metadata": right}

    sdf_joined = sdf_measurements.join_asof(right=sdf_metadata, on_merge=on_merge)
    found = results(app, sdf_joined, metadata=[(1, "first"), (3, "")], measurements=[(2, 7), (4, 0)])
    assert found == [{"measurement": 7, "metadata": "first"}, {"measurement": 0, "metadata": ""}]


@pytest.mark.parametrize(
    ("how", "unmatched"),
    [("inner", []), ("left", ["m2"]), ("right", ["e2"]), ("outer", ["m2", "e2"])],
)
def test_join_interval(how: Any, unmatched: list[str]) -> None:
    app = application()
    sdf_measurements = app.dataframe(app.topic("measurements"))
    sdf_events = app.dataframe(app.topic("events"))
    sdf_joined = sdf_measurements.join_interval(
        right=sdf_events,
        how=how,
        on_merge="keep-left",
        grace_ms=timedelta(days=7),
        backward_ms=timedelta(minutes=5),
        forward_ms=timedelta(minutes=5),
    )
    found = results(
        app,
        sdf_joined,
        measurements=[(6 * MINUTE, {"m": "m1"}), (HOUR, {"m": "m2"}), (30 * DAY, {"m": "last"})],
        events=[
            (MINUTE, {"e": "e1"}),
            (11 * MINUTE, {"e": "e3"}),
            (11 * MINUTE + 1, {"e": "e2"}),
            (30 * DAY, {"e": "last"}),
        ],
    )
    alone = [each for each in found if len(each) == 1]
    assert [(each["m"], each["e"]) for each in found if len(each) == 2] == [
        ("m1", "e1"),
        ("m1", "e3"),
        ("last", "last"),
    ]
    assert sorted(value for each in alone for value in each.values()) == sorted(unmatched)


def test_join_with_a_configuration_topic() -> None:
    app = application()
    configurations = app.global_table(app.topic("device-configurations"))
    sdf = app.dataframe(app.topic("sensor-data"))
    sdf = sdf.join_table(
        configurations,
        how="left",
        on_merge=lambda value, row: {**value, "device_config": row and row["device"]},
        on="device_id",
    )
    sdf.to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    for topic in ("device-configurations", "sensor-data"):
        cluster.create_topic(topic)
    for topic, key, value in (
        ("device-configurations", b"d1", {"device": {"name": "pump"}}),
        ("sensor-data", b"x", {"device_id": "d1"}),
        ("sensor-data", b"x", {"device_id": "d2"}),
    ):
        cluster.produce(topic, json.dumps(value).encode(), key)
    cluster.run(app)
    assert [json.loads(record.value or b"") for _, record in cluster.read("out")] == [
        {"device_id": "d1", "device_config": {"name": "pump"}},
        {"device_id": "d2", "device_config": None},
    ]


# -- several streams ---------------------------------------------------------------------------------------------------


def test_concat_of_topics() -> None:
    def convert_currency(rate: float) -> Callable[[float], float]:
        return lambda amount: amount * rate

    app = application()
    orders_uk = app.dataframe(app.topic("orders-uk"))
    orders_de = app.dataframe(app.topic("orders-de"))
    orders_uk["amount_usd"] = orders_uk["amount"].apply(convert_currency(2))
    orders_de["amount_usd"] = orders_de["amount"].apply(convert_currency(1))
    orders_combined = orders_uk.concat(orders_de)
    averages = orders_combined.tumbling_window(timedelta(hours=1)).agg(avg_amount_usd=Mean("amount_usd")).final()
    found = results(
        app,
        averages,
        orders_uk=[(0, {"amount": 5}), (HOUR, {"amount": 1})],
        orders_de=[(MINUTE, {"amount": 20}), (HOUR + MINUTE, {"amount": 4})],
    )
    assert [each["avg_amount_usd"] for each in found] == [15.0]


def test_concat_of_branches() -> None:
    app = application()
    all_orders = app.dataframe(app.topic("orders"))
    orders_de = all_orders[all_orders["country"] == "DE"]
    orders_uk = all_orders[all_orders["country"] == "UK"]
    all_orders = orders_de.concat(orders_uk)
    found = results(app, all_orders, orders=[(at, {"country": name}) for at, name in enumerate(("DE", "FR", "UK"))])
    assert found == [{"country": "DE"}, {"country": "UK"}]


def add(n: int) -> Callable[[int], int]:
    def add_n(value: int) -> int:
        return value + n

    return add_n


def test_branching() -> None:
    app = application()
    output_topic = app.topic("out")
    sdf_0 = app.dataframe(app.topic("in"))
    sdf_0 = sdf_0.apply(add(10)).apply(add(20))
    sdf_0.apply(add(70)).apply(add(1)).to_topic(output_topic)
    sdf_0.apply(add(102)).to_topic(output_topic)
    assert results(app, sdf_0.apply(add(500)), **{"in": [(0, 0)]}) == [101, 132, 530]


def test_branching_with_expand() -> None:
    app = application()
    sdf = app.dataframe(app.topic("in"))
    sdf = sdf.apply(lambda x: x, expand=True)
    sdf.apply(add(10)).to_topic(app.topic("out"))
    assert results(app, sdf.apply(add(20)), **{"in": [(0, [0, 1])]}) == [10, 20, 11, 21]


def test_multiple_topics() -> None:
    app = application()
    output_topic = app.topic("out")
    sdf_a = app.dataframe(app.topic("input_a"))
    sdf_a = sdf_a.apply(add(1)).to_topic(output_topic)
    sdf_b = app.dataframe(app.topic("input_b"))
    seen: list[int] = []
    found = results(app, sdf_b.update(seen.append), input_a=[(0, 1)], input_b=[(0, 7)])
    assert sorted(found) == [2, 7]
    assert seen == [7]


# -- the table of the docs ---------------------------------------------------------------------------------------------


def test_the_page_lists_these_tests() -> None:
    here = {name for name in globals() if name.startswith("test_")} - {"test_the_page_lists_these_tests"}
    assert listed_under("Joins", "Several streams") == here
