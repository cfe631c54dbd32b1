"""Answers of the routes of state: pages, several partitions, other workers, and rows that can't be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, Sum
from holdfast.infra.kafka.topics.partitioners import CRC32, MURMUR2, PARTITIONERS
from holdfast.processors.engine.queries import entries
from holdfast.processors.engine.serving.requests import FORWARDED
from tests.parts.state_in_memory import Asked, ask_worker, other_worker

MINUTE = 60_000


def build() -> Application:
    app = Application("localhost:1", consumer_group="shop", loglevel=None, auto_offset_reset="earliest")
    app.global_table(app.topic("planes"))
    orders = app.dataframe(app.topic("orders", key_deserializer="str"))

    def add(value: dict[str, Any], state: Any) -> dict[str, Any]:
        for name, each in value.get("set", {}).items():
            state.set(name, each, ttl=value.get("ttl_ms"))
        return value

    orders.apply(add, stateful=True, store="values")
    orders.tumbling_window(MINUTE, grace_ms=100 * MINUTE, name="minutes").agg(total=Sum("amount")).current()
    return app


class World:
    """Messages, and the queries about the state that they make."""

    def __init__(self, home: Path) -> None:
        self.home, self.cluster, self.sent = home, InMemoryCluster(), 0
        self.cluster.create_topic("planes")
        self.cluster.create_topic("orders", partitions=3)
        self.start_ms = int(self.cluster.clock.time() * 1000) // MINUTE * MINUTE - 1000 * MINUTE

    def order(self, key: str, at_ms: int = 0, partition: int = -1, **value: Any) -> None:
        payload = json.dumps({"amount": 1, **value}).encode()
        at_ms += self.start_ms
        self.cluster.produce("orders", payload, key.encode(), partition=partition, timestamp_ms=at_ms)
        self.sent += 1

    def ask(self, ask: Callable[[Asked], None], processed: int | None = None, **serving: Any) -> None:
        count = self.sent if processed is None else processed
        ask_worker(build(), self.cluster, self.home, ask, processed=count, serving=serving)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def all_pages(asked: Asked, target: str) -> Iterator[dict[str, Any]]:
    """The answers of a query and of the queries that its `next` asks for."""
    page = ""
    while True:
        code, answer = asked.json(f"{target}{page}")
        assert code == 200, answer
        yield answer
        if "next" not in answer:
            return
        page = f"&page={answer['next']}"


def test_pages_lead_through_all_entries_of_a_key(world: World) -> None:
    names = [f"n{number:02d}" for number in range(25)]
    world.order("alice", set=dict.fromkeys(names, 1))

    def ask(asked: Asked) -> None:
        for limit in (1, 5, 7, 25, 100):
            pages = list(all_pages(asked, f"/stores/values/keys/alice?limit={limit}"))
            assert [name for page in pages for name in page["state"]] == names
            assert [len(page["state"]) for page in pages[:-1]] == [limit] * (len(pages) - 1)
            assert pages[-1]["state"], "the last page is not empty"
        _, some = asked.json("/stores/values/keys/alice?prefix=n1&start=n12&end=n15")
        assert list(some["state"]) == ["n12", "n13", "n14"]

    world.ask(ask)


def test_a_page_of_another_key_is_refused(world: World) -> None:
    world.order("alice", set={"a": 1, "b": 2})
    world.order("bob", set={"a": 1, "b": 2})

    def ask(asked: Asked) -> None:
        page = asked.json("/stores/values/keys/alice?limit=1")[1]["next"]
        code, body = asked.json(f"/stores/values/keys/bob?page={page}")
        assert (code, "another key" in body["error"]) == (400, True)
        assert list(asked.json(f"/stores/values/keys/alice?page={page}")[1]["state"]) == ["b"]
        for wrong in ("?", "abc", "%20", "9" * 5000):
            assert asked.json(f"/stores/values/keys/alice?page={wrong}")[0] == 400
        for wrong in ("abc", "1", "-1.", "x.", "1.?", f"{'9' * 5000}."):
            code, body = asked.json(f"/stores/values/keys?page={wrong}")
            assert (code, "`page` is" in body["error"]) == (400, True), wrong
        assert asked.json("/stores/values/keys?page=1.&partition=2")[0] == 400
        assert asked.json("/stores/values/keys?state_key=a")[0] == 400

    world.ask(ask)


def test_windows_are_read_in_pages_and_none_is_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRIES_MAX", 10)
    for number in range(40):
        world.order("alice", number * MINUTE)

    def ask(asked: Asked) -> None:
        starts = [world.start_ms + number * MINUTE for number in range(40)]
        seen = [
            each["start"]
            for page in all_pages(asked, "/stores/minutes/windows/alice?limit=7")
            for each in page["windows"]
        ]
        assert seen == starts
        late = f"/stores/minutes/windows/alice?from={starts[35] + 1}&to={starts[38]}"
        pages = list(all_pages(asked, late))
        assert [each["start"] for page in pages for each in page["windows"]] == starts[35:38]
        assert pages[0]["found"], "a first page without windows does not say that the key is absent"

    world.ask(ask)


def test_values_whose_time_is_over_are_not_there(world: World) -> None:
    world.order("alice", set={"short": 1}, ttl_ms=1_000, partition=0)
    world.order("alice", set={"stays": 1}, partition=0)

    def before(asked: Asked) -> None:
        assert asked.json("/stores/values/keys/alice")[1]["state"] == {"short": 1, "stays": 1}

    world.ask(before)
    world.order("bob", 2_000, partition=0)

    def after(asked: Asked) -> None:
        assert asked.json("/stores/values/keys/alice")[1]["state"] == {"stays": 1}
        assert asked.json("/stores/values/keys/alice?state_key=short")[0] == 404
        assert asked.json("/stores/values/keys/alice?state_key=short&raw=true")[0] == 404

    world.ask(after, processed=1)


def far_key(count: int = 3) -> tuple[str, int]:
    """A key, and a partition in which no partitioner puts it."""
    for number in range(1000):
        key = f"key-{number}"
        likely = {PARTITIONERS[name](key.encode(), count) for name in (MURMUR2, CRC32)}
        if likely == {0}:
            return key, 1
    raise AssertionError


def test_a_key_is_found_in_the_partition_of_an_unknown_partitioner(world: World) -> None:
    key, partition = far_key()
    world.order(key, set={"a": 1}, partition=partition)

    def ask(asked: Asked) -> None:
        assert asked.json(f"/stores/values/keys/{key}")[1]["position"]["partition"] == partition
        assert asked.answer(f"/stores/values/keys/{key}?state_key=a&raw=true").body == b"1"
        code, absent = asked.json("/stores/values/keys/nobody?state_key=a&raw=true")
        assert (code, sorted(each["partition"] for each in absent["positions"])) == (404, [0, 1, 2])

    world.ask(ask)


def test_a_worker_that_is_asked_for_another_one_says_where_it_has_looked(world: World) -> None:
    """The first worker then looks into the other partitions, also for a raw value."""
    world.order("alice", set={"a": 1})

    def ask(asked: Asked) -> None:
        for query in ("partition=2", "partition=2&state_key=b&raw=true"):
            code, absent = asked.json(f"/stores/values/keys/nobody?{query}", **{FORWARDED: "holdfast-shop-x-0"})
            assert (code, absent["position"]["partition"]) == (404, 2)

    world.ask(ask)


class Stranger(BaseHTTPRequestHandler):
    """Another program at the address of a worker that has ended."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class OtherToken(Stranger):
    """A worker that has another token of state."""

    def version_string(self) -> str:
        return "holdfast"

    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()


@pytest.mark.slow  # the first HTTP client of a process loads certificates
@pytest.mark.parametrize(
    ("handler", "says"),
    [(Stranger, "no worker of Holdfast"), (OtherToken, "need the same `HOLDFAST_SERVING__STATE_TOKEN`")],
)
def test_what_answers_at_an_owners_address_may_be_no_owner_that_answers(
    world: World, handler: type[Stranger], says: str
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    other_worker(world.cluster, "shop", ["orders"], f"127.0.0.1:{server.server_port}")
    for number in range(3):
        world.order("alice", partition=number)

    def ask(asked: Asked) -> None:
        here = asked.json("/stores")[1]["stores"][0]["here"]
        away = min({0, 1, 2} - set(here))
        code, body = asked.json(f"/stores/values/keys/alice?partition={away}&wait=0")
        assert (code, says in body["error"]) == (503, True), body

    try:
        world.ask(ask, processed=1)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_redirect_leads_only_to_a_worker_that_has_the_key(world: World) -> None:
    """The worker of one of several partitions would say that the key is absent, because it looks into that one only."""
    other_worker(world.cluster, "shop", ["orders"], "127.0.0.1:1")
    for number in range(3):
        world.order("alice", partition=number)

    def ask(asked: Asked) -> None:
        here = set(asked.json("/stores")[1]["stores"][0]["here"])
        away = min({0, 1, 2} - here)
        assert asked.answer("/stores/values/keys/nobody?redirect=true&wait=0").code == 503, "the owner is asked"
        assert asked.answer(f"/stores/values/keys/nobody?redirect=true&partition={away}").code == 307

    world.ask(ask, processed=1)


def test_a_row_that_can_not_be_read_is_no_absent_row(world: World) -> None:
    world.cluster.produce("planes", b"{no JSON", b"N1")
    world.order("alice")

    def ask(asked: Asked) -> None:
        code, body = asked.json("/global-tables/planes/N1?wait=0")
        assert (code, "can't be read" in body["error"]) == (503, True)
        assert asked.json("/global-tables/planes/N2")[0] == 404

    world.ask(ask)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("/stores/minutes/windows/alice?from=6&to=5", "`from` is after `to`."),
        ("/stores/values/keys/alice?start=z&end=a", "`start` is after `end`."),
        ("/stores/values/keys?start=z&end=a", "`start` is after `end`."),
        ("/stores/values/keys/alice?state_key=a&prefix=b", "`state_key` beside `prefix`, `start` or `end`"),
        ("/tables/minutes/alice", "Store minutes is no table: it has windows."),
    ],
)
def test_a_query_that_can_have_no_answer_is_refused_and_not_empty(world: World, target: str, words: str) -> None:
    world.order("alice", set={"a": 1})

    def ask(asked: Asked) -> None:
        code, answer = asked.json(target)
        assert code == 400, answer
        assert words in answer["error"]
        assert answer["action"]

    world.ask(ask)


def test_bytes_that_are_no_text_are_refused(world: World) -> None:
    world.order("alice")

    def ask(asked: Asked) -> None:
        for target in ("/stores/values/keys/%ff", "/stores/values/keys?key=%ff", "/stores/values/keys/a?prefix=%ff"):
            code, body = asked.json(target)
            assert (code, "can't be decoded" in body["error"]) == (400, True)

    world.ask(ask)


def test_a_token_of_a_store_reads_this_store_and_the_list_of_stores(world: World) -> None:
    world.order("alice")
    of_values, token = "v" * 16, "of-all-the-stores"

    def ask(asked: Asked) -> None:
        def codes(given: str) -> list[int]:
            pages = ("/stores", "/stores/values/keys/alice", "/stores/minutes/keys/alice", "/global-tables/planes/N1")
            return [asked.json(page, token=given)[0] for page in pages]

        assert codes(of_values) == [200, 404, 401, 401]
        assert codes(token) == [200, 404, 200, 404]
        assert codes("another-token-of-all") == [401] * 4
        assert asked.answer("/openapi.json", token="").code == 200

    world.ask(ask, state_token=token, store_tokens={"values": of_values})
