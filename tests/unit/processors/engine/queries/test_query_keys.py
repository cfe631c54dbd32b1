"""Texts of keys in queries become the bytes that Kafka has, and the bytes in answers lead back to themselves."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.processors.engine.formats.binary import NUMBERS, number_writer, write_msgpack
from holdfast.processors.engine.queries.errors import QueryWrong
from holdfast.processors.engine.queries.keys import key_from_base64, key_from_text, shown_key
from tests.mechanics.tiers import examples

FORMS = ["bytes", "str", "string", *NUMBERS, "int", "json", "msgpack"]
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("form", "text", "key"),
    [
        ("bytes", "ü", b"\xc3\xbc"),
        ("str", "", b""),
        ("string", "42", b"42"),
        ("short", "-2", b"\xff\xfe"),
        ("integer", "42", b"\0\0\0*"),
        ("int", "42", b"\0\0\0*"),
        ("long", "42", b"\0\0\0\0\0\0\0*"),
        ("double", "1.5", b"\x3f\xf8\0\0\0\0\0\0"),
        ("json", "alice", b'"alice"'),
        ("json", '"alice"', b'"alice"'),
        ("json", '{"a": 1}', b'{"a": 1}'),
        ("json", "42", b"42"),
        ("msgpack", "42", b"*"),
        ("msgpack", "alice", b"\xa5alice"),
    ],
)
def test_a_text_becomes_the_bytes_of_its_format(form: str, text: str, key: bytes) -> None:
    assert key_from_text(text, form) == key


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("integer", "alice"),
        ("integer", ""),
        ("integer", "1.5"),
        ("integer", str(2**31)),
        ("short", "9" * 5_000),
        ("long", "1_000"),
        ("long", "42 43"),
        ("double", "nan"),
        ("long", "４２"),
        ("float", "1e300"),
        ("double", "1_0.5"),
        ("double", "one"),
        ("msgpack", str(2**64)),
        ("avro", "alice"),
    ],
)
def test_a_text_that_is_no_key_is_refused(form: str, text: str) -> None:
    with pytest.raises(QueryWrong) as refused:
        key_from_text(text, form)
    assert len(refused.value.message) < 300


def test_a_function_as_deserializer_needs_base64() -> None:
    def read_key(raw: bytes) -> Any:
        return raw

    with pytest.raises(QueryWrong, match="read_key") as refused:
        key_from_text("alice", read_key)
    assert "encoding=base64" in refused.value.action
    assert shown_key(b"alice", read_key) == {"key": "alice", "key_base64": "YWxpY2U="}


@pytest.mark.parametrize(
    ("form", "key", "shown"),
    [
        ("msgpack", b"*", {"key": "42"}),
        ("msgpack", b"\xa5alice", {"key": "alice"}),
        ("msgpack", b"\xa242", {"key": "42", "key_base64": "ojQy"}),
        ("msgpack", b"\xc1", {"key_base64": "wQ=="}),
        ("json", b'"alice"', {"key": '"alice"'}),
        ("json", b"alice", {"key": "alice", "key_base64": "YWxpY2U="}),
        ("long", b"\0\0\0\0\0\0\0*", {"key": 42}),
        ("long", b"*", {"key_base64": "Kg=="}),
        ("str", b"\xff", {"key_base64": "/w=="}),
    ],
)
def test_how_keys_are_shown(form: str, key: bytes, shown: dict[str, Any]) -> None:
    assert shown_key(key, form) == shown


def test_deep_json_is_a_text() -> None:
    deep = "[" * 100_000
    assert key_from_text(deep, "json") == json.dumps(deep).encode()


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(key=st.binary(max_size=20) | st.text(max_size=8).map(str.encode), form=st.sampled_from(FORMS))
def test_a_shown_key_leads_back_to_its_bytes(key: bytes, form: str) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(shown_key(key, form)))
    if "key_base64" in shown:
        assert base64.b64decode(shown["key_base64"]) == key
    else:
        text = shown["key"] if isinstance(shown["key"], str) else msgspec.json.encode(shown["key"]).decode()
        assert key_from_text(text, form) == key


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(value=st.integers() | st.floats(), form=st.sampled_from(sorted(NUMBERS)))
def test_a_number_key_is_shown_as_a_number(value: float, form: str) -> None:
    try:
        key = number_writer(form)(value)
    except (TypeError, ValueError):
        return
    shown = shown_key(key, form)
    if value - value == 0:  # neither infinite nor NaN
        assert set(shown) == {"key"}
        assert key_from_text(repr(shown["key"]), form) == key
    else:
        assert base64.b64decode(shown["key_base64"]) == key


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(value=_JSON)
def test_a_key_of_json_is_found_by_its_json(value: Any) -> None:
    text = msgspec.json.encode(value).decode()
    assert key_from_text(text, "json") == text.encode()
    assert key_from_text(text, "msgpack") == write_msgpack(msgspec.json.decode(text))


@settings(max_examples=examples(300, tested=25), deadline=None)
@given(key=st.binary(max_size=40))
def test_base64_of_files_and_of_urls_is_read(key: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(key).decode()
        assert key_from_base64(text) == key_from_base64(text.rstrip("=")) == key


@pytest.mark.parametrize("text", ["a", "ü", "YQ==YQ==", "a b", "%", "=" * 9, "Y" * 5])
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(QueryWrong, match="no base64"):
        key_from_base64(text)
