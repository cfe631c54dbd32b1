"""The bytes of changelog records: round trips, distinct keys, refused unknown format versions, and an old sample."""

import math
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.engine.changelog.format import (
    ChangelogMeta,
    FormatUnknown,
    ValueNotStorable,
    decode_value,
    encode_bytes,
    encode_value,
    event_time_ms,
    key_prefix,
    split_key,
)
from holdfast.processors.engine.changelog.names import IllegalName, changelog_topic

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(JSON, st.integers(-(2**62), 2**62))
def test_json_values_round_trip(value, timestamp):
    stored = encode_value(value, timestamp)
    assert decode_value(stored) == value
    assert event_time_ms(stored) == timestamp


@given(st.binary(), st.integers(0, 2**62))
def test_bytes_round_trip(value, timestamp):
    assert decode_value(encode_bytes(value, timestamp)) == value


@given(st.tuples(st.binary(), st.text()), st.tuples(st.binary(), st.text()))
def test_different_places_have_different_keys(one, other):
    first, second = (key_prefix(key) + state.encode() for key, state in (one, other))
    assert (first == second) == (one == other)
    assert split_key(first) == one


def test_the_sample_of_version_one_stays_readable():
    assert split_key(bytes.fromhex("0100000006") + b"N12345aircraft") == (b"N12345", "aircraft")
    sample = bytes.fromhex("0101" + "0000013c42b83980") + b'{"flights":3}'
    assert decode_value(sample) == {"flights": 3}
    assert ChangelogMeta.decode(b'{"version":1,"inputs":{"flights":7},"transaction":2,"code_version":"ab"}') == (
        ChangelogMeta({"flights": 7}, 2, "ab")
    )


def test_a_meta_record_names_its_processor_and_older_and_newer_code_read_each_others():
    class Older(msgspec.Struct, frozen=True):
        """The meta record as older versions of Holdfast decode it, without the name of the processor."""

        inputs: Mapping[str, int]
        transaction: int
        code_version: str
        sources: Mapping[str, str] = {}
        owner: str = ""
        version: int = 1

    newer = ChangelogMeta({"flights": 7}, 2, "ab", {"flights": "id"}, "me", processor="fleet")
    assert msgspec.json.decode(newer.encode(), type=Older) == Older({"flights": 7}, 2, "ab", {"flights": "id"}, "me")
    assert ChangelogMeta.decode(newer.encode()) == newer
    assert ChangelogMeta.decode(msgspec.json.encode(Older({"flights": 7}, 2, "ab"))).processor == ""


@pytest.mark.parametrize(
    "read",
    [
        lambda: decode_value(b"\x02\x01" + bytes(8) + b"1"),
        lambda: decode_value(b"\x01\x09" + bytes(8) + b"1"),
        lambda: split_key(b"\x07abc"),
        lambda: ChangelogMeta.decode(b'{"version":9}'),
    ],
)
def test_an_unknown_version_is_refused_by_name(read):
    with pytest.raises(FormatUnknown, match="expected 1|expected 01"):
        read()


def test_a_value_that_json_can_not_hold_names_its_type():
    with pytest.raises(ValueNotStorable, match="object"):
        encode_value({"a": object()}, 0)


@pytest.mark.parametrize(
    "value",
    [b"x", b"", bytearray(b"x"), memoryview(b"x"), math.nan, [math.inf], {"a": [-math.inf, "null"]}, (None, math.nan)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_would_come_back_as_another_is_refused(value):
    with pytest.raises(ValueNotStorable, match="would come back as"):
        encode_value(value, 0, where=" somewhere")


@pytest.mark.parametrize("value", ["x", "", "null", None, [None, "null"], {"null": None}, 1.5, [], {}, True])
def test_values_that_look_like_those_are_stored(value):
    assert decode_value(encode_value(value, 7)) == value


@pytest.mark.parametrize("store", ["a b", "ü", "x" * 250, ""])
def test_illegal_names_are_refused(store):
    if store == "":
        assert changelog_topic("p", store) == "p--changelog"
    else:
        with pytest.raises(IllegalName, match="letters"):
            changelog_topic("p", store)
