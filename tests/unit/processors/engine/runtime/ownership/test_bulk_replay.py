"""Bulk replays of changelogs: how they begin, how they end, and what remains when they fail."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import GroupShares, Partition
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.runtime.change_of_workers import no_change
from holdfast.processors.engine.runtime.ownership import changelog_replay as restores
from holdfast.processors.engine.runtime.ownership.changelog_replay import Restorer
from holdfast.processors.engine.runtime.ownership.standby import Standbys
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.rocksdb_options import BLOCK_CACHE_BYTES, RocksMemory
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.keep_or_restore import RestorePlan
from holdfast.processors.testing import InlineProcess, InMemoryCluster

PLACE = Partition("changelog", 0)
PROJECT = Path(__file__).resolve().parents[6]
SMALL = RocksMemory(8 << 20, 8 << 20)


@pytest.mark.slow
def test_after_a_replay_that_left_many_files_writes_do_not_wait_for_their_compaction(tmp_path):
    store = TaskStore(RocksDatabases(SMALL), tmp_path / "task")
    store.begin_bulk(100_000)
    for turn in range(60):
        keys = [b"%d-%d" % (turn, number) for number in range(1_100)]
        store.load(keys, [os.urandom(1_000) for _ in keys])
        # Flush after each round, so that each round writes a file of its own. RocksDB may delay flushes, and would then
        # put several rounds into one file.
        store._database.flush()
    assert int(store._database._rdict.property_value("rocksdb.num-files-at-level0")) > 40
    store.end_bulk()
    files = store._database._rdict
    stopped = files.property_int_value("rocksdb.is-write-stopped")
    assert files.property_int_value("rocksdb.actual-delayed-write-rate") == 0
    assert not stopped
    store.write([(b"k", b"v")], TaskMeta(transaction=1))
    assert store.get(b"k") == b"v"
    store.close()


@pytest.mark.thorough
def test_the_filter_of_each_file_fits_into_a_part_of_the_block_cache(tmp_path):
    """The bloom filter of each file fits into a part of the block cache.

    A larger filter would be read again for each key.

    A filter has about ten bits for each key.
    """
    store = TaskStore(RocksDatabases(RocksMemory()), tmp_path / "task")
    store.begin_bulk(600_000)
    for turn in range(60):
        keys = [b"%d-%d" % (turn, number) for number in range(10_000)]
        store.load(keys, [os.urandom(60) for _ in keys])
    store.end_bulk()
    store.compact(lambda: None)
    sizes = [file.stat().st_size for file in (tmp_path / "task").rglob("*.sst")]
    record = sum(sizes) // 600_000
    part = BLOCK_CACHE_BYTES // 64
    assert max(sizes) // record * 10 // 8 < part // 2
    store.close()


FILLED = """
import resource, signal, sys
from pathlib import Path
from holdfast.processors.engine.state.errors import StateDiskFailed
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.rocksdb_options import BLOCK_CACHE_BYTES, RocksMemory
from holdfast.processors.engine.state.databases.task_store import TaskStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = TaskStore(RocksDatabases(RocksMemory(16 << 20, 256 << 20)), Path(sys.argv[1]))
store.begin_bulk(100_000)
store.load([b"%d" % number for number in range(20_000)], [bytes(100)  + b"%d" % number for number in range(20_000)])
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
store.flush(wait=False)
while store.flushing:
    pass
try:
    store.end_bulk()
except StateDiskFailed as failure:
    print(failure.message)
"""


@pytest.mark.slow
def test_a_last_flush_that_the_disk_refuses_ends_and_is_told(tmp_path):
    """RocksDB keeps the failed flush pending, but the process must still end and report the error."""
    done = subprocess.run(
        [sys.executable, "-c", FILLED, str(tmp_path / "task")],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGABRT), done.stderr
    assert "can't be flushed" in done.stdout, done.stderr


@pytest.fixture
def cluster():
    cluster = InMemoryCluster()
    cluster.create_topic(PLACE.topic)
    for number in range(6):
        cluster.produce(PLACE.topic, encode_value(number, 0), key_prefix(b"k") + b"n")
    return cluster


@pytest.fixture
def begin(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(restores, "BULK_RECORDS_MIN", 5)
    view = cluster.connect(InlineProcess(cluster.clock))
    restorer = Restorer(view, 2)
    task = Task("orders-0", "orders", 0, ("orders",))
    task.open(TaskStore(RocksDatabases(SMALL), tmp_path / "task"), ("counts",))

    def begin(start: int, **how):
        known = view.topics().describe([PLACE.topic])[PLACE.topic]
        facts = ChangelogFacts(PLACE.topic, known.topic_id, 0, cluster.log_end(PLACE), 86_400.0)
        plan, now = RestorePlan({"counts": start}), cluster.clock.time()
        restorer.begin(task, plan, {"counts": facts}, {"orders": None}, now, **how)
        return restorer, task

    yield begin
    restorer.close()
    task.close()


def finish(restorer, cluster):
    deadline = time.monotonic() + 60  # the flush takes real time, not simulated time
    while time.monotonic() < deadline:
        cluster.clock.advance_to(cluster.clock.monotonic() + 0.01)
        if restorer.step(0.0):
            return
    raise AssertionError("the restore did not end")


def test_a_replay_that_goes_on_where_one_in_bulk_was_interrupted_ends_the_bulk(cluster, begin):
    restorer, task = begin(0)
    restorer.step(0.0)
    assert task.store.in_bulk
    restorer.close()
    assert task.store.in_bulk
    restorer, _ = begin(4)
    finish(restorer, cluster)
    assert not task.store.in_bulk


def test_what_is_replayed_often_is_not_replayed_in_bulk(cluster, begin):
    restorer, task = begin(0, often=True)
    assert not task.store.in_bulk
    finish(restorer, cluster)


def test_a_standby_passes_over_inputs_that_only_another_version_reads(cluster, tmp_path):
    app = Application("127.0.0.1:1", consumer_group="versions", state_dir=tmp_path)
    app.dataframe(app.topic("orders")).apply(lambda value, state: value, stateful=True)
    view = cluster.connect(InlineProcess(cluster.clock))
    options = SimpleNamespace(standby_replicas=1, group="versions", change=no_change)
    standbys = Standbys(app.topology(), view, None, None, options)
    newer = frozenset({Partition("orders", 1), Partition("added", 0)})
    shares = GroupShares("range", {"old": frozenset({Partition("orders", 0)}), "new": newer})
    standbys._topics = SimpleNamespace(group_shares=lambda group: shares, describe=lambda names: {})
    standbys.step(SimpleNamespace(member_id="old", brokers_down_s=0.0), (), idle=True)
    assert [standby["task"] for standby in standbys.told()] == ["orders-1"]


def test_a_record_that_may_be_larger_than_the_queue_enlarges_it():
    cluster = KafkaCluster("x:1", queued_bytes=8 << 20, producer_config={"message.max.bytes": 30_000_000})
    assert cluster._producer["queue.buffering.max.kbytes"] == 2 * 30_000_000 >> 10
    own = {"message.max.bytes": 30_000_000, "queue.buffering.max.kbytes": 40_000}
    assert (
        KafkaCluster("x:1", queued_bytes=8 << 20, producer_config=own)._producer["queue.buffering.max.kbytes"] == 40_000
    )
    assert KafkaCluster("x:1", queued_bytes=8 << 20)._producer["queue.buffering.max.kbytes"] == 8 << 10
