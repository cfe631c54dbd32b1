"""Measures snapshots of a store in Spark, full and incremental, and compares them with Spark's own state reader.

    python -m tests.bench.snapshots                     1,000,000 keys, 2 rounds
    python -m tests.bench.engine --cases snapshots-large        4,000,000 keys

CPU is that of the whole process tree (Python, the JVM, Python workers) without the broker. ``JVM MiB`` is the driver's
peak memory so far. Rows are the keys of the table. If a way reads the changelog, rows are the records of the changelog.
The first snapshot includes the start of the JVM (``cold``).

``to a typed table`` copies a source to an Iceberg table of the same six typed columns, each way once in turns, in one
warm JVM. The work differs. The state reader reads Spark's own RocksDB store: six columns and a key in its row format.
Our values are JSON of about 95 bytes, which must be parsed. The changelog must also be reduced to the last record of
each key. The reader loads RocksDB files as they were uploaded. With ``from changelog checkpoints``, the reader replays
changes. Spark can upload changes instead of files to make commits faster.

``snapshot`` is a complete snapshot: the history of changes, the table, the audit, the manifest and the tags. The
changed keys of an incremental snapshot are spread over the whole table. Each result is compared with fingerprints from
plain Python.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pyspark.sql import functions as F

from holdfast.assets.spark import history
from holdfast.assets.spark.current import aligned_plans
from holdfast.assets.spark.fingerprint import fingerprint_buckets
from holdfast.assets.spark.planning import look_at_table, planned_shape
from holdfast.assets.spark.sources.changelog import ChangelogSource, PartitionRange, read_changelog
from holdfast.assets.spark.sources.checkpoint_source import CheckpointPart, read_checkpoints
from holdfast.assets.spark.typed import type_rows
from holdfast.assets.spark.writing.snapshot import SnapshotResult, Work, feed_history, write_snapshot
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import load_settings
from holdfast.infra.spark.server import start_server, stop_server
from holdfast.infra.spark.session import spark_session, stop_spark
from holdfast.processors.audits.comparison import Place
from holdfast.processors.engine.schema.models import schema_of
from holdfast.processors.engine.schema.types import StoreSchema
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.snapshots.facts import SnapshotFacts, StorePoint
from holdfast.processors.snapshots.gathering import changelog_now
from holdfast.processors.snapshots.plan import SnapshotPlan, Wanted, plan_snapshot
from tests.bench.measured import RunWrong
from tests.bench.results import Figures
from tests.bench.scenario import Place as Bench
from tests.bench.scenario import Scenario, run_alone
from tests.bench.seeding import fill
from tests.bench.warehouse_data import AIRPORTS, PARTITIONS, STORE, TWICE_EVERY, Data, key_of, value_of
from tests.bucketing import pair_hash

_TICKS = os.sysconf("SC_CLK_TCK")
_MASK = (1 << 64) - 1
COLD, FULL = "full from the checkpoint, cold", "full from the checkpoint"
TABLE_BY_SPARK = "audit of the table, Spark"
READER = "Spark's state reader, to a typed table"
READER_OF_LOG = "Spark's state reader of changelog checkpoints, to a typed table"
CHECKPOINT, CHANGELOG = "checkpoint, to a typed table", "changelog folded, to a typed table"
HISTORY = "history append alone, 10 k keys changed"
WARM = "incremental, 10 k keys changed, warm over Connect"
#: The prefix of names of processors whose tables have typed columns.
TYPED = "typed"
FULL_TYPED, FEW_TYPED = f"{FULL}, six typed columns", "incremental, 10 k keys changed, six typed columns"
#: The number of snapshots after which a server counts as warm.
WARM_UPS = 4
FEW = (1_000, 10_000, 100_000)
#: The number of changed keys in the incremental snapshot that is compared with a full one.
SOME = 10_000
#: The fields of a value.
COLUMNS = ("count", "total", "origin", "carrier", "tail", "late")
TABLES = {READER: "reader", READER_OF_LOG: "reader_of_log", CHECKPOINT: "checkpoint", CHANGELOG: "changelog"}


def incremental(changed: int) -> str:
    """The name of the measurement (way) with this number of changed keys."""
    return f"incremental, {changed // 1_000} k keys changed"


class Held(BaseModel):
    """A stored value, as a pydantic model."""

    count: int
    total: float
    origin: str
    carrier: str
    tail: str
    late: bool


def _schema(processor: str) -> StoreSchema | None:
    return schema_of(Held) if processor.startswith(TYPED) else None


def tree_cpu() -> dict[int, float]:
    """Return the CPU seconds of this process and its descendants, by process id.

    The CPU of a process includes its ended children for which it has waited.
    """
    used, parents = {}, {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            used[int(path.name)] = sum(map(int, fields[11:15])) / _TICKS
            parents[int(path.name)] = int(fields[1])
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
        ours |= more
    return {pid: used[pid] for pid in ours}


def cpu_since(before: Mapping[int, float]) -> float:
    """Return the CPU seconds since ``tree_cpu`` returned ``before``.

    Python workers that ended meanwhile are not counted.
    """
    return sum(used - before.get(pid, 0.0) for pid, used in tree_cpu().items())


def peak_mib() -> int:
    """The largest peak memory of a child process, which is the driver's JVM."""
    peaks = [0]
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                lines = (path / "status").read_text().splitlines()
            except OSError:
                continue
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            if fields.get("PPid", "").strip() == str(os.getpid()) and "VmHWM" in fields:
                peaks.append(int(fields["VmHWM"].split()[0]) // 1024)
    return max(peaks)


class Claims:
    """Replaces the registry (Holdfast's database). It grants every claim and stores nothing."""

    def claim_snapshot(self, snapshot_id: str, table: str, detail: Any, now: Any) -> bool:
        return True

    def finish_snapshot(self, snapshot_id: str, iceberg_snapshot_id: int, now: Any) -> bool:
        return True


class SnapshotBench:
    """One store with a checkpoint, a changelog, and the same data in Spark's own state store."""

    def __init__(self, place: Bench) -> None:
        self._keys, self._folder = place.size, place.folder
        self._topics, self._topic = Topics(place.broker.bootstrap), f"bench-snapshots-{place.size}"
        self._data = Data(place.size, place.folder)
        self._settings, self._warm_settings = (
            load_settings(home=place.folder / "home", spark={"master": master}) for master in ("local[2]", "warm")
        )
        self._spark: Any = None
        self._expected: dict[int, Fingerprint] = {}
        self._versions: dict[int, int] = {}

    def prepare(self) -> None:
        """Write the changelog and the checkpoint."""
        self._first = self._data.write_changelog(self._topics, self._topic)
        topic_id = self._topics.describe([self._topic])[self._topic].topic_id
        places = {number: Place(topic_id, end) for number, end in self._first.items()}
        self._paths = self._data.write_checkpoints(places)
        self._expected = dict(self._data.expected)

    def start(self) -> None:
        """Start the JVM of the Spark driver."""
        self._spark = spark_session(self._settings, app_name="bench")

    def stop(self) -> None:
        """Stop the JVM of the Spark driver."""
        if self._spark is not None:
            stop_spark(self._spark)
            self._spark = None

    # -- measurements of snapshots ------------------------------------------------------------------------------------

    def full(self, processor: str) -> Figures:
        """Take the first snapshot of a processor with this name, from the checkpoint."""
        return self._measured(lambda: self._snapshot(processor, Wanted.CHECKPOINT, "checkpoint"), self._keys)

    def cold(self) -> Figures:
        """Take the first snapshot of another processor, including the start of the JVM."""

        def run() -> None:
            self.start()
            self._snapshot("cold", Wanted.CHECKPOINT, "checkpoint")

        return self._measured(run, self._keys)

    def changed(self, processor: str, changed: int) -> Figures:
        """Write this number of changed keys again, then measure an incremental snapshot."""
        changed = min(changed, self._keys)
        self._write_again(changed)
        return self._measured(lambda: self._snapshot(processor, Wanted.AUTO, "incremental"), changed)

    def fed(self, processor: str, changed: int) -> Figures:
        """Measure only the first step of an incremental snapshot: it appends the changes to the history on a branch."""
        changed = min(changed, self._keys)
        self._write_again(changed)
        work = Work(self._spark, self._plan(processor, Wanted.AUTO), self._reader(), None, None)
        with aligned_plans(self._spark):
            figures = self._measured(lambda: feed_history(work), changed)
        self._snapshot(processor, Wanted.AUTO, "incremental")
        return figures

    def warm(self, processor: str, changed: int) -> Iterator[Figures]:
        """Measure incremental snapshots on a Spark server that stays up. Each includes the opening of a session."""
        changed = min(changed, self._keys)
        start_server(self._warm_settings)
        try:
            while True:
                self._write_again(changed)
                yield self._measured(lambda: self._snapshot_by_server(processor), changed)
        finally:
            stop_server(self._warm_settings)

    def _snapshot_by_server(self, processor: str) -> None:
        self._spark = spark_session(self._warm_settings, app_name="bench")
        try:
            self._snapshot(processor, Wanted.AUTO, "incremental")
        finally:
            self.stop()

    def _snapshot(self, processor: str, wanted: Wanted, source: str) -> SnapshotResult:
        plan = self._plan(processor, wanted)
        result = write_snapshot(self._spark, plan, self._reader(), Claims(), schema=_schema(processor))
        found = result.manifest.fingerprints
        if plan.source.name != source or found != self._expected:
            raise RunWrong(f"a snapshot ({plan.source.name}: {plan.why}) came to {found}, expected {self._expected}")
        return result

    def _reader(self) -> ChangelogSource:
        return ChangelogSource(self._topics.bootstrap, {}, lambda: changelog_now(self._topics, self._topic, {}))

    def _plan(self, processor: str, wanted: Wanted) -> SnapshotPlan:
        log = changelog_now(self._topics, self._topic, {})
        assert log is not None
        ends = self._topics.settled_end_offsets(self._topic)
        files = ends == self._first
        facts = SnapshotFacts(
            processor=processor,
            store=STORE,
            points=tuple(
                StorePoint(
                    partition=number,
                    path=str(self._paths[number]) if files else "",
                    topic=self._topic,
                    topic_id=log.topic_id,
                    end=end,
                    taken_at=time.time(),
                    inputs={"in": end},
                    sources={"in": "id"},
                    files=files,
                )
                for number, end in ends.items()
            ),
            changelog=log,
            table=look_at_table(self._spark, processor, STORE),
            code_version="bench",
            state_format="1.1.1",
            schema_version=planned_shape(self._spark, processor, STORE, _schema(processor)),
            now=time.time(),
        )
        return plan_snapshot(facts, wanted)

    def _write_again(self, changed: int) -> None:
        step = max(1, self._keys // changed)
        numbers = list(range(0, self._keys, step))[:changed]
        rows = []
        for number in numbers:
            version = self._versions.get(number, 1)
            self._versions[number] = version + 1
            key, old, new = key_of(number), value_of(number, version), value_of(number, version + 1)
            rows.append((self._topic, number % PARTITIONS, key, new, None))
            had, one, other = self._expected[number % PARTITIONS], pair_hash(key, old), pair_hash(key, new)
            self._expected[number % PARTITIONS] = Fingerprint(
                had.count, had.xor ^ one ^ other, (had.total - one + other) & _MASK
            )
        fill(self._topics.bootstrap, rows)

    # -- measurements: copy a source to a table with typed columns -----------------------------------------------------

    def build_state(self, way: str) -> None:
        """Build, for comparison, a state store of Spark Structured Streaming with the keys and columns of our store.

        A streaming query fills the store from files.
        """
        folder = self._folder / TABLES[way]
        spark = self._spark
        number = F.col("id")
        rows = spark.range(self._keys).select(
            F.format_string("user-%08d", number).alias("user"),
            (number % 977 + 1).alias("count"),
            (number * 0.25).alias("total"),
            F.element_at(F.array(*map(F.lit, AIRPORTS)), (number % 5 + 1).cast("int")).alias("origin"),
            F.lit("UA").alias("carrier"),
            F.format_string("N%05d", number % 99_999).alias("tail"),
            (number % 3 == 0).alias("late"),
        )
        rows.write.parquet(str(folder / "in"))
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        logged = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
        spark.conf.set(logged, str(way == READER_OF_LOG).lower())
        stream = spark.readStream.schema(rows.schema).parquet(str(folder / "in"))
        folded = stream.groupBy("user").agg(F.max(F.struct(*COLUMNS)).alias("held"))
        query = (
            folded.writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def typed(self, way: str) -> Figures:
        """Copy a source to a table with typed columns."""
        table = f"holdfast.typed.{TABLES[way]}"
        rows = self._keys + self._keys // TWICE_EVERY if way == CHANGELOG else self._keys

        def run() -> None:
            self._frame(way).writeTo(table).using("iceberg").createOrReplace()

        self._spark.sql("CREATE NAMESPACE IF NOT EXISTS holdfast.typed")
        figures = self._measured(run, rows)
        made = self._spark.table(table)
        told = made.selectExpr("count(1)", "sum(`count`)", "cast(sum(total) AS long)", "count_if(late)").collect()[0]
        wanted = (
            self._keys,
            sum(number % 977 + 1 for number in range(self._keys)),
            int(sum(number * 0.25 for number in range(self._keys))),
            (self._keys + 2) // 3,
        )
        if tuple(told) != wanted:
            raise RunWrong(f"{way} came to {tuple(told)}, expected {wanted}")
        return figures

    def _frame(self, way: str) -> Any:
        if way in (READER, READER_OF_LOG):
            state = self._spark.read.format("statestore").load(str(self._folder / TABLES[way] / "checkpoint"))
            return state.select("key.user", *(F.col(f"value.max.{name}").alias(name) for name in COLUMNS))
        if way == CHECKPOINT:
            parts = [CheckpointPart(number, path, STORE) for number, path in self._paths.items()]
            pairs = read_checkpoints(self._spark, parts)
        else:
            ranges = [PartitionRange(number, 0, end) for number, end in self._first.items()]
            reader = ChangelogSource(self._topics.bootstrap, {}, lambda: None)
            read = read_changelog(self._spark, self._topic, ranges, reader)
            pairs = history.live(
                history.fold(history.as_history(read, 1, f"if(value IS NULL, '{history.DELETE}', '{history.PUT}')"))
            )
        rows = pairs.selectExpr(
            *("value", f"{history.MESSAGE_KEY} AS user", f"{history.STATE_KEY} AS state_key", f"{history.JSON} AS json")
        )
        return type_rows(rows, schema_of(Held)).select("user", *COLUMNS)

    def audit(self) -> Figures:
        """Fingerprint the buckets of the table (rows grouped by a hash of their key) with Spark."""
        table = self._spark.table(f"holdfast.warm1.{STORE}")

        def run() -> None:
            found = {number: prints.whole for number, prints in fingerprint_buckets(table).items()}
            if found != self._expected:
                raise RunWrong(f"the table came to {found}, expected {self._expected}")

        return self._measured(run, self._keys)

    def _measured(self, run: Callable[[], Any], rows: int) -> Figures:
        began, cpu = time.monotonic(), tree_cpu()
        run()
        seconds, used = time.monotonic() - began, cpu_since(cpu)
        return {"rows/CPU-s": rows / max(used, 1e-9), "CPU s": used, "s": seconds, "rows": rows, "JVM MiB": peak_mib()}


def measure(place: Bench) -> Iterator[tuple[str, Figures]]:
    """Run all measurements in turns, and yield the name and figures of each run."""
    bench = SnapshotBench(place)
    bench.prepare()
    try:
        yield COLD, bench.cold()
        for way in (READER, READER_OF_LOG):
            bench.build_state(way)
        for _ in range(place.rounds):
            for way in TABLES:
                yield way, bench.typed(way)
        for number in range(1, place.rounds + 1):
            yield FULL, bench.full(f"warm{number}")
            yield FULL_TYPED, bench.full(f"{TYPED}{number}")
        for _ in range(place.rounds):
            yield TABLE_BY_SPARK, bench.audit()
        for _ in range(place.rounds):
            yield HISTORY, bench.fed("warm1", SOME)
            for changed in FEW:
                yield incremental(changed), bench.changed("warm1", changed)
            yield FEW_TYPED, bench.changed(f"{TYPED}1", SOME)
    finally:
        bench.stop()
    served = bench.warm("warm1", SOME)
    with closing(served):
        for _ in range(WARM_UPS):
            next(served)
        for _ in range(place.rounds):
            yield WARM, next(served)


def measure_large(place: Bench) -> Iterator[tuple[str, Figures]]:
    """Measure incremental snapshots of a larger table."""
    bench = SnapshotBench(place)
    bench.prepare()
    try:
        bench.start()
        yield FULL, bench.full("large")
        for _ in range(place.rounds):
            for changed in FEW:
                yield incremental(changed), bench.changed("large", changed)
    finally:
        bench.stop()


SCENARIO = Scenario(
    "snapshots",
    "snapshots of a store of {size:,} keys in Spark, local[2]",
    size=1_000_000,
    small=2_000,
    measure=measure,
)
LARGE = Scenario(
    "snapshots-large",
    "snapshots of a larger store, {size:,} keys: what an incremental one costs grows with the changes",
    size=4_000_000,
    small=4_000,
    measure=measure_large,
)


if __name__ == "__main__":
    sys.exit(run_alone(SCENARIO, sys.argv[1:]))
