"""kill -9 of a processor while calls of `apply_async` wait for a real HTTP server: calls repeat, outputs never do.

The server holds its answers back, so each kill finds calls under way. It refuses some messages for ever: each of them
is a dead letter once.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast import Application

MESSAGES, KEYS, REFUSED = 800, 12, 100
KILLS = 2

DEFINITION = """
import asyncio
import os
from holdfast import Application

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
    return {**value, "answer": int(body)}


def numbered(value, state):
    return {**value, "n": state.increment("n")}


def build(bootstrap, group):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700},
        dead_letter_topic=group + "-dead",
    )
    asked = made.dataframe(made.topic(group + "-in")).apply_async(ask, concurrency=20, timeout=10)
    asked.apply(numbered, stateful=True, store="asked").to_topic(made.topic(group + "-asked"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


class Server(ThreadingHTTPServer):
    """One that lets all calls of a worker connect at once."""

    request_queue_size = 128


class OtherSystem:
    """An HTTP server that answers an id with three times the id, and counts the calls of each."""

    def __init__(self) -> None:
        told = self
        self.calls: Counter[int] = Counter()
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
                try:
                    self.send_response(500 if number % REFUSED == 7 else 200)
                    self.end_headers()
                    self.wfile.write(b"%d" % (3 * number))
                except OSError:
                    pass  # the caller was killed

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


def applied(stream: Any) -> Application:
    namespace: dict[str, Any] = {}
    exec(DEFINITION, namespace)  # the definition that the processes import
    made: Application = namespace["build"](stream.bootstrap, stream.group)
    return made


def test_kill_9_repeats_calls_and_never_an_output(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any], other_system: OtherSystem
) -> None:
    stream.application = lambda: applied(stream)
    stream.provision()
    stream.feed([(b"k%d" % (each % KEYS), json.dumps({"id": each}).encode()) for each in range(MESSAGES)])
    one = worker()
    one.environment["TEST_HTTP_PORT"] = str(other_system.server.server_address[1])
    (one.paths.home / "counting_definition.py").write_text(DEFINITION)

    def committed() -> int:
        return sum(stream.topics.committed_offsets(stream.group).values())

    for _ in range(KILLS):
        other_system.open.clear()
        one.start()
        one.waiting(lambda: other_system.under_way, "a call to be under way")
        one.kill()
        before = committed()
        other_system.open.set()
        waiting(lambda: not other_system.under_way, "the killed worker's calls to end")
        one.start()
        one.waiting(lambda before=before: committed() > before or committed() == MESSAGES, "a commit")
        one.kill()
    one.start()
    refused = {each for each in range(MESSAGES) if each % REFUSED == 7}
    rows = f"{stream.group}-asked"
    one.waiting(lambda: len(stream.read(rows)) >= MESSAGES - len(refused), "all answers")
    one.waiting(lambda: len(stream.read(f"{stream.group}-dead")) >= len(refused), "all dead letters")
    assert one.wait_running().terminate() == 0

    by_key: dict[bytes, list[dict[str, int]]] = {}
    for record in stream.read(rows):
        by_key.setdefault(record.key or b"", []).append(json.loads(record.value or b""))
    answered = [row for found in by_key.values() for row in found]
    assert Counter(row["id"] for row in answered) == dict.fromkeys(set(range(MESSAGES)) - refused, 1)
    assert all(row["answer"] == 3 * row["id"] for row in answered)
    for found in by_key.values():
        assert [row["n"] for row in found] == list(range(1, len(found) + 1))
        assert found == sorted(found, key=lambda row: row["id"])
    dead = [json.loads(record.value or b"")["id"] for record in stream.read(f"{stream.group}-dead")]
    assert sorted(dead) == sorted(refused)
    assert other_system.calls.total() > MESSAGES, "no call was repeated: no kill found one under way"
    assert set(other_system.calls) == set(range(MESSAGES))
