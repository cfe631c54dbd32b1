"""``SqlSink`` on a real Postgres: what SQLite does not refuse, and a server that goes away for a while."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, ProcessingFailed
from holdfast.sinks import SqlSink
from holdfast.testing import PausingSinkContract
from tests.kafka.sinks.conftest import sink_url
from tests.mechanics.tiers import variants
from tests.parts.postgres import PostgresServer


class TestSqlSinkOnPostgres(PausingSinkContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.server = postgres
        self.database = postgres.new_database()

    def setup_method(self) -> None:
        super().setup_method()
        if hasattr(self, "server"):
            self.database = self.server.new_database()

    def make_sink(self) -> SqlSink:
        return SqlSink(sink_url(self.server, self.database), "rows", create=True)

    def stored(self) -> Counter[tuple[str, int]]:
        if not self.server.query("SELECT 1 FROM pg_tables WHERE tablename = 'rows'", self.database):
            return Counter()
        return Counter(self.server.query("SELECT key, n FROM rows", self.database))  # type: ignore[arg-type]

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()


def run(server: PostgresServer, database: str, *values: Any, **given: Any) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    for number, value in enumerate(values):
        cluster.produce("in", json.dumps(value).encode(), b"k%d" % number)
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)
    app.dataframe(app.topic("in", key_deserializer="str")).sink(
        SqlSink(sink_url(server, database), "rows", create=True)
    )
    cluster.run(app)
    return cluster


@pytest.mark.parametrize(
    ("column", "value", "seen", "wider"),
    variants(
        [
            ("VARCHAR(5)", "too long", "value too long for type character varying(5)", "TEXT"),
            ("SMALLINT", 40_000, "out of range", "INTEGER"),
            ("INTEGER", 2**40, "out of range", "BIGINT"),
            ("NUMERIC(4, 2)", 100.5, "numeric field overflow", "NUMERIC"),
        ]
    ),
)
def test_a_type_that_is_too_small_is_named_with_the_sql_to_run(
    postgres: PostgresServer, column: str, value: Any, seen: str, wider: str
) -> None:
    database = postgres.new_database()
    postgres.query(f"CREATE TABLE rows (key TEXT PRIMARY KEY, part {column})", database)
    with pytest.raises(ProcessingFailed, match="Row key='k0' of table rows") as failed:
        run(postgres, database, {"part": value})
    assert seen in failed.value.message
    assert f"TYPE {wider}" in failed.value.action
    postgres.query(failed.value.action.split("`")[1], database)
    run(postgres, database, {"part": value})
    ((part,),) = postgres.query("SELECT part FROM rows", database)
    assert part == value


def test_rows_that_break_constraints_become_dead_letters(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    postgres.query("CREATE TABLE owners (name TEXT PRIMARY KEY)", database)
    postgres.query("INSERT INTO owners VALUES ('ann')", database)
    postgres.query(
        "CREATE TABLE rows (key TEXT PRIMARY KEY, owner TEXT REFERENCES owners, n INTEGER NOT NULL CHECK (n > 0))",
        database,
    )
    values = [
        {"owner": "ann", "n": 1},
        {"owner": "bob", "n": 2},
        {"owner": "ann", "n": None},
        {"owner": "ann", "n": -1},
        {"owner": "ann\x00", "n": 4},
        {"owner": "ann", "n": "five"},
        {"owner": "ann", "n": 6},
    ]
    cluster = run(postgres, database, *values, dead_letter_topic="dead")
    assert postgres.query("SELECT n FROM rows ORDER BY n", database) == [(1,), (6,)]
    assert [json.loads(record.value or b"") for _, record in cluster.read("dead")] == values[1:6]


def test_types_of_values_become_columns(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    value = {"n": 2**40, "share": 0.5, "name": "ä", "parts": [1, {"a": None}], "good": True, "none": None}
    run(postgres, database, value)
    found = postgres.query("SELECT n, share, name, parts, good FROM rows", database)
    assert found == [(2**40, 0.5, "ä", [1, {"a": None}], True)]
