"""Programs with the calls of Quix Streams' tutorials with a ``Source``, and its callbacks, with data of our own."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

import holdfast.dataframe.windows.aggregations as agg
from holdfast import InMemoryCluster
from holdfast.sources import Source
from tests.unit.processors.engine.dataframe.test_quix_programs import START, application, fed, keys, values


def test_a_source_of_reviews() -> None:
    class Reviews(Source):
        texts = ("Rain again.", "Sun at last.")

        def run(self) -> None:
            for text in self.texts:
                event = self.serialize(key="weather", value=text)
                self.produce(key=event.key, value=event.value)

    cluster, app = InMemoryCluster(), application(processing_guarantee="exactly-once")
    sdf = app.dataframe(source=Reviews(name="reviews"))
    sdf = sdf.apply(lambda text: text.split(), expand=True)
    sdf = sdf.to_topic(app.topic(name="words"))
    cluster.run(app)
    assert values(cluster, "words") == ["Rain", "again.", "Sun", "at", "last."]
    assert values(cluster, "source__reviews") == ["Rain again.", "Sun at last."]


def test_a_source_of_temperatures() -> None:
    class Temperatures(Source):
        def __init__(self, name: str) -> None:
            self.event_count = 0
            super().__init__(name=name)

        def run(self) -> None:
            while self.running and self.event_count < 5:
                event = self.serialize(key=f"m{self.event_count % 2}", value={"C": 80 + 5 * self.event_count})
                self.produce(key=event.key, value=event.value, timestamp=START + self.event_count * 1000)
                self.event_count += 1

    cluster, app = InMemoryCluster(), application()
    sdf = app.dataframe(source=Temperatures(name="temperatures"))
    sdf = sdf.hopping_window(duration_ms=4000, step_ms=2000).agg(value=agg.Mean(column="C")).current()
    sdf = sdf.apply(lambda result: result["value"]).to_topic(app.topic("means"))
    cluster.run(app)
    assert keys(cluster, "source__temperatures") == [b"m0", b"m1", b"m0", b"m1", b"m0"]
    assert set(values(cluster, "means")) == {80.0, 85.0, 90.0, 95.0, 100.0}


def test_a_source_of_purchases() -> None:
    class Purchases(Source):
        def __init__(self, buyers: list[Any]) -> None:
            self._buyers = buyers
            super().__init__(name="purchases")

        def run(self) -> None:
            for key, value in self._buyers:
                if not self.running:
                    return
                event = self.serialize(key=key, value=value)
                self.produce(key=event.key, value=event.value)

    cluster, app = InMemoryCluster(), application()
    sdf = app.dataframe(source=Purchases([("a", {"cost": 120}), ("b", {"cost": 20})]))
    sdf = sdf[sdf["cost"] * 1.1 >= 100.0]
    sdf = sdf.to_topic(app.topic(name="coupons"))
    cluster.run(app)
    assert (keys(cluster, "coupons"), values(cluster, "coupons")) == ([b"a"], [{"cost": 120}])


def test_two_sources_that_are_joined() -> None:
    class Forecasts(Source):
        def run(self) -> None:
            for minute, clouds in ((0, 10), (2, 80)):
                event = self.serialize(key="farm", value={"clouds": clouds})
                self.produce(value=event.value, key=event.key, timestamp=START + minute * 60_000)

    class Panels(Source):
        def run(self) -> None:
            for minute in (1, 3):
                event = self.serialize(key="farm", value={"watts": 100 * minute})
                self.produce(value=event.value, key=event.key, timestamp=START + minute * 60_000)

    cluster, app = InMemoryCluster(), application()
    sdf = app.dataframe(source=Panels(name="panels"))
    sdf = sdf.join_asof(
        right=app.dataframe(source=Forecasts(name="forecasts")), how="inner", grace_ms=timedelta(days=1)
    )
    sdf = sdf.to_topic(app.topic("joined"))
    cluster.run(app)
    assert values(cluster, "joined") == [{"watts": 100, "clouds": 10}, {"watts": 300, "clouds": 80}]


def test_a_source_of_a_websocket(capsys: pytest.CaptureFixture[str]) -> None:
    class Socket:
        def __init__(self, url: str) -> None:
            self.received = iter([{"pair": "A-B", "price": 3}, {"pair": "C-D", "price": 4}, {"type": "heartbeat"}])

        def recv(self) -> str:
            return json.dumps(next(self.received))

    class Quotes(Source):
        def __init__(self, name: str, url: str, pairs: list[str]) -> None:
            super().__init__(name)
            self._url, self._pairs = url, pairs

        def _setup_stream(self) -> Socket:
            return Socket(self._url)

        def run(self) -> None:
            socket = self._setup_stream()
            while self.running:
                record = json.loads(socket.recv())
                if "pair" not in record:
                    break
                msg = self.serialize(key=record["pair"], value=record)
                self.produce(value=msg.value, key=msg.key)

    cluster, app = InMemoryCluster(), application()
    sdf = app.dataframe(source=Quotes(name="quotes", url="wss://quotes", pairs=["A-B"]))
    sdf.print()
    cluster.run(app)
    assert keys(cluster, "source__quotes") == [b"A-B", b"C-D"]
    assert "price" in capsys.readouterr().out


def test_errors_of_consuming() -> None:
    seen: list[Any] = []

    def on_consumer_error(exc: Exception, message: Any, logger: Any) -> bool:
        logger.error("Ignore consumer exception exc=%s message=%s", exc, message)
        seen.append((type(exc).__name__, message.topic(), message.partition(), message.offset(), message.value()))
        return True

    cluster, app = fed("in", 1), application(on_consumer_error=on_consumer_error)
    cluster.produce("in", b"{no", b"k")
    cluster.produce("in", b"3", b"k")
    app.dataframe(app.topic("in")).to_topic(app.topic("out"))
    cluster.run(app)
    assert (seen, values(cluster, "out")) == ([("ValueUnreadable", "in", 0, 1, b"{no")], [1, 3])


def test_errors_of_producing() -> None:
    seen: list[Any] = []

    def on_producer_error(exc: Exception, row: Any, logger: Any) -> bool:
        seen.append((type(exc).__name__, row.offset))
        return True

    cluster, app = fed("in", 1, 2, 3), application(on_producer_error=on_producer_error)
    sdf = app.dataframe(app.topic("in")).apply(lambda value: {1, 2} if value == 2 else value)
    sdf.to_topic(app.topic("out"))
    cluster.run(app)
    assert (seen, values(cluster, "out")) == ([("ValueUnwritable", 1)], [1, 3])


def test_a_call_for_each_processed_message() -> None:
    seen: list[Any] = []

    def on_message_processed(topic: str, partition: int, offset: int) -> None:
        seen.append((topic, partition, offset))
        if len(seen) >= 4:
            app.stop()

    cluster, app = fed("in", *range(10)), application(on_message_processed=on_message_processed)
    app.dataframe(app.topic("in")).to_topic(app.topic("out"))
    cluster.run(app)
    assert seen == [("in", 0, offset) for offset in range(4)]
    assert values(cluster, "out") == [0, 1, 2, 3]
