"""One Spark session for all Spark tests, and changelogs made by hand on the real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from assets.spark.snapshot import PartitionRange, SnapshotPlan, plan_snapshot, write_snapshot
from infra.kafka.records import TopicSpec
from infra.kafka.topics import Topics
from infra.settings import Settings, load_settings
from infra.spark.session import spark_session
from processors.changelog.format import META_KEY, encode_value, key_prefix


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(home=tmp_path_factory.mktemp("spark-home"), spark={"master": "local[2]"})


@pytest.fixture(scope="session")
def spark(spark_settings: Settings) -> Iterator[Any]:
    session = spark_session(spark_settings, app_name="tests")
    yield session
    session.stop()


class Claims:
    """Remembers what was claimed and finished, as the registry does."""

    def __init__(self) -> None:
        self.claimed: list[str] = []
        self.finished: dict[str, int] = {}

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Any, now: Any) -> bool:
        self.claimed.append(snapshot_id)
        return self.claimed.count(snapshot_id) == 1

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: Any) -> bool:
        return self.finished.setdefault(snapshot_id, iceberg_snapshot_id) == iceberg_snapshot_id


@dataclass
class Changelog:
    """A changelog topic of two partitions, written in committed and aborted transactions."""

    bootstrap: str
    processor: str
    spark: Any

    @property
    def topic(self) -> str:
        return f"{self.processor}-s-changelog"

    def __post_init__(self) -> None:
        self.claims = Claims()
        self.topics = Topics(self.bootstrap)
        self.topics.create(TopicSpec(self.topic, 2, 1, {"cleanup.policy": "compact"}))
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.processor})
        self._producer.init_transactions(60)

    def write(self, partition: int, entries: list[tuple[bytes, Any]], *, commit: bool = True) -> None:
        self._producer.begin_transaction()
        for key, value in entries:
            stored = None if value is None else encode_value(value, 1_357_034_400_000)
            self._producer.produce(self.topic, stored, key_prefix(key) + b"n", partition)
        self._producer.produce(self.topic, b'{"version":1}', META_KEY, partition)
        if commit:
            self._producer.commit_transaction(60)
        else:
            self._producer.flush(60)
            self._producer.abort_transaction(60)
        self._settle()

    def write_raw(self, partition: int, key: bytes, value: bytes) -> None:
        self._producer.begin_transaction()
        self._producer.produce(self.topic, value, key, partition)
        self._producer.commit_transaction(60)
        self._settle()

    def _settle(self) -> None:
        """A commit is answered before its markers are written, and only what lies below them is read."""
        self.topics.settled_end_offsets(self.topic)

    def plan(self, ends: dict[int, int] | None = None) -> SnapshotPlan:
        facts = self.topics.describe([self.topic])[self.topic]
        starts = self.topics.start_offsets(self.topic)
        upto = self.topics.end_offsets(self.topic, committed=True) | (ends or {})
        return plan_snapshot(
            self.processor,
            "s",
            [PartitionRange(number, starts[number], upto[number], self.topic, facts.topic_id) for number in starts],
        )

    def snapshot(self, plan: SnapshotPlan | None = None) -> Any:
        return write_snapshot(self.spark, plan or self.plan(), self.bootstrap, {}, self.claims)

    def table(self, tag: str | None = None) -> dict[str, str]:
        version = f" VERSION AS OF '{tag}'" if tag else ""
        rows = self.spark.sql(f"SELECT message_key, json FROM holdfast.`{self.processor}`.s{version}").collect()
        return {row["message_key"]: row["json"] for row in rows}


@pytest.fixture
def changelog(broker: str, unique: Callable[[str], str], spark: Any) -> Changelog:
    return Changelog(broker, unique("snap"), spark)
