"""Fixtures of a real schema registry, and of topics whose messages use its schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient

from holdfast import Application
from holdfast.infra.kafka.records import Record, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from tests.parts.schema_registry import Front, SchemaRegistryServer


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistryServer]:
    server = SchemaRegistryServer(tmp_path_factory.mktemp("schema-registry"))
    yield server.start()
    server.stop()


@pytest.fixture
def front(schema_registry: SchemaRegistryServer) -> Iterator[Front]:
    """A proxy of the schema registry. A test can close the proxy, so that the registry becomes unreachable."""
    made = Front(schema_registry.port)
    yield made.open()
    made.close()


@dataclass
class Shop:
    """The topics of one test (`in`, `out` and `dead`, with a common prefix), and an application that uses them."""

    broker: str
    group: str
    folder: Path
    registry: SchemaRegistryServer
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.topics = Topics(self.broker)
        self.client = SchemaRegistryClient({"url": self.registry.url, "timeout": 30})
        for name in ("in", "out", "dead"):
            self.topics.create(TopicSpec(self.topic(name), 1, 1))

    def topic(self, name: str) -> str:
        return f"{self.group}-{name}"

    def application(self, **options: Any) -> Application:
        return Application(
            self.broker,
            state_dir=self.folder / "state",
            **{
                "consumer_group": self.group,
                "auto_offset_reset": "earliest",
                "dead_letter_topic": self.topic("dead"),
                "loglevel": None,
                "commit_interval": 0.2,
                **options,
            },
        )

    def send(self, *values: bytes | None, key: bytes | None = b"k", headers: Any = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker})
        for value in values:
            producer.produce(self.topic("in"), value, key, headers=headers)
        assert producer.flush(60) == 0

    def records(self, name: str) -> list[Record]:
        (end,) = self.topics.settled_end_offsets(self.topic(name), 60).values()
        return list(read_range(self.broker, self.topic(name), 0, 0, end))

    def errors(self) -> list[str]:
        """The error text of each dead letter."""
        return [dict(record.headers or ())["holdfast.error"].decode() for record in self.records("dead")]  # type: ignore[union-attr]


@pytest.fixture
def shop(
    broker: str, unique: Callable[[str], str], tmp_path: Path, schema_registry: SchemaRegistryServer, monkeypatch: Any
) -> Shop:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_SCHEMA_REGISTRY__URL", schema_registry.url)
    return Shop(broker, unique("shop"), tmp_path, schema_registry)
