"""``HttpSink`` against a real HTTP server that stores each idempotency key once."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.sinks.errors import SinkFailed, SinkInvalid
from holdfast.processors.sinks.patience import SinkSystemAway
from holdfast.sinks import HttpSink, Patience, SinkBackpressureError, SinkRowsRefused
from holdfast.testing import PausingSinkContract

QUICK = Patience(0.01, 0.02, 60)


class Receiver:
    """An HTTP server; `answers` has the statuses of the next answers, with their headers, before all others are 201."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.stored: dict[str, Any] = {}
        self.seen: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/results"

    def start(self) -> Receiver:
        told = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers["Idempotency-Key"]
                told.seen.append((self.command, self.path, body, dict(self.headers)))
                status, headers = told.answers.pop(0) if told.answers else (201, {})
                if status < 300:
                    status = 409 if key in told.stored else status
                    told.stored.setdefault(key, body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                said = b"" if status < 300 else b"the server says why"
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_PUT = do_POST

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver().start()
    yield made
    made.stop()


@pytest.mark.slow
class TestHttpSink(PausingSinkContract):
    keeps = "each"

    def setup_method(self) -> None:
        super().setup_method()
        self.receiver = Receiver().start()

    def teardown_method(self) -> None:
        self.receiver.stop()
        super().teardown_method()

    def make_sink(self) -> HttpSink:
        return HttpSink(self.receiver.url, body=lambda item: [item.key, item.value["n"]], retry=QUICK)

    def stored(self) -> Counter[tuple[str, int]]:
        return Counter((key, n) for key, n in map(json.loads, self.receiver.stored.values()))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.receiver.stop()
        # a connection that is kept open would be answered by its thread
        self.receiver.answers += [(503, {})] * 3
        yield
        self.receiver.answers.clear()
        self.receiver.start()


def run(sink: HttpSink, *values: Any, expand: bool = False, **given: Any) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    for number, value in enumerate(values):
        cluster.produce("in", json.dumps(value).encode(), b"k%d" % number, timestamp_ms=1_000 * number)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)
    sdf = app.dataframe(app.topic("in", key_deserializer="str"))
    if expand:
        sdf = sdf.apply(lambda value: value, expand=True)
    sdf.sink(sink)
    cluster.run(app)
    return cluster


def test_a_request_has_body_key_and_headers(receiver: Receiver) -> None:
    run(HttpSink(receiver.url, method="PUT", headers={"Authorization": "Bearer t"}), {"n": 1})
    ((method, path, body, headers),) = receiver.seen
    assert (method, path, json.loads(body)) == ("PUT", "/results", {"n": 1})
    assert headers["Idempotency-Key"].startswith("g-http/in/0/0/")
    assert headers["Authorization"] == "Bearer t"
    assert headers["Content-Type"] == "application/json"


def test_the_results_of_one_message_have_keys_of_their_own(receiver: Receiver) -> None:
    run(HttpSink(receiver.url), [1, 1, 2], [1], expand=True)
    assert sorted(map(json.loads, receiver.stored.values())) == [1, 1, 1, 2]


@pytest.mark.slow
def test_windows_that_close_behind_one_message_have_keys_of_their_own(receiver: Receiver) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    counts = app.dataframe(app.topic("in")).tumbling_window(10).count()
    counts.final("partition").sink(HttpSink(receiver.url))
    for time_ms in (1, 2, 15, 35, 60):
        cluster.produce("in", b"1", b"k", timestamp_ms=time_ms)
        cluster.run(app)
    assert [json.loads(body)["value"] for body in receiver.stored.values()] == [2, 1, 1]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(receiver: Receiver, status: int) -> None:
    sink = HttpSink(receiver.url)
    sink.start()
    sink.assigned("g", [])
    for offset in range(4):
        sink.add({"n": offset}, b"k", 0, None, "in", 0, offset)
    receiver.answers = [(201, {}), (201, {}), (status, {"Retry-After": "7"})]
    with pytest.raises(SinkBackpressureError) as pressed:
        sink.flush()
    assert pressed.value.retry_after == 7
    sink.flush()  # continues behind what the server has
    assert [json.loads(body)["n"] for _, _, body, _ in receiver.seen] == [0, 1, 2, 2, 3]
    sink.close()


def test_a_server_that_is_away_for_long_stops_the_worker(receiver: Receiver) -> None:
    receiver.stop()
    sink, now = HttpSink(receiver.url, retry=Patience(1, 30, 60)), [0.0]
    sink._attempts._steady_s = lambda: now[0]
    sink.start()
    sink.add(1, b"k", 0, None, "in", 0, 0)
    with pytest.raises(SinkBackpressureError):
        sink.flush()
    now[0] = 61.0
    with pytest.raises(SinkSystemAway, match="/results has taken nothing for 61 s: ConnectError"):
        sink.flush()
    sink.close()


def test_a_result_that_the_server_refuses_becomes_a_dead_letter(receiver: Receiver) -> None:
    receiver.answers = [(201, {}), (422, {}), (201, {})]
    sink = HttpSink(receiver.url)
    cluster = run(sink, {"n": 1}, {"n": 2}, {"n": 3}, dead_letter_topic="dead")
    dead = [record for _, record in cluster.read("dead")]
    assert [json.loads(record.value or b"") for record in dead] == [{"n": 2}]
    assert any(b"was refused: status 422: the server says why" in (text or b"") for _, text in dead[0].headers or ())
    assert sorted(json.loads(body)["n"] for body in receiver.stored.values()) == [1, 3]


def test_a_body_that_is_no_json_is_refused_alone(receiver: Receiver) -> None:
    sink = HttpSink(receiver.url)
    sink.start()
    sink.add(object(), b"k", 0, None, "in", 0, 0)
    sink.add(1, b"k", 0, None, "in", 0, 1)
    with pytest.raises(SinkRowsRefused, match="its body can't be made: TypeError"):
        sink.flush()
    sink.close()


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_that_refuses_all_requests_stops_the_worker(receiver: Receiver, status: int) -> None:
    receiver.answers = [(status, {})]
    with pytest.raises(SinkFailed, match=f"POST .*/results was answered with status {status}") as failed:
        run(HttpSink(receiver.url), 1)
    assert "Correct the `url`" in failed.value.action
    run(HttpSink(receiver.url), 1)
    assert len(receiver.stored) == 1


def test_a_url_without_a_scheme_is_refused() -> None:
    with pytest.raises(SinkInvalid, match="expected a URL of http or https"):
        HttpSink("localhost/results")
