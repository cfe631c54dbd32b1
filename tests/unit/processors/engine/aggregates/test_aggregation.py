"""Built-in aggregations, one message at a time: their results, their stored form, and the values that they refuse."""

import json
import math

import pytest

from holdfast import Application, Collect, Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.aggregates.aggregation import (
    STATE_KEY,
    Aggregation,
    AggregationFailed,
    AggregationInvalid,
    Aggregator,
)
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.steps.checked_arguments import StepInvalid

ALL = {
    "n": Count(),
    "total": Sum("v"),
    "average": Mean("v"),
    "least": Min("v"),
    "most": Max("v"),
    "newest": Last("v"),
    "some": Collect("v", limit=2),
}


class OneKey:
    """The state of one key. Values are stored as JSON."""

    def __init__(self):
        self.raw = {}

    def get(self, key, default=None):
        return json.loads(self.raw[key]) if key in self.raw else default

    def set(self, key, value):
        self.raw[key] = json.dumps(value, allow_nan=False)


def fold(aggregation, values, state=None):
    state = state or OneKey()
    return [aggregation(value, state) for value in values], state.get(STATE_KEY)


def total_of(value):
    return value["net"] + value["tax"]


def test_each_message_gives_the_aggregates_so_far():
    outputs, stored = fold(Aggregation(ALL), [{"v": 3}, {"v": 1.5}, {"v": 4}])
    assert outputs[0] == {"n": 1, "total": 3, "average": 3.0, "least": 3, "most": 3, "newest": 3, "some": [3]}
    assert outputs[-1] == {
        "n": 3,
        "total": 8.5,
        "average": 8.5 / 3,
        "least": 1.5,
        "most": 4,
        "newest": 4,
        "some": [1.5, 4],
    }
    assert list(outputs[-1]) == list(ALL)
    assert stored == {
        "format": 1,
        "count": {"n": 3},
        "sum": {"total": 8.5},
        "mean": {"average": {"sum": 8.5, "count": 3}},
        "min": {"least": 1.5},
        "max": {"most": 4},
        "last": {"newest": 4},
        "collect": {"some": [1.5, 4]},
    }


def test_whole_numbers_stay_whole_and_a_negative_zero_stays_negative():
    outputs, _ = fold(Aggregation({"total": Sum("v")}), [{"v": 2**80}, {"v": 1}])
    assert outputs[-1] == {"total": 2**80 + 1}
    outputs, _ = fold(Aggregation({"total": Sum("v"), "least": Min("v")}), [{"v": -0.0}])
    assert math.copysign(1, outputs[0]["total"]) == math.copysign(1, outputs[0]["least"]) == -1


def test_of_equal_values_the_first_is_kept():
    outputs, _ = fold(Aggregation({"least": Min("v"), "most": Max("v")}), [{"v": 1}, {"v": 1.0}, {"v": True and 1}])
    assert [type(out["least"]) for out in outputs] == [type(out["most"]) for out in outputs] == [int, int, int]


def test_texts_have_a_least_and_a_greatest():
    outputs, _ = fold(Aggregation({"first": Min("at"), "last": Max("at")}), [{"at": "b"}, {"at": "a"}, {"at": "c"}])
    assert outputs[-1] == {"first": "a", "last": "c"}


def test_functions_and_whole_values_can_be_aggregated():
    outputs, _ = fold(Aggregation({"gross": Sum(total_of)}), [{"net": 10, "tax": 2}, {"net": 1, "tax": 0.5}])
    assert outputs[-1] == {"gross": 13.5}
    outputs, _ = fold(Aggregation({"total": Sum(), "n": Count()}), [4, 5])
    assert outputs[-1] == {"total": 9, "n": 2}


def test_a_new_column_begins_anew_and_an_old_one_goes():
    _, state = fold(Aggregation({"n": Count(), "x": Max("v")}), [{"v": 9}, {"v": 8}])
    held = OneKey()
    held.set(STATE_KEY, state)
    outputs, stored = fold(Aggregation({"n": Count(), "x": Min("v"), "total": Sum("v")}), [{"v": 9}], held)
    assert outputs == [{"n": 3, "x": 9, "total": 9}]
    assert stored == {"format": 1, "count": {"n": 3}, "min": {"x": 9}, "sum": {"total": 9}}


def test_stored_aggregates_of_another_version_are_refused():
    for stored in ({"format": 2, "count": {"n": 3}}, {"n": 3}, [1], "text"):
        held = OneKey()
        held.set(STATE_KEY, stored)
        with pytest.raises(FormatUnknown, match="expected 1"):
            fold(Aggregation({"n": Count()}), [{}], held)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (Sum("amount"), {}, "field 'amount' is missing"),
        (Sum("amount"), [1], "field 'amount' is missing: the value is a list, expected an object"),
        (Sum("amount"), {"amount": None}, "field 'amount' is NoneType, expected a number"),
        (Sum("amount"), {"amount": "3"}, "is str, expected"),
        (Sum("amount"), {"amount": True}, "is bool"),
        (Sum("amount"), {"amount": math.nan}, "gives nan"),
        (Mean("amount"), {"amount": math.inf}, "gives inf"),
        (Mean("amount"), {"amount": 10**400}, "whose mean no float can hold"),
        (Min("amount"), {"amount": None}, "is NoneType, expected a number or a text"),
        (Max("amount"), {"amount": math.nan}, "is nan"),
        (Max("amount"), {"amount": False}, "is bool"),
        (Last("amount"), {}, "is missing"),
        (Collect("amount", limit=1), {}, "is missing"),
        (Sum(total_of), {"net": "a", "tax": "b"}, "function total_of is str"),
        (Sum(), None, "message's value is NoneType"),
    ],
)
def test_a_message_that_lacks_what_a_column_needs_names_column_field_and_type(column, value, message):
    with pytest.raises(AggregationFailed, match=message) as failed:
        fold(Aggregation({"made": column}), [value])
    assert failed.value.fields["column"] == "made"
    assert failed.value.fields["seen"] in message or failed.value.fields["seen"] in ("dict", "float", "int")


@pytest.mark.parametrize(
    ("column", "first", "second", "message"),
    [
        (Sum("v"), 1e308, 1e308, "gives inf"),
        (Sum("v"), 1.5, 10**400, "can't be added to a float"),
        (Mean("v"), 1e308, 1e308, "gives inf"),
        (Min("v"), 1, "a", "is str, and the stored value is int"),
        (Max("v"), "a", 1.5, "is float, and the stored value is str"),
    ],
)
def test_a_message_that_does_not_fit_what_is_held_fails_and_changes_nothing(column, first, second, message):
    aggregation, state = Aggregation({"n": Count(), "made": column}), OneKey()
    _, before = fold(aggregation, [{"v": first}], state)
    with pytest.raises(AggregationFailed, match=message):
        aggregation({"v": second}, state)
    assert state.get(STATE_KEY) == before


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: Aggregation({}), "no columns"),
        (lambda: Aggregation({"total": "sum"}), "'sum', expected one of Count, Sum, Mean"),
        (lambda: Aggregation({"n": Count}), "expected one of Count"),
        (lambda: Aggregation({"n": Aggregator()}), "expected one of Count"),
        (lambda: Aggregation({"": Count()}), "not empty"),
        (lambda: Aggregation({1: Count()}), "name 1"),
        (lambda: Sum(3), "Sum got 3"),
        (lambda: Count("amount"), "takes no field"),
        (lambda: Collect("amount"), "limit 0"),
        (lambda: Collect("amount", limit=-1), "limit -1"),
        (lambda: Collect("amount", limit=True), "limit True"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(declare, message):
    with pytest.raises(AggregationInvalid, match=message):
        declare()


def declared(columns, **more):
    app = Application("in-memory", consumer_group="g", loglevel=None)
    app.dataframe(app.topic("in")).aggregate(columns, **more).to_topic(app.topic("out"))
    return app


def test_the_description_has_the_columns_and_changes_with_them():
    topology = declared({"n": Count()}, store="totals", gross=Sum(total_of)).topology()
    [store] = topology.stores
    assert (store.name, store.kind, store.columns) == (
        "totals",
        "aggregation",
        ("n = count()", "gross = sum(total_of)"),
    )
    versions = {
        declared(columns).topology().code_version
        for columns in (
            {"n": Count()},
            {"m": Count()},
            {"n": Sum("v")},
            {"n": Mean("v")},
            {"n": Sum("w")},
            {"n": Sum(lambda value: value["v"])},
            {"n": Sum(lambda value: value["w"])},
            {"n": Collect("v", limit=2)},
            {"n": Collect("v", limit=3)},
            {"n": Count(), "m": Count()},
        )
    }
    assert len(versions) == 10
    assert declared({"n": Count()}).topology().code_version == declared({"n": Count()}).topology().code_version


def test_the_store_of_an_aggregation_is_its_own():
    app = Application("in-memory", consumer_group="g", loglevel=None)
    frame = app.dataframe(app.topic("in"))
    frame.aggregate({"n": Count()}, store="totals")
    frame.apply(lambda value, state: value, stateful=True, store="totals")
    with pytest.raises(StepInvalid, match="'totals' of an aggregation is used by 2 steps"):
        app.topology()
    with pytest.raises(StepInvalid, match="1 to 255"):
        frame.aggregate({"n": Count()}, store="")
