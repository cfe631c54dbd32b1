"""kill -9 of a worker with a ``SqlSource`` on a real broker and a real Postgres. Each row is sent once.

Rows are inserted all the time, and some of them become visible behind rows with greater cursor values. At the end,
Postgres itself is killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.kafka.killed import Kill, Scenario
from tests.mechanics.tiers import variants
from tests.parts.postgres import PASSWORD, USER, PostgresServer

FIRST, MORE = 6_000, 2_000
#: Kills by the number of workers. Each second one loses its disk.
KILLS = {1: 2, 2: 4}
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer().start()
    yield server
    server.remove()


class Rows(Scenario):
    postgres: PostgresServer
    head = """
from datetime import timedelta

from sqlalchemy import URL
from holdfast.sources import SqlSource


def keep(value, state):
    return [value["id"], state.increment("n")]
"""

    @property
    def topology(self) -> str:  # type: ignore[override]
        return f"""
        url = URL.create("postgresql+psycopg", {USER!r}, {PASSWORD!r}, "127.0.0.1", {self.postgres.port}, {self.base!r})
        source = SqlSource(
            "rows", url.render_as_string(hide_password=False), table="public.orders", cursor="at", tie_break=["id"],
            overlap=timedelta(milliseconds=500), key=lambda row: row["id"] % 40, poll=0.1, batch=300,
        )
        sdf = made.dataframe(made.topic(group + "-in", key_serializer=lambda key: str(key).encode()), source=source)
        sdf.apply(keep, stateful=True, store="kept").to_topic(made.topic(group + "-out"))
        """

    def prepare(self) -> None:
        self.base, self.written = self.postgres.new_database(), 0
        columns = "id BIGINT PRIMARY KEY, at TIMESTAMPTZ NOT NULL, amount NUMERIC(20, 2) NOT NULL"
        self.postgres.query(f"CREATE TABLE orders ({columns}); CREATE INDEX ON orders (at, id)", self.base)
        self.insert(FIRST)

    def insert(self, number: int) -> None:
        """Adds rows, ten for each millisecond."""
        self.postgres.query(self.insertion(number), self.base)

    def insertion(self, number: int) -> str:
        first, self.written = self.written, self.written + number
        at = "timestamptz '2024-01-01 00:00:00+00' + n / 10 * interval '1 ms'"
        numbers = f"generate_series({first}, {self.written - 1}) AS n"
        return f"INSERT INTO orders SELECT n, {at}, n / 100.0 FROM {numbers}"

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        for kill in range(KILLS[len(self.workers)]):
            self.insert(MORE)
            yield Kill(self.has_more_results(500), "rows of the table", loses_disk=kill % 2 == 1)
            self.insert_late(100)
        self.restart_the_database()

    def restart_the_database(self) -> None:
        """The worker waits while the database is away, and sends what it then has."""
        self.killed.wait_running()
        self.postgres.stop()
        self.wait(lambda: any("a source waits" in each.log.read_text() for each in self.workers), "the source to wait")
        self.postgres.start()
        self.insert(MORE)

    def insert_late(self, number: int) -> None:
        """Adds rows that become visible after the source has sent rows with greater cursor values."""
        with self.postgres.connection(self.base) as late, late.transaction():
            late.execute(self.insertion(number))
            self.insert(number)
            newest = self.written - 1
            self.killed.waiting(lambda: self.sent("in")[newest], "the newest row")

    def truth(self) -> dict[str, Counter[Any]]:
        numbers = Counter(range(self.written))
        return {"in": numbers, "out": numbers}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda record, value: value["id"] if output == "in" else value[0])

    def check_ended(self) -> None:
        counts = {key: value for (key, name), value in self.stored("kept").items() if name == "n"}
        assert sum(counts.values()) == self.written
        exact = self.documents("in", lambda record, value: (value["id"], value["at"], value["amount"]))
        for number, at, amount in exact:
            assert datetime.fromisoformat(at) == BEGIN + timedelta(milliseconds=number // 10)
            assert amount == f"{number // 100}.{number % 100:02}"


@pytest.mark.parametrize("workers", variants([1, 2], tested=0))
def test_kill_9_neither_loses_nor_doubles_a_row_of_a_table(
    stream: Any, worker: Callable[..., Any], workers: int, postgres: PostgresServer
) -> None:
    scenario = Rows(stream, worker, workers)
    scenario.postgres = postgres
    scenario.live()
