"""``SqlSource`` on SQLite: the contract of sources, ties, late rows, nulls, and errors with their actions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.runtime.idle import SourceFailed
from holdfast.processors.sources.row_fields import SourceOptionInvalid
from holdfast.sources import SqlSource, StatefulSource
from holdfast.testing import SourceContract

#: Cursor values that repeat across the ends of batches.
CURSORS = [1, 2, 2, 2, 2, 3, 5, 5, 8]


class Table:
    """A table ``orders`` in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self.url, self._connection = f"sqlite:///{path}", sqlite3.connect(path)
        self.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, at INTEGER, note TEXT)")

    def run(self, statement: str, *values: Any) -> None:
        with self._connection:
            self._connection.execute(statement, values)

    def add(self, *cursors: int | None) -> None:
        for each in cursors:
            self.run("INSERT INTO orders (at, note) VALUES (?, 'ö')", each)


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    return Table(tmp_path / "shop.db")


@pytest.fixture
def cluster() -> InMemoryCluster:
    return InMemoryCluster()


class _Orders(SourceContract):
    options: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True)
    def filled(self, orders: Table) -> None:
        self.orders = orders
        orders.add(*CURSORS)

    def source(self) -> StatefulSource:
        return SqlSource(
            "orders", self.orders.url, cursor="at", tie_break=["id"], key="id", batch=3, poll=None, **self.options
        )

    def expected(self) -> list[tuple[bytes, bytes]]:
        rows: list[dict[str, Any]] = [{"id": id_, "at": at, "note": "ö"} for id_, at in enumerate(CURSORS, 1)]
        return [
            (str(row["id"]).encode(), json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
            for row in rows
        ]


@pytest.mark.slow
class TestOverlappingTable(_Orders):
    options: ClassVar = {"table": "orders", "overlap": 3}


@pytest.mark.thorough
class TestQuery(_Orders):
    options: ClassVar = {"query": "SELECT id, at, note FROM orders WHERE note <> ':x' AND note NOT LIKE '%:y'"}


def build(orders: Table, name: str = "orders", **given: Any) -> Application:
    app = Application(
        "in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, state_backend="memory"
    )
    app.add_source(SqlSource(name, **{"url": orders.url, "table": "orders", "cursor": "at", "poll": None, **given}))
    return app


def ids(cluster: InMemoryCluster, name: str = "orders") -> list[int]:
    return [json.loads(record.value or b"")["id"] for _, record in cluster.read(f"source__{name}")]


def failed(cluster: InMemoryCluster, app: Application, error: str) -> SourceFailed:
    with pytest.raises(SourceFailed) as raised:
        cluster.run(app, quiet_s=200)
    assert raised.value.fields["error"] == error
    return raised.value


def test_rows_are_polled(orders: Table, cluster: InMemoryCluster) -> None:
    orders.add(1, 2)
    cluster.clock.call_later(12, lambda: orders.add(3))
    cluster.run(build(orders, poll=5), quiet_s=20)
    assert ids(cluster) == [1, 2, 3]


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 100])
def test_equal_cursor_values_are_told_or_ordered(orders: Table, cluster: InMemoryCluster, batch: int) -> None:
    orders.add(*CURSORS)
    error = failed(cluster, build(orders, batch=batch), "CursorTies")
    assert "two rows at at = 2" in error.message
    assert "`tie_break`" in error.action
    cluster.run(build(orders, batch=batch, tie_break=["id"]))  # the action; the position before stays valid
    orders.add(8)
    cluster.run(build(orders, batch=batch, tie_break=["id"]))
    assert ids(cluster) == list(range(1, 11))


def test_a_row_at_the_position_is_told(orders: Table, cluster: InMemoryCluster) -> None:
    orders.add(1, 2)
    cluster.run(build(orders))
    orders.add(2)
    error = failed(cluster, build(orders), "CursorTies")
    assert "Give these rows greater, different values of at" in error.action
    orders.run("UPDATE orders SET at = id + 10 WHERE at = 2")
    cluster.run(build(orders))
    assert ids(cluster) == [1, 2, 2, 3]


def test_rows_that_are_committed_late_are_sent_within_the_overlap(orders: Table, cluster: InMemoryCluster) -> None:
    overlap: dict[str, Any] = {"overlap": 10, "tie_break": ["id"], "batch": 2}
    orders.add(100, 105, 110)
    cluster.run(build(orders, **overlap))
    orders.add(101, 110, 99, 111)  # 99 is outside of the overlap
    cluster.run(build(orders, **overlap))
    assert ids(cluster) == [1, 2, 3, 4, 5, 7]
    orders.add(130)
    for _ in range(2):
        cluster.run(build(orders, **overlap))
    assert ids(cluster) == [1, 2, 3, 4, 5, 7, 8]
    state = cluster.state(build(orders, **overlap), "source-orders")
    assert [name for key, name in state if name.startswith("row:")] == ['row:[["int", 130], ["int", 8]]']


def test_a_row_with_a_greater_cursor_value_is_sent_again(orders: Table, cluster: InMemoryCluster) -> None:
    orders.add(1, 2)
    cluster.run(build(orders))
    orders.run("UPDATE orders SET at = 3, note = 'new' WHERE id = 1")
    cluster.run(build(orders))
    assert ids(cluster) == [1, 2, 1]


@pytest.mark.parametrize("skip", [False, True])
def test_rows_without_a_cursor_value(orders: Table, cluster: InMemoryCluster, skip: bool) -> None:
    orders.add(1, None, 3)
    error = failed(cluster, build(orders), "CursorNull")
    assert "rows without a value of at" in error.message
    assert "`nulls='skip'`" in error.action
    assert ids(cluster) == []
    if not skip:
        orders.run("UPDATE orders SET at = 2 WHERE at IS NULL")
    cluster.run(build(orders, nulls="skip" if skip else "error"))
    assert ids(cluster) == ([1, 3] if skip else [1, 2, 3])


@pytest.mark.parametrize("deleted", [True, False])
def test_a_cursor_that_goes_back(orders: Table, cluster: InMemoryCluster, deleted: bool) -> None:
    orders.add(1, 2, 3)
    cluster.run(build(orders))
    orders.run("DELETE FROM orders" + (" WHERE at = 3" if deleted else ""))
    if not deleted:
        cluster.run(build(orders))  # an empty table is no error
        orders.add(1)
    error = failed(cluster, build(orders), "CursorWentBack")
    assert "has read up to at = 3, and all rows are before it" in error.message
    assert "`went_back='wait'`" in error.action
    assert "another name" in error.action
    if deleted:
        cluster.run(build(orders, went_back="wait"))
        orders.add(4)
        cluster.run(build(orders))
        assert [json.loads(record.value or b"")["at"] for _, record in cluster.read("source__orders")] == [1, 2, 3, 4]
    else:
        cluster.run(build(orders, "anew"))
        assert ids(cluster, "anew") == [1]


def test_a_cursor_of_other_columns(orders: Table, cluster: InMemoryCluster) -> None:
    orders.add(1)
    cluster.run(build(orders))
    error = failed(cluster, build(orders, cursor="id"), "CursorUnusable")
    assert "has the columns at; it now reads by id" in error.message
    orders.add(2)
    cluster.run(build(orders))
    assert ids(cluster) == [1, 2]


def test_an_overlap_needs_a_difference(orders: Table, cluster: InMemoryCluster) -> None:
    orders.add(1)
    late = {"overlap": timedelta(seconds=3)}
    error = failed(cluster, build(orders, **late), "CursorUnusable")
    assert "their difference is not defined" in error.message
    cluster.run(build(orders, overlap=3))
    assert ids(cluster) == [1]


@pytest.mark.parametrize(
    ("given", "says", "action"),
    [
        ({"table": "no"}, "there is no table no", "Create the table, or correct `table`"),
        ({"cursor": "no"}, "the rows have no column 'no'; they have id, at, note", "Correct `cursor` or `tie_break`"),
        ({"table": None, "query": "SELEC"}, "no such table: SELEC", "Correct `table`, `query` or `cursor`"),
        ({"url": "nodb://x"}, "Can't load plugin", "install the driver"),
    ],
)
def test_what_the_database_does_not_have(
    orders: Table, cluster: InMemoryCluster, given: dict[str, Any], says: str, action: str
) -> None:
    error = failed(cluster, build(orders, **given), "SqlRefused")
    assert says in error.message
    assert action in error.action


def test_a_database_that_is_away_is_asked_again(orders: Table, cluster: InMemoryCluster, tmp_path: Path) -> None:
    orders.add(1)
    away = {"url": f"sqlite:///{tmp_path}/later/shop.db"}
    error = failed(cluster, build(orders, **away), "SqlAway")
    assert "unable to open database file" in error.message
    assert "Start the database" in error.action

    def back() -> None:
        (tmp_path / "later").mkdir()
        (tmp_path / "shop.db").rename(tmp_path / "later" / "shop.db")

    cluster.clock.call_later(30, back)
    cluster.run(build(orders, **away), quiet_s=60)
    assert ids(cluster) == [1]


def test_secrets_of_the_url_are_not_shown(cluster: InMemoryCluster, orders: Table) -> None:
    url = "postgresql+psycopg://user:very-secret@127.0.0.1:1/shop?connect_timeout=1"
    error = failed(cluster, build(orders, url=url, patience=0), "SqlAway")
    assert "very-secret" not in str(error)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("url", "shop"),
        ("table", ""),
        ("query", "SELECT 1"),
        ("cursor", ""),
        ("tie_break", "id"),
        ("overlap", "1 s"),
        ("key", 3),
        ("poll", 0),
        ("batch", 0),
        ("nulls", "no"),
        ("went_back", "no"),
        ("patience", -1),
    ],
)
def test_an_option_that_is_not_allowed(orders: Table, option: str, given: Any) -> None:
    with pytest.raises(SourceOptionInvalid, match=f"`{'table' if option == 'query' else option}` of source 'orders'"):
        build(orders, **{option: given})


@pytest.fixture(autouse=True)
def closed(orders: Table) -> Iterator[None]:
    yield
    orders._connection.close()
