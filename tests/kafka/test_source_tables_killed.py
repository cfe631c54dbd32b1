"""kill -9 of processors with a table whose changelog is its source topic: joins, standbys and audits."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.processors.audits.stores import StoreAudit, audit_stores
from holdfast.processors.audits.tables import subject_of
from tests.kafka.killed import BEGIN_MS, Kill, Scenario
from tests.oracles.join_rules import Message, in_order, table_rows

POISON = b"{"


def feed_rows(stream: Any, rows: list[tuple[bytes, bytes | None, int]]) -> None:
    """Send rows in committed transactions, and other rows in aborted transactions.

    Aborted rows and markers take offsets, too.
    """
    settings = {"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"}
    producer = Producer({**settings, "transactional.id": f"{stream.group}-rows-feed"})
    producer.init_transactions(60)
    for first in range(0, len(rows), 500):
        for aborts in (True, False):
            producer.begin_transaction()
            for key, value, time_ms in rows[first : first + (5 if aborts else 500)]:
                producer.produce(f"{stream.group}-rows", b'"aborted"' if aborts else value, key, timestamp=time_ms)
            # the client library drops unsent records at an abort, so flush first to get aborted records into the topic
            producer.flush(60)
            producer.abort_transaction(60) if aborts else producer.commit_transaction(60)


def sides(stream: Any) -> list[list[Message]]:
    """For each partition, the messages in the order in which a task reads them, without dead letters."""
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


class AtOnce(Scenario):
    """Orders are joined with a table. The table's source topic is also its changelog."""

    head = """

        def joined(left, right):
            return [left, right]
        """
    topology = """
        rows = made.table(made.topic(group + "-rows"), "rows", changelog="source")
        orders = made.dataframe(made.topic(group + "-in"))
        orders.join_table(rows, "left", joined).to_topic(made.topic(group + "-out"))
        """
    options = 'dead_letter_topic=group + "-dead", '
    session_ms = 6_000

    def prepare(self) -> None:
        compact = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}
        self.stream.topics.create(TopicSpec(self.topic("rows"), self.stream.partitions, 1, compact))

    def audited(self, worker: Any) -> StoreAudit:
        """Audit the table: compare a worker's database with the topic at the same offsets."""
        (log,) = self.application().topology().source_logs
        subject = replace(subject_of(self.stream.group, "rows", log.topic), log=log)
        (audit,) = audit_stores([subject], [worker.client], self.stream.topics, {})
        return audit


class Slowly(AtOnce):
    """A backlog of 4,000 orders that takes 8 s. So each kill hits the worker while it joins."""

    head = """
        import time


        def joined(left, right):
            time.sleep(0.002)
            return [left, right]
        """

    def begin(self) -> None:
        super().begin()
        drawn, values = self.drawn, [b"0", b'""', b"false", b'{"a": 1}', None, None, POISON]
        feed_rows(
            self.stream,
            [(b"k%d" % drawn.randrange(40), drawn.choice(values), BEGIN_MS + at * 10) for at in range(4_000)],
        )
        producer = Producer({"bootstrap.servers": self.stream.bootstrap, "partitioner": "murmur2_random"})
        for at in range(4_000):
            time_ms = BEGIN_MS + at * 10 + 5
            producer.produce(self.stream.source, b"%d" % at, b"k%d" % drawn.randrange(40), timestamp=time_ms)
        assert producer.flush(60) == 0

    def course(self) -> Iterator[Kill]:
        for times in range(3):
            yield Kill(self.has_more_committed(), "some of the backlog to be committed", loses_disk=times == 1)

    @cached_property
    def orders(self) -> list[list[Message]]:
        return sides(self.stream)

    def truth(self) -> dict[str, Counter[Any]]:
        return {"out": Counter(repr(row) for order in self.orders for row in table_rows(order, "left"))}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(output, lambda row, pair: repr((row.timestamp_ms, row.key or b"", *pair)))

    def check_running(self) -> None:
        one = self.killed.wait_running()
        assert self.audited(one).differences == ()
        one.kill()
        self.lose_disk()
        audit = self.audited(one.start().wait_running())
        assert audit.differences == ()
        live = {message.key: message.value for order in self.orders for message in order if not message.left}
        held = sum(each.stored.count for each in audit.partitions)
        assert held == len([1 for row in live.values() if row is not None])

    def check_ended(self) -> None:
        put_aside = [each for each in self.stream.read(self.topic("rows")) if each.value == POISON]
        assert len(self.stream.read(self.topic("dead"))) == len(put_aside) > 0
        assert self.topic("rows-changelog") not in self.stream.topics.names()


@pytest.mark.thorough
def test_kill_9_and_a_lost_disk_neither_lose_a_row_nor_bring_one_back(stream: Any, worker: Callable[..., Any]) -> None:
    Slowly(stream, worker).live()


@pytest.mark.thorough
def test_a_standby_takes_the_table_over_and_a_lost_disk_begins_with_a_checkpoint(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any]
) -> None:
    scenario = AtOnce(stream, worker, 2)
    scenario.begin()
    feed_rows(stream, [(b"k%d" % number, b"%d" % number, BEGIN_MS + number) for number in range(20_000)])
    one, other = scenario.workers
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
        """The number of checkpoints that the worker has uploaded so far."""
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
    audit = scenario.audited(other)
    assert audit.differences == ()
    assert sum(each.stored.count for each in audit.partitions) == 15_000
    waiting(lambda: stored() >= before + 2, "the checkpoint that the audit took of each task to be stored")
    other.kill()
    feed_rows(stream, [(b"k%d" % number, None, BEGIN_MS + 90_000 + number) for number in range(5_000, 5_100)])
    shutil.rmtree(other.paths.state)
    other.start().wait_running()
    assert all(task.checkpoint["used"] and task.restored < 1_000 for task in running(other).values())
    waiting(read, "the last rows to be processed")
    audit = scenario.audited(other)
    assert audit.differences == ()
    assert sum(each.stored.count for each in audit.partitions) == 14_900
    assert other.terminate() == 0
