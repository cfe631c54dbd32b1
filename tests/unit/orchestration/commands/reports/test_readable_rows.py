"""Rows for people: windows and aggregations become columns, and Holdfast's own records are left out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast import Application, Collect, Count, Mean, Sum
from holdfast.orchestration.commands.reports import query, snapshot
from holdfast.orchestration.commands.reports.readable_rows import built_in, cells, columns_for_people, is_internal
from holdfast.processors.engine.topology import StoreSpec
from holdfast.processors.lifecycle.world.running_owners import Found, Place
from holdfast.processors.testing.cluster import InMemoryCluster

MINUTE = 60_000
AGGREGATES = {"n": Count(), "total": Sum("amount"), "mean": Mean("amount")}


def windowed() -> Application:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    frame = app.dataframe(app.topic("orders"))
    frame.tumbling_window(timedelta(minutes=1), name="minutes").agg(**AGGREGATES).current()
    return app


def store_of(app: Application) -> StoreSpec:
    (store,) = app.topology().stores
    return store


def rows_of(app: Application) -> list[dict[str, Any]]:
    """Every record of the store after three orders in two minutes, as `holdfast query` gets them from the workers."""
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    for at, amount in ((MINUTE, 3), (MINUTE + 1, 4), (2 * MINUTE, 10)):
        cluster.produce("orders", b'{"amount": %d}' % amount, b"alice", timestamp_ms=at)
    cluster.run(app)
    found = cluster.state(app, store_of(app).name)
    return [
        {"key": key.decode(), "state": state, "value": value, "partition": 0, "slot": "0"}
        for (key, state), value in found.items()
    ]


def test_windows_are_columns_and_nothing_else_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    app = windowed()
    rows = rows_of(app)
    found = Found(tuple(rows), False, (Place(0, "0", {"orders": 3}),), "the running workers")
    query._print("shop", store_of(app), found, internals=False)
    text = capsys.readouterr().out
    for word in ("window_start", "window_end", "1970-01-01T00:01:00.000", " 7 ", "3.5", "10.0"):
        assert word in text
    assert "{" not in text
    assert text.count("alice") == 2
    query._print("shop", store_of(app), found, internals=True)
    assert "{" in capsys.readouterr().out
    internal = [row for row in rows if is_internal(store_of(app), row["key"], row["state"])]
    assert internal, "the store has records that are not windows"
    query._print("shop", store_of(app), Found(tuple(internal), False, found.places, "-"), internals=False)
    assert f"Only {len(internal)} internal records match" in capsys.readouterr().out


def test_an_aggregation_is_columns_and_values_of_users_are_as_they_set_them() -> None:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    frame = app.dataframe(app.topic("orders"))
    frame.aggregate(n=Count(), total=Sum("amount"), mean=Mean("amount"))
    typed = built_in(store_of(app))
    assert typed is not None
    (row,) = [row for row in rows_of(app) if not is_internal(store_of(app), row["key"], row["state"])]
    shown = dict(
        zip([each.name for each in typed.columns], cells(typed.columns, row["state"], row["value"]), strict=True)
    )
    assert {name: float(value) for name, value in shown.items()} == {"n": 3, "total": 17, "mean": 17 / 3}
    assert built_in(StoreSpec("customers", ("orders",))) is None


@pytest.mark.parametrize("state", ["__holdfast/timers/late", "__holdfast/newest", "__holdfast/clock"])
def test_timers_and_clocks_are_internal_in_every_store(state: str) -> None:
    assert is_internal(StoreSpec("customers", ("orders",)), "alice", state)
    assert is_internal(None, "\0holdfast", "clock")
    assert not is_internal(StoreSpec("customers", ("orders",)), "alice", "count")


class Order(msgspec.Struct, rename="camel"):
    status: str
    total_cents: int
    note: str | None = None


def test_a_table_of_typed_messages_is_columns_and_what_does_not_fit_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    app.table(app.topic("orders", value=Order), "orders")
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    cluster.produce("orders", b'{"status": "open", "totalCents": 1234}', b"1")
    cluster.run(app)
    rows = [
        {"key": key.decode(), "state": state, "value": value, "partition": 0, "slot": "0"}
        for (key, state), value in cluster.state(app, "orders").items()
    ]
    found = Found(tuple(rows), False, (Place(0, "0", {"orders": 1}),), "the running workers")
    query._print("shop", store_of(app), found, internals=False)
    text = capsys.readouterr().out
    assert [word in text for word in ("total_cents", "note", "open", "1234", "{")] == [True, True, True, True, False]
    other = {"key": "2", "state": "row", "value": [3], "partition": 0, "slot": "0"}
    query._print("shop", store_of(app), Found((*rows, other), False, found.places, "-"), internals=False)
    assert "[3]" in capsys.readouterr().out
    query._print("shop", store_of(app), found, internals=True)
    assert '"totalCents": 1234' in capsys.readouterr().out


FIXED = {"store_partition": 0, "message_key": "alice", "state_key": "count", "json": "2", "offset": 7}


def test_a_table_is_printed_without_its_bookkeeping(capsys: pytest.CaptureFixture[str]) -> None:
    users = StoreSpec("customers", ("orders",))
    assert columns_for_people([FIXED], users) == ["message_key", "state_key", "json"]
    assert columns_for_people([{**FIXED, "amount": 3}], users) == ["message_key", "state_key", "amount"]
    assert columns_for_people([{**FIXED, "amount": None}], users) == ["message_key", "state_key", "amount", "json"]
    window = {**FIXED, "state_key": "w/1/2", "window_start": "-", "n": 1}
    assert columns_for_people([window], store_of(windowed())) == ["message_key", "window_start", "n"]
    assert columns_for_people([{"n": 1}], None) == ["n"]
    document = {
        "rows": [FIXED],
        "keys": 1,
        "age_s": 1.0,
        "table": "t",
        "version": "1",
        "taken_at": "now",
        "offsets": {},
    }
    snapshot._print(document, ["message_key", "state_key", "json"])
    assert "store_partition" not in capsys.readouterr().out
    snapshot._print(document, None)
    assert "store_partition" in capsys.readouterr().out


def test_a_grouped_table_is_columns_and_neither_totals_nor_single_items_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = Application(consumer_group="shop", auto_offset_reset="earliest")
    columns = {"n": Count(), "total": Sum("amount"), "mean": Mean("amount"), "all": Collect("amount", limit=3)}
    app.table(app.topic("orders")).group_by("status").aggregate(columns, name="by-status")
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    for key, amount in ((b"1", b"0.1"), (b"2", b"0.2")):
        cluster.produce("orders", b'{"status": "open", "amount": %s}' % amount, key)
    cluster.run(app)
    (store,) = [each for each in app.topology().stores if each.name == "by-status"]
    stored = cluster.state(app, "by-status").items()
    assert {state for (_, state), _ in stored} == {"row", "aggregate", "items/1", "items/2"}
    rows = [
        {"key": key.decode(), "state": state, "value": value, "partition": 0, "slot": "0"}
        for (key, state), value in stored
    ]
    found = Found(tuple(rows), False, (Place(0, "0", {"orders": 2}),), "the running workers")
    query._print("shop", store, found, internals=False)
    text = capsys.readouterr().out
    assert "{" not in text
    assert text.count("open") == 1
    for word in ("total", "mean", "all", " 2 ", "0.30000000000000004", "0.15000000000000002", "[0.1, 0.2]"):
        assert word in text
    assert columns_for_people([{**FIXED, "state_key": "row", "n": 2}], store) == ["message_key", "n"]
