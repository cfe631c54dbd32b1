"""kill -9 of workers with a sink. Each result is written to the other system; a repeated write has equal content."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.kafka.killed import Kill, Scenario
from tests.mechanics.tiers import variants

KEYS = 40
PER_ROUND = 3_000


class Sunk(Scenario):
    """Counts messages by key.

    A sink writes each count to a SQLite table with the message's topic, partition and offset.
    """

    head = """
import sqlite3
from holdfast.sinks import BatchingSink


def count(value, state):
    return state.increment("n")


class Rows(BatchingSink):
    def setup(self):
        path = os.environ["TEST_TABLE"]
        self.table = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)

    def write(self, batch):
        rows = [(batch.topic, batch.partition, item.offset, item.key.decode(), item.value) for item in batch]
        self.table.execute("BEGIN IMMEDIATE")
        self.table.executemany("INSERT INTO written VALUES (?, ?, ?, ?, ?)", rows)
        self.table.execute("COMMIT")
"""
    topology = """
        made.dataframe(made.topic(group + "-in")).apply(count, stateful=True, store="counts").sink(Rows())
        """

    @property
    def table(self) -> str:
        return str(self.killed.paths.home / "table.db")

    def prepare(self) -> None:
        with closing(sqlite3.connect(self.table)) as table:
            table.execute("PRAGMA journal_mode=WAL")
            table.execute("CREATE TABLE written (topic TEXT, p INTEGER, at INTEGER, key TEXT, n INTEGER)")
        for one in self.workers:
            one.environment["TEST_TABLE"] = self.table

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for turn, loses_disk in enumerate((False, True, False, False), start=1):
            self.feed()
            more = self.more_rows()
            yield Kill(more, "rows to be written", loses_disk=loses_disk)
            self.wait(self.has_committed(turn * PER_ROUND), "the messages to be committed")

    def more_rows(self) -> Callable[[], bool]:
        """Return a condition: the table has more rows than now.

        When it holds, a part of the input has been written, and this part may not be committed yet.
        """
        before = len(self.rows())
        return lambda: len(self.rows()) > before

    def feed(self) -> None:
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
        for number in range(PER_ROUND):
            producer.produce(self.stream.source, b"1", f"k{number % KEYS}".encode())
        assert producer.flush(60) == 0

    def rows(self) -> list[tuple[str, int, int, str, int]]:
        with closing(sqlite3.connect(self.table, timeout=60)) as table:
            return table.execute("SELECT * FROM written").fetchall()

    def truth(self) -> dict[str, Counter[Any]]:
        return {}

    def check_ended(self) -> None:
        counts: Counter[str] = Counter()
        wanted = set()
        for number, records in enumerate(self.partitions()):
            for record in records:
                key = (record.key or b"").decode()
                counts[key] += 1
                wanted.add((self.stream.source, number, record.offset, key, counts[key]))
        # Compare as a set. A repeated write has equal rows, because the state was undone with the aborted transaction.
        assert set(self.rows()) == wanted


@pytest.mark.parametrize("workers", variants([2, 1], tested=0))
def test_kill_9_loses_no_result_of_a_sink_and_repeats_only_equal_ones(
    stream: Any, worker: Callable[..., Any], workers: int
) -> None:
    Sunk(stream, worker, workers).live()
