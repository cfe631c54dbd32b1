"""Tables derived from tables: filter, map, groups with retraction, refused declarations, combinations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Application,
    Collect,
    Count,
    InMemoryCluster,
    Mean,
    ProcessingFailed,
    Sum,
    VirtualClock,
)
from holdfast.dataframe.windows import Reduce
from holdfast.processors.engine.runtime import purge

BEGIN = 1_690_000_000_000
GROUPS = "orders-table-by-status-aggregate"


def application(**options: Any) -> Application:
    return Application("in-memory", consumer_group="shop", auto_offset_reset="earliest", loglevel=None, **options)


class World:
    """A cluster with the topic of a table. Each row gets a later time than the row before."""

    def __init__(self, partitions: int = 1, config: dict[str, str] | None = None) -> None:
        self.cluster, self.at = InMemoryCluster(clock=VirtualClock(BEGIN / 1_000 + 60)), BEGIN
        self.cluster.create_topic("orders", partitions=partitions, config=config or {})

    def __call__(self, key: bytes, row: Any, topic: str = "orders", at: int | None = None) -> None:
        self.at += 1
        raw = None if row is None else json.dumps(row).encode()
        self.cluster.produce(topic, raw, key, timestamp_ms=self.at if at is None else at)

    def changes(self, topic: str = "out") -> list[tuple[bytes | None, Any]]:
        return [(record.key, json.loads(record.value or b"null")) for _, record in self.cluster.read(topic)]

    def rows(self, app: Application, store: str = GROUPS) -> dict[bytes, Any]:
        return {key: row for (key, name), row in self.cluster.state(app, store).items() if name == "row"}


def counted(app: Application, columns: Any = None, **options: Any) -> Application:
    table = app.table(app.topic("orders"), **options)
    made = table.group_by("status").aggregate(columns or {"n": Count(), "total": Sum("v")})
    made.to_stream().to_topic(app.topic("out"))
    return app


def order(status: Any, v: Any) -> dict[str, Any]:
    return {"status": status, "v": v}


# -- groups ------------------------------------------------------------------------------------------------------------


def test_each_change_of_a_row_takes_the_former_one_out_of_its_group() -> None:
    world = World(partitions=2)
    steps: list[tuple[bytes, Any, dict[bytes, Any]]] = [
        (b"1", order("open", 2), {b"open": {"n": 1, "total": 2}}),
        (b"2", order("open", 5), {b"open": {"n": 2, "total": 7}}),
        (b"1", order("open", 3), {b"open": {"n": 2, "total": 8}}),
        (b"1", order("paid", 3), {b"open": {"n": 1, "total": 5}, b"paid": {"n": 1, "total": 3}}),
        (b"2", None, {b"paid": {"n": 1, "total": 3}}),
        (b"1", order(None, 3), {}),
        (b"1", order("", 1), {b"": {"n": 1, "total": 1}}),
        (b"1", None, {}),
        (b"1", None, {}),
    ]
    for at, (key, row, expected) in enumerate(steps):
        world(key, row)
        if at in (1, 3, 4, 6, 8):  # some commits contain several changes
            world.cluster.run(counted(application()))
            assert world.rows(counted(application())) == expected
    assert world.cluster.state(counted(application()), GROUPS) == {}
    assert world.cluster.state(counted(application()), f"{GROUPS}-rows") == {}


def test_a_change_that_changes_no_group_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # switch off the purge, which could delete processed records before the test reads them
    monkeypatch.setattr(purge, "PURGE_EVERY_S", float("inf"))
    world = World()
    for row in [order("open", 1), order("open", 1), {**order("open", 1), "note": "x"}, None, None]:
        world(b"1", row)
    world.cluster.run(counted(application()))
    assert world.changes() == [(b"open", {"n": 1, "total": 1}), (b"open", None)]
    sent = world.cluster.read("shop-orders-table-by-status-aggregate-repartition")
    assert len([record for _, record in sent if record.key is not None]) == 2


def test_a_row_that_moves_within_a_commit_is_in_one_transaction_on_both_sides() -> None:
    world = World(partitions=1)
    world(b"1", order("open", 1))
    world.cluster.run(counted(application()))
    world(b"1", order("paid", 1))
    world(b"1", order("sent", 1))
    world.cluster.run(counted(application()))
    assert world.changes()[1:] == [
        (b"open", None),
        (b"paid", {"n": 1, "total": 1}),
        (b"paid", None),
        (b"sent", {"n": 1, "total": 1}),
    ]


def test_a_change_within_a_group_is_one_change_of_its_row() -> None:
    world = World()
    world(b"1", order("open", 1))
    world(b"1", order("open", 4))
    world.cluster.run(counted(application()))
    assert world.changes() == [(b"open", {"n": 1, "total": 1}), (b"open", {"n": 1, "total": 4})]


def test_a_change_has_the_time_of_the_message_that_made_it() -> None:
    world = World()
    world(b"1", order("open", 1), at=BEGIN + 50)
    world(b"1", order("paid", 1), at=BEGIN + 20)
    world.cluster.run(counted(application()))
    assert sorted((r.key, r.timestamp_ms) for _, r in world.cluster.read("out")) == [
        (b"open", BEGIN + 20),
        (b"open", BEGIN + 50),
        (b"paid", BEGIN + 20),
    ]


@pytest.mark.parametrize(
    ("status", "group"), [(7, b"7"), (True, b"true"), ("ö/\x00", "ö/\x00".encode()), ("\xff", "\xff".encode())]
)
def test_groups_are_texts_and_whole_numbers(status: Any, group: bytes) -> None:
    world = World()
    world(b"\xff/1", order(status, 1))
    world.cluster.run(counted(application(), {"all": Collect("v", limit=3)}))
    assert world.changes() == [(group, {"all": [1]})]


def test_a_mean_and_the_collected_values_of_a_group() -> None:
    world, columns = World(), {"m": Mean("v"), "all": Collect("v", limit=2), "notes": Collect("note", limit=9)}
    for key, v in [(b"c", 0.1), (b"a", 0.2), (b"b", 0.2), (b"d", 0.7)]:
        world(key, {**order("open", v), "note": v > 0.5})
    world.cluster.run(counted(application(), columns))
    assert world.rows(counted(application(), columns)) == {
        b"open": {"m": 0.3, "all": [0.2, 0.2], "notes": [False, False, False, True]}
    }
    world(b"a", None)
    world(b"d", {**order("paid", 1), "note": None})
    world.cluster.run(counted(application(), columns))
    assert world.rows(counted(application(), columns)) == {
        b"open": {"m": 0.15000000000000002, "all": [0.2, 0.1], "notes": [False, False]},
        b"paid": {"m": 1.0, "all": [1], "notes": [None]},
    }


def test_functions_read_keys_and_values_and_reduce_adds_and_takes_out() -> None:
    def build() -> Application:
        app = application()
        by = app.table(app.topic("orders")).group_by(lambda row: row["status"][:1], name="first")
        names = Reduce(
            reducer=lambda held, row: sorted([*held, row["v"]]),
            initializer=lambda row: [row["v"]],
            subtractor=lambda held, row: [each for each in held if each != row["v"]],
        )
        by.aggregate(names=names, double=Sum(lambda row: 2 * row["v"]), name="by-first")
        return app

    world = World()
    for key, row in [(b"1", order("open", 1)), (b"2", order("over", 2)), (b"3", order("paid", 3)), (b"1", None)]:
        world(key, row)
    world.cluster.run(build())
    assert world.rows(build(), "by-first") == {
        b"o": {"names": [2], "double": 4},
        b"p": {"names": [3], "double": 6},
    }


def test_what_was_added_is_taken_out_also_after_a_function_changed() -> None:
    def build(of: Any) -> Application:
        return counted(application(), {"total": Sum(of)})

    world = World()
    world(b"1", order("open", 1))
    world(b"2", order("open", 1))
    world.cluster.run(build(lambda row: row["v"] * 10))
    world(b"1", None)
    world.cluster.run(build(lambda row: row["v"]))
    assert world.rows(build("v")) == {b"open": {"total": 10}}


def test_a_table_that_is_restored_from_its_topic_is_grouped() -> None:
    world = World(config={"cleanup.policy": "compact"})
    world(b"1", order("open", 1))
    world.cluster.run(counted(application(), changelog="source"))
    world(b"1", order("paid", 2))
    world.cluster.run(counted(application(), changelog="source"))
    assert world.rows(counted(application(), changelog="source")) == {b"paid": {"n": 1, "total": 2}}


def test_a_table_with_a_history_is_grouped_by_its_newest_rows() -> None:
    world, options = World(), {"history_retention": timedelta(days=1)}
    world(b"1", order("open", 1), at=BEGIN + 10)
    world(b"1", order("paid", 2), at=BEGIN)  # an older row changes nothing
    world.cluster.run(counted(application(), **options))
    assert world.rows(counted(application(), **options)) == {b"open": {"n": 1, "total": 1}}


def test_a_rewind_of_all_state_has_the_same_groups() -> None:
    world = World()
    for number in range(40):
        row = None if number % 7 == 0 else order("open" if number % 3 else "paid", number / 10)
        world(b"%d" % (number % 5), row)
    world.cluster.run(counted(application()))
    before = world.rows(counted(application()))
    world.cluster.clear_state(counted(application()), rewind="earliest")
    assert world.rows(counted(application())) == {}
    world.cluster.run(counted(application()))
    assert world.rows(counted(application())) == before != {}


# -- filter, map -------------------------------------------------------------------------------------------------------


def changed_app(**options: Any) -> Application:
    app = application()
    table = app.table(app.topic("orders"), **options)
    large = table.filter(lambda row: row["v"] > 2)
    large.to_stream().to_topic(app.topic("large"))
    large.map(lambda row: row["status"]).to_stream().to_topic(app.topic("names"))
    return app


def test_a_row_that_does_not_match_any_longer_is_deleted_and_each_change_is_sent_once() -> None:
    world, open_, paid = World(), order("open", 3), order("paid", 5)
    for key, row in [
        (b"1", order("open", 1)),
        (b"1", open_),
        (b"1", open_),
        (b"1", paid),
        (b"1", order("paid", 7)),
        (b"1", order("paid", 2)),
        (b"1", order("paid", 1)),
        (b"1", None),
        (b"2", paid),
        (b"2", None),
        (b"3", None),
    ]:
        world(key, row)
    world.cluster.run(changed_app())
    assert [row for key, row in world.changes("large") if key == b"1"] == [open_, paid, order("paid", 7), None]
    assert [row for key, row in world.changes("names") if key == b"1"] == ["open", "paid", None]
    assert [row for key, row in world.changes("names") if key == b"2"] == ["paid", None]
    assert {key for key, _ in world.changes("large")} == {b"1", b"2"}
    assert world.cluster.state(changed_app(), "orders-table-filter-map") == {}


def test_a_change_of_a_type_is_a_change() -> None:
    world, app = World(), application()
    app.table(app.topic("orders")).map(lambda row: row["v"], name="values").to_stream().to_topic(app.topic("out"))
    for v in [1, 1, 1.0, True, None, 0]:
        world(b"1", order("open", v))
    world.cluster.run(app)
    assert list(map(repr, (row for _, row in world.changes()))) == ["1", "1.0", "True", "None", "0"]


@dataclass
class Order:
    """A row as an instance of a class."""

    status: str
    v: int


def test_rows_of_a_model_are_instances_in_functions_as_in_the_stream_of_the_table() -> None:
    world, app = World(), application()
    table = app.table(app.topic("orders", value=Order))
    large = table.filter(lambda row: row.v > 1)
    large.to_stream().apply(lambda row: None if row is None else row.status).to_topic(app.topic("large"))
    by = large.group_by(lambda row: row.status, name="status").aggregate(n=Count(), all=Collect(limit=5), t=Sum("v"))
    by.to_stream().to_topic(app.topic("out"))
    world(b"1", order("open", 2))
    world(b"2", order("open", 1))
    world.cluster.run(app)
    assert world.changes("large") == [(b"1", "open")]
    assert world.changes() == [(b"open", {"n": 1, "all": [order("open", 2)], "t": 2})]


def test_tables_of_tables_compose() -> None:
    """Filter a table, group it, filter the groups, join the rows with them, and group the result again."""

    def build() -> Application:
        app = application()
        orders = app.table(app.topic("orders"))
        by = orders.filter(lambda row: row["v"] > 0).group_by("status").aggregate(n=Count(), name="by-status")
        many = by.filter(lambda row: row["n"] > 1, name="many")
        orders.join(many, on="status", on_merge=lambda row, many: {**row, **many}, name="among").to_stream().to_topic(
            app.topic("among")
        )
        sizes = many.group_by("n", name="size").aggregate(groups=Count(), name="sizes")
        sizes.to_stream().to_topic(app.topic("out"))
        return app

    world = World()
    for number, status in enumerate(["a", "a", "b", "c", "c", "c", "d", "d"]):
        world(b"%d" % number, order(status, 1))
    world.cluster.run(build())
    assert world.rows(build(), "sizes") == {b"2": {"groups": 2}, b"3": {"groups": 1}}
    assert len(world.rows(build(), "among")) == 7
    world(b"0", order("a", 0))
    world(b"3", None)
    world.cluster.run(build())
    assert world.rows(build(), "sizes") == {b"2": {"groups": 2}}
    assert {row["status"] for row in world.rows(build(), "among").values()} == {"c", "d"}


def test_the_rows_of_a_join_are_grouped() -> None:
    def build() -> Application:
        app = application()
        products = app.table(app.topic("products"))
        offers = app.table(app.topic("orders")).join(products, name="offers", on_merge="keep-right")
        offers.group_by("status").aggregate(n=Count(), name="by")
        return app

    world = World()
    world.cluster.create_topic("products")
    world(b"1", order("open", 1))
    world(b"1", {"status": "new"}, topic="products")
    world.cluster.run(build())
    assert world.rows(build(), "by") == {b"new": {"n": 1}}
    world(b"1", None, topic="products")
    world.cluster.run(build())
    assert world.rows(build(), "by") == {}


def test_a_stream_is_joined_with_the_groups() -> None:
    world, app = World(), application()
    world.cluster.create_topic("events")
    by = app.table(app.topic("orders")).group_by("status").aggregate(n=Count(), name="by")
    app.dataframe(app.topic("events")).join_table(by, "left", lambda event, row: row).to_topic(app.topic("out"))
    world(b"1", order("open", 1))
    world.cluster.run(app)
    world(b"open", "event", topic="events")
    world(b"paid", "event", topic="events")
    world.cluster.run(app)
    assert sorted(world.changes(), key=str) == [(b"open", {"n": 1}), (b"paid", None)]


# -- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"status": "open"}, "is missing"),
        (order("open", "x"), "expected a number"),
        (order(1.5, 1), "can't be a key"),
        ("text", None),
    ],
)
def test_a_row_that_can_not_be_grouped_fails_as_a_whole(row: Any, said: str | None) -> None:
    """A row that cannot be grouped fails completely: neither the group nor the table changes, so both agree.

    A row without the grouping field is no error. It belongs to no group.
    """
    world = World()
    world(b"1", order("open", 1))
    world(b"1", row)
    if said is None:
        world.cluster.run(counted(application()))
        assert world.rows(counted(application())) == {}
        return
    with pytest.raises(ProcessingFailed, match=said):
        world.cluster.run(counted(application()))
    world.cluster.run(counted(application(dead_letter_topic="dead")))
    assert world.rows(counted(application())) == {b"open": {"n": 1, "total": 1}}
    assert world.rows(counted(application()), "orders-table") == {b"1": order("open", 1)}
    assert len(list(world.cluster.read("dead"))) == 1


@pytest.mark.parametrize(
    "options", [{}, {"dead_letter_topic": "dead"}, {"on_processing_error": lambda error, message, log: True}]
)
def test_a_change_of_a_group_that_fails_stops_the_worker_until_a_corrected_version_takes_it(options: Any) -> None:
    """A failed change of a group cannot be skipped, because the group would stay wrong.

    The table has stored the row, so it would not send the row to the group again. When the row changes later, the
    group would subtract a row that it never added.
    """

    def summed(corrected: bool) -> Application:
        app = application(**options)

        def adder(total: int, row: Any) -> int:
            if row["v"] == 13 and not corrected:
                raise LookupError("no such rate")
            return total + row["v"]

        column = Reduce(adder, lambda row: row["v"], subtractor=lambda total, row: total - row["v"])
        groups = app.table(app.topic("orders")).group_by("status").aggregate(total=column, name="by-status")
        groups.to_stream().to_topic(app.topic("out"))
        return app

    world = World(partitions=1)
    world.cluster.create_topic("dead", partitions=1)
    for key, amount in ((b"1", 2), (b"2", 13), (b"3", 1)):
        world(key, order("open", amount))
    for _ in range(2):  # a restart alone changes nothing
        with pytest.raises(ProcessingFailed, match="neither skipped nor put aside") as stopped:
            world.cluster.run(summed(corrected=False))
        assert "Then deploy it: processing resumes at this offset" in stopped.value.action
    assert world.rows(summed(corrected=True), "by-status") in ({}, {b"open": {"total": 2}})
    world.cluster.run(summed(corrected=True))
    assert world.rows(summed(corrected=True), "by-status") == {b"open": {"total": 16}}
    world(b"2", None)
    world.cluster.run(summed(corrected=True))
    assert world.rows(summed(corrected=True), "by-status") == {b"open": {"total": 3}}
    assert list(world.cluster.read("dead")) == []


def test_a_step_behind_groups_that_fails_stops_the_worker() -> None:
    app = application(dead_letter_topic="dead")
    groups = app.table(app.topic("orders")).group_by("status").aggregate(n=Count(), name="by-status")
    groups.to_stream().apply(lambda row: 1 // (row["n"] - 1)).to_topic(app.topic("out"))
    world = World(partitions=1)
    world(b"1", order("open", 2))
    with pytest.raises(ProcessingFailed, match="neither skipped nor put aside"):
        world.cluster.run(app)


def test_a_total_that_no_float_can_hold_stops_the_worker() -> None:
    world = World(partitions=1)
    for key in (b"1", b"2"):
        world(key, order("open", 1.5e308))
    with pytest.raises(ProcessingFailed, match="the total of its group is one that no float can hold") as stopped:
        world.cluster.run(counted(application(dead_letter_topic="dead")))
    # No corrected function and no dead letter can repair a total that is too large. So the action names neither of
    # them.
    assert "build all state again" in stopped.value.action
    assert "dead_letter_topic" not in stopped.value.action
