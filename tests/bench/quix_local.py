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
from tempfile import TemporaryDirectory

from google.protobuf.json_format import MessageToDict
from quixstreams import MessageContext
from quixstreams.context import set_message_context
from quixstreams.dataframe import StreamingDataFrame
from quixstreams.dataframe.registry import DataFrameRegistry
from quixstreams.dataframe.windows import Count, Sum
from quixstreams.models import Topic, TopicConfig, TopicManager
from quixstreams.models.serializers import JSONDeserializer, MessageField, SerializationContext
from quixstreams.models.serializers.avro import AvroDeserializer
from quixstreams.models.serializers.protobuf import ProtobufDeserializer
from quixstreams.models.serializers.schema_registry import SchemaRegistryClientConfig
from quixstreams.processing import ProcessingContext
from quixstreams.state import StateStoreManager
from quixstreams.utils.json import dumps, loads

from tests.bench.column_steps import LOOP, LOOPS, SLICE, large_by_columns, large_by_functions
from tests.parts.protobuf_messages import Order as Message

#: As in ``stream.py``, which needs packages that are not here.
FIRST_TIMESTAMP_MS = 1_735_689_600_000
STEPS = {each.name: each for each in (LOOP, *LOOPS)}
DECODERS = {}


def totals(value, state):
    """What ``aggregate`` computes in Holdfast, as a function: Quix Streams aggregates in windows only."""
    seen = state.get("totals")
    total = value["total"]
    if seen is None:
        seen = {"n": 1, "total": 0.0 + total, "most": total}
    else:
        seen = {"n": seen["n"] + 1, "total": seen["total"] + total, "most": max(seen["most"], total)}
    state.set("totals", seen)
    return seen


def minutes(frame):
    return frame.tumbling_window(60_000, name="minutes").agg(n=Count(), total=Sum("total")).current("partition")


TASKS = {
    "task: filter, column, aggregation": lambda frame: frame.apply(totals, stateful=True),
    "task: filter, column, window": minutes,
}


class Composed:
    """A stream of Quix Streams without consumer and producer. Its state is in a checkpoint that is never committed."""

    def __init__(self, declare, sink, state_dir):
        registry, topic = DataFrameRegistry(), Topic("in")
        topic.broker_config = TopicConfig(1, 1, {"retention.ms": "-1"})
        stores = StateStoreManager("bench", state_dir)
        context = ProcessingContext(60.0, None, None, stores, None, registry)
        manager = TopicManager(None, "bench")
        frame = StreamingDataFrame(topic, topic_manager=manager, registry=registry, processing_context=context)
        registry.register_root(frame)
        self.run = declare(frame).compose(sink=sink)["in"]
        stores.init()
        stores.on_partition_assign(frame.stream_id, 0, {})
        context.init_checkpoint()
        set_message_context(MessageContext("in", 0, 0, 0))


def columns(file, step, way, hashed):
    """The CPU nanoseconds per message, and a hash of the results if it is asked for."""
    with open(file, "rb") as lines:
        keys, raw = zip(*(line.split(b"\t") for line in lines.read().splitlines()), strict=True)
    if step in TASKS:
        before, after = {"columns": large_by_columns, "functions": large_by_functions}[way], TASKS[step]
        spent, digest = tasked(lambda frame: after(before(frame)), keys, raw)
        return {"ns": spent / len(raw), "hash": digest}
    declare, digest = getattr(STEPS[step], way), hashlib.sha256()
    with TemporaryDirectory() as folder:
        answer = {"ns": looped(Composed(declare, None, folder).run, raw) / len(raw)}
    if hashed:
        with TemporaryDirectory() as folder:
            looped(Composed(declare, lambda value, key, *_: digest.update(key + dumps(value)), folder).run, raw)
        answer["hash"] = digest.hexdigest()[:16]
    return answer


def looped(run, raw):
    spent = 0
    for first in range(0, len(raw), SLICE):
        part = [loads(each) for each in raw[first : first + SLICE]]
        begun = time.thread_time_ns()
        for value in part:
            run(value, b"k", 1, None)
        spent += time.thread_time_ns() - begun
    return spent


def tasked(declare, keys, raw):
    """The CPU nanoseconds of JSON, steps, state and outputs of all messages, and the hash of the outputs."""
    outputs = []
    with TemporaryDirectory() as folder:
        run = Composed(declare, lambda value, key, *_: outputs.append((key, dumps(value))), folder).run
        times = range(FIRST_TIMESTAMP_MS, FIRST_TIMESTAMP_MS + len(raw))
        begun = time.thread_time_ns()
        for key, body, timestamp in zip(keys, raw, times, strict=True):
            run(loads(body), key, timestamp, None)
        spent = time.thread_time_ns() - begun
    digest = hashlib.sha256()
    for key, value in outputs:
        made = loads(value)
        # Holdfast has the times of a window in front of its columns, and Quix Streams behind them.
        digest.update(key + dumps({name: made[name] for name in ("start", "end") if name in made} | made))
    return spent, digest.hexdigest()[:16]


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
