"""Aggregations on columns (whole batches) give the same bytes as aggregations of one message at a time.

A batch that columns cannot process exactly is processed one message at a time.
"""

import json
import math
import struct

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import Collect, Count, Last, Max, Mean, Min, Sum
from holdfast.processors.engine.aggregates.aggregation import STATE_KEY, Aggregation
from holdfast.processors.engine.aggregates.columnar import ColumnarAggregation
from holdfast.processors.engine.aggregates.columns import Unfit
from holdfast.processors.engine.aggregates.kernels import RANKS_MAX
from holdfast.processors.engine.aggregates.message_columns import skipping_is_safe
from holdfast.processors.engine.changelog.format import decode_value, encode_value
from holdfast.processors.engine.formats.serialization import deserializer, serializer
from tests.mechanics.tiers import examples

decode, encode = deserializer("json"), serializer("json")

BENCH = {
    "user": Last("u"),
    "n": Count(),
    "total": Sum("v"),
    "mean": Mean("v"),
    "least": Min("v"),
    "most": Max("v"),
    "other": Sum("w"),
}


class Memory:
    """Stored values by key, like the overlay (uncommitted values) of a store."""

    def __init__(self, values=()):
        self.values = dict(values)

    def read_many(self, state_key, message_keys):
        assert state_key == STATE_KEY
        return [self.values.get(key) for key in message_keys]

    def write_many(self, state_key, message_keys, values):
        assert state_key == STATE_KEY
        self.values.update(zip(message_keys, values, strict=True))


class OneState:
    def __init__(self, memory, key, timestamp):
        self.memory, self.key, self.timestamp = memory, key, timestamp

    def get(self, key, default=None):
        raw = self.memory.values.get(self.key)
        return default if raw is None else decode_value(raw)

    def set(self, key, value):
        self.memory.values[self.key] = encode_value(value, self.timestamp)


def one_by_one(aggregation, memory, messages):
    """The outputs of messages that are processed one at a time. None stands for a message that fails."""
    outputs = []
    for key, raw, timestamp in messages:
        before = dict(memory.values)
        try:
            outputs.append(encode(aggregation(decode(raw), OneState(memory, key, timestamp))))
        except Exception:
            memory.values = before
            outputs.append(None)
    return outputs


def run(columnar, keys, values, timestamps):
    """The outputs of a batch on columns. None if the messages must be processed one at a time."""
    picked = columnar.picked(keys, values)
    return None if picked is None else columnar.run(keys, picked.items, timestamps)


def in_columns(columnar, aggregation, memory, messages):
    """Process messages as a task does: on columns, or one at a time if columns are not possible."""
    raws = run(columnar, *(list(column) for column in zip(*messages, strict=True)))
    if raws is not None:
        return raws, True
    columnar.leave([key for key, _, _ in messages])
    return one_by_one(aggregation, memory, messages), False


def check(columns, slices, restarts=()):
    """Process slices of messages on columns and one message at a time, and compare the results.

    Returns the number of slices that were processed on columns.
    """
    aggregation = Aggregation(columns)
    plain, memory = Memory(), Memory()
    columnar = ColumnarAggregation(aggregation, memory)
    vectorised = 0
    for number, messages in enumerate(slices):
        if number in restarts:
            columnar.write_back()
            assert memory.values == plain.values
            columnar = ColumnarAggregation(aggregation, memory)
        outputs, by_columns = in_columns(columnar, aggregation, memory, messages)
        vectorised += by_columns
        assert outputs == one_by_one(aggregation, plain, messages)
    columnar.write_back()
    assert memory.values == plain.values
    return vectorised


def of(*amounts, key=b"k", **more):
    return [(key, json.dumps({"v": v, "w": 1, "u": "x", **more}).encode(), 7 + n) for n, v in enumerate(amounts)]


numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [0.0, -0.0, 0, 0.1, 0.2, 1e308, -1e308, 5e-324, 2**53 - 1, 2**53, 2**53 + 1, -(2**63), 2**64, 10**40]
    ),
    st.integers(-1000, 1000),
)
fitting = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, -0.0, 0, 0.1, 0.2, 0.3]), st.integers(-1000, 1000))
odd = st.one_of(numbers, st.none(), st.booleans(), st.text(max_size=3), st.just([1]))
scalars = st.one_of(st.text(max_size=4), st.none(), numbers, st.booleans())
keys = st.sampled_from([b"a", b"b", b"c", b"dd", b""])


@st.composite
def messages_of(draw, amounts, users=scalars):
    fields = {"v": draw(amounts), "w": draw(st.integers(-5, 5)), "u": draw(users), "x": draw(st.text(max_size=2))}
    if users is not scalars:
        fields.pop(draw(st.sampled_from(["v", "u", "x", "x", "x", "x"])))
    return draw(keys), encode(fields), draw(st.integers(0, 2**40))


def slices_of(amounts, users=scalars):
    return st.lists(messages_of(amounts, users), min_size=1, max_size=50)


floats, whole = slices_of(st.floats(-1e6, 1e6)), slices_of(st.integers(-(2**40), 2**40))
any_slices = st.one_of(
    floats,
    whole,
    slices_of(fitting),
    slices_of(fitting),
    slices_of(numbers),
    slices_of(odd, st.one_of(scalars, st.just({}))),
)


@settings(max_examples=examples(250, tested=40), deadline=None)
@given(st.lists(any_slices, min_size=1, max_size=6), st.sets(st.integers(0, 5)))
def test_slices_of_all_kinds_give_the_same_bytes(slices, restarts):
    check(BENCH, slices, restarts)


@settings(max_examples=examples(100, tested=25), deadline=None)
@given(
    st.lists(slices_of(fitting, st.text(max_size=3)).filter(len), min_size=1, max_size=4), st.sets(st.integers(0, 4))
)
def test_numbers_and_texts_go_by_columns(slices, restarts):
    columns = {name: column for name, column in BENCH.items() if name != "user"}
    slices = [[message for message in messages if b'"v":' in message[1]] or of(1) for messages in slices]
    assert check(columns, slices, restarts) == len(slices)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4 * RANKS_MAX), st.integers(1, 3)
)
@example([0.0, -0.0] * 40, 1)
@example([-0.0, 0.0] * 40, 1)
@example([0.1] * 90, 1)
def test_many_messages_of_few_keys_are_added_in_their_order(amounts, keys):
    messages = [(b"%d" % (n % keys), encode({"v": v, "w": 1, "u": n}), n) for n, v in enumerate(amounts)]
    assert check(BENCH, [messages]) == 1 or not math.isfinite(sum(map(abs, amounts)))


def test_ordinary_slices_go_by_columns():
    assert check(BENCH, [of(1.5, 2.5), of(0.1, 0.2, 0.3), of(-0.0)]) == 3
    assert check(BENCH, [of(1, 2), of(3), of(2.5, 1), of(1)]) == 4
    assert check({"n": Count()}, [of(1), of("a", None)]) == 2
    assert check({"gross": Sum(lambda value: value["v"] + value["w"])}, [of(1), of(1.5)]) == 2
    assert check({"a, ü": Sum("v")}, [of(1.5)]) == 1


@pytest.mark.parametrize(
    "amounts",
    [[1, True], [1.5, None], ["1"], [2**53], [2**53 - 1, 1], [1e308, 1e308], [10**400]],
    ids=repr,
)
def test_what_is_no_exact_number_is_left_to_the_plain_path(amounts):
    assert check({"total": Sum("v"), "n": Count()}, [of(*amounts)]) == 0


def test_texts_whole_lists_and_missing_fields_are_left_to_the_plain_path():
    assert check({"first": Min("u")}, [of(1)]) == 0
    assert check({"newest": Last("z")}, [of(1)]) == 0
    assert check({"newest": Last("u")}, [of(1, u=[1])]) == 0
    for columns in ({"all": Collect("v", limit=3)}, {'quoted "name"': Count()}):
        with pytest.raises(Unfit):
            ColumnarAggregation(Aggregation(columns), Memory())


def test_messages_without_key_or_value_are_left_to_the_plain_path():
    columnar = ColumnarAggregation(Aggregation({"n": Count()}), Memory())
    assert run(columnar, [b"k", None], [b"{}", b"{}"], [1, 2]) is None
    assert run(columnar, [b"k", b"k"], [b"{}", None], [1, 2]) is None
    assert run(columnar, [b"k", b"k"], [b"{}", b"{}"], [1, 2]) == [b'{"n":1}', b'{"n":2}']


def test_records_that_may_be_too_large_are_left_to_the_plain_path():
    aggregation = Aggregation({"newest": Last("u")})
    for limit in ({"output_bytes_max": 100}, {"state_bytes_max": 400}):
        columnar = ColumnarAggregation(aggregation, Memory(), **limit)
        assert run(columnar, [b"k"], [b'{"u":"short"}'], [1]) == [b'{"newest":"short"}']
        assert run(columnar, [b"k"], [b'{"u":"%s"}' % (b"x" * 200)], [1]) is None


def test_stored_values_that_are_no_aggregates_of_ours_are_left_to_the_plain_path():
    aggregation = Aggregation({"n": Count(), "mean": Mean("v")})
    for stored in (3, {"format": 2}, {"format": 1, "count": 3}, {"format": 1, "count": {"n": 1.5}},
                   {"format": 1, "mean": {"mean": {"sum": None, "count": 1}}}):  # fmt: skip
        columnar = ColumnarAggregation(aggregation, Memory({b"k": encode_value(stored, 1)}))
        assert run(columnar, [b"k"], [b'{"v":1.5}'], [1]) is None


def test_stored_values_that_are_no_json_of_their_own_are_left_to_the_plain_path():
    aggregation = Aggregation({"n": Count()})
    good = encode_value({"format": 1, "count": {"n": 1}}, 1)
    for damaged in (
        good[:-1],
        good + b",1",
        good + b"," + good[10:],
        good[:10],
        b"\x01\x02" + good[2:],
        b"\x02" + good[1:],
    ):
        columnar = ColumnarAggregation(aggregation, Memory({b"k": damaged, b"other": good}))
        assert run(columnar, [b"k", b"other"], [b"{}"] * 2, [1, 1]) is None


def test_stored_means_of_another_form_are_left_to_the_plain_path():
    aggregation = Aggregation({"m": Mean("v")})
    for stored in ({"sum": 1.5}, {"sum": 1.5, "count": 1, "more": 1}, {"sum": 1.5, "count": 0}, [1.5, 1], 1.5):
        columnar = ColumnarAggregation(
            aggregation, Memory({b"k": encode_value({"format": 1, "mean": {"m": stored}}, 1)})
        )
        assert run(columnar, [b"k"], [b'{"v":1.5}'], [1]) is None


def test_names_that_mean_something_to_a_template_are_names():
    columns = {"%b": Count(), "100%": Sum("v"), "%%s": Mean("v"), "{}": Last("u"), "é": Max("v")}
    assert check(columns, [of(1.5, 2.5), of(3.5, key=b"%b"), of(1, 2)], restarts=(1, 2)) == 3


def test_more_rows_than_are_written_at_once_are_all_written():
    messages = [message for number in range(2500) for message in of(number / 3, key=b"%d" % number)]
    columns = {"n": Count(), "mean": Mean("v"), "newest": Last("u"), "least": Min("v")}
    assert check(columns, [messages[:1700], messages[1200:], messages], restarts=(1, 2)) == 3


def test_a_new_column_joins_those_that_are_stored():
    plain, memory = Memory(), Memory()
    for columns in ({"n": Count(), "gone": Max("v")}, {"n": Count(), "total": Sum("v"), "gone": Min("v")}):
        aggregation = Aggregation(columns)
        columnar = ColumnarAggregation(aggregation, memory)
        outputs, by_columns = in_columns(columnar, aggregation, memory, of(1.5, 2.5))
        assert by_columns
        columnar.write_back()
        assert outputs == one_by_one(aggregation, plain, of(1.5, 2.5))
        assert memory.values == plain.values


def test_rows_that_were_not_used_lately_are_forgotten_after_a_commit_and_come_back():
    memory = Memory()
    aggregation = Aggregation({"n": Count()})
    columnar = ColumnarAggregation(aggregation, memory, rows_bytes_max=0)
    for turn in range(1, 6):
        for first in range(0, 4000, 500):
            keys = [b"%d" % number for number in range(first, first + 500)]
            assert run(columnar, keys, [b"{}"] * 500, [turn] * 500) == [b'{"n":%d}' % turn] * 500
            columnar.write_back()
            columnar.committed()
            assert len(columnar._table.dirty) * columnar._table.row_bytes < 3_000 * 500
    assert len(memory.values) == 4000


def test_what_is_not_committed_is_forgotten_with_a_drop():
    memory = Memory()
    columnar = ColumnarAggregation(Aggregation({"n": Count()}), memory)
    run(columnar, [b"k"], [b"{}"], [1])
    assert columnar.dirty_bytes() > 0
    columnar.drop()
    assert columnar.dirty_bytes() == 0
    assert run(columnar, [b"k"], [b"{}"], [1]) == [b'{"n":1}']


NUMBERS = [b"1", b"1.5", b"1e999", b"1e+400", b"-1E0400", b"1e-400", b"0" * 320, b"9" * 320, b"NaN"]
TEXTS = [b'"v"', b'"\xff"', b'"\xc3\xa9"', b'"\xc3"', b'"\\ud800"', b'"\\u00e9"', b'"a\\nb"', b'"3e4"', b'"\\q"']
OTHERS = [b"{", b"}", b'"v":', b'"x":', b",", b"[", b"]", b"null", b"true", b" ", b"\n", b"\x00", b":"]
pieces = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])
bodies = st.one_of(
    st.lists(pieces, max_size=12).map(b"".join),
    st.lists(pieces, max_size=6).map(lambda parts: b'{"v":1.5,"x":' + b"".join(parts) + b"}"),
    st.lists(pieces, max_size=2).map(lambda parts: b'{"x":' + b"".join(parts) + b',"v":1.5}'),
)


@settings(max_examples=600, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=4))
@example([b'{"v":1.5,"x":1e999}'])
@example([b'{"v":1.5,"x":"\xff"}'])
@example([b'{"v":1.5,"x":"\xc3', b'\xa9"}'])
@example([b'{"v":1.5,"x":' + b"9" * 400 + b".0}"])
def test_messages_that_are_read_in_part_are_those_that_can_be_read_whole(values):
    narrow = msgspec.json.Decoder(msgspec.defstruct("Row", [("v", object, None)])).decode
    if not skipping_is_safe(values):
        return
    for raw in values:
        try:
            value = narrow(raw).v
        except Exception:
            continue
        whole = decode(raw)
        seen = whole.get("v")
        assert type(seen) is type(value)
        assert seen == value
        if type(value) is float:
            assert struct.pack("d", seen) == struct.pack("d", value)


def test_reading_in_part_is_safe_for_ordinary_messages():
    assert skipping_is_safe([b'{"v":1.5,"merchant":"shop-1","id":"a3f1"}', '{"u":"é"}'.encode()])
    assert not skipping_is_safe([b'{"v":1e999}'])
    assert not skipping_is_safe([b'{"v":"\xff"}'])
    assert not skipping_is_safe([b"1" * 301])
