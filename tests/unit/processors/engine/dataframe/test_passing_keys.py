"""Keys that ``to_topic`` passes on, where the topics have keys of other types."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import msgspec
import pytest

from holdfast import (
    Application,
    AvroDeserializer,
    AvroSerializer,
    Count,
    InMemoryCluster,
    SchemaRegistryClientConfig,
)
from holdfast.infra.schemas.registry import Registries
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings
from holdfast.models.serializers import StringDeserializer, StringSerializer
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.generated_loop import compile_run, run_text
from holdfast.processors.engine.dataframe.passing_keys import key_change
from holdfast.processors.engine.dataframe.plain_loop import loop_over
from holdfast.processors.engine.formats.kafka_message import KafkaMessage
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.engine.steps.group_key import PassingKey
from holdfast.processors.engine.steps.in_place import Touch
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.steps.outbox import Outboxes
from holdfast.processors.engine.steps.topic import Topic

INTEGER, LONG, DOUBLE = (7).to_bytes(4, "big"), (7).to_bytes(8, "big"), struct.pack(">d", 7.0)
TEXT = {"type": "string"}


def application() -> Application:
    return Application(consumer_group="g", auto_offset_reset="earliest", loglevel=None, dead_letter_topic="dead")


def sent(app: Application, *keys: bytes | None, value: Any = None, topic: str = "out") -> list[bytes | None]:
    """Keys of the outputs after a message of each of these keys."""
    cluster = InMemoryCluster()
    for name in ("in", "other", "out", "dead"):
        cluster.create_topic(name)
    for key in keys:
        cluster.produce("in", json.dumps({"id": 7, "name": "n"} if value is None else value).encode(), key)
    cluster.run(app)
    return [record.key for _, record in cluster.read(topic)]


def passed(reads: Any, writes: Any, *keys: bytes | None, topic: str = "out") -> list[bytes | None]:
    app = application()
    source = app.topic("in") if reads is None else app.topic("in", key_deserializer=reads)
    app.dataframe(source).to_topic(app.topic("out", key_serializer=writes))
    return sent(app, *keys, topic=topic)


@pytest.mark.parametrize(
    ("reads", "writes", "key", "expected"),
    [
        ("integer", "long", INTEGER, LONG),
        ("long", "integer", LONG, INTEGER),
        ("int", "double", INTEGER, DOUBLE),
        ("long", "json", LONG, b"7"),
        ("str", "json", b"a", b'"a"'),
        ("json", "string", b'"a"', b"a"),
        ("json", "long", b"7", LONG),
        ("msgpack", "double", msgspec.msgpack.encode(7), DOUBLE),
        ("long", lambda key: str(key + 1).encode(), LONG, b"8"),
        (lambda raw: raw.decode() * 2, "str", b"a", b"aa"),
        ("str", AvroSerializer(TEXT), b"a", b"\x02a"),
        (AvroDeserializer(TEXT), "str", b"\x02a", b"a"),
        (None, lambda key: key * 2, b"a", b"aa"),
        (None, "str", b"a", b"a"),
    ],
)
def test_a_key_is_deserialized_and_serialized_again(reads: Any, writes: Any, key: bytes, expected: bytes) -> None:
    assert passed(reads, writes, key, None) == [expected, None]


@pytest.mark.parametrize(
    ("reads", "writes"),
    [
        ("long", "long"),
        ("int", "integer"),
        ("string", "str"),
        ("str", StringSerializer()),
        (StringDeserializer(), "str"),
        ("long", "bytes"),
        (AvroDeserializer(TEXT), "bytes"),
        ("json", "json"),
    ],
)
def test_a_key_of_the_same_type_is_sent_as_it_is_at_no_cost(reads: Any, writes: Any) -> None:
    source, to = Topic("in", key_deserializer=reads), Topic("out", key_serializer=writes)
    stream = StreamingDataFrame(source)
    stream.to_topic(to)
    assert key_change([source], to) is None
    assert run_text(stream.source) == run_text(_sink(None))


def test_both_loops_change_keys() -> None:
    change = key_change([Topic("in", key_deserializer="integer")], Topic("out", key_serializer="long"))
    made = []
    for compiled in (compile_run, loop_over):
        boxes = Outboxes()
        run = compiled(_sink(change), {}, boxes, {})
        run.function(iter([1, 2]), iter([INTEGER, None]), iter([0, 0]), iter([7, None]), iter([None, None]))
        made.append(boxes["out"].keys)
    assert made == [[LONG, None], [LONG, None]]


def _sink(change: Any) -> Node:
    return Node("source", children=[Node("to_topic", PassingKey(change) if change else None, topic=Topic("out"))])


REFUSED = {
    "long": ["str"],
    "double": ["str", "short", "integer", "long"],
    "str": ["short", "integer", "long", "float", "double"],
    None: ["short", "integer", "long", "float", "double", "json"],
}


@pytest.mark.parametrize(("reads", "writes"), [(reads, each) for reads, found in REFUSED.items() for each in found])
def test_keys_that_can_not_be_written_are_refused_with_what_to_write(reads: str | None, writes: str) -> None:
    number = {"long": LONG, "double": DOUBLE, "str": b"7", None: b"7"}[reads]
    app = application()
    stream = app.dataframe(app.topic("in") if reads is None else app.topic("in", key_deserializer=reads))
    with pytest.raises(StepInvalid) as failed:
        stream.to_topic(app.topic("out", key_serializer=writes))
    written = re.match(r"Write `key_(serializer|deserializer)=(.*?)` in `app.topic\('(in|out)'\)`", failed.value.action)
    assert written is not None
    given = eval(written[2], {"struct": struct})
    if written[1] == "serializer":
        (key,) = passed(reads, given, number)
        assert key in (b"7", b"7.0", *((7).to_bytes(size, "big") for size in (2, 4, 8)), struct.pack(">f", 7), DOUBLE)
    else:
        raw = app.topic("x", key_serializer=writes).serialize_key("a" if writes == "json" else 7)
        assert passed(given, writes, raw) == [raw]


@pytest.mark.parametrize("writes", ["str", "json", "long", AvroSerializer(TEXT), lambda key: b"!" + key])
def test_keys_behind_group_by_are_texts(writes: Any) -> None:
    def grouped(**given: Any) -> list[bytes | None]:
        app = application()
        stream = app.dataframe(app.topic("in")).group_by("id" if writes == "long" else "name", **given)
        stream.aggregate(n=Count()).to_topic(app.topic("out", key_serializer=writes))
        return sent(app, b"k")

    if writes == "long":
        with pytest.raises(StepInvalid, match="that `group_by`") as failed:
            grouped()
        (line,) = re.findall("Write `key_serializer='long', key_deserializer='long'` in", failed.value.action)
        assert line
        assert grouped(key_serializer="long", key_deserializer="long") == [LONG]
        assert grouped(key_serializer="long") == [LONG]
        return
    expected = {"str": b"n", "json": b'"n"'}.get(writes) if isinstance(writes, str) else None
    assert grouped() == [expected or (b"\x02n" if isinstance(writes, AvroSerializer) else b"!n")]


def test_keys_of_a_schema_registry_are_written_for_the_output_topic() -> None:
    registry = SchemaRegistryClientConfig(url="mock://passing-keys")
    schema = {"type": "record", "name": "Id", "fields": [{"name": "id", "type": "long"}]}
    writes = AvroSerializer(schema, schema_registry_client_config=registry)
    key = Topic("in", key_serializer=writes).serialize({"id": 7}).key
    (made,) = passed(AvroDeserializer(schema_registry_client_config=registry), writes, key)
    read = Topic("out", key_deserializer=AvroDeserializer(schema_registry_client_config=registry))
    assert read.deserialize(KafkaMessage(made, None)).key == {"id": 7}
    client = Registries(SchemaRegistrySettings()).client(registry)._client
    assert {"in-key", "out-key"} <= {*client.get_subjects()}


def test_keys_behind_a_serializer_of_group_by() -> None:
    def own(key: Any) -> bytes:
        return f"<{key}>".encode()

    app = application()
    stream = app.dataframe(app.topic("in")).group_by("id", key_serializer=own)
    stream.to_topic(app.topic("out", key_serializer=own))
    assert sent(app, b"k") == [b"<7>"]


@pytest.mark.parametrize(("writes", "expected"), [("long", LONG), ("double", DOUBLE), ("bytes", LONG)])
def test_keys_of_a_join_by_a_key_inside_the_row_are_those_of_the_left_table(writes: str, expected: bytes) -> None:
    app = application()
    left, right = app.table(app.topic("in", key_deserializer="long")), app.table(app.topic("other"))
    joined = left.join(right, on="name", how="left").to_stream()
    joined.to_topic(app.topic("out", key_serializer=writes))
    assert sent(app, LONG) == [expected]


def test_keys_of_a_group_of_a_table_are_texts() -> None:
    app = application()
    counts = app.table(app.topic("in", key_deserializer="long")).group_by("id").aggregate(n=Count()).to_stream()
    counts.to_topic(app.topic("out", key_serializer="str"))
    with pytest.raises(StepInvalid) as failed:
        counts.to_topic(app.topic("numbers", key_serializer="long"))
    written = re.match(r"Write `key_serializer=(.*?)` in `app.topic\('numbers'\)`", failed.value.action)
    assert written is not None
    counts.to_topic(app.topic("other", key_serializer=eval(written[1])))
    assert (sent(app, LONG), sent(app, LONG, topic="other")) == ([b"7"], [LONG])


def test_a_key_that_can_not_be_read_or_written_fails_its_message_alone() -> None:
    beyond = (2**40).to_bytes(8, "big")
    assert passed("long", "integer", beyond, LONG) == [INTEGER]
    assert passed("long", "integer", beyond, LONG, topic="dead") == [beyond]
    assert passed(None, "str", b"\xff", b"a") == [b"a"]
    assert passed(None, "str", b"\xff", b"a", topic="dead") == [b"\xff"]


def test_a_window_and_columns_by_numpy_change_keys() -> None:
    app = application()
    stream = app.dataframe(app.topic("in"))
    app.dataframe(app.topic("other", key_deserializer="integer")).tumbling_window(1000).count().current().to_topic(
        app.topic("windows", key_serializer="long")
    )
    stream.aggregate(n=Count()).to_topic(app.topic("out", key_serializer=lambda key: key * 2))
    cluster = InMemoryCluster()
    for name in ("in", "other", "windows", "out", "dead"):
        cluster.create_topic(name)
    cluster.produce("in", b"{}", b"a")
    cluster.produce("other", b"{}", INTEGER)
    cluster.run(app)
    assert [[record.key for _, record in cluster.read(name)] for name in ("out", "windows")] == [[b"aa"], [LONG]]


def test_headers_of_an_output_are_made_beside_its_key() -> None:
    app = application()
    stream = app.dataframe(app.topic("in", key_deserializer="integer"))
    stream.to_topic(app.topic("out", key_serializer="long"), headers=lambda value: {"h": value.pop("name")})
    (node,) = stream.source.children
    assert (len(node.functions), node.touch) == (1, Touch.ALL)  # the function of the headers changes the value
    cluster = InMemoryCluster()
    for name in ("in", "other", "out", "dead"):
        cluster.create_topic(name)
    cluster.produce("in", b'{"name":"n"}', INTEGER)
    cluster.run(app)
    assert [(record.key, record.headers) for _, record in cluster.read("out")] == [(LONG, [("h", b"n")])]


def test_a_chosen_topic_has_its_own_keys() -> None:
    app = application()
    wide, text = app.topic("out", key_serializer="long"), app.topic("other", key_serializer="str")
    app.dataframe(app.topic("in", key_deserializer="integer")).to_topic(
        lambda value, key, *_: wide if key == 7 else text
    )
    eight = (8).to_bytes(4, "big")
    assert (sent(app, INTEGER), sent(app, eight, INTEGER, topic="dead")) == ([LONG], [eight])


def test_a_stream_of_topics_with_other_keys_is_refused() -> None:
    app = application()
    numbers = app.dataframe(app.topic("in", key_deserializer="integer"))
    texts = app.dataframe(app.topic("other", key_deserializer="str"))
    to = app.topic("out", key_serializer="json")
    with pytest.raises(StepInvalid, match="topic in with keys of `integer` and topic other with keys of `str`"):
        numbers.concat(texts).to_topic(to)
    for stream in (numbers, texts):
        stream.to_topic(to)
    assert sent(app, INTEGER) == [b"7"]


def test_bytes_and_texts_of_one_stream_become_texts() -> None:
    app = application()
    texts, raw = app.dataframe(app.topic("in", key_deserializer="str")), app.dataframe(app.topic("other"))
    texts.concat(raw).to_topic(app.topic("out", key_serializer="str"))
    assert sent(app, b"a") == [b"a"]


def test_a_test_of_steps_sends_no_keys() -> None:
    app = application()
    stream = app.dataframe(app.topic("in", key_deserializer="integer"))
    stream.to_topic(app.topic("out", key_serializer="long"))
    assert [result[:2] for result in stream.test({"id": 1})] == [({"id": 1}, b"key")]
