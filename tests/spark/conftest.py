"""Fixtures: a Spark session that consecutive Spark tests share, and changelogs that a test writes to a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.assets.spark import current
from holdfast.assets.spark.planning import look_at_table
from holdfast.assets.spark.sources import checkpoint_source
from holdfast.assets.spark.sources.changelog import ChangelogSource
from holdfast.assets.spark.writing.snapshot import write_snapshot
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.setup.jars import JarSource, fetch_jars
from holdfast.infra.setup.java import find_java
from holdfast.infra.spark.configuration import secret_configuration, session_configuration
from holdfast.infra.spark.session import spark_session, stop_spark
from holdfast.infra.warehouse.catalog import prepare_catalog
from holdfast.processors.engine.changelog.format import META_KEY, encode_value, key_prefix
from holdfast.processors.snapshots.facts import ChangelogNow, SnapshotFacts, StorePoint
from holdfast.processors.snapshots.gathering import changelog_now
from holdfast.processors.snapshots.plan import SnapshotPlan, Wanted, plan_snapshot
from tests.kafka.object_store import BUCKET, WRITER, S3Server
from tests.parts.postgres import PASSWORD, USER, PostgresServer
from tests.spark.tuning import GENERATED, tier_configuration, tuned_jvms

__all__ = ["tier_configuration", "tuned_jvms"]

HERE = Path(__file__).resolve().parent
#: The configuration of a changelog topic that processors create. Compaction spares records of the last hour.
CONFIG = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}


@pytest.fixture(scope="session")
def spark_settings(tmp_path_factory: pytest.TempPathFactory, tier_configuration: dict[str, str]) -> Settings:
    settings = load_settings(home=tmp_path_factory.mktemp("spark-home"), spark={"master": "local[2]"})
    source = JarSource(find_java(), settings.ivy_settings)
    # All of these tests share one JVM, so it also loads the jars for object stores.
    jars = [str(jar) for name in ("spark", "s3") for jar in fetch_jars(name, settings.cache, source)]
    spark = settings.spark.model_copy(update={"conf": {"spark.jars": ",".join(jars), **tier_configuration}})
    return settings.model_copy(update={"spark": spark})


class SharedJvm:
    """The JVM that these tests share. It keeps running between test files, so that it starts only once.

    Tests in other folders start and end their own JVMs in the same process, so this JVM ends before them.
    """

    session: Any = None

    @classmethod
    def started(cls, settings: Settings) -> Any:
        if cls.session is not None:
            try:
                cls.session.sql("SELECT 1").collect()
            except Exception:  # the query failed, because the JVM died or a test stopped it
                cls.stop()
        if cls.session is None:
            cls.session = spark_session(settings, app_name="tests")
        return cls.session

    @classmethod
    def stop(cls) -> None:
        stop_spark(cls.session)
        cls.session = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        return (yield)
    finally:
        if SharedJvm.session is not None and (nextitem is None or not nextitem.path.is_relative_to(HERE)):
            SharedJvm.stop()


@pytest.fixture(scope="module")
def spark(spark_settings: Settings) -> Any:
    return SharedJvm.started(spark_settings)


@pytest.fixture(scope="module")
def session_for(spark: Any) -> Callable[[Settings], Any]:
    """A function that makes another session in the same JVM, with the warehouse of other settings."""

    def make(settings: Settings) -> Any:
        prepare_catalog(settings)
        session = spark.newSession()
        for name, value in {**session_configuration(settings), **secret_configuration(settings)}.items():
            session.conf.set(name, value)
        # This call makes the session active. Spark looks up registered sources in the active session, and refuses a
        # source that another session registered.
        session.createDataFrame([(1,)], "number int")
        return session

    return make


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server.start()
    server.remove()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server.start()
    server.stop()


@pytest.fixture
def remote_settings(postgres: PostgresServer, s3: S3Server, tmp_path: Path, unique: Callable[[str], str]) -> Settings:
    """Settings with a separate catalog on Postgres, and with files below a separate prefix in an object store."""
    return load_settings(
        home=tmp_path / "home",
        warehouse={
            "url": f"s3://{BUCKET}/{unique('warehouse')}",
            "catalog_url": postgres.url(postgres.new_database()),
            "catalog_user": USER,
            "catalog_password": PASSWORD,
            "s3_endpoint": f"http://127.0.0.1:{s3.port}",
            "s3_region": "us-east-1",
            "s3_access_key": WRITER[0],
            "s3_secret_key": WRITER[1],
        },
    )


@pytest.fixture(autouse=True)
def as_for_many_rows(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thorough run, small snapshots use the code that production uses for large ones.

    Executors read the records, and Spark generates Java code.
    """
    if pytestconfig.getoption("--tier") == "thorough":
        monkeypatch.setattr(current, "FEW_ROWS", -1)
        monkeypatch.setattr(checkpoint_source, "SMALL_BYTES", -1)


@pytest.fixture
def generated_code(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run queries as in production with many rows: with Java code that Spark generates."""
    monkeypatch.setattr(current, "FEW_ROWS", -1)
    before = {name: spark.conf.get(name) for name in GENERATED}
    for name, value in GENERATED.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


class Claims:
    """Keeps claimed and finished snapshots in memory, in place of the registry (Holdfast's database)."""

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
    """A changelog topic of two partitions, written in committed and aborted transactions.

    ``model`` is the expected content: (partition, message key) -> stored bytes.
    """

    bootstrap: str
    processor: str
    spark: Any
    partitions: int = 2
    config: dict[str, str] = field(default_factory=lambda: dict(CONFIG))
    model: dict[tuple[int, bytes], bytes] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.processor}-s-changelog"

    @property
    def table_name(self) -> str:
        return f"holdfast.`{self.processor}`.s"

    def __post_init__(self) -> None:
        self.claims = Claims()
        self.topics = Topics(self.bootstrap)
        self.create()
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.processor,
                "message.max.bytes": 8 << 20,
            }
        )
        self._producer.init_transactions(60)

    def create(self) -> None:
        assert self.topics.create(TopicSpec(self.topic, self.partitions, 1, self.config))

    def recreate(self) -> None:
        """Delete the topic and create it again, empty."""
        self.topics.delete(self.topic)
        self.create()
        self.model.clear()
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.processor,
                "message.max.bytes": 8 << 20,
            }
        )
        self._producer.init_transactions(60)

    def write(self, partition: int, entries: list[tuple[bytes, Any]], *, commit: bool = True) -> None:
        self._producer.begin_transaction()
        for key, value in entries:
            stored = None if value is None else encode_value(value, 1_357_034_400_000)
            self._producer.produce(self.topic, stored, key_prefix(key) + b"n", partition)
            if commit and stored is None:
                self.model.pop((partition, key), None)
            elif commit and stored is not None:
                self.model[partition, key] = stored
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
        """Wait until Kafka has written the transaction markers.

        Kafka answers a commit before it writes them. Until then, the transaction is open, and read_committed readers
        stop at it.
        """
        self.topics.settled_end_offsets(self.topic)

    def ends(self) -> dict[int, int]:
        return self.topics.end_offsets(self.topic, committed=True)

    def look(self) -> ChangelogNow | None:
        return changelog_now(self.topics, self.topic, {})

    def facts(self, ends: dict[int, int] | None = None, paths: dict[int, str] | None = None, **changed: Any) -> Any:
        """Facts about the changelog, with a checkpoint at its current ends.

        With ``paths``, the checkpoint's files exist.
        """
        log = self.look()
        assert log is not None
        upto = self.ends() | (ends or {})
        points = tuple(
            StorePoint(
                partition=number,
                path=(paths or {}).get(number, ""),
                topic=self.topic,
                topic_id=log.topic_id,
                end=upto[number],
                taken_at=time.time(),
                inputs={"in": upto[number]},
                sources={"in": "source-id"},
                files=paths is not None,
            )
            for number in log.partitions
        )
        known = {
            "processor": self.processor,
            "store": "s",
            "points": points,
            "changelog": log,
            "table": look_at_table(self.spark, self.processor, "s"),
            "code_version": "code",
            "state_format": "1.1.1",
            "schema_version": 0,
            "now": time.time(),
        }
        return SnapshotFacts(**{**known, **changed})

    def plan(self, ends: dict[int, int] | None = None, wanted: Wanted = Wanted.AUTO, **changed: Any) -> SnapshotPlan:
        return plan_snapshot(self.facts(ends, **changed), wanted)

    @property
    def source(self) -> ChangelogSource:
        return ChangelogSource(self.bootstrap, {}, self.look)

    def snapshot(self, plan: SnapshotPlan | None = None, **options: Any) -> Any:
        return write_snapshot(self.spark, plan or self.plan(), self.source, self.claims, **options)

    def table(self, tag: str | None = None) -> dict[str, str]:
        version = f" VERSION AS OF '{tag}'" if tag else ""
        rows = self.spark.sql(f"SELECT message_key, json FROM {self.table_name}{version}").collect()
        assert len(rows) == len({row["message_key"] for row in rows}), "a key is there twice"
        return {row["message_key"]: row["json"] for row in rows}

    def stored(self, rows: Any = None) -> dict[tuple[int, bytes], bytes]:
        """Return the table, or the given rows, in the form of ``model``."""
        found = (self.spark.table(self.table_name) if rows is None else rows).select("store_partition", "key", "value")
        pairs = [((row["store_partition"], bytes(row["key"])[5:-1]), bytes(row["value"])) for row in found.collect()]
        assert len(pairs) == len(dict(pairs)), "a key is there twice"
        return dict(pairs)

    def history(self) -> Any:
        return self.spark.table(f"holdfast.`{self.processor}`.s_history")


@pytest.fixture
def changelog(broker: str, unique: Callable[[str], str], spark: Any) -> Changelog:
    return Changelog(broker, unique("snap"), spark)
