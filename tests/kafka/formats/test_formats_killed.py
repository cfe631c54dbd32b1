"""kill -9 of workers that use a schema registry, which is unreachable for a while."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import SerializationContext

from tests.kafka.killed import Kill, Scenario
from tests.parts.schema_registry import Front, SchemaRegistryServer

NUMBERS = [{"name": "id", "type": "long"}, {"name": "n", "type": "int"}]
FIRST = {"type": "record", "name": "Order", "fields": NUMBERS}
#: The schema of later producers, with one more field.
NEWER = {**FIRST, "fields": [*NUMBERS, {"name": "note", "type": "string", "default": ""}]}
COUNT, KEYS = 6_000, 20


class Counted(Scenario):
    """The processor counts the orders of each key, and outputs each order with its count."""

    head = f"""
import json
from holdfast import AvroDeserializer, AvroSerializer, SchemaRegistryClientConfig

REGISTRY = SchemaRegistryClientConfig()
read = AvroDeserializer(schema_registry_client_config=REGISTRY)
write = AvroSerializer(json.loads('''{json.dumps(FIRST)}'''), schema_registry_client_config=REGISTRY)


def counted(value, state):
    state.set("n", state.get("n", 0) + 1)
    return {{"id": value["id"], "n": state.get("n")}}
"""
    topology = """
        orders = made.dataframe(made.topic(group + "-in", value_deserializer=read))
        orders.apply(counted, stateful=True, store="n").to_topic(made.topic(group + "-out", value_serializer=write))
        """
    front: Front
    registry: str

    def begin(self) -> None:
        self.client = SchemaRegistryClient({"url": self.registry, "timeout": 30})
        super().begin()

    def feed(self, numbers: range, schema: dict[str, Any]) -> None:
        write = AvroSerializer(self.client, json.dumps(schema))
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
        context = SerializationContext(self.stream.source, "value")
        for number in numbers:
            raw = write({"id": number, "n": 0, "note": "x"}, context)
            producer.produce(self.stream.source, raw, b"k%d" % (number % KEYS))
        assert producer.flush(60) == 0

    def course(self) -> Iterator[Kill]:
        self.killed.wait_running()
        self.feed(range(COUNT // 2), FIRST)
        yield Kill(self.committed, "some messages to be committed", loses_disk=True, meanwhile=self.take_away)
        # The restarted worker has an empty schema cache. The messages that arrived meanwhile have another schema.
        asked = len(self.front.requests)
        self.wait(lambda: len(self.front.requests) > asked, "the worker to ask for a schema")
        yield Kill(lambda: True, "nothing more, while it waits for the registry", meanwhile=self.bring_back)
        self.feed(range(COUNT * 3 // 4, COUNT), NEWER)
        yield Kill(self.has_more_committed(), "more messages to be committed")

    def take_away(self) -> None:
        self.feed(range(COUNT // 2, COUNT * 3 // 4), NEWER)
        self.front.status = 503

    def bring_back(self) -> None:
        self.front.status = None

    def truth(self) -> dict[str, Counter[Any]]:
        counts = Counter[str]()
        wanted = Counter[Any]()
        for number in range(COUNT):
            key = f"k{number % KEYS}"
            counts[key] += 1
            wanted[number, counts[key]] += 1
        return {"out": wanted}

    def sent(self, output: str) -> Counter[Any]:
        read = AvroDeserializer(self.client)
        context = SerializationContext(self.topic(output), "value")
        made = (read(record.value, context) for record in self.stream.read(self.topic(output)))
        return Counter((each["id"], each["n"]) for each in made)  # type: ignore[index]


@pytest.mark.thorough
def test_kill_9_neither_loses_nor_doubles_a_message_with_a_schema(
    stream: Any,
    worker: Callable[..., Any],
    schema_registry: SchemaRegistryServer,
    front: Front,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_SCHEMA_REGISTRY__URL", front.url)
    scenario = Counted(stream, worker)
    scenario.front, scenario.registry = front, schema_registry.url
    scenario.live()
