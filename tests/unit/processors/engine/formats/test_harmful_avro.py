"""One message of Avro can't end a worker or fill its memory: it goes by the failure policy, with its raw bytes.

The worker is a process of its own with 6 GB of address space, because the failure is a segmentation fault or all
memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = r"""
import json, sys
from decimal import Decimal
from holdfast import Application, AvroDeserializer, AvroSerializer, InMemoryCluster, SchemaRegistryClientConfig
from confluent_kafka.serialization import SerializationContext

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"], "default": None}]}
HOLDER = {"type": "record", "name": "Holder", "fields": [{"name": "node", "type": NODE}]}
NULLS = {"type": "array", "items": "null"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
BILL = {"type": "record", "name": "Bill", "fields": [{"name": "price", "type": PRICE}]}
REGISTRY = SchemaRegistryClientConfig(url="mock://harmful")

def number(value):
    made, value = bytearray(), value << 1
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])

def nested(levels):
    value = {"next": None}
    for _ in range(levels):
        value = {"next": value}
    return value

circle = {}
circle["next"] = circle
context = SerializationContext("in", "value")
ids = {}
bill = {"price": Decimal("0.01")}
for name, schema, value in (("node", NODE, nested(0)), ("nulls", NULLS, [None]), ("bill", BILL, bill)):
    ids[name] = AvroSerializer(schema, schema_registry_client_config=REGISTRY)(value, context)[:5]
deep, nulls = b"\x02" * 9_000 + b"\x00", number(2**32) + b"\x00"
price = number(500_000) + b"\x7f" * 500_000
with_registry = AvroDeserializer(schema_registry_client_config=REGISTRY)
good = {"node": b"\x02\x00", "nulls": b"\x04\x00", "bill": b"\x02\x07"}
cases = {
    "recursive": (AvroDeserializer(NODE), good["node"], deep),
    "reader schema": (AvroDeserializer(NODE, reader_schema=NODE), good["node"], deep),
    "nulls": (AvroDeserializer(NULLS), good["nulls"], nulls),
    "decimal": (AvroDeserializer(BILL), good["bill"], price),
    "recursive, registry": (with_registry, ids["node"] + good["node"], ids["node"] + deep),
    "nulls, registry": (with_registry, ids["nulls"] + good["nulls"], ids["nulls"] + nulls),
    "decimal, registry": (with_registry, ids["bill"] + good["bill"], ids["bill"] + price),
}
writers = {
    "written": (AvroSerializer(NODE), nested(9_000)),
    "circle": (AvroSerializer(HOLDER), {"node": circle}),
    "written, registry": (AvroSerializer(NODE, schema_registry_client_config=REGISTRY), nested(9_000)),
}

def run(messages, reader, writer, function):
    app = Application(consumer_group="g", auto_offset_reset="earliest", dead_letter_topic="dead", loglevel=None)
    source, sink = app.topic("in", value_deserializer=reader), app.topic("out", value_serializer=writer)
    app.dataframe(source).apply(function).to_topic(sink)
    cluster = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        cluster.create_topic(topic)
    for message in messages:
        cluster.produce("in", message, b"k")
    cluster.run(app)
    dead = [record for _, record in cluster.read("dead")]
    reasons = [dict(record.headers)["holdfast.error"].decode() for record in dead]
    return [len(list(cluster.read("out"))), [record.value for record in dead] == [messages[1]], reasons]

found = {}
for name, (reader, fine, bad) in cases.items():
    # The first message of a schema is read in another way than the later ones.
    if "registry" in name:
        assert run([bad, bad], reader, "json", lambda value: 1)[0] == 0
    found[name] = run([fine, bad, fine], reader, "json", lambda value: 1)
for name, (writer, value) in writers.items():
    small = nested(1) if "circle" not in name else {"node": nested(1)}
    found[name] = run([b"1", b"2", b"3"], "json", writer, lambda given, v=value, s=small: v if given == 2 else s)
json.dump(found, sys.stdout)
"""
DEEP, NULLS = "nested more than 1,000 deep", "more than 1,000,000 items without bytes"
LONG = "a decimal has 500,000 bytes, expected at most 10,000"


@pytest.mark.slow
def test_a_message_of_avro_ends_no_worker_and_fills_no_memory() -> None:
    root = Path(__file__).parents[5]
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        cwd=root,
        capture_output=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)),
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout.splitlines()[-1])  # behind the lines of the log
    reasons = {
        "recursive": DEEP,
        "reader schema": DEEP,
        "nulls": NULLS,
        "decimal": LONG,
        "recursive, registry": DEEP,
        "nulls, registry": NULLS,
        "decimal, registry": LONG,
        "written": DEEP,
        "circle": DEEP,
        "written, registry": DEEP,
    }
    assert found.keys() == reasons.keys()
    for name, reason in reasons.items():
        outputs, is_raw, (given,) = found[name]
        assert (outputs, is_raw) == (2, True), name
        assert reason in given, name
