"""Rows of the table are as if they had been written once, also after a kill between the database and Kafka."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from holdfast import InlineProcess, InMemoryCluster, load_settings
from tests.docs.examples.loaded import example

ORDERS = [("ann", 3), ("bob", 10), ("ann", 4)]


class Killed(BaseException):
    """Ends a process."""


class Doomed(InlineProcess):
    """Dies before its first commit in Kafka, after the rows are in the database."""

    def point(self, name: str) -> None:
        if name == "commit:before" or self.frozen:
            self.frozen = True
            raise Killed


def order(cluster: InMemoryCluster, customer: str, amount: int) -> None:
    cluster.produce("orders", json.dumps({"amount": amount}).encode(), customer.encode())


@pytest.mark.slow
def test_a_kill_before_the_commit_leaves_each_row_as_if_written_once(tmp_path: Path) -> None:
    build, file, cluster = example("upserts").application, tmp_path / "totals.db", InMemoryCluster()
    cluster.create_topic("orders")
    for customer, amount in ORDERS:
        order(cluster, customer, amount)
    rows = "SELECT customer, orders, amount, _offset FROM customer_totals ORDER BY customer"
    connected = cluster.connect(Doomed(cluster.clock))
    with pytest.raises(Killed):
        build(f"sqlite:///{file}").run_on(connected, load_settings(home=tmp_path), timeout=3)
    assert sqlite3.connect(file).execute(rows).fetchall() == [("ann", 2, 7, 2), ("bob", 1, 10, 1)]
    order(cluster, "bob", 1)
    cluster.run(build(f"sqlite:///{file}"))  # the first three orders come again
    assert sqlite3.connect(file).execute(rows).fetchall() == [("ann", 2, 7, 2), ("bob", 2, 11, 3)]


def test_an_older_offset_never_overwrites_a_newer_one_by_hand(tmp_path: Path) -> None:
    write = example("upserts").upsert
    engine = create_engine(f"sqlite:///{tmp_path / 'by_hand.db'}")
    with engine.begin() as connection:
        connection.execute(text(example("upserts").TABLE))
        for amount, offset in ((3, 0), (7, 2), (3, 0), (7, 2)):
            write(connection, "ann", amount, 0, offset)
        assert connection.execute(text("SELECT amount, source_offset FROM totals_by_hand")).fetchall() == [(7, 2)]
        write(connection, "ann", 9, 1, 0)  # the key has moved to another partition
        assert connection.execute(text("SELECT amount FROM totals_by_hand")).fetchall() == [(9,)]
    engine.dispose()
