"""State is read back as it was set, or ``set`` refuses it.

Outputs have no NaN, infinity, bytes or sets unless allowed.
"""

import dataclasses
import datetime
import enum
import json
import math
from collections import Counter, OrderedDict
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Application
from holdfast.processors.engine.changelog.format import ValueNotStorable, decode_value, encode_value
from holdfast.processors.engine.formats.serialization import serializer
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.testing import InMemoryCluster


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    A = "a"


class Other(enum.Enum):
    A = "a"


@dataclasses.dataclass
class Order:
    amount: Any


class Row(msgspec.Struct):
    amount: Any


SAME = [0, -1, 2**70, 1.5, -0.0, True, None, "", "null", [], {}, {"a": [None, {"b": 1e300}]}, Number.ONE, Word.A]
SAME += [Counter(a=1), OrderedDict(a=1), {Word.A: 1}, "NaN", [[[None]]]]


@pytest.mark.parametrize("value", SAME, ids=repr)
def test_state_comes_back_as_it_was_set(value: Any) -> None:
    assert decode_value(encode_value(value, 0)) == value


def test_a_tuple_comes_back_as_a_list() -> None:
    assert decode_value(encode_value({"a": (1, (2,))}, 0)) == {"a": [1, [2]]}


CHANGED: list[tuple[Any, str]] = [
    (math.nan, "value is nan, which would come back as null"),
    ({"a": [1, math.inf]}, r"value\['a'\]\[1\] is inf"),
    ({"a": None, "b": math.nan}, r"value\['b'\] is nan"),
    (b"raw", "value is bytes"),
    ({"a": bytearray(b"")}, r"value\['a'\] is bytes"),
    ([memoryview(b"")], r"value\[0\] is bytes"),
    ({1: 2}, "value has the key 1, which would come back as text"),
    ({"a": {1.5: 2}}, r"value\['a'\] has the key 1.5"),
    ({"a": {"b": math.nan}}, r"value\['a'\]\['b'\] is nan"),
    ({"a": {"b": b""}}, r"value\['a'\]\['b'\] is bytes"),
    ({None: 2}, "str-like or number-like keys"),
    ({Number.ONE: 2}, "has the key"),
    ([{"a": 1}, {1: 2}], r"value\[1\] has the key 1"),
    ([{"a": 1}, {"b": math.inf}], r"value\[1\]\['b'\] is inf"),
    ({1, 2}, "value is a set"),
    ([frozenset()], r"value\[0\] is a set"),
    (Other.A, "value is of type Other"),
    (Order(1), "value is of type Order"),
    ({"a": Row(1)}, r"value\['a'\] is of type Row"),
    (datetime.date(2026, 1, 2), "value is of type date"),
    ([Decimal("1.1")], r"value\[0\] is of type Decimal"),
    (object(), "object is unsupported"),
    ("\ud800", "surrogates not allowed"),
]


@pytest.mark.parametrize(("value", "why"), CHANGED, ids=[why for _, why in CHANGED])
def test_state_that_would_come_back_changed_is_refused_with_its_place(value: Any, why: str) -> None:
    with pytest.raises(ValueNotStorable, match=why):
        encode_value(value, 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ANY = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals() | st.dates(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers() | st.none(), inner)
        | st.frozensets(st.integers())
        | st.builds(Order, inner)
    ),
)


@given(JSON)
def test_every_json_value_is_taken_as_state_and_as_output(value: Any) -> None:
    assert decode_value(encode_value(value, 0)) == value
    assert json.loads(serializer("json")(value)) == value


@given(ANY)
def test_any_value_comes_back_equal_or_is_refused(value: Any) -> None:
    try:
        stored = encode_value(value, 0)
    except ValueNotStorable:
        return
    assert decode_value(stored) == value


REFUSED = [
    math.nan,
    [math.inf],
    {"a": None, "b": -math.inf},
    b"raw",
    {"a": {1}},
    [{"a": 1}, {"b": math.nan}],
    [{"a": 1}, {"b": b"x"}],
    [{"a": 1}, {"b": {1}}],
    Order(math.nan),
    [Row(b"x")],
    Row({1}),
]


@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_an_output_that_readers_could_not_get_back_fails_its_message(value: Any) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    cluster.produce("in", b"1", b"k")
    app = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None)
    app.dataframe(app.topic("in")).apply(lambda _: value).to_topic(app.topic("out"))
    with pytest.raises(
        ProcessingFailed, match="would come back as .*`value_serializer=msgspec.json.encode` writes it so"
    ):
        cluster.run(app)
    told = Application("in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None)
    out = told.topic("out", value_serializer=msgspec.json.encode)
    told.dataframe(told.topic("in")).apply(lambda _: value).to_topic(out)
    cluster.run(told)
    assert [record.value for _, record in cluster.read("out")] == [msgspec.json.encode(value)]


@pytest.mark.parametrize("value", [{1: 2}, Order(1), Row(None), datetime.date(2026, 1, 2), (1, 2), Decimal(1), None])
def test_an_output_of_other_types_is_written_as_before(value: Any) -> None:
    assert serializer("json")(value) == msgspec.json.encode(value)
