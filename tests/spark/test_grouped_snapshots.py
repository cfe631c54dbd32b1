"""Snapshots of the store of a typed topic's table, and of the groups of its rows: columns, corrections, and audits."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from holdfast import Application, Collect, Count, InMemoryCluster, Mean, Sum
from holdfast.assets.spark.planning import planned_shape
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.snapshots.plan import Wanted

PLACED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Order(BaseModel):
    status: str
    amount: Decimal
    placed: datetime


@dataclass
class DataOrder:
    status: str
    amount: Decimal
    placed: datetime


class StructOrder(msgspec.Struct):
    status: str
    amount: Decimal
    placed: datetime


def build(kind: Any = Order) -> Application:
    app = Application(consumer_group="shop", auto_offset_reset="earliest", loglevel=None)
    table = app.table(app.topic("orders", value=kind), "orders")
    columns = {
        "n": Count(),
        "cents": Sum(lambda order: int(order.amount * 100)),
        "mean": Mean(lambda order: int(order.amount * 100)),
        "all": Collect("amount", limit=2),
    }
    table.group_by("status").aggregate(columns, name="by-status")
    return app


class Copied:
    """The changelog of one store, copied from the cluster in memory to a real broker."""

    def __init__(self, cluster: InMemoryCluster, changelog: Any, store: str, kind: Any = Order) -> None:
        self._cluster, self._changelog, self._topic = cluster, changelog, f"shop-{store}-changelog"
        (self._spec,) = [spec for spec in build(kind).topology().stores if spec.name == store]
        self._done: Counter[int] = Counter()

    def snapshot(self, wanted: Wanted = Wanted.AUTO) -> Any:
        """Copy the new records, then publish a snapshot with the store's own columns."""
        seen: Counter[int] = Counter()
        for partition, record in self._cluster.read(self._topic):
            seen[partition] += 1
            if seen[partition] > self._done[partition] and record.key != META_KEY:
                self._changelog.write_raw(partition, record.key, record.value)
        self._done = seen
        schema, changelog = self._spec.schema, self._changelog
        shape = planned_shape(changelog.spark, changelog.processor, "s", schema)
        return changelog.snapshot(changelog.plan(schema_version=shape, wanted=wanted), schema=schema)

    def rows(self, *columns: str) -> dict[str, tuple[Any, ...]]:
        table = self._changelog.spark.table(self._changelog.table_name).where("state_key = 'row'")
        return {
            row[0]: tuple(row)[1:]
            for row in table.selectExpr(
                "message_key", *(each if "(" in each else f"`{each}`" for each in columns)
            ).collect()
        }


def send(cluster: InMemoryCluster, kind: Any = Order, **orders: tuple[str, str] | None) -> None:
    for key, order in orders.items():
        body = order and {"status": order[0], "amount": order[1], "placed": PLACED.isoformat()}
        cluster.produce("orders", None if body is None else json.dumps(body).encode(), key.encode())
    cluster.run(build(kind))


def world(kind: Any = Order) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("orders", partitions=2)
    send(cluster, kind, a=("open", "0.10"), b=("open", "0.20"), c=("paid", "9007199254740993.01"))
    return cluster


def test_groups_have_a_column_for_each_aggregate_and_rows_that_moved_are_corrected(changelog: Any) -> None:
    cluster = world()
    groups = Copied(cluster, changelog, "by-status")
    first = groups.snapshot()
    cents = 900_719_925_474_099_301
    assert groups.rows("n", "cents", "mean", "all") == {
        "open": (2, 30.0, 15.0, ["0.10", "0.20"]),
        "paid": (1, float(cents), float(cents), ["9007199254740993.01"]),
    }
    send(cluster, a=("paid", "1.00"), c=None)
    second = groups.snapshot()
    assert (first.manifest.quarantined, second.manifest.quarantined) == (0, 0)
    expected = {"open": (1, 20.0, 20.0, ["0.20"]), "paid": (1, 100.0, 100.0, ["1.00"])}
    assert second.manifest.source == "incremental"
    assert groups.rows("n", "cents", "mean", "all") == expected
    whole = groups.snapshot(Wanted.CHANGELOG)
    assert groups.rows("n", "cents", "mean", "all") == expected
    # The audit of the published version compares each row, and its columns, with the changelog.
    assert whole.manifest.typed_fingerprints == second.manifest.typed_fingerprints
    others = changelog.spark.table(changelog.table_name).where("state_key <> 'row'")
    assert {row["n"] for row in others.collect()} == {None}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Order, DataOrder, StructOrder])
def test_rows_of_a_typed_topic_have_the_columns_of_its_model(changelog: Any, kind: Any) -> None:
    cluster = world(kind)
    orders = Copied(cluster, changelog, "orders", kind)
    assert orders.snapshot().manifest.quarantined == 0
    names = ("status", "amount", "placed")
    table = changelog.spark.table(changelog.table_name)
    assert dict(table.select("amount", "placed").dtypes)["placed"] == "timestamp"
    seen = orders.rows("status", "amount", "unix_seconds(placed)")
    assert {key: Decimal(row[1]) for key, row in seen.items()} == {
        "a": Decimal("0.10"),
        "b": Decimal("0.20"),
        "c": Decimal("9007199254740993.01"),
    }
    assert {row[2] for row in seen.values()} == {int(PLACED.timestamp())}
    send(cluster, kind, a=None, b=("paid", "0.30"))
    assert orders.snapshot().manifest.source == "incremental"
    assert {key: row[0] for key, row in orders.rows(*names).items()} == {"b": "paid", "c": "paid"}
