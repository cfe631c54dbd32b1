"""A processor is killed while calls of `apply_async` wait for a real HTTP server. Calls are repeated, outputs are not.

The server delays its answers, so each kill interrupts open calls. The server always refuses some messages. Each of them
must become a dead letter exactly once. With `durable=True`, no call is repeated whose answer was committed.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.processors.engine.changelog.format import META_KEY, decode_value
from tests.kafka.killed import Kill, Scenario

MESSAGES, KEYS, REFUSED = 800, 12, 100
KILLS = 2


class Server(ThreadingHTTPServer):
    """An HTTP server that can hold enough waiting connections (backlog) for all concurrent calls of a worker."""

    request_queue_size = 128


class OtherSystem:
    """An HTTP server that answers each id with three times the id and a serial number, and logs its answers.

    Attributes:
        calls: The number of calls of each id.
        answers: The ids that it did not refuse, by serial number.
    """

    def __init__(self) -> None:
        told = self
        self.calls: Counter[int] = Counter()
        self.answers: dict[int, int] = {}
        self.under_way = 0
        self.open = threading.Event()
        self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path[1:])
                with told.lock:
                    told.calls[number] += 1
                    told.under_way += 1
                told.open.wait(60)
                with told.lock:
                    told.under_way -= 1
                    serial = len(told.answers) + 1
                    if number % REFUSED != 7:
                        told.answers[serial] = number
                try:
                    self.send_response(500 if number % REFUSED == 7 else 200)
                    self.end_headers()
                    self.wfile.write(b"%d %d" % (3 * number, serial))
                except OSError:
                    pass  # the worker that called was killed, so it needs no answer

            def log_message(self, *_: Any) -> None: ...

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def other_system() -> Iterator[OtherSystem]:
    made = OtherSystem()
    yield made
    made.open.set()
    made.server.shutdown()
    made.server.server_close()


class Asked(Scenario):
    head = """
        import asyncio

        PORT = int(os.environ.get("TEST_HTTP_PORT", "0"))


        async def ask(value):
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
            try:
                writer.write(f"GET /{value['id']} HTTP/1.0\\r\\n\\r\\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
            head, _, body = answer.partition(b"\\r\\n\\r\\n")
            if b" 200 " not in head.partition(b"\\r\\n")[0]:
                raise RuntimeError("the other system refused it")
            answer, serial = map(int, body.split())
            return {**value, "answer": answer, "serial": serial}


        def numbered(value, state):
            return {**value, "n": state.increment("n")}
        """
    topology = """
        asked = made.dataframe(made.topic(group + "-in")).apply_async(ask, concurrency=20, timeout=10)
        asked.apply(numbered, stateful=True, store="asked").to_topic(made.topic(group + "-asked"))
        """
    options = 'dead_letter_topic=group + "-dead", '
    other_system: OtherSystem

    def begin(self) -> None:
        super().begin()
        self.killed.environment["TEST_HTTP_PORT"] = str(self.other_system.server.server_address[1])
        self.stream.feed([(b"k%d" % (each % KEYS), json.dumps({"id": each}).encode()) for each in range(MESSAGES)])

    def course(self) -> Iterator[Kill]:
        answers = self.other_system.open
        for round_ in range(1, KILLS + 1):
            yield Kill(lambda: self.other_system.under_way, "a call to be under way", meanwhile=self.answer)
            before = self.before
            yield Kill(
                lambda before=before: self.committed() > before or self.committed() == MESSAGES,
                "a commit",
                meanwhile=lambda last=round_ == KILLS: None if last else answers.clear(),
            )

    def answer(self) -> None:
        """Let the server answer all calls of the killed worker."""
        self.before = self.committed()
        self.other_system.open.set()
        self.wait(lambda: not self.other_system.under_way, "the killed worker's calls to end")

    def truth(self) -> dict[str, Counter[Any]]:
        refused = {each for each in range(MESSAGES) if each % REFUSED == 7}
        return {"asked": Counter(set(range(MESSAGES)) - refused), "dead": Counter(refused)}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda record, value: value["id"])

    def check_ended(self) -> None:
        by_key: dict[bytes, list[dict[str, int]]] = {}
        for record in self.stream.read(self.topic("asked")):
            by_key.setdefault(record.key or b"", []).append(json.loads(record.value or b""))
        assert all(row["answer"] == 3 * row["id"] for found in by_key.values() for row in found)
        for found in by_key.values():
            assert [row["n"] for row in found] == list(range(1, len(found) + 1))
            assert found == sorted(found, key=lambda row: row["id"])
        calls = self.other_system.calls
        assert calls.total() > MESSAGES, "no call was repeated: no kill found one under way"
        assert set(calls) == set(range(MESSAGES))


class Durable(Asked):
    topology = """
        asked = made.dataframe(made.topic(group + "-in")).apply_async(
            ask, concurrency=20, timeout=10, durable=True, store="answers"
        )
        asked.apply(numbered, stateful=True, store="asked").to_topic(made.topic(group + "-asked"))
        """

    def check_ended(self) -> None:
        super().check_ended()
        committed = Counter[int]()
        for record in self.stream.read(self.topic("answers-changelog")):
            if record.key != META_KEY and record.value is not None:
                committed[decode_value(record.value)["answer"]["serial"]] += 1
        answers = self.other_system.answers
        committed_ids = Counter(answers[serial] for serial in committed)
        assert set(committed_ids.values()) == {1}, "a call was repeated although its answer was committed"
        assert committed_ids.keys() == set(answers.values())
        repeated = len(answers) - len(committed_ids)
        unanswered = len(answers.keys() - committed.keys())
        assert repeated <= unanswered <= 2 * KILLS * 20 * self.stream.partitions
        assert self.stored("answers") == {}, "an answer leaves the store with the commit of its message"
        used = [json.loads(record.value or b"")["serial"] for record in self.stream.read(self.topic("asked"))]
        assert set(used) == committed.keys(), "an output comes of an answer that was not committed"


@pytest.mark.thorough
def test_kill_9_repeats_calls_and_never_an_output(
    stream: Any, worker: Callable[..., Any], other_system: OtherSystem
) -> None:
    scenario = Asked(stream, worker)
    scenario.other_system = other_system
    scenario.live()


def test_kill_9_repeats_no_durable_call_whose_answer_was_committed(
    stream: Any, worker: Callable[..., Any], other_system: OtherSystem
) -> None:
    scenario = Durable(stream, worker)
    scenario.other_system = other_system
    scenario.live()
