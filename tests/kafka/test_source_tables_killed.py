"""kill -9 of processors with a table that is restored from its topic, on a real broker: joins, standbys, audits."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.reader import read_range
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.audits.stores import StoreAudit, audit_stores
from holdfast.processors.audits.tables import subject_of
from tests.oracles.join_rules import Message, in_order, table_rows

BEGIN_MS = 1_690_000_000_000
POISON = b"{"

DEFINITION = """
import os
import time
from holdfast import Application

PAUSE_S = 0.0


def joined(left, right):
    time.sleep(PAUSE_S)
    return [left, right]


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        dead_letter_topic=group + "-dead", consumer_extra_config={"session.timeout.ms": 6000}, **settings,
    )
    rows = made.table(made.topic(group + "-rows"), "rows", changelog="source")
    orders = made.dataframe(made.topic(group + "-in"))
    orders.join_table(rows, "left", joined).to_topic(made.topic(group + "-out"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


def begin(stream: Any) -> None:
    namespace: dict[str, Any] = {}
    exec(DEFINITION, namespace)  # the definition that the processes import
    application: Application = namespace["build"](stream.bootstrap, stream.group)
    stream.application = lambda: application
    compact = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}
    stream.topics.create(TopicSpec(f"{stream.group}-rows", stream.partitions, 1, compact))
    stream.provision()


def made(worker: Callable[..., Any], slot: str, pause_s: float = 0.0) -> Any:
    """A worker whose function waits ``pause_s`` seconds with each message."""
    one = worker(slot, home=f"home-{slot}")
    code = DEFINITION.replace("PAUSE_S = 0.0", f"PAUSE_S = {pause_s}")
    (one.paths.home / "counting_definition.py").write_text(code)
    return one


def feed_rows(stream: Any, rows: list[tuple[bytes, bytes | None, int]]) -> None:
    """Rows in transactions, some of which are aborted: markers take offsets, and what is aborted is no row."""
    settings = {"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"}
    producer = Producer({**settings, "transactional.id": f"{stream.group}-rows-feed"})
    producer.init_transactions(60)
    for first in range(0, len(rows), 500):
        for aborts in (True, False):
            producer.begin_transaction()
            for key, value, time_ms in rows[first : first + (5 if aborts else 500)]:
                producer.produce(f"{stream.group}-rows", b'"aborted"' if aborts else value, key, timestamp=time_ms)
            producer.flush(60)  # an abort drops what is not sent yet
            producer.abort_transaction(60) if aborts else producer.commit_transaction(60)


def audited(stream: Any, workers: list[Any]) -> StoreAudit:
    """The table in the workers' databases, compared with the topic at the same offsets."""
    (log,) = stream.application().topology().source_logs
    subject = replace(subject_of(stream.group, "rows", log.topic), log=log)
    (audit,) = audit_stores([subject], [each.client for each in workers], stream.topics, {})
    return audit


def sides(stream: Any) -> list[list[Message]]:
    """By partition, the messages as a task reads them; those that are put aside are left out."""
    found = []
    for number in range(stream.partitions):
        both: dict[str, list[Message]] = {}
        for topic in (stream.source, f"{stream.group}-rows"):
            end = stream.topics.settled_end_offsets(topic, 60)[number]
            records = read_range(stream.bootstrap, topic, number, 0, end)
            both[topic] = [
                Message(topic == stream.source, each.key or b"", each.timestamp_ms, json.loads(each.value or b"null"))
                for each in records
                if each.value != POISON
            ]
        found.append(in_order(*both.values(), left_first=False))
    return found


def test_kill_9_and_a_lost_disk_neither_lose_a_row_nor_bring_one_back(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any]
) -> None:
    drawn = random.Random(1)
    begin(stream)
    values: list[bytes | None] = [b"0", b'""', b"false", b'{"a": 1}', None, None, POISON]
    feed_rows(stream, [(b"k%d" % drawn.randrange(40), drawn.choice(values), BEGIN_MS + at * 10) for at in range(4_000)])
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    for at in range(4_000):
        producer.produce(stream.source, b"%d" % at, b"k%d" % drawn.randrange(40), timestamp=BEGIN_MS + at * 10 + 5)
    assert producer.flush(60) == 0
    one = made(worker, "0", pause_s=0.002).start()  # 4,000 messages are 8 s: kills find some of them open

    def committed() -> int:
        return sum(stream.topics.committed_offsets(stream.group).values())

    before = 0
    for times in range(3):
        waiting(lambda seen=before: committed() > seen, "some of the backlog to be committed")
        one.kill()
        before = committed()
        if times == 1:
            shutil.rmtree(one.paths.state)
        one.start()
    orders = sides(stream)
    wanted = Counter(repr(row) for order in orders for row in table_rows(order, "left"))
    waiting(lambda: len(stream.read(stream.sink)) >= wanted.total(), "all joined rows")
    one.wait_running()
    assert audited(stream, [one]).differences == ()
    one.kill()
    shutil.rmtree(one.paths.state)
    one.start().wait_running()
    audit = audited(stream, [one])
    assert audit.differences == ()
    live = {message.key: message.value for order in orders for message in order if not message.left}
    assert sum(each.stored.count for each in audit.partitions) == len([1 for row in live.values() if row is not None])
    assert one.terminate() == 0
    sent = [(each.timestamp_ms, each.key or b"", *json.loads(each.value or b"")) for each in stream.read(stream.sink)]
    assert Counter(map(repr, sent)) == wanted
    put_aside = [each for each in stream.read(f"{stream.group}-rows") if each.value == POISON]
    assert len(stream.read(f"{stream.group}-dead")) == len(put_aside) > 0
    assert f"{stream.group}-rows-changelog" not in stream.topics.names()


@pytest.mark.thorough
def test_a_standby_takes_the_table_over_and_a_lost_disk_begins_with_a_checkpoint(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any]
) -> None:
    begin(stream)
    feed_rows(stream, [(b"k%d" % number, b"%d" % number, BEGIN_MS + number) for number in range(20_000)])
    one, other = made(worker, "0"), made(worker, "1")
    for each in (one, other):
        each.environment["HOLDFAST_STANDBY_REPLICAS"] = "1"
    one.start().wait_running()
    other.start()

    def running(of: Any) -> Mapping[str, Any]:
        status = of.client.status()
        return {} if status is None else {task.task: task for task in status.tasks if task.phase == "running"}

    def follows(task: str) -> bool:
        status = other.client.status()
        return status is not None and any(
            each.task == task and each.phase == "following" and each.lag == 0 for each in status.standbys
        )

    def stored() -> int:
        """The checkpoints that the worker has stored."""
        status = other.client.status()
        return 0 if status is None or status.checkpoints is None else int(status.checkpoints["uploads"])

    waiting(lambda: len(running(one)) == len(running(other)) == 1, "a task for each")
    (moved,) = running(one)
    feed_rows(stream, [(b"k%d" % number, None, BEGIN_MS + 50_000 + number) for number in range(5_000)])

    def read() -> bool:
        end = stream.topics.end_offsets(f"{stream.group}-rows", committed=True)
        done = stream.topics.committed_offsets(stream.group)
        return sum(at for place, at in done.items() if place.topic.endswith("-rows")) >= sum(end.values()) - 4

    waiting(read, "all rows to be processed")
    waiting(lambda: follows(moved), f"a standby of {moved}; {other.tail()}")
    one.kill()
    waiting(lambda: moved in running(other), f"the takeover; {other.tail()}")
    assert running(other)[moved].restored < 1_000
    before = stored()
    audit = audited(stream, [other])
    assert audit.differences == ()
    assert sum(each.stored.count for each in audit.partitions) == 15_000
    waiting(lambda: stored() >= before + 2, "the checkpoint that the audit took of each task to be stored")
    other.kill()
    feed_rows(stream, [(b"k%d" % number, None, BEGIN_MS + 90_000 + number) for number in range(5_000, 5_100)])
    shutil.rmtree(other.paths.state)
    other.start().wait_running()
    assert all(task.checkpoint["used"] and task.restored < 1_000 for task in running(other).values())
    waiting(read, "the last rows to be processed")
    audit = audited(stream, [other])
    assert audit.differences == ()
    assert sum(each.stored.count for each in audit.partitions) == 14_900
    assert other.terminate() == 0
