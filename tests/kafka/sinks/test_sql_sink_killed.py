"""kill -9 of workers whose sink is a table in Postgres: each row is as if its result had been written once.

Readers of the table see no row go back meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.kafka.conftest import SESSION_MS
from tests.kafka.killed import Kill, Scenario
from tests.kafka.sinks.conftest import sink_url
from tests.mechanics.tiers import variants
from tests.parts.postgres import PostgresServer

KEYS = 40
PER_ROUND = 3_000
#: The keys whose row is deleted at each fifth count.
DELETED = ("k0", "k1", "k2", "k3")


class Counted(Scenario):
    """Counts messages by key, in state. The table has the count of each key."""

    head = """
from holdfast.sinks import SqlSink

DELETED = ("k0", "k1", "k2", "k3")


def count(value, state):
    return state.increment("n")


def row(value, key, timestamp, headers):
    return None if key.decode() in DELETED and value % 5 == 0 else {"n": value}
"""
    topology = """
        stream = made.dataframe(made.topic(group + "-in")).apply(count, stateful=True, store="counts")
        url = os.environ.get("TEST_DATABASE", "postgresql+psycopg://nobody@127.0.0.1:1/none")
        stream.apply(row, metadata=True).sink(SqlSink(url, "counts", create=True))
        """

    def __init__(self, stream: Any, worker: Any, workers: int, server: PostgresServer | None) -> None:
        super().__init__(stream, worker, workers)
        if server is not None:
            self.server, self.database = server, server.new_database()
        self.went_back: list[Any] = []
        self.ended = Event()
        self.reader = Thread(target=self.watch, daemon=True)

    def prepare(self) -> None:
        for one in self.workers:
            one.environment["TEST_DATABASE"] = sink_url(self.server, self.database)
        self.reader.start()

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for turn, loses_disk in enumerate((False, True), start=1):
            self.feed()
            yield Kill(self.more_written(), "rows to be written", loses_disk=loses_disk)
            self.wait(self.has_committed(turn * PER_ROUND), "the messages to be committed")

    def more_written(self) -> Callable[[], bool]:
        """Return a condition: a part of the fed messages has been written, and may not be committed yet."""
        before = sum(self.rows().values())
        return lambda: sum(self.rows().values()) > before

    def feed(self) -> None:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
        for number in range(PER_ROUND):
            producer.produce(self.stream.source, b"1", f"k{number % KEYS}".encode())
        assert producer.flush(60) == 0

    def rows(self) -> dict[str, int]:
        if not self.server.query("SELECT 1 FROM pg_tables WHERE tablename = 'counts'", self.database):
            return {}
        return dict(self.server.query("SELECT key, n FROM counts", self.database))  # type: ignore[arg-type]

    def watch(self) -> None:
        """Read the table without end, and note each count that went back."""
        seen: dict[str, int] = {}
        while not self.ended.wait(0.05):
            for key, n in self.rows().items():
                if key not in DELETED and n < seen.get(key, 0):
                    self.went_back.append((key, seen[key], n))
                seen[key] = n

    def truth(self) -> dict[str, Any]:
        return {}

    def check_ended(self) -> None:
        self.ended.set()
        self.reader.join(30)
        fold: dict[str, int] = {}
        for records in self.partitions():
            for record in records:
                key = (record.key or b"").decode()
                fold[key] = fold.get(key, 0) + 1
        assert self.rows() == {key: n for key, n in fold.items() if not (key in DELETED and n % 5 == 0)}
        assert self.went_back == []


@pytest.mark.parametrize("workers", variants([2, 1]))
def test_kill_9_leaves_each_row_as_if_written_once(
    stream: Any, worker: Callable[..., Any], workers: int, postgres: PostgresServer
) -> None:
    Counted(stream, worker, workers, postgres).live()


class Frozen(Counted):
    """Freezes a worker for longer than its session. Another worker gets its partitions and deletes rows meanwhile."""

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        self.feed()
        self.wait(self.more_written(), "rows to be written")
        process = self.killed.process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        self.feed()
        self.wait(self.has_committed(2 * PER_ROUND), f"the other worker, after {SESSION_MS} ms")
        os.kill(process.pid, signal.SIGCONT)
        yield Kill(lambda: True, "nothing")


@pytest.mark.thorough
def test_a_frozen_worker_that_wakes_up_changes_no_row(
    stream: Any, worker: Callable[..., Any], postgres: PostgresServer
) -> None:
    Frozen(stream, worker, 2, postgres).live()
