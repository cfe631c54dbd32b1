"""Numbers in the format of Kafka's own serializers, and msgpack: which values are read, written and refused."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from confluent_kafka.serialization import (
    DoubleDeserializer,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
)
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.formats.serialization import SerializerUnknown, deserializer, serializer

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)
WHOLE = {"short": 15, "integer": 31, "long": 63}


@given(st.integers(-(2**31), 2**31 - 1), st.floats())
def test_numbers_are_those_of_the_client_library(number: int, fraction: float) -> None:
    ours, theirs = serializer("integer")(number), IntegerSerializer()(number)
    assert ours == theirs
    assert deserializer("integer")(ours) == IntegerDeserializer()(theirs) == number
    ours, theirs = serializer("double")(fraction), DoubleSerializer()(fraction)
    assert ours == theirs
    assert repr(deserializer("double")(ours)) == repr(DoubleDeserializer()(theirs)) == repr(fraction)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_come_back_up_to_their_limits(name: str) -> None:
    bits = WHOLE[name]
    for number in (0, 1, -1, 2**bits - 1, -(2**bits)):
        raw = serializer(name)(number)
        assert raw == number.to_bytes((bits + 1) // 8, "big", signed=True)
        assert deserializer(name)(raw) == number
    for beyond in (2**bits, -(2**bits) - 1):
        with pytest.raises(ValueError, match=f"{beyond} does not fit into the {(bits + 1) // 8} bytes of a {name}"):
            serializer(name)(beyond)


def test_a_float_has_four_bytes() -> None:
    assert serializer("float")(0.5) == struct.pack(">f", 0.5)
    assert deserializer("float")(serializer("float")(2)) == 2.0
    assert math.isnan(deserializer("float")(serializer("float")(math.nan)))
    with pytest.raises(ValueError, match="does not fit into the 4 bytes of a float"):
        serializer("float")(1e300)


@pytest.mark.parametrize(
    ("name", "value"), [("integer", 1.0), ("integer", "1"), ("long", True), ("double", "1"), ("double", False)]
)
def test_another_type_is_no_number(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"expected int.*, got {type(value).__name__}"):
        serializer(name)(value)


@pytest.mark.parametrize(("name", "size"), [("short", 2), ("integer", 4), ("long", 8), ("float", 4), ("double", 8)])
def test_bytes_of_another_length_are_refused(name: str, size: int) -> None:
    for length in {0, size - 1, size + 1}:
        with pytest.raises(ValueError, match=f"a {name} has {size} bytes, got {length}"):
            deserializer(name)(bytes(length))


@given(VALUES)
def test_msgpack_brings_back_what_it_wrote(value: Any) -> None:
    raw = serializer("msgpack")(value)
    assert raw == msgspec.msgpack.encode(value)
    assert deserializer("msgpack")(raw) == value


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, 12, 30, tzinfo=UTC), msgspec.msgpack.Ext(5, b"abc")])
def test_msgpack_brings_its_extensions_back(value: Any) -> None:
    assert deserializer("msgpack")(serializer("msgpack")([value, {"at": value}])) == [value, {"at": value}]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {1, 2}}, r"value\['a'\] is of type set"),
        ([1, [datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)]], r"value\[1\]\[0\] is of type datetime"),
        (object(), "value is of type object"),
    ],
)
def test_msgpack_refuses_what_would_come_back_as_another_type(value: Any, place: str) -> None:
    with pytest.raises(TypeError, match=place):
        serializer("msgpack")(value)


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(
        SerializerUnknown, match="bytes, double, float, int, integer, json, long, msgpack, short, str, string"
    ):
        deserializer("int32")


def test_a_processor_of_msgpack_with_whole_keys_and_numbers_for_outputs() -> None:
    app = Application(consumer_group="meters", auto_offset_reset="earliest", dead_letter_topic="dead")
    readings = app.topic("readings", key_deserializer="long", value_deserializer="msgpack")
    stream = app.dataframe(readings)
    stream.apply(lambda value, key, *_: key + value["n"], metadata=True).to_topic(
        app.topic("sums", key_serializer="bytes", value_serializer="long")
    )
    stream.tumbling_window(1_000).sum("n").current().to_topic(app.topic("windows", value_serializer="msgpack"))
    cluster = InMemoryCluster()
    for topic in ("readings", "sums", "windows", "dead"):
        cluster.create_topic(topic)
    key = (7).to_bytes(8, "big")
    for number, raw in enumerate([{"n": 1, "raw": b"\x00"}, {"n": 2}]):
        cluster.produce("readings", msgspec.msgpack.encode(raw), key, timestamp_ms=1_690_000_000_000 + number)
    cluster.produce("readings", b"\xc1", key)
    cluster.produce("readings", msgspec.msgpack.encode({"n": 3}), b"short")
    cluster.run(app)
    assert [int.from_bytes(record.value or b"", "big") for _, record in cluster.read("sums")] == [8, 9]
    sums = [msgspec.msgpack.decode(record.value or b"") for _, record in cluster.read("windows")]
    assert [each["value"] for each in sums] == [1, 3]
    assert [record.key for _, record in cluster.read("dead")] == [key, b"short"]


def test_an_output_that_does_not_fit_fails_its_message_alone() -> None:
    app = Application(consumer_group="meters", auto_offset_reset="earliest", dead_letter_topic="dead")
    app.dataframe(app.topic("in")).to_topic(app.topic("out", value_serializer="integer"))
    cluster = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    for value in (1, 2**40, "3", 4):
        cluster.produce("in", json.dumps(value).encode(), b"k")
    cluster.run(app)
    assert [int.from_bytes(record.value or b"", "big") for _, record in cluster.read("out")] == [1, 4]
    assert [record.value for _, record in cluster.read("dead")] == [b"%d" % 2**40, b'"3"']
