"""``SqlSink`` on SQLite: rows, deletions, older offsets, and a table or a row that can't be written."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, HoldfastError, InMemoryCluster, ProcessingFailed
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.sinks.errors import SinkFailed, SinkInvalid
from holdfast.processors.sinks import sql, sql_table
from holdfast.processors.sinks.patience import SinkSystemAway
from holdfast.sinks import Patience, SinkBackpressureError, SinkFenced, SinkRowsRefused, SqlSink


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


def url(file: Path) -> str:
    return f"sqlite:///{file}"


def query(file: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as database, database:
        return database.execute(statement).fetchall()


def application(sink: SqlSink, **given: Any) -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **given)
    app.dataframe(app.topic("in", key_deserializer="str")).sink(sink)
    return app


def cluster_with(*messages: tuple[str, Any]) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    for key, value in messages:
        cluster.produce("in", None if value is None else json.dumps(value).encode(), key.encode())
    return cluster


def started(sink: SqlSink, processor: str = "g", number: int = 0) -> SqlSink:
    sink.start()
    sink.assigned(processor, [Partition("in", number)])
    return sink


def add(sink: SqlSink, offset: int, key: Any, value: Any, number: int = 0) -> None:
    sink.add(value, key, 0, None, "in", number, offset)


def written(sink: SqlSink, *results: tuple[int, Any, Any]) -> None:
    for offset, key, value in results:
        add(sink, offset, key, value)
    sink.flush()


def test_each_key_has_a_row_and_none_deletes_it(file: Path) -> None:
    cluster = cluster_with(("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("c", {"n": 4}), ("c", None))
    cluster.run(application(SqlSink(url(file), "counts", create=True)))
    assert query(file, "SELECT * FROM counts ORDER BY key") == [("a", 3, "in", 0, 2), ("b", 2, "in", 0, 1)]


def test_a_deletion_of_a_later_commit_and_a_row_that_comes_back(file: Path) -> None:
    sink = started(SqlSink(url(file), "t", create=True))
    written(sink, (0, b"a", {"n": 1}), (1, b"b", {"n": 1}))
    written(sink, (2, b"a", None))
    assert query(file, "SELECT key FROM t") == [("b",)]
    written(sink, (3, b"a", {"n": 9}))
    assert query(file, "SELECT key, n, _offset FROM t ORDER BY key") == [("a", 9, 3), ("b", 1, 1)]


def test_an_older_offset_never_overwrites_or_deletes_a_newer_one(file: Path) -> None:
    sink = started(SqlSink(url(file), "t", create=True))
    written(sink, (5, b"a", {"n": 5}), (6, b"b", {"n": 6}))
    again = started(SqlSink(url(file), "t", create=True))  # what is repeated after a kill
    written(again, (3, b"a", {"n": 3}), (4, b"b", None))
    assert query(file, "SELECT key, n, _offset FROM t ORDER BY key") == [("a", 5, 5), ("b", 6, 6)]
    written(again, (5, b"a", {"n": 5}), (6, b"b", {"n": 6}), (7, b"b", None))
    assert query(file, "SELECT key, n FROM t") == [("a", 5)]


def test_a_key_that_moved_to_another_partition_is_overwritten(file: Path) -> None:
    sink = started(SqlSink(url(file), "t", create=True))
    written(sink, (50, b"a", {"n": 1}))
    sink.assigned("g", [Partition("in", 1)])
    add(sink, 2, b"a", {"n": 2}, number=1)
    sink.flush()
    assert query(file, "SELECT n, _partition, _offset FROM t") == [(2, 1, 2)]


def test_a_worker_that_lost_its_partition_changes_no_row(file: Path) -> None:
    frozen = started(SqlSink(url(file), "t", create=True))
    written(frozen, (0, b"a", {"n": 1}))
    successor = SqlSink(url(file), "t", create=True)
    successor.owner = "another process"
    started(successor)
    written(successor, (1, b"a", None))
    with pytest.raises(SinkFenced, match=r"Another worker of g writes the results of in\[0\] to table t"):
        written(frozen, (0, b"a", {"n": 1}))
    assert query(file, "SELECT * FROM t") == []
    frozen.on_paused()
    started(frozen, number=1)  # another partition of the same table, and another processor, fence nobody
    started(SqlSink(url(file), "t", create=True), processor="other")
    written(successor, (2, b"b", {"n": 2}))
    assert query(file, "SELECT key FROM t") == [("b",)]


def test_a_fenced_sink_lets_the_worker_join_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, sink = cluster_with(("a", {"n": 1})), SqlSink(url(file), "t", create=True)
    real, seen = sql.SqlSink.write, list[Any]()

    def write(self: SqlSink, batch: Any) -> None:
        if not seen:
            thief = SqlSink(url(file), "t", create=True)
            thief.owner = "another process"
            started(thief)
        seen.append(batch.start_offset)
        real(self, batch)

    monkeypatch.setattr(sql.SqlSink, "write", write)
    cluster.run(application(sink))
    assert seen == [0, 0]
    assert query(file, "SELECT key, n FROM t") == [("a", 1)]


def test_several_key_columns_and_a_function_that_makes_the_row(file: Path) -> None:
    sink = SqlSink(
        url(file),
        "t",
        key=("country", "city"),
        create=True,
        row=lambda item: None if item.value["gone"] else {**item.value, "at": item.timestamp},
    )
    started(sink)
    written(
        sink,
        (0, b"x", {"country": "DE", "city": "Bonn", "gone": False}),
        (1, b"x", {"country": "DE", "city": "Ulm", "gone": False}),
    )
    assert query(file, "SELECT country, city, gone, at FROM t ORDER BY city") == [
        ("DE", "Bonn", 0, 0),
        ("DE", "Ulm", 0, 0),
    ]
    written(sink, (2, {"country": "DE", "city": "Ulm"}, {"gone": True}))
    assert query(file, "SELECT city FROM t") == [("Bonn",)]


def test_a_missing_table_names_the_sql_that_lets_it_run(file: Path) -> None:
    cluster = cluster_with(("a", {"n": 1, "name": "x", "parts": [1], "share": 0.5}))
    with pytest.raises(SinkFailed, match="Table t does not exist") as failed:
        cluster.run(application(SqlSink(url(file), "t")))
    assert "or write `create=True`" in failed.value.action
    for statement in failed.value.action.split("`")[1].split(";"):
        query(file, statement)
    cluster.run(application(SqlSink(url(file), "t")))
    assert query(file, "SELECT key, n, name, parts, share FROM t") == [("a", 1, "x", "[1]", 0.5)]


def test_missing_columns_name_the_sql_and_create_adds_them(file: Path) -> None:
    query(file, "CREATE TABLE t (key TEXT PRIMARY KEY, n INTEGER)")
    cluster = cluster_with(("a", {"n": 1}))
    with pytest.raises(SinkFailed, match="holdfast_sink_owners, which says which worker writes") as failed:
        cluster.run(application(SqlSink(url(file), "t")))
    query(file, failed.value.action.split("`")[1])
    with pytest.raises(SinkFailed, match="Table t has no column _topic, _partition, _offset") as failed:
        cluster.run(application(SqlSink(url(file), "t")))
    for statement in failed.value.action.split("`")[1].split(";"):
        query(file, statement)
    cluster.run(application(SqlSink(url(file), "t")))
    cluster.produce("in", json.dumps({"n": 2, "more": True}).encode(), b"b")
    cluster.run(application(SqlSink(url(file), "t", create=True)))
    assert query(file, "SELECT key, n, more FROM t ORDER BY key") == [("a", 1, None), ("b", 2, 1)]


def test_a_table_without_a_unique_key_names_the_index(file: Path) -> None:
    query(file, "CREATE TABLE t (key TEXT, n INTEGER, _topic TEXT, _partition INTEGER, _offset INTEGER)")
    cluster = cluster_with(("a", {"n": 1}), ("a", {"n": 2}))
    with pytest.raises(SinkFailed, match="has no unique index on the key columns key") as failed:
        cluster.run(application(SqlSink(url(file), "t", create=True)))
    query(file, failed.value.action.split("`")[1])
    cluster.run(application(SqlSink(url(file), "t", create=True)))
    assert query(file, "SELECT key, n FROM t") == [("a", 2)]


@pytest.mark.parametrize("skips", [False, True])
def test_a_row_that_breaks_a_constraint_is_named_and_goes_by_the_policy(file: Path, skips: bool) -> None:
    query(file, "CREATE TABLE t (key TEXT PRIMARY KEY, n INTEGER CHECK (n < 10))")
    cluster = cluster_with(*((f"k{n}", {"n": n}) for n in (1, 2, 30, 4, 50, 6)))
    given: dict[str, Any] = {"dead_letter_topic": "dead"} if skips else {}
    if skips:
        cluster.run(application(SqlSink(url(file), "t", create=True), **given))
        assert query(file, "SELECT n FROM t ORDER BY n") == [(1,), (2,), (4,), (6,)]
        dead = [record for _, record in cluster.read("dead")]
        assert [json.loads(record.value or b"") for record in dead] == [{"n": 30}, {"n": 50}]
        said = dict(dead[0].headers or ())
        assert any(
            b"Row key='k30' of table t, from in[0] offset 2: IntegrityError" in (v or b"") for v in said.values()
        )
        return
    with pytest.raises(ProcessingFailed, match=r"in\[0\] offset 2 raised SinkRowRefused: Row key='k30' of table t"):
        cluster.run(application(SqlSink(url(file), "t", create=True)))
    assert query(file, "SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    query(file, "ALTER TABLE t RENAME TO old")
    query(file, "CREATE TABLE t AS SELECT * FROM old")
    query(file, "CREATE UNIQUE INDEX t_key ON t (key)")
    cluster.run(application(SqlSink(url(file), "t", create=True)))  # the named constraint is gone: nothing is lost
    assert query(file, "SELECT n FROM t ORDER BY n") == [(1,), (2,), (4,), (6,), (30,), (50,)]


def test_a_number_beyond_64_bits_names_what_sqlite_can_store(file: Path) -> None:
    """SQLite has no wider type, and no `ALTER COLUMN`. A text in a column of numbers would be rounded."""
    sink = SqlSink(url(file), "t", create=True)
    cluster = cluster_with(("a", {"n": 2**70}))
    with pytest.raises(ProcessingFailed, match="make n a text in a step before the sink, and its column of type TEXT"):
        cluster.run(application(sink))
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
    texts = app.dataframe(app.topic("in", key_deserializer="str")).apply(lambda value: {"n": str(value["n"])})
    texts.sink(SqlSink(url(file), "t", create=True))
    query(file, "DROP TABLE t")  # the next start makes it with a column of texts
    cluster.run(app)
    assert query(file, "SELECT n FROM t") == [(str(2**70),)]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, {"n": 1}, "its key column 'key' has no value"),
        (b"a", {"n": 2**70}, "OverflowError"),
        (b"a", {"key": [1], "n": 1}, "unhashable"),
    ],
)
def test_a_result_that_is_no_row_is_refused_alone(file: Path, key: Any, value: Any, why: str) -> None:
    sink = started(SqlSink(url(file), "t", create=True))
    written(sink, (0, b"z", {"n": 1}))
    add(sink, 1, key, value)
    add(sink, 2, b"b", {"n": 3})
    with pytest.raises(SinkRowsRefused) as refused:
        sink.flush()
    assert [item.offset for item, _ in refused.value.rows] == [1]
    assert why in refused.value.rows[0][1]
    assert query(file, "SELECT key FROM t") == [("z",)]


def test_a_locked_database_pauses_and_then_stops_the_worker(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_table, "CONNECT_S", 0.01)
    sink = started(SqlSink(url(file), "t", create=True, retry=Patience(0.5, 4, 30)))
    written(sink, (0, b"a", {"n": 1}))
    now = [100.0]
    sink._attempts._steady_s = lambda: now[0]
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        add(sink, 1, b"a", {"n": 2})
        waits = []
        for _ in range(5):
            with pytest.raises(SinkBackpressureError) as pressed:
                sink.flush()
            waits.append(pressed.value.retry_after)
        assert waits == [0.5, 1, 2, 4, 4]
        now[0] += 30
        with pytest.raises(SinkSystemAway, match=r"rows.db has taken nothing for 30 s: .*database is locked"):
            sink.flush()
        other.execute("ROLLBACK")
    sink.flush()
    assert query(file, "SELECT n FROM t") == [(2,)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SqlSink("mysql://h/d", "t"), "expected a database of PostgreSQL or SQLite"),
        (lambda: SqlSink("not a url", "t"), "expected a database of PostgreSQL or SQLite"),
        (lambda: SqlSink("sqlite://", "t", key=()), "expected the names of the key columns"),
        (lambda: SqlSink("sqlite://", "t", key="_offset"), "expected the names of the key columns"),
        (lambda: SqlSink("sqlite://", "t", row="x"), "expected a function of a SinkItem"),  # type: ignore[arg-type]
        (lambda: Patience(0, 1, 2), "expected rising numbers"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, said: str) -> None:
    with pytest.raises(SinkInvalid, match=said) as refused:
        make()
    assert isinstance(refused.value, HoldfastError)
    assert refused.value.action
