"""``HttpSource`` with a real client: the contract of sources, idempotency keys, limits, and refused requests."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.runtime.idle import SourceFailed
from holdfast.processors.sources.event_server import HttpLimitsInvalid
from holdfast.processors.sources.row_fields import SourceOptionInvalid
from holdfast.sources import HttpLimits, HttpSource, StatefulSource
from holdfast.testing import SourceContract
from tests.parts.event_client import Answered, PatientClient, post

TOKEN = "a-token-of-16-chars"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Fed(HttpSource):
    """A source that waits for requests in real time, as long as a client works. Then it ends."""

    works: Callable[[], bool]
    begins: Callable[[], None] = staticmethod(lambda: None)

    def _listens(self) -> bool:
        super()._listens()
        self.begins()
        return True

    def _await_requests(self) -> bool:
        while self.running and self.works() and not self._server.has_requests:
            time.sleep(0.001)
        return self.running and (self.works() or self._server.has_requests)


@pytest.mark.slow
class TestContract(SourceContract):
    """A client posts until each of its requests is accepted, across the lives of the worker."""

    EVENTS = 7
    kills_max = 25

    @pytest.fixture(autouse=True)
    def port(self) -> Iterator[None]:
        self.number, self.over = free_port(), False
        self.client: PatientClient | None = None
        yield
        self.over = True

    def prepare(self) -> None:
        assert self.client is None or self.client.done
        bodies = [(f"key {number}", json.dumps({"n": number, "k": "a"}).encode()) for number in range(self.EVENTS)]
        self.client = PatientClient(self.number, bodies, lambda: self.over)
        self.client.start()

    def source(self) -> StatefulSource:
        source, client = Fed("events", self.number, key="k"), self.client
        assert client is not None
        source.works = lambda: not client.done
        return source

    def expected(self) -> list[tuple[bytes, bytes]]:
        return [(b"a", b'{"n":%d,"k":"a"}' % number) for number in range(self.EVENTS)]


class Endpoint:
    """Runs a source while a function posts to it, and returns the answers."""

    def __init__(self) -> None:
        self.cluster, self.port = InMemoryCluster(), free_port()

    def build(self, source: HttpSource) -> Application:
        app = Application(
            "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_backend="memory"
        )
        app.add_source(source)
        return app

    def run(self, script: Callable[[], Any], **given: Any) -> Any:
        source, found = Fed("events", self.port, **given), []
        thread = threading.Thread(target=lambda: found.append(script()), daemon=True)
        source.begins, source.works = thread.start, thread.is_alive
        self.cluster.run(self.build(source))
        thread.join(30)
        assert found, "the client failed"
        return found[0]

    def post(self, document: Any, key: str | None = "k", **more: Any) -> Answered:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return post(self.port, body, key, **more)

    def sent(self) -> list[Any]:
        return [json.loads(record.value or b"null") for _, record in self.cluster.read("source__events")]


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


def test_one_event_a_list_and_lines_are_accepted(endpoint: Endpoint) -> None:
    def script() -> list[Answered]:
        return [
            endpoint.post({"n": 1}, "one"),
            endpoint.post([{"n": 2}, {"n": 3}], "list"),
            endpoint.post(b'{"n": 4}\n\n{"n": 5}\n', "lines", content_type="application/x-ndjson; charset=utf-8"),
        ]

    answers = endpoint.run(script, key=lambda event: event["n"])
    assert [each.status for each in answers] == [200] * 3
    assert [each.document for each in answers] == [{"accepted": n, "duplicate": False} for n in (1, 2, 2)]
    assert endpoint.sent() == [{"n": number} for number in range(1, 6)]
    assert [record.key for _, record in endpoint.cluster.read("source__events")] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_key_is_sent_once_and_forgotten_after_its_time(endpoint: Endpoint) -> None:
    def script() -> list[Answered]:
        return [endpoint.post([1, 2], "k"), endpoint.post([1, 2], "k"), endpoint.post([3], "k")]

    hour = timedelta(hours=1)
    first = endpoint.run(script, remember=hour)
    assert [each.status for each in first] == [200, 200, 422]
    assert first[1].document == {"accepted": 2, "duplicate": True}
    assert "was used with another body" in first[2].document["error"]
    endpoint.cluster.advance(3_500)
    again = endpoint.run(lambda: endpoint.post([1, 2], "k"), remember=hour)  # another start: the key is in the state
    assert again.document == {"accepted": 2, "duplicate": True}
    endpoint.cluster.advance(200)
    endpoint.run(lambda: endpoint.post([4], "other"), remember=hour)  # this unit forgets the key
    late = endpoint.run(lambda: endpoint.post([3], "k"), remember=hour)
    assert late.document == {"accepted": 1, "duplicate": False}
    assert endpoint.sent() == [1, 2, 4, 3]
    kept = endpoint.cluster.state(endpoint.build(HttpSource("events", 1)), "source-events")
    assert len([name for key, name in kept if key == b"events"]) == 2


@pytest.mark.parametrize(
    ("document", "more", "status", "says"),
    [
        ({"n": 1}, {"key": None}, 400, "the header Idempotency-Key is missing"),
        ({"n": 1}, {"key": "k" * 256}, 400, "the header Idempotency-Key is missing or invalid"),
        (b"{", {}, 400, "the body is no JSON"),
        (b"{}\n{", {"content_type": "application/x-ndjson"}, 400, "the body is no JSON"),
        ([], {}, 400, "a request has 1 to 3 events"),
        ([1, 2, 3, 4], {}, 413, "a request has 1 to 3 events; this one has 4"),
        ([{"n": 1}, {"m": 1}], {}, 422, "Event 2 has no 'n'; it has m"),
        ({"n": "x" * 1_100_000}, {}, 413, "a record of topic source__events may have"),
        ({"n": "x" * 2_000_000}, {}, 413, "a body has at most 1500000 bytes"),
        ({"n": 1}, {"path": "/other"}, 404, "events are posted to /events"),
        ({"n": 1}, {"method": "GET"}, 405, "needs the method POST"),
        ({"n": 1}, {"method": "PUT"}, 501, "Not Implemented"),
    ],
)
def test_a_request_that_is_refused_sends_nothing(
    endpoint: Endpoint, document: Any, more: dict[str, Any], status: int, says: str
) -> None:
    limits = HttpLimits(events=3, body_bytes=1_500_000)
    answer = endpoint.run(lambda: endpoint.post(document, **more), key="n", limits=limits)
    assert answer.status == status
    assert says in answer.document["error"]
    assert endpoint.sent() == []


def test_a_token_is_needed_where_one_is_set(endpoint: Endpoint) -> None:
    def script() -> list[Answered]:
        return [endpoint.post(1, token=each) for each in (None, "a-token-of-16-char", TOKEN)]

    answers = endpoint.run(script, token=TOKEN)
    assert [each.status for each in answers] == [401, 401, 200]
    assert answers[0].headers["www-authenticate"] == "Bearer"
    assert endpoint.sent() == [1]


def test_a_flood_is_answered_with_retry_after_and_loses_nothing(endpoint: Endpoint) -> None:
    """The source takes no requests while twenty clients post. Five wait, and the others are told to repeat."""
    go, answers = threading.Event(), []
    lock = threading.Lock()

    class Gated(Fed):
        def _await_requests(self) -> bool:
            go.wait(30)
            return super()._await_requests()

    def client(number: int) -> None:
        answer = endpoint.post(number, f"key {number}")
        with lock:
            answers.append(answer)
            refused = sum(each.status == 503 for each in answers)
        if refused == 15:
            go.set()

    def script() -> None:
        clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(20)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()

    source = Gated("events", endpoint.port, limits=HttpLimits(waiting=5))
    thread = threading.Thread(target=script, daemon=True)
    source.begins, source.works = thread.start, thread.is_alive
    endpoint.cluster.run(endpoint.build(source))
    refused = [each for each in answers if each.status == 503]
    assert len(refused) == 15
    assert {each.headers["retry-after"] for each in refused} == {"1"}
    assert "5 requests wait for their commit" in refused[0].document["error"]
    assert len(endpoint.sent()) == 5 == sum(each.status == 200 for each in answers)

    def repeated() -> list[Answered]:  # the clients do what they were told
        return [endpoint.post(number, f"key {number}") for number in range(20)]

    assert {each.status for each in endpoint.run(repeated, limits=HttpLimits(waiting=5))} == {200}
    assert sorted(endpoint.sent()) == list(range(20))


def test_rate_and_number_of_keys_are_limited(endpoint: Endpoint) -> None:
    slow = endpoint.run(lambda: [endpoint.post(n, f"{n}") for n in range(2)], limits=HttpLimits(rate_per_s=0.01))
    assert [each.status for each in slow] == [200, 429]
    assert slow[1].headers["retry-after"] == "1"
    full = endpoint.run(lambda: [endpoint.post(n, f"{n}") for n in range(3)], limits=HttpLimits(keys=2))
    assert [each.status for each in full] == [200, 200, 503]  # the first one is a duplicate
    assert full[2].headers["retry-after"] == "30"
    endpoint.cluster.advance(3_700)
    endpoint.run(lambda: time.sleep(0.1))
    late = endpoint.run(lambda: endpoint.post(2, "2"), limits=HttpLimits(keys=2))
    assert late.status == 503  # keys are forgotten with the next unit
    assert endpoint.run(lambda: endpoint.post(2, "2"), limits=HttpLimits(keys=2)).status == 200
    assert endpoint.sent() == [0, 1, 2]


def test_a_request_that_waits_too_long_is_refused_and_its_repetition_is_a_duplicate(endpoint: Endpoint) -> None:
    told = threading.Event()

    class Slow(Fed):
        def flush(self, timeout: float | None = None) -> None:
            told.wait(30)
            super().flush(timeout)

    def script() -> list[Answered]:
        first = endpoint.post(1)
        told.set()
        return [first, endpoint.post(1)]

    found: list[Any] = []
    source = Slow("events", endpoint.port, limits=HttpLimits(answer_s=0.1))
    thread = threading.Thread(target=lambda: found.extend(script()), daemon=True)
    source.begins, source.works = thread.start, thread.is_alive
    endpoint.cluster.run(endpoint.build(source))
    assert [each.status for each in found] == [503, 200]
    assert found[1].document["duplicate"]
    assert endpoint.sent() == [1]


def test_requests_that_nobody_takes_leave_their_places(endpoint: Endpoint) -> None:
    """While Kafka is away, no request is taken. Each is refused after its time, and another one can wait."""
    free = threading.Event()

    class Gated(Fed):
        def _await_requests(self) -> bool:
            free.wait(30)
            return super()._await_requests()

    def script() -> list[Answered]:
        found = [endpoint.post(number, f"{number}") for number in range(3)]
        free.set()
        return [*found, endpoint.post(2, "2")]

    found: list[Answered] = []
    source = Gated("events", endpoint.port, limits=HttpLimits(waiting=1, answer_s=0.1))
    thread = threading.Thread(target=lambda: found.extend(script()), daemon=True)
    source.begins, source.works = thread.start, thread.is_alive
    endpoint.cluster.run(endpoint.build(source))
    assert [each.status for each in found] == [503, 503, 503, 200]
    assert {each.document["error"] for each in found[:3]} == {
        "the commit takes too long; repeat the request with the same key"
    }
    assert endpoint.sent() == [2]


def test_a_request_that_waits_when_the_source_ends_is_refused_and_sends_nothing(endpoint: Endpoint) -> None:
    class Ends(Fed):
        def _await_requests(self) -> bool:
            while not self._server.has_requests:
                time.sleep(0.001)
            return False

    found: list[Answered] = []
    source = Ends("events", endpoint.port)
    thread = threading.Thread(target=lambda: found.append(endpoint.post(1)), daemon=True)
    source.begins = thread.start
    endpoint.cluster.run(endpoint.build(source))
    thread.join(30)
    assert found[0].status == 503
    assert found[0].headers["retry-after"] == "1"
    assert "this worker does not run the source any more" in found[0].document["error"]
    assert endpoint.sent() == []
    assert endpoint.run(lambda: endpoint.post(1)).document == {"accepted": 1, "duplicate": False}


def test_health_is_that_of_the_worker_that_runs_the_source(endpoint: Endpoint) -> None:
    answer = endpoint.run(lambda: endpoint.post(b"", None, method="GET", path="/health"), token=TOKEN)
    assert (answer.status, answer.document) == (200, {"status": "ok"})
    with pytest.raises(ConnectionRefusedError):
        endpoint.post(1)


def test_a_port_that_is_taken_is_told(endpoint: Endpoint) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", endpoint.port))
        other.listen()
        with pytest.raises(SourceFailed) as failed:
            endpoint.cluster.run(endpoint.build(HttpSource("events", endpoint.port)), quiet_s=100)
        assert failed.value.fields["error"] == "PortTaken"
        assert "end the program that has the port" in failed.value.action
    assert endpoint.run(lambda: endpoint.post(1)).status == 200


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("port", 0),
        ("path", "events"),
        ("path", "/health"),
        ("host", "0.0.0.0"),
        ("token", "short"),
        ("remember", timedelta(0)),
        ("limits", 3),
        ("key", 3),
    ],
)
def test_an_option_that_is_not_allowed(option: str, given: Any) -> None:
    named = "token" if option == "host" else option
    with pytest.raises(SourceOptionInvalid, match=f"`{named}` of source 'events'"):
        HttpSource("events", **{"port": 8100, option: given})


def test_a_limit_that_is_not_allowed() -> None:
    with pytest.raises(HttpLimitsInvalid, match="`waiting` of the limits is 101"):
        HttpLimits(waiting=101)
