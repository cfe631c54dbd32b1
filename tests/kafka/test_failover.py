"""Standbys on a real broker: which worker takes over a task, what a failover replays, and standbys that are too old."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.clients.consumer import GroupConsumer
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.runtime.ownership.heirs import heirs
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from tests.kafka.faults.verification import verify
from tests.mechanics.constants import build_of
from tests.mechanics.tiers import variants

DAY_S = 86_400.0
#: The first event time. It is a multiple of the window size since the epoch.
TIMED_BEGIN_MS = 1_690_000_000_000
TIMED = """
import os
from holdfast import Application
from holdfast.processors.engine.runtime.task import task_time
from holdfast.processors.engine.runtime.task import task_timers

# so that what is due at once takes many commits, and the kill hits between them
task_time.CLOSED_AT_ONCE = task_timers.FIRED_AT_ONCE = 5


class Once:
    def on_message(self, value, context):
        context.set_timer("once", at=context.timestamp + 15_000)

    def on_timer(self, name, time, context):
        context.emit({"kind": "timer", "value": 1})


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}, **settings,
    )
    messages, out = made.dataframe(made.topic(group + "-in")), made.topic(group + "-out")
    tens = messages.tumbling_window(10_000, name="tens").count().final(closing_strategy="partition")
    tens.apply(lambda window: {"kind": "window", "value": window["value"]}).to_topic(out)
    messages.process(Once, store="timed").to_topic(out)
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


class Membership:
    """A group member that polls in a separate thread."""

    def __init__(self, bootstrap, group, topics, strategy):
        config = {"partition.assignment.strategy": strategy, "session.timeout.ms": 6000}
        self.consumer = GroupConsumer(bootstrap, group, config=config)
        self.consumer.subscribe(topics, nothing, nothing, nothing)
        self.name = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self):
        while not self._stop.is_set():
            self.consumer.poll(1, 0.05)
            self.name = self.consumer.member_id  # read the member id in the polling thread, as the engine does

    def leave(self):
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(60)
            self.consumer.close()


def nothing(partitions):
    """A callback for changed partitions that does nothing."""


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", variants(["cooperative-sticky", "range", "roundrobin"]))
def test_the_group_gives_each_partition_to_the_heir_that_was_foretold(stream, unique, waiting, strategy):
    """When a member leaves, each of its partitions moves to the member that was predicted.

    Members leave in any order.
    """
    topics = [unique("many"), unique("few")]
    for name, partitions in zip(topics, (5, 3), strict=True):
        stream.topics.create(TopicSpec(name, partitions, 1))
    group, view = unique("group"), stream.topics

    def settled(count):
        told = view.group_shares(group)
        owned = 0 if told is None else sum(len(share) for share in told.members.values())
        return told if told is not None and len(told.members) == count and owned == 8 else None

    members = [Membership(stream.bootstrap, group, topics, strategy) for _ in range(4)]
    try:
        for left in (4, 3, 2):
            before = waiting(lambda left=left: settled(left), f"{left} members to share all partitions")
            assert before.assignor == strategy
            foretold = heirs(before, 1)
            going = members.pop(0)
            going.leave()
            after = waiting(lambda left=left: settled(left - 1), "the others to have taken over")
            for partition in before.members[going.name]:
                assert partition in after.members[foretold[partition][0]]
    finally:
        for member in members:
            member.leave()


def test_a_killed_owner_is_replaced_by_its_standby_that_replays_only_the_tail(stream, worker, waiting):
    stream.feed_numbers(20_000, keys=20_000)
    one, other = worker("0"), worker("1")
    for each in (one, other):
        each.environment["HOLDFAST_STANDBY_REPLICAS"] = "1"
    one.start().wait_running()
    other.start()
    waiting(lambda: running(one) and running(other), "a task for each")
    stop = threading.Event()

    def load():
        while not stop.wait(0.05):
            stream.feed_numbers(100, keys=20_000)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        (moved,) = running(one)
        waiting(lambda: is_following(other, moved), f"a standby of {moved}; {other.tail()}")
        one.kill()
        waiting(lambda: moved in running(other), f"the takeover; {other.tail()}")
        restored = running(other)[moved].restored
        assert standbys(other) == {}, "there is nobody left to follow"
    finally:
        stop.set()
        loading.join()
    number = int(moved.rpartition("-")[2])
    whole = stream.topics.end_offsets(f"{stream.group}-counts-changelog", committed=False)[number]
    assert whole > 8_000
    assert restored < whole / 10, f"{restored} records replayed of {whole}"
    total = sum(stream.topics.end_offsets(stream.source, committed=True).values())
    waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == total, "all to be committed")
    assert other.terminate() == 0
    verify(stream, other.paths.state)


@pytest.mark.thorough
def test_a_standby_takes_over_open_windows_and_timers_and_each_of_them_is_sent_once(stream, worker, waiting):
    """A standby takes over a task with open windows and timers. Each of their results is sent once.

    The owner of the task dies while many windows close and many timers fire at once.
    """
    stream.application = lambda: build_of(TIMED)(stream.bootstrap, stream.group)
    stream.provision()
    workers = worker("0", home="home-0"), worker("1", home="home-1")
    for each in workers:
        each.environment["HOLDFAST_STANDBY_REPLICAS"] = "1"
        (each.paths.home / "counting_definition.py").write_text(TIMED)
    one, other = workers
    one.start().wait_running()
    keys = [b"k%d" % number for number in range(400)]
    feed_timed(stream, [(key, TIMED_BEGIN_MS + number) for number, key in enumerate(keys)])
    other.start()
    waiting(lambda: running(one) and running(other), "a task for each")
    (moved,) = running(one)
    waiting(lambda: is_following(other, moved), f"a standby of {moved}; {other.tail()}")
    waiting(lambda: standbys(other)[moved].lag == 0, "the standby to have all windows and timers")
    feed_timed(stream, [(b"end-%d" % number, TIMED_BEGIN_MS + 20_000) for number in range(20)])
    number = int(moved.rpartition("-")[2])
    waiting(lambda: sum(stream.topics.end_offsets(stream.sink, committed=True).values()) > 60, "some to be sent")
    one.kill()
    waiting(lambda: moved in running(other), f"the takeover; {other.tail()}")
    restored = running(other)[moved].restored
    expected = sorted([*(("window", key.decode(), 1) for key in keys), *(("timer", key.decode(), 1) for key in keys)])
    waiting(lambda: len(stream.read(stream.sink)) >= len(expected), f"all of them to be sent; {other.tail()}")
    assert other.terminate() == 0
    sent = [(record.key or b"", json.loads(record.value)) for record in stream.read(stream.sink)]
    assert sorted((value["kind"], key.decode(), value["value"]) for key, value in sent) == expected
    logs = [f"{stream.group}-{store}-changelog" for store in ("tens", "timed")]
    whole = sum(stream.topics.end_offsets(log, committed=False)[number] for log in logs)
    assert restored < whole / 2, f"{restored} records replayed of {whole}"


def feed_timed(stream, messages):
    """Send one message for each pair of a key and an event time."""
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    for key, time_ms in messages:
        producer.produce(stream.source, b"1", key, timestamp=time_ms)
    assert producer.flush(60) == 0


@pytest.mark.thorough
def test_a_standby_older_than_deletes_are_kept_is_followed_from_the_beginning(stream, waiting):
    """A standby that is older than the retention of tombstones is replayed from the start of its changelog.

    Otherwise it would bring back a key whose tombstone was already removed by compaction.
    """
    stream.feed_numbers(1000)
    apps = [stream.application(slot=str(number), standby_replicas=1) for number in range(2)]
    threads = start(apps)
    waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == 1000, "all to be committed")
    # A standby that started with an empty changelog also counts as up to date, but it has no records for this test. So
    # wait for records, too.
    waiting(lambda: all(follows_all(app) and has_records(app) for app in apps), "a standby with records in each")
    for app in apps:
        app.stop()
    for thread in threads:
        thread.join(60)
    paths = sorted((stream.state_dir / stream.group).glob(f"*/{stream.source}-*"))
    assert len(paths) == 4
    for path in paths:
        make_old(path)
    stream.feed_numbers(1000)
    apps = [stream.application(slot=str(number), standby_replicas=1) for number in range(2)]
    threads = start(apps)
    try:
        waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == 2000, "all to be committed")
        waiting(lambda: all(follows_all(app) for app in apps), "a standby in each")
    finally:
        for app in apps:
            app.stop()
        for thread in threads:
            thread.join(60)
    folders = sorted((stream.state_dir / stream.group).glob(f"*/{stream.source}-*"))
    assert len(folders) == 4
    for path in folders:
        store = TaskStore(RocksDatabases(), path)
        assert [key for key, _ in store.items("counts") if key.startswith(key_prefix(b"ghost"))] == []
        store.close()
    verify(stream, stream.state_dir)


def start(apps):
    threads = [threading.Thread(target=app.run) for app in apps]
    for thread in threads:
        thread.start()
    return threads


def make_old(path):
    """Make a standby look two days old. It holds a key whose tombstone was removed by compaction meanwhile."""
    store = TaskStore(RocksDatabases(), path)
    meta = store.meta()
    ghost = store_prefix("counts") + key_prefix(b"ghost") + b"n"
    old = replace(meta, complete_at=time.time() - 2 * DAY_S)
    # Lower the offsets of its stores by two, so that the standby still has records to replay.
    stores = {name: at._replace(offset=max(0, at.offset - 2)) for name, at in old.stores.items()}
    store.write([(ghost, encode_value(7, 0))], replace(old, stores=stores))
    store.close()


def follows_all(app):
    worker = app._worker
    told = [] if worker is None else worker.assignment.standbys.told()
    return bool(told) and all(each["phase"] == "following" and each["lag"] == 0 for each in told)


def has_records(app):
    told = app._worker.assignment.standbys.told()
    return all(at["position"] > 0 for each in told for at in each["stores"].values())


def running(worker):
    """The running tasks of a worker, by task name."""
    status = worker.client.status()
    return {} if status is None else {task.task: task for task in status.tasks if task.phase == "running"}


def standbys(worker):
    """The standbys of a worker, by task name."""
    status = worker.client.status()
    return {} if status is None else {standby.task: standby for standby in status.standbys}


def is_following(worker, task):
    told = standbys(worker).get(task)
    return told is not None and told.phase == "following" and told.records > 0 and json.dumps(told.stores)
