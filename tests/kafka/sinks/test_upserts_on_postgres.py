"""The example of upserts on a real Postgres: each row is as if it had been written once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from holdfast import InlineProcess, InMemoryCluster, load_settings
from tests.docs.examples.loaded import example
from tests.kafka.sinks.conftest import sink_url
from tests.parts.postgres import PostgresServer


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


def test_a_kill_before_the_commit_leaves_each_row_as_if_written_once(tmp_path: Path, postgres: PostgresServer) -> None:
    database, cluster = postgres.new_database(), InMemoryCluster()
    cluster.create_topic("orders")
    for customer, amount in (("ann", 3), ("bob", 10), ("ann", 4)):
        order(cluster, customer, amount)
    application = example("upserts").application
    rows = "SELECT customer, orders, amount FROM customer_totals ORDER BY customer"
    connected = cluster.connect(Doomed(cluster.clock))
    with pytest.raises(Killed):
        application(sink_url(postgres, database)).run_on(connected, load_settings(home=tmp_path), timeout=3)
    assert postgres.query(rows, database) == [("ann", 2, 7), ("bob", 1, 10)]
    order(cluster, "bob", 1)
    cluster.run(application(sink_url(postgres, database)))
    assert postgres.query(rows, database) == [("ann", 2, 7), ("bob", 2, 11)]


def test_an_older_offset_never_overwrites_a_newer_one_by_hand(postgres: PostgresServer) -> None:
    database = postgres.new_database()
    engine = create_engine(sink_url(postgres, database))
    with engine.begin() as connection:
        connection.execute(text(example("upserts").TABLE))
        for amount, offset in ((3, 0), (7, 2), (3, 0), (7, 2)):
            example("upserts").upsert(connection, "ann", amount, 0, offset)
    engine.dispose()
    assert postgres.query("SELECT amount, source_offset FROM totals_by_hand", database) == [(7, 2)]
