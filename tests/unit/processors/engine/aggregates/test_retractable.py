"""Columns from which rows can be removed: sums are exact afterwards, and what cannot be removed is refused."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from holdfast import Collect, Count, Last, Max, Mean, Min, Sum
from holdfast.dataframe.windows import Earliest, Reduce
from holdfast.processors.engine.aggregates.aggregation import AggregationFailed, AggregationInvalid
from holdfast.processors.engine.aggregates.retractable import RetractableColumns
from holdfast.processors.engine.changelog.format import FormatUnknown
from tests.oracles.grouped_tables import mean, total

NUMBERS = [0, -0.0, 0.1, 0.2, 1e300, -1e300, 5e-324, 2**53 + 1, -(2**80), 3, -7, 1.5]


def columns() -> RetractableColumns:
    return RetractableColumns({"n": Count(), "total": Sum("v"), "average": Mean("v")})


def test_sums_are_those_of_the_rows_that_are_left_in_any_order() -> None:
    random, made = Random(1), columns()
    for _ in range(200):
        held: Any = None
        rows = list[Any]()
        for _ in range(random.randint(1, 30)):
            out = rows.pop(random.randrange(len(rows))) if rows and random.random() < 0.6 else None
            into = {"v": random.choice(NUMBERS)} if out is None or random.random() < 0.5 else None
            if into is not None:
                rows.append(into)
            items = [None if row is None else made.items(row) for row in (out, into)]
            held = json.loads(json.dumps(made.moved(held, *items)))
            numbers = [row["v"] for row in rows]
            found = made.row(held, [])
            wanted = {"n": len(rows), "total": total(numbers), "average": mean(numbers)} if rows else None
            assert repr(found) == repr(wanted)
        for row in rows:
            held = made.moved(held, made.items(row), None)
        assert held is None


def test_the_same_rows_have_the_same_stored_value_in_any_order() -> None:
    random, made = Random(2), RetractableColumns({"z": Sum("v"), "a": Sum("w"), "m": Mean("v")})
    rows = [{"v": number, "w": -number} for number in NUMBERS]
    stored = set()
    for _ in range(20):
        held: Any = None
        random.shuffle(rows)
        for row in rows:
            held = made.moved(held, None, made.items(row))
        for row in rows[:5]:  # the total becomes 0, which is not stored, and then returns
            held = made.moved(held, made.items(row), None)
            held = made.moved(held, None, made.items(row))
        stored.add(json.dumps(held))
    assert len(stored) == 1


def test_a_sum_is_a_whole_number_again_when_its_last_float_is_gone() -> None:
    made = RetractableColumns({"total": Sum("v")})
    held = made.moved(made.moved(None, None, [2]), None, [0.5])
    assert made.row(held, []) == {"total": 2.5}
    assert repr(made.row(made.moved(held, [0.5], None), [])) == "{'total': 2}"


def test_a_result_that_json_can_not_hold_fails_by_name() -> None:
    made = RetractableColumns({"total": Sum("v"), "average": Mean("v")})
    held = made.moved(made.moved(None, None, [1e308, 1e308]), None, [1.5e308, 1e308])
    with pytest.raises(AggregationFailed, match="Column 'total' is sum"):
        made.row(held, [])
    held = RetractableColumns({"average": Mean("v")}).moved(None, None, [10**400])
    with pytest.raises(AggregationFailed, match="no float can hold"):
        RetractableColumns({"average": Mean("v")}).row(held, [])


def added(total: int, row: Any) -> int:
    return total + int(row["v"])


def removed(total: int, row: Any) -> int:
    if row["v"] == 13:
        raise ValueError("thirteen")
    return total - int(row["v"])


def first(row: Any) -> int:
    return int(row["v"])


def test_reduce_begins_anew_where_no_row_is_left() -> None:
    made = RetractableColumns({"r": Reduce(added, first, subtractor=removed)})
    held = made.moved(None, None, [{"v": 1}])
    held = made.moved(held, None, [{"v": 2}])
    assert made.row(held, []) == {"r": 3}
    held = made.moved(held, [{"v": 1}], [{"v": 5}])
    assert made.row(held, []) == {"r": 7}
    held = made.moved(held, [{"v": 2}], None)
    held = made.moved(held, [{"v": 5}], [{"v": 9}])
    assert made.row(held, []) == {"r": 9}
    assert made.moved(held, [{"v": 9}], None) is None


def test_a_function_that_fails_is_told_by_its_column_and_what_was_done() -> None:
    made = RetractableColumns({"r": Reduce(added, first, subtractor=removed)})
    held = made.moved(made.moved(None, None, [{"v": 13}]), None, [{"v": 1}])
    with pytest.raises(AggregationFailed, match=r"Column 'r' is reduce\(added\).*taken out: ValueError: thirteen"):
        made.moved(held, [{"v": 13}], None)
    with pytest.raises(AggregationFailed, match="can't be added: KeyError"):
        made.moved(held, None, [{}])


def test_a_row_that_is_taken_out_before_it_was_added_is_even_again_when_it_comes() -> None:
    """This happens when the dead letter of the row that was never added is replayed later."""
    made = RetractableColumns({"n": Count(), "total": Sum("v"), "r": Reduce(added, first, subtractor=removed)})
    row = made.items({"v": 4})
    held = made.moved(None, row, None)
    assert made.row(held, []) is None
    assert made.moved(held, None, row) is None


def test_a_stored_group_of_another_format_is_refused() -> None:
    with pytest.raises(FormatUnknown):
        columns().moved({"format": 2}, None, [1, 1])


@pytest.mark.parametrize("column", [Min("v"), Max("v"), Last("v"), Earliest("v")])
def test_what_can_not_give_a_row_back_is_refused_with_what_to_write(column: Any) -> None:
    with pytest.raises(AggregationInvalid, match="can't give the former row back") as refused:
        RetractableColumns({"x": column})
    assert "Collect(" in refused.value.action


def test_an_adder_without_its_subtractor_is_refused() -> None:
    with pytest.raises(AggregationInvalid, match="without a subtractor") as refused:
        RetractableColumns({"r": Reduce(added, first)})
    assert "subtractor=lambda" in refused.value.action


@pytest.mark.parametrize(("given", "said"), [({}, "no columns"), ({"n": Count}, "the class Count"), ({"n": 5}, "is 5")])
def test_what_is_no_column_is_refused(given: Any, said: str) -> None:
    with pytest.raises(AggregationInvalid, match=said):
        RetractableColumns(given)


def test_a_subtractor_is_a_function() -> None:
    with pytest.raises(AggregationInvalid, match="subtractor 5, expected a function"):
        Reduce(added, first, subtractor=5)  # type: ignore[arg-type]


def test_collected_items_are_read_by_row() -> None:
    made = RetractableColumns({"a": Collect("v", limit=2), "n": Count(), "b": Collect("w", limit=1)})
    items = made.items({"v": 1, "w": [2]})
    assert made.of_collected(items) == [1, [2]]
    held = made.moved(None, None, items)
    assert made.row(held, [[1, [2]], [3, [4]], [5, [6]]]) == {"a": [1, 3], "n": 1, "b": [[2]]}
    assert made.shown == 2
