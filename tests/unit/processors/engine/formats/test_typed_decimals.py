"""Decimals of typed topics in aggregates of numbers: the message fails, and the code that the error suggests works."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Application, Collect, InMemoryCluster, Max, Mean, Min, ProcessingFailed, Sum
from holdfast.processors.engine.aggregates.aggregation import Aggregation, AggregationFailed, Aggregator


@dataclass
class DataOrder:
    status: str
    amount: Decimal


class ModelOrder(BaseModel):
    status: str
    amount: Decimal | None


Build = Callable[[Application, type, Aggregator], Any]


def of_table(app: Application, order: type, column: Aggregator) -> Any:
    return app.table(app.topic("orders", value=order)).group_by("status").aggregate(made=column).to_stream()


def of_filtered_table(app: Application, order: type, column: Aggregator) -> Any:
    table = app.table(app.topic("orders", value=order)).filter(lambda row: row.amount > 0)
    return table.group_by("status").aggregate(made=column).to_stream()


def of_stream(app: Application, order: type, column: Aggregator) -> Any:
    return app.dataframe(app.topic("orders", value=order)).group_by("status").aggregate(made=column)


def orders() -> InMemoryCluster:
    """Amounts whose sum of floats is not exact, and that have another order as texts."""
    cluster = InMemoryCluster()
    cluster.create_topic("orders")
    for key, amount in ((b"1", "9.10"), (b"2", "10.20"), (b"3", "10.00")):
        cluster.produce("orders", json.dumps({"status": "open", "amount": amount}).encode(), key)
    return cluster


def last(cluster: InMemoryCluster, build: Build, order: type, column: Aggregator) -> Any:
    app = Application("in-memory", consumer_group="shop", auto_offset_reset="earliest", loglevel=None)
    build(app, order, column).to_topic(app.topic("out"))
    cluster.run(app)
    return json.loads([record.value for _, record in cluster.read("out")][-1] or b"")["made"]


@pytest.mark.parametrize(
    ("build", "order", "kind", "exact"),
    [
        (of_table, DataOrder, Sum, 2930),
        (of_table, ModelOrder, Mean, 2930 / 3),
        (of_filtered_table, DataOrder, Sum, 2930),
        (of_stream, DataOrder, Sum, 2930),
        (of_stream, ModelOrder, Max, 1020),
        (of_stream, DataOrder, Min, 910),
    ],
)
def test_a_decimal_is_refused_and_both_named_lines_work(
    build: Build, order: type, kind: type[Aggregator], exact: Any
) -> None:
    cluster = orders()
    with pytest.raises(ProcessingFailed) as failed:
        last(cluster, build, order, kind("amount"))
    said = f"Column 'made' is {kind.kind}(amount), but the message's field 'amount' is Decimal, expected int or float: "
    assert said + "JSON has no Decimal." in failed.value.message
    named = failed.value.action.split("`")[1::2][:2]
    expected = ("int(value.amount * 100)", "float(value.amount)")
    assert named == [f"{kind.__name__}(lambda value: {each})" for each in expected]
    columns = [eval(line, {kind.__name__: kind}) for line in named]
    assert last(cluster, build, order, columns[0]) == exact
    assert columns[1].read(order(status="open", amount=Decimal("9.10")), "made") == 9.1


def amount_of(value: Any) -> Any:
    return value["amount"]


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        (Sum("amount"), {"amount": Decimal("1.1")}, "`Sum(lambda value: int(value['amount'] * 100))`"),
        (Mean(), Decimal("1.1"), "`Mean(lambda value: int(value * 100))`"),
        (Max(amount_of), {"amount": Decimal("1.1")}, "let function amount_of return `int(amount * 100)`"),
    ],
)
def test_the_named_line_fits_the_values_and_the_column(column: Aggregator, value: Any, named: str) -> None:
    with pytest.raises(AggregationFailed, match="is Decimal, expected int or float") as failed:
        Aggregation({"made": column}).columns["made"].read(value, "made")
    assert named in failed.value.action


def test_decimals_are_collected_as_texts() -> None:
    assert last(orders(), of_table, DataOrder, Collect("amount", limit=2)) == ["9.10", "10.20"]


def of_mapped_table(app: Application, order: type, column: Aggregator) -> Any:
    table = app.table(app.topic("orders", value=order))
    rows = table.map(lambda row: {"status": row.status, "cents": int(row.amount * 100)})
    return rows.group_by("status").aggregate(made=column).to_stream()


def of_joined_table(app: Application, order: type, column: Aggregator) -> Any:
    table = app.table(app.topic("orders", value=order))
    rows = table.join(app.table(app.topic("payers")), how="left")
    return rows.group_by("status").aggregate(made=column).to_stream()


@pytest.mark.parametrize(
    ("build", "column"),
    [(of_mapped_table, Sum("cents")), (of_joined_table, Sum(lambda row: int(Decimal(row["amount"]) * 100)))],
)
def test_rows_of_a_map_and_of_a_join_have_an_exact_total(build: Build, column: Aggregator) -> None:
    assert last(orders(), build, DataOrder, column) == 2930
