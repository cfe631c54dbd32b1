"""Measures queries about state beside full load: throughput of the worker, and latency of the queries.

    python -m tests.bench.queries                     1,500,000 messages, 3 rounds
    python -m tests.bench.queries --size 300000 --rounds 1

One worker folds all messages of a topic, which are there before it starts. Meanwhile another process sends queries
about random keys, at a fixed rate over four kept connections. The latency of a query counts from the time at which it
is due, so that a query that waits for its connection is counted, too. Runs without queries take turns with the others.
In some runs, a third process keeps connections open on which a request comes byte by byte, and opens them again when
the worker closes them. At the end, the state must equal the changelogs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from holdfast.infra import http_request
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import load_settings
from holdfast.processors.engine.serving.endpoint_file import Endpoint, read_endpoint
from tests.bench.contenders import Work
from tests.bench.held import check_state
from tests.bench.measured import RunWrong
from tests.bench.ours import application_of
from tests.bench.peers import PROJECT
from tests.bench.results import Figures
from tests.bench.scenario import Place, Scenario, run_alone
from tests.bench.seeding import fill
from tests.bench.stream import PARTITIONS, bodies

#: Queries per second of the runs, in turn, and the number of slow connections beside them.
RUNS = ((0, 0), (200, 0), (1000, 0), (0, 0), (200, 32), (200, 1000))
#: Seconds between two bytes of a slow request.
SLOW_S = 1.0
#: Seconds after the start of the queries at which the slow connections come. A connection that is made behind 1,000
#: others waits for a second, because a worker accepts 1,000 in a second.
SLOW_AFTER_S = 2.0
CONNECTIONS, KEYS = 4, 20_000
LIMIT_S = 600.0

Found = TypeVar("Found")


def worker(work: Work) -> None:
    """Run a worker with its HTTP server, until it is stopped."""
    application, settings = application_of(work), load_settings()
    application.run_on(application.cluster(settings), settings, serve=True)


class Asking(threading.Thread):
    """Sends queries at a fixed rate over one connection, until it is stopped. Keeps the latencies in seconds."""

    def __init__(self, host: str, port: int, token: str, rate: float, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._link = socket.create_connection((host, port), timeout=60)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._token, self._rate, self._number, self._stop_now = token, rate, number, stop
        self.latencies: list[float] = []
        self.refused = 0

    def run(self) -> None:
        began, sent, got = time.perf_counter(), 0, b""
        while not self._stop_now.is_set():
            due = began + sent / self._rate
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            key = (sent * 7919 + self._number * 104_729) % KEYS
            self._link.sendall(
                f"GET /stores/default/keys/user-{key:08d}?partition={key % PARTITIONS} HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {self._token}\r\n\r\n".encode()
            )
            got = self._answer(got)
            self.latencies.append(time.perf_counter() - due)
            sent += 1

    def _answer(self, got: bytes) -> bytes:
        """Read one answer; ``got`` are bytes that came before. Returns the bytes behind the answer."""
        while True:
            head, found, body = got.partition(b"\r\n\r\n")
            if found:
                size = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
                if len(body) >= size:
                    self.refused += not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 404"))
                    return body[size:]
            more = self._link.recv(65_536)
            if not more:
                raise RunWrong("the worker closed a connection of queries")
            got += more


def ask(host: str, port: int, token: str, rate: float) -> None:
    """Send queries until the standard input ends, then print the figures as JSON."""
    stop = threading.Event()
    asking = [Asking(host, port, token, rate / CONNECTIONS, number, stop) for number in range(CONNECTIONS)]
    for each in asking:
        each.start()
    sys.stdin.read()
    stop.set()
    for each in asking:
        each.join()
    latencies = sorted(latency for each in asking for latency in each.latencies)
    told = {"answers": len(latencies), "refused": sum(each.refused for each in asking)}
    if latencies:
        places = {"p50 ms": 0.5, "p99 ms": 0.99}
        told |= {name: 1000 * latencies[int(len(latencies) * place)] for name, place in places.items()}
    print(json.dumps(told))


async def be_slow(host: str, port: int, count: int, after_s: float) -> None:
    """Keep this many connections open, on each of which a request comes byte by byte. Ends with its process."""
    await asyncio.sleep(after_s)

    async def one() -> None:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                for byte in b"GET /stores HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"x" * 1000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(SLOW_S)
            await asyncio.sleep(SLOW_S)

    await asyncio.gather(*(one() for _ in range(count)))


def run_once(work: Work, home: Path, size: int, rate: int, slow: int) -> Figures:
    """Let one worker fold all messages while queries come at this rate, and this many connections are slow.

    Raises:
        RunWrong: The worker ended or did not finish, or a query was refused.
    """
    settings = {"PYTHONPATH": str(PROJECT), "HOLDFAST_HOME": str(home), "HOLDFAST_CHECKPOINTS__ENABLED": "false"}
    command = [sys.executable, "-m", "tests.bench.queries", "worker", *work.arguments()]
    process = subprocess.Popen(
        command, env={**os.environ, **settings}, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    asking: subprocess.Popen[str] | None = None
    slowly: subprocess.Popen[str] | None = None
    try:
        endpoint = _awaited(lambda: _endpoint(home), process)
        first = _awaited(lambda: _processed(endpoint), process)
        place = endpoint.url.removeprefix("http://").split(":")
        began = time.perf_counter()
        if rate:
            asked = [sys.executable, "-m", "tests.bench.queries", "ask", *place, endpoint.state_token, str(rate)]
            asking = subprocess.Popen(asked, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if slow:  # they come while the queries are under way
            connected = [sys.executable, "-m", "tests.bench.queries", "slow", *place, str(slow), str(SLOW_AFTER_S)]
            slowly = subprocess.Popen(connected, cwd=PROJECT, text=True)
        _awaited(lambda: _processed(endpoint) >= size, process)
        seconds = time.perf_counter() - began
        figures: Figures = {"messages /s": (size - first) / seconds}
        if asking is not None:
            said, _ = asking.communicate(timeout=60)
            figures |= json.loads(said)
            figures["answers /s"] = figures.pop("answers") / seconds
        process.send_signal(signal.SIGTERM)
        if process.wait(LIMIT_S):
            raise RunWrong(f"the worker ended with exit code {process.returncode}")
        return figures
    finally:
        for each in (process, asking, slowly):
            if each is not None and each.poll() is None:
                each.kill()
                each.wait(30)


def measure(place: Place) -> Iterator[tuple[str, Figures]]:
    """Run the rates in turn.

    Raises:
        RunWrong: A run failed, or its state differs from its changelog.
    """
    topics, source = Topics(place.broker.bootstrap), "bench-queries-in"
    topics.create(TopicSpec(source, PARTITIONS, 1))
    fill(place.broker.bootstrap, ((source, *row, None) for row in bodies(place.size, KEYS)))
    keys = len({key for _, key, _ in bodies(place.size, KEYS)})
    for number, (rate, slow) in enumerate(RUNS * place.rounds):
        name = f"bench-queries-{number}"
        state_dir = place.folder / name
        work = Work(place.broker.bootstrap, name, source, f"{name}-out", 0, "exactly-once", 1.0, str(state_dir))
        topics.create(TopicSpec(work.output, PARTITIONS, 1))
        figures = run_once(work, place.folder / f"home-{number}", place.size, rate, slow)
        check_state(work, keys)
        shutil.rmtree(state_dir, ignore_errors=True)
        columns = ("messages /s", "answers /s", "p50 ms", "p99 ms", "refused")
        named = (f"{rate:,} queries/s" if rate else "no queries") + (f", {slow:,} slow connections" if slow else "")
        yield named, {name: figures.get(name, 0.0) for name in columns}


def _awaited(look: Callable[[], Found | None], process: subprocess.Popen[bytes]) -> Found:
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        if time.monotonic() > deadline or process.poll() is not None:
            raise RunWrong(f"the worker ended, or {LIMIT_S:g} s were not enough")
        time.sleep(0.1)
    return found


def _endpoint(home: Path) -> Endpoint | None:
    found = [read_endpoint(file) for file in (home / "run").glob("*.json")]
    return next((each for each in found if each is not None), None)


def _processed(endpoint: Endpoint) -> int:
    try:
        answer = http_request.request("GET", f"{endpoint.url}/status", timeout_s=30)
    except http_request.FAILURES:
        return 0
    return int(answer.json()["records"]["processed"])


SCENARIO = Scenario(
    "queries",
    "queries about state beside full load, {size:,} messages, 20,000 keys",
    size=1_500_000,
    small=20_000,
    measure=measure,
)

if __name__ == "__main__":
    match sys.argv[1:2]:
        case ["worker"]:
            worker(Work.parse(sys.argv[2:]))
        case ["ask"]:
            ask(sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5]))
        case ["slow"]:
            asyncio.run(be_slow(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])))
        case _:
            sys.exit(run_alone(SCENARIO, sys.argv[1:]))
