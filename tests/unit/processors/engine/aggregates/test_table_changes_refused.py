"""Tables derived from tables: refused declarations with the line to write, the topology's drawing, and versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import (
    Application,
    Count,
    HoldfastError,
    InMemoryCluster,
    Max,
    Sum,
    VirtualClock,
)
from holdfast.dataframe.windows import Reduce
from holdfast.processors.engine.aggregates.aggregation import AggregationInvalid
from holdfast.processors.engine.dataframe.groups import GroupByInvalid
from holdfast.processors.engine.joins.merge import JoinInvalid
from holdfast.processors.engine.joins.table_changes import TableInvalid
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.topology_drawing import drawing_of
from holdfast.processors.proof.documents import Material, Message
from holdfast.processors.proof.run import prove

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


# -- what is refused, and how it looks ---------------------------------------------------------------------------------


def ungrouped(app: Application) -> None:
    app.table(app.topic("orders")).to_stream().group_by("status").aggregate(n=Count())


def in_a_circle(app: Application) -> None:
    orders = app.table(app.topic("orders"))
    orders.join(orders.group_by("id").aggregate(n=Count()), on_merge="keep-left")
    app.topology()


def named_twice(app: Application) -> None:
    by = app.table(app.topic("orders")).group_by("status")
    by.aggregate(n=Count())
    by.aggregate(total=Sum("v"))


def filtered_twice(app: Application) -> None:
    table = app.table(app.topic("orders"))
    table.filter(lambda row: row["v"])
    table.filter(lambda row: not row["v"])
    app.topology()


def shares_its_rows(app: Application) -> None:
    orders = app.table(app.topic("orders"))
    orders.group_by("status").aggregate(n=Count(), name="by")
    orders.to_stream().apply(lambda value, state: value, stateful=True, store="by-rows")
    app.topology()


def of(declare: Any) -> Any:
    return lambda app: declare(app.table(app.topic("orders")))


@pytest.mark.parametrize(
    ("declare", "error", "said"),
    [
        (ungrouped, GroupByInvalid, "`table.group_by('status').aggregate(n=Count())`"),
        (in_a_circle, JoinInvalid, "`table.join(groups, on='status')`"),
        (named_twice, GroupByInvalid, "Give the `aggregate` another `name`"),
        (filtered_twice, StepInvalid, "Store 'orders-table-filter' is of one join or table"),
        (shares_its_rows, StepInvalid, "is used by 2 steps"),
        (of(lambda t: t.group_by("status").aggregate(x=Max("v"))), AggregationInvalid, "Collect('amount', limit=1000)"),
        (of(lambda t: t.group_by("status").aggregate()), AggregationInvalid, "no columns"),
        (of(lambda t: t.group_by(lambda row: row["status"])), TableInvalid, "name='by-status'"),
        (of(lambda t: t.group_by(None)), TableInvalid, "expected a field's name or a function of the row"),
        (of(lambda t: t.group_by(lambda: 1, name="x")), StepInvalid, "can't be called with (row)"),
        (of(lambda t: t.filter(None)), TableInvalid, "`filter` of a table got None"),
        (of(lambda t: t.filter(lambda: 1)), StepInvalid, "can't be called with (row)"),
        (of(lambda t: t.map("v")), TableInvalid, "`map` of a table got 'v'"),
    ],
)
def test_what_can_not_run_is_refused(declare: Any, error: type[HoldfastError], said: str) -> None:
    with pytest.raises(error) as refused:
        declare(application())
    assert said in f"{refused.value.message} {refused.value.action}"


def test_a_table_is_joined_with_its_own_groups_by_a_key_inside_the_row() -> None:
    """The refusal of a join by the key of the message names this join."""
    app = application()
    orders = app.table(app.topic("orders"))
    groups = orders.group_by("status").aggregate(n=Count())
    orders.join(groups, on="status").to_stream().to_topic(app.topic("out"))
    cluster = InMemoryCluster()
    cluster.create_topic("orders", partitions=2)
    for key in (b"1", b"2", b"3"):
        cluster.produce("orders", json.dumps(order("open", 1)).encode(), key)
    cluster.run(app)
    newest = {record.key: json.loads(record.value or b"null")["n"] for _, record in cluster.read("out")}
    assert newest == {b"1": 3, b"2": 3, b"3": 3}


def test_columns_may_have_the_names_of_arguments() -> None:
    app, world = application(), World()
    by = app.table(app.topic("orders")).group_by("status").aggregate(name=Count(), model=Sum("v"))
    by.to_stream().to_topic(app.topic("out"))
    world(b"1", order("open", 2))
    world.cluster.run(app)
    assert world.changes() == [(b"open", {"name": 1, "model": 2})]


def test_a_grouping_that_is_declared_later_names_how_all_state_is_built_again() -> None:
    world, plain = World(), application()
    plain.table(plain.topic("orders"))
    world(b"1", order("open", 1))
    world.cluster.run(plain)
    with pytest.raises(HoldfastError, match=f"{GROUPS}-rows holds nothing of it") as refused:
        world.cluster.run(counted(application()))
    assert "clear PROCESSOR --all --rewind earliest" in refused.value.action


def test_the_topology_draws_the_grouping() -> None:
    topology = counted(application()).topology()
    assert [spec.topic for spec in topology.repartitions] == [f"shop-{GROUPS}-repartition"]
    assert [sub.stores for chain in topology.chains() for sub in chain] == [
        ("orders-table", f"{GROUPS}-rows"),
        (GROUPS,),
    ]
    assert f"  │ group_by {GROUPS}" in drawing_of(topology).splitlines()


def test_other_columns_keys_and_functions_are_another_version() -> None:
    def version(key: Any, columns: Any) -> str:
        app = application()
        app.table(app.topic("orders")).group_by(key, name="k").aggregate(columns, name="by")
        return app.topology().code_version

    def one(row: Any) -> Any: ...

    def other(row: Any) -> Any: ...

    versions = [
        version(key, columns)
        for key in ("a", "b", one, other)
        for columns in (
            {"n": Count()},
            {"n": Sum("a")},
            {"n": Sum(one)},
            {"n": Sum(other)},
            {"n": Reduce(one, one, subtractor=one)},
        )
    ]
    assert len(set(versions)) == len(versions)


def test_a_proof_of_a_version_groups_the_last_messages() -> None:
    app = counted(application())
    partitions = {spec.name: 2 for spec in app.topology().sources}
    messages = {"orders": {0: (Message(7, b"1", json.dumps(order("open", 1)).encode(), BEGIN),)}}
    outcome = prove(app, Material("shop", partitions, messages, {}))
    assert (outcome.processed, outcome.failures, outcome.broken) == (1, (), "")
    assert outcome.outputs >= 1
