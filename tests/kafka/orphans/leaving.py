"""Creates what a removed processor leaves on a real broker and on disk: orphans (resources without an owner)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.records import Record, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.verbs import Verbs
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.plans.apply import Applied
from holdfast.processors.lifecycle.plans.plan import Plan
from holdfast.processors.lifecycle.plans.requests import Clean, PutBack

CONFIG = {"retention.ms": "-1", "max.message.bytes": "2000000"}


@dataclass
class Left:
    """The leftovers of a processor that is not defined or deployed: a changelog, a group, state and a checkpoint."""

    group: str
    settings: Settings
    topics: Topics
    registry: Registry
    now: datetime = field(default_factory=lambda: datetime(2026, 11, 22, 6, 0, tzinfo=UTC))

    @property
    def topic(self) -> str:
        return f"{self.group}-counts-changelog"

    @property
    def state(self) -> Path:
        return self.settings.paths.state / self.group / "0" / "in-0"

    @property
    def verbs(self) -> Verbs:
        return Verbs(self.settings, self.registry, self.topics, "a test", lambda: self.now)

    @property
    def archive(self) -> Archive:
        return Archive(self.settings.archive_folder)

    def write(self, values: list[tuple[int, bytes | None, bytes | None]]) -> None:
        """Write records (partition, key, value) with distinct timestamps; every second record has headers."""
        producer = Producer({"bootstrap.servers": self.topics.bootstrap})
        for number, (partition, key, value) in enumerate(values):
            headers: Any = [("n", b"%d" % number), ("none", None)] if number % 2 else None
            producer.produce(self.topic, value, key, partition, timestamp=1_700_000_000_000 + number, headers=headers)
        assert producer.flush(30) == 0

    def read(self) -> dict[int, list[Record]]:
        ends = self.topics.end_offsets(self.topic, committed=True)
        return {
            number: list(read_range(self.topics.bootstrap, self.topic, number, 0, end))
            for number, end in sorted(ends.items())
        }

    def plan(self, *only: str) -> Plan:
        return self.verbs.plan(Clean(only))

    def apply(self, plan: Plan | None = None) -> Plan:
        """Carry out or resume a confirmed plan. Without an argument, make a plan and carry it out. Returns the plan."""
        plan = plan or self.plan()
        self.carry_out(plan)
        return plan

    def put_back(self, topic: str = "") -> str:
        return self.carry_out(self.verbs.plan(PutBack(topic or self.topic))).text

    def carry_out(self, plan: Plan) -> Applied:
        begun = self.verbs.begun(plan.request)
        if begun is not None:
            return self.verbs.resume(begun.id)
        return self.verbs.apply(plan, confirmed=plan.hash)

    def steps(self, *only: str) -> list[tuple[str, str]]:
        return [(stage.says.partition(" ")[0], stage.kind) for stage in self.plan(*only).stages]

    def kinds(self) -> list[str]:
        return [each.orphan.kind for each in self.verbs.orphans().subjects]


ALL = ["checkpoint", "group", "state", "topic"]


def signed_by(processor: str) -> bytes:
    """Return a meta record (the engine's own record in a changelog) that names the processor.

    An empty name gives the form that older versions of Holdfast wrote.
    """
    fields = {} if not processor else {"processor": processor}
    return msgspec.json.encode({"version": 1, "inputs": {"in": 1}, "transaction": 1, "code_version": "v", **fields})


@pytest.fixture
def left(broker: str, unique: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    settings = load_settings(home=tmp_path / "home")
    settings.home.mkdir()
    registry = Registry(settings.registry)
    registry.migrate()
    made = Left(unique("gone"), settings, Topics(broker), registry)
    made.topics.create(TopicSpec(made.topic, 2, 1, CONFIG))
    made.write([(number % 2, b"k%d" % number, None if number == 7 else b"v%d" % number) for number in range(198)])
    made.write([(number, META_KEY, signed_by(made.group)) for number in range(2)])
    made.write([(0, None, b"\x00\xff binary"), (1, b"", b"")])
    consumer = Consumer({"bootstrap.servers": broker, "group.id": made.group})
    consumer.commit(offsets=[TopicPartition(made.topic, 0, 17), TopicPartition(made.topic, 1, 4)], asynchronous=False)
    consumer.close()
    for folder in (made.state, settings.paths.checkpoints(made.group) / "1"):
        folder.mkdir(parents=True)
        (folder / "000004.sst").write_bytes(b"s" * 5000)
        (folder / "CURRENT").write_bytes(b"MANIFEST-1")
    yield made
    registry.close()


def same(records: dict[int, list[Record]], others: dict[int, list[Record]]) -> bool:
    def plain(found: dict[int, list[Record]]) -> Any:
        return {
            number: [(each.key, each.value, each.timestamp_ms, each.headers or None) for each in part]
            for number, part in found.items()
        }

    return bool(plain(records) == plain(others))
