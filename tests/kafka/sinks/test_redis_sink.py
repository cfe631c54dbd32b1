"""``RedisSink`` on a real Redis: the newest result of each key, a server that is away or full, and kill -9."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.sinks.errors import SinkFailed, SinkInvalid
from holdfast.sinks import Patience, RedisSink, SinkBackpressureError
from holdfast.testing import PausingSinkContract
from tests.kafka.sinks.test_sql_sink_killed import Counted
from tests.parts.redis_server import RedisServer


class TestRedisSink(PausingSinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.server = redis_server
        self.server.client().flushall()

    def setup_method(self) -> None:
        super().setup_method()
        if hasattr(self, "server"):
            self.server.client().flushall()

    def make_sink(self) -> RedisSink:
        return RedisSink(self.server.url, prefix="row:")

    def stored(self) -> Counter[tuple[str, int]]:
        client = self.server.client()
        return Counter((key.removeprefix("row:"), json.loads(client.get(key))["n"]) for key in client.keys("row:*"))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.stop()
        yield
        self.server.start()


def written(sink: RedisSink, *results: tuple[int, Any, Any], number: int = 0) -> None:
    for offset, key, value in results:
        sink.add(value, key, 0, None, "in", number, offset)
    sink.flush()


@pytest.fixture
def client(redis_server: RedisServer) -> Any:
    made = redis_server.client()
    made.config_set("maxmemory", "0")
    made.flushall()
    return made


def test_a_repeated_or_older_result_changes_nothing_and_brings_no_key_back(
    redis_server: RedisServer, client: Any
) -> None:
    sink = RedisSink(redis_server.url)
    written(sink, (1, b"a", {"n": 1}), (2, b"b", "text"), (3, b"a", {"n": 3}), (4, b"b", None))
    assert (client.get("a"), client.get("b")) == ('{"n":3}', None)
    again = RedisSink(redis_server.url)
    written(again, (1, b"a", {"n": 1}), (2, b"b", "text"))
    assert (client.get("a"), client.get("b")) == ('{"n":3}', None)
    written(again, (3, b"a", {"n": 3}), (4, b"b", None), (5, b"b", b"back"))
    assert (client.get("a"), client.get("b")) == ('{"n":3}', "back")
    written(again, (0, b"a", "moved"), number=1)
    assert client.get("a") == "moved"


def test_serializers_and_the_end_of_keys(redis_server: RedisServer, client: Any) -> None:
    sink = RedisSink(redis_server.url, key_serializer=lambda key: f"user:{key}", value_serializer=str, ttl_s=60)
    written(sink, (1, 7, 1.5))
    assert client.get("user:7") == "1.5"
    assert 0 < client.ttl("user:7") <= 60


def test_a_result_without_a_key_becomes_a_dead_letter(redis_server: RedisServer, client: Any) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    for key in (b"a", None, b"c"):
        cluster.produce("in", b"1", key)
    given: dict[str, Any] = {"consumer_group": "g", "auto_offset_reset": "earliest", "loglevel": None}
    app = Application("in-memory", dead_letter_topic="dead", **given)
    app.dataframe(app.topic("in")).sink(RedisSink(redis_server.url))
    cluster.run(app)
    assert (client.get("a"), client.get("c")) == ("1", "1")
    assert len(cluster.read("dead")) == 1


def test_a_full_server_pauses(redis_server: RedisServer, client: Any) -> None:
    sink = RedisSink(redis_server.url, retry=Patience(1, 2, 60))
    client.config_set("maxmemory", "1")
    with pytest.raises(SinkBackpressureError):
        written(sink, (1, b"a", "x"))
    client.config_set("maxmemory", "0")
    sink.flush()
    assert client.get("a") == "x"


def test_a_key_of_another_type_and_a_wrong_password_stop_the_worker(redis_server: RedisServer, client: Any) -> None:
    client.set("holdfast:sink:redis", "no hash")
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    cluster.produce("in", b"1", b"a")

    def run(url: str) -> None:
        app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
        app.dataframe(app.topic("in")).sink(RedisSink(url))
        cluster.run(app)

    with pytest.raises(SinkFailed, match="WRONGTYPE") as failed:
        run(redis_server.url)
    assert "holdfast:sink:redis" in failed.value.action
    with pytest.raises(SinkFailed, match="RedisUnusable: Redis refused the results"):
        run(redis_server.url.replace("redis://", "redis://ann:wrong@"))
    client.delete("holdfast:sink:redis")
    run(redis_server.url)
    assert client.get("a") == "1"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(SinkInvalid, match="expected whole seconds"):
        RedisSink("redis://127.0.0.1", ttl_s=-1)
    with pytest.raises(SinkInvalid, match="can't be used"):
        RedisSink("http://127.0.0.1")


class CountedInRedis(Counted):
    """The same counts and deletions, in Redis."""

    head = Counted.head.replace("SqlSink", "RedisSink")
    topology = """
        stream = made.dataframe(made.topic(group + "-in")).apply(count, stateful=True, store="counts")
        url = os.environ.get("TEST_REDIS", "redis://127.0.0.1:1/0")
        stream.apply(row, metadata=True).sink(RedisSink(url, prefix="count:"))
        """

    def __init__(self, stream: Any, worker: Any, server: RedisServer) -> None:
        super().__init__(stream, worker, 1, None)
        self.redis = server

    def prepare(self) -> None:
        for one in self.workers:
            one.environment["TEST_REDIS"] = self.redis.url
        self.redis.client().flushall()
        self.reader.start()

    def rows(self) -> dict[str, int]:
        client = self.redis.client()
        keys = client.keys("count:*")
        found = zip(keys, client.mget(keys) if keys else [], strict=True)
        return {key.removeprefix("count:"): json.loads(value)["n"] for key, value in found if value is not None}


@pytest.mark.thorough
def test_kill_9_leaves_each_key_in_redis_as_if_written_once(
    stream: Any, worker: Callable[..., Any], redis_server: RedisServer
) -> None:
    CountedInRedis(stream, worker, redis_server).live()
