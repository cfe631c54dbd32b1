"""Codecs of stored values: which values come back, which are refused with their path, and damaged payloads."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.processors.engine.changelog import codecs, typed_codec
from holdfast.processors.engine.changelog.codec_table import BY_NUMBER, CODECS, LABELS
from holdfast.processors.engine.changelog.codecs import DEPTH_MAX, is_plain
from holdfast.processors.engine.changelog.format import (
    ChangelogMeta,
    FormatUnknown,
    ValueNotStorable,
    are_records,
    decode_value,
    event_time_ms,
    key_prefix,
    pack_head,
)
from holdfast.processors.engine.changelog.stored_values import encode_coded, json_text

T = 1_700_000_000_000
EAST = timezone(timedelta(hours=5, minutes=30))


class Kind(Enum):
    ONE = 1


def nested(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def stored(codec: str, value: Any) -> bytes:
    return encode_coded(CODECS[codec], value, T)


def refusal(codec: str, value: Any) -> str:
    with pytest.raises(ValueNotStorable) as refused:
        encode_coded(CODECS[codec], value, T, where=" for key 'k' of store 's'")
    assert "for key 'k' of store 's' does not come back from the codec" in refused.value.message
    assert refused.value.action.startswith("Set another value, or give the store another codec")
    return refused.value.message


PLAIN = [None, True, 0, -(2**63), 2**64 - 1, 1.5, float("inf"), "", "é", {}, [], {"a": [1, {"b": None}]}]
BYTES_AND_KEYS = [b"", b"\xff\x00", {1: "a", "b": b"c"}, [b"x", -0.0], datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=UTC)]
TYPED = [
    (1, (2, [3])),
    {1, "a", (2, b"x")},
    frozenset((frozenset((1,)), 2)),
    Decimal("1.10"),
    Decimal("-Infinity"),
    UUID(int=7),
    2**200,
    -(2**70),
    datetime.fromisoformat("2024-02-29T01:02:03.000004"),
    datetime(2024, 2, 29, tzinfo=EAST),
    date(1, 1, 1),
    time(23, 59, 59, 999_999),
    time(1, tzinfo=EAST),
    timedelta(days=-1, microseconds=1),
    {(1, 2): {date(2024, 1, 1): Decimal(0)}, None: 1.5, b"k": {2.5}},
]


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        *(("msgpack", value) for value in PLAIN + BYTES_AND_KEYS),
        *(("typed", value) for value in PLAIN + BYTES_AND_KEYS + TYPED),
        ("bytes", b"\x00\xff"),
    ],
    # the repr of a set differs between test processes, so it cannot be a test id
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_a_value_comes_back_with_its_types(codec: str, value: Any) -> None:
    raw = stored(codec, value)
    back = decode_value(raw)
    assert repr(sorted(back, key=repr) if isinstance(back, (set, frozenset)) else back) == repr(
        sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    )
    assert back == value
    assert event_time_ms(raw) == T
    assert are_records([key_prefix(b"k") + b"s"], [raw])


_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.datetimes(),
    st.dates(),
    st.timedeltas(),
)
_HASHED = st.recursive(_LEAVES, lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=3), max_leaves=4)
_TEXT_KEYS = st.dictionaries(st.text(max_size=3), _HASHED, max_size=3)
_VALUES = st.recursive(_HASHED | st.sets(_HASHED, max_size=3) | _TEXT_KEYS, lambda inner: st.lists(inner), max_leaves=6)


@given(_VALUES)
def test_any_value_of_known_types_comes_back_and_can_be_shown(value: Any) -> None:
    raw = stored("typed", value)
    back = decode_value(raw)
    assert back == value
    assert type(back) is type(value)
    msgspec.json.decode(json_text(raw) or b"")


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(_PLAIN | _VALUES | st.integers(95, 105).map(lambda levels: nested(levels)))
def test_the_quick_check_takes_only_what_the_checks_with_paths_take(value: Any) -> None:
    if is_plain(value):
        codecs._check(value, "value", 0)
        assert typed_codec._packable(value, "value", 0, typed_codec.another) == value or _greatest(value) >= 2**64


@given(_PLAIN)
def test_the_quick_check_takes_all_plain_values(value: Any) -> None:
    assert is_plain(value)


def _greatest(value: Any) -> int:
    """The greatest absolute whole number in a value. Beyond 64 bits, msgpack needs an extension for it."""
    if isinstance(value, (list, dict)):
        return max(map(_greatest, value.values() if isinstance(value, dict) else value), default=0)
    return abs(value) * 2 if isinstance(value, int) else 0


NAN = float("nan")


def test_nan_comes_back_and_is_shown_as_text() -> None:
    for codec in ("msgpack", "typed"):
        raw = stored(codec, {"a": NAN, "b": float("-inf")})
        assert decode_value(raw)["a"] != decode_value(raw)["a"]
        assert json_text(raw) == b'{"a":"NaN","b":"-Infinity"}'


@pytest.mark.parametrize(
    ("codec", "value", "said"),
    [
        ("msgpack", {"a": [1, (2,)]}, "value['a'][1] is a tuple, which would come back as another type"),
        ("msgpack", {"a": {1}}, "value['a'] is a set"),
        ("msgpack", [Decimal(1)], "value[0] is a Decimal"),
        ("msgpack", datetime.fromisoformat("2024-01-01"), "value is a datetime"),
        ("msgpack", {"a": {None: 1}}, "value['a'] has the key None, expected a text or a whole number"),
        ("msgpack", {1: "a", "1": "b"}, "value has the keys 1 and '1', which are both '1' in a table"),
        ("msgpack", {"a": {"b": 2**64}}, "value['a']['b']: can't serialize ints"),
        ("msgpack", nested(1_000), "is nested more than 100 levels deep"),
        ("typed", {"a": [Kind.ONE]}, "an enum comes back only through a model"),
        ("typed", {"a": object()}, "value['a'] is an object"),
        ("typed", {"a": type("Text", (str,), {})("x")}, "value['a'] is a Text"),
        ("typed", [{("a", object()): 1}], "is an object, which would come back as another type"),
        ("typed", {1: 1, "1": 2}, "which are both '1' in a table"),
        ("typed", time(1, tzinfo=ZoneInfo("Europe/Berlin")), "whose offset depends on the day"),
        ("typed", nested(1_000), "is nested more than 100 levels deep"),
        ("typed", {"a": {"b": "\ud800"}}, r"value['a']['b']: 'utf-8' codec can't encode"),
        ("bytes", "text", "value is a str"),
        ("bytes", bytearray(b"x"), "value is a bytearray"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_would_not_come_back_is_refused_with_its_path(codec: str, value: Any, said: str) -> None:
    assert said in refusal(codec, value)


def test_the_deepest_value_that_is_taken_is_read_and_shown_from_a_deep_stack() -> None:
    def below(frames: int) -> tuple[Any, bytes | None]:
        return below(frames - 1) if frames else (decode_value(raw), json_text(raw))

    tuples: Any = 1
    for _ in range(DEPTH_MAX):
        tuples = (tuples,)
    for codec, value in (("msgpack", nested(DEPTH_MAX)), ("typed", nested(DEPTH_MAX)), ("typed", tuples)):
        raw = stored(codec, value)
        back, text = below(400)
        assert back == value
        assert text == b"[" * DEPTH_MAX + b"1" + b"]" * DEPTH_MAX


def test_a_value_of_10_mb_comes_back() -> None:
    value = {"items": [{"at": date(2024, 1, 1), "n": number, "text": "x" * 100} for number in range(80_000)]}
    for codec, given_value in (("typed", value), ("msgpack", {"blob": b"\xff" * 10_000_000})):
        raw = stored(codec, given_value)
        assert len(raw) > 8_000_000
        assert decode_value(raw) == given_value


@pytest.mark.parametrize("codec", ["msgpack", "typed"])
@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\xc7\x02\x63ab", b"\xd4\x04x"])
def test_a_damaged_payload_is_named(codec: str, payload: bytes) -> None:
    raw = pack_head(1, CODECS[codec].number, T) + payload
    if codec == "msgpack" and payload[:1] in (b"\xc7", b"\xd4"):
        return  # the payload is an extension of msgpack itself, which the codec never writes
    with pytest.raises(FormatUnknown, match=f"A stored value of the codec {codec} can't be read"):
        decode_value(raw)
    with pytest.raises(FormatUnknown, match=f"A stored value of the codec {codec} can't be read"):
        json_text(raw)


def test_equal_values_have_equal_bytes_in_every_process() -> None:
    code = (
        "from holdfast.processors.engine.changelog.codec_table import CODECS; import sys;"
        "made = CODECS['typed'].encode({'a': {'x', 'y', 'z', ('w', 1)}, 'b': frozenset('abcdef')});"
        "sys.stdout.write(made.hex() + ' ' + repr(CODECS['typed'].shown(made)))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_meta_record_names_the_codec_and_one_of_a_newer_version_is_refused() -> None:
    plain = ChangelogMeta({"in": 1}, 1, "v")
    assert b"codec" not in plain.encode()
    for label in LABELS:
        meta = ChangelogMeta({"in": 1}, 1, "v", codec=label)
        assert ChangelogMeta.decode(meta.encode()) == meta
    with pytest.raises(FormatUnknown, match=r"has values of the codec 'msgpack 2', expected one of bytes 1, json 1"):
        ChangelogMeta.decode(ChangelogMeta({"in": 1}, 1, "v", codec="msgpack 2").encode())


def test_numbers_and_names_of_codecs_never_change() -> None:
    assert {number: each.label for number, each in BY_NUMBER.items()} == {
        1: "json 1",
        2: "bytes 1",
        3: "msgpack 1",
        4: "typed 1",
    }
    value = {
        "t": (1,),
        "s": {2},
        "f": frozenset((3,)),
        "d": Decimal("1.5"),
        "u": UUID(int=5),
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "day": date(2024, 1, 1),
        "h": time(1),
        "l": timedelta(1),
        "i": 2**64,
        "k": {(4,): 5},
    }
    written = (
        "8ba174d5019101a173d5029102a166d5039103a164c70304312e35a175d80500000000000000000000000000000005a26174c71906"
        "323032342d30312d30315430303a30303a30302b30303a3030a3646179c70a07323032342d30312d3031a168d70830313a30303a3030"
        "a16cd60993010000a169c7110a3130303030303030303030303030303030a16bc7060b92d501910405"
    )
    assert CODECS["typed"].encode(value).hex() == written
    assert CODECS["typed"].decode(bytes.fromhex(written)) == value
