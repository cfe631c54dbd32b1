"""Quix Streams' column steps and deserializers without a broker; it runs in a separate environment.

The program answers questions until its input ends: one line of JSON for each line of JSON. What an application of Quix
Streams does around the steps for each message (a context, a row) is left out, so its times are lower than in use.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import orjson
from google.protobuf.json_format import MessageToDict
from quixstreams.dataframe import StreamingDataFrame
from quixstreams.dataframe.registry import DataFrameRegistry
from quixstreams.models import Topic, TopicConfig, TopicManager
from quixstreams.models.serializers import JSONDeserializer, MessageField, SerializationContext
from quixstreams.models.serializers.avro import AvroDeserializer
from quixstreams.models.serializers.protobuf import ProtobufDeserializer
from quixstreams.models.serializers.schema_registry import SchemaRegistryClientConfig

from tests.bench.column_steps import LOOP, LOOPS, SLICE
from tests.parts.protobuf_messages import Order as Message

STEPS = {each.name: each for each in (LOOP, *LOOPS)}
DECODERS = {}


def compiled(declare, sink):
    """The function of a stream's steps, as ``Application.run`` calls it for each message."""
    registry = DataFrameRegistry()
    frame = StreamingDataFrame(
        Topic("in", create_config=TopicConfig(1, 1)),
        topic_manager=TopicManager(None, "bench"),
        registry=registry,
        processing_context=SimpleNamespace(producer=None),
    )
    registry.register_root(frame)
    return declare(frame).compose(sink=sink)["in"]


def columns(file, step, way, hashed):
    """The CPU nanoseconds per message, and a hash of the results if it is asked for."""
    declare, digest = getattr(STEPS[step], way), hashlib.sha256()
    with open(file, "rb") as lines:
        raw = lines.read().splitlines()
    answer = {"ns": looped(compiled(declare, None), raw) / len(raw)}
    if hashed:
        looped(compiled(declare, lambda value, key, *_: digest.update(key + orjson.dumps(value))), raw)
        answer["hash"] = digest.hexdigest()[:16]
    return answer


def looped(run, raw):
    spent = 0
    for first in range(0, len(raw), SLICE):
        part = [orjson.loads(each) for each in raw[first : first + SLICE]]
        begun = time.thread_time_ns()
        for value in part:
            run(value, b"k", 1, None)
        spent += time.thread_time_ns() - begun
    return spent


def decoder(kind, schema, registry, to_dict):
    of = {"schema_registry_client_config": SchemaRegistryClientConfig(url=registry)} if registry else {}
    if kind == "avro":
        return AvroDeserializer(schema=schema, **of)
    if kind == "protobuf":
        return ProtobufDeserializer(Message, to_dict=to_dict, **of)
    return JSONDeserializer(schema=schema, **of)


def prepare(name, raw, kind, schema=None, registered=None, to_dict=True):
    """Make the decoder of a format. Returns a hash of what it makes of the bytes."""
    raw = base64.b64decode(raw)
    registry = None
    if registered is not None:
        registry = registry_with(json.dumps(registered).encode())
    decode = decoder(kind, schema, registry, to_dict)
    context = SerializationContext("bench", MessageField.VALUE)
    DECODERS[name] = decode, raw, context
    order = decode(raw, context)
    if isinstance(order, Message):
        order = MessageToDict(order)
    order = {**order, "id": int(order["id"])}
    return {"hash": hashlib.sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()[:16]}


def decoded(name, seconds):
    """The CPU microseconds per message."""
    decode, raw, context = DECODERS[name]
    count, began = 0, time.thread_time()
    while (spent := time.thread_time() - began) < seconds:
        for _ in range(100):
            decode(raw, context)
        count += 100
    return {"us": spent / count * 1e6}


def registry_with(schema):
    """Start a schema registry that has one schema under each id. Returns its address."""

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(schema)))
            self.end_headers()
            self.wfile.write(schema)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


if __name__ == "__main__":
    ASKED = {"columns": columns, "prepare": prepare, "decoded": decoded}
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(ASKED[question.pop("do")](**question)), flush=True)
