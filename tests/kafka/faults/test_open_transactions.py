"""A restore waits for another producer's open transaction on the changelog, and misses no committed record.

Committed records have higher offsets than the open transaction. A restore must not stop at the last stable offset,
which a consumer reports as the partition's end. Otherwise it would miss those records, and counting would continue from
old state.
"""

import os
import signal
import threading

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.clients.restore_consumer import ChangelogConsumer
from holdfast.processors.engine.changelog.names import changelog_topic
from tests.kafka.faults.verification import verify


class Stranger:
    """A foreign producer that holds a transaction open on every partition of a stream's changelog."""

    def __init__(self, stream):
        settings = {"bootstrap.servers": stream.bootstrap, "transactional.id": stream.group + "-stranger"}
        self._producer = Producer({**settings, "transaction.timeout.ms": 600_000})
        self._topic, self._partitions = changelog_topic(stream.group, "counts"), range(stream.partitions)

    def open(self):
        self._producer.init_transactions(30)
        self._producer.begin_transaction()
        for number in self._partitions:
            self._producer.produce(self._topic, b"x", b"\x01\x00\x00\x00\x01kforeign", number)
        assert self._producer.flush(30) == 0

    def abort(self):
        self._producer.abort_transaction(30)


@pytest.fixture
def held(stream, waiting):
    """A stream whose changelog has an open transaction in its middle; local state is deleted.

    200 messages are counted. The changelog records of the last 100 have higher offsets than the open transaction. 100
    more messages wait as input.
    """
    stranger = Stranger(stream)
    app = stream.application(slot="0")
    thread = threading.Thread(target=app.run)
    stream.feed_numbers(100)
    thread.start()
    try:
        waiting(lambda: committed(stream) == 100, "the first hundred")
        stranger.open()
        stream.feed_numbers(100)
        waiting(lambda: committed(stream) == 200, "the second hundred")
    finally:
        app.stop()
        thread.join(60)
    stream.delete_local_state()
    stream.feed_numbers(100)
    return stranger


@pytest.fixture
def told_ends(monkeypatch):
    """Return by partition the end offsets at which the restore did not stop.

    Each was reported by one of the restore's polls, and the restore polled again.
    """
    seen, polled_on = {}, {}
    poll = ChangelogConsumer.poll

    def noting(self, records_max, timeout_s):
        for place, ends in seen.pop(id(self), {}).items():
            polled_on.setdefault(place, set()).add(ends)
        batches, ends = poll(self, records_max, timeout_s)
        seen[id(self)] = dict(ends)
        return batches, ends

    monkeypatch.setattr(ChangelogConsumer, "poll", noting)
    return polled_on


def test_a_restore_waits_for_an_open_transaction_and_finds_what_is_committed_above_it(stream, held, told_ends, waiting):
    changelog = changelog_topic(stream.group, "counts")
    stable = stream.topics.end_offsets(changelog, committed=True)
    ends = stream.topics.end_offsets(changelog, committed=False)
    assert all(stable[number] < ends[number] for number in ends)
    app = stream.application(slot="0")
    thread = threading.Thread(target=app.run)
    thread.start()
    try:
        waiting(
            lambda: polled_on_from(told_ends) >= set(stable.items()) or not thread.is_alive(),
            "the restore to have come to the last stable offsets",
        )
        assert len(app._worker.assignment.restoring) == stream.partitions
        assert committed(stream) == 200
        held.abort()
        waiting(lambda: committed(stream) == 300, "the rest")
    finally:
        app.stop()
        thread.join(60)
    verify(stream, stream.state_dir)


@pytest.mark.thorough
@pytest.mark.thorough
def test_members_that_come_and_go_while_restores_wait_lose_and_double_nothing(stream, held, waiting):
    apps = [stream.application(slot=str(number)) for number in range(3)]
    threads = [threading.Thread(target=app.run) for app in apps]
    try:
        threads[0].start()
        waiting(lambda: len(restoring(apps[0])) == stream.partitions, "a restore of all partitions in one")
        threads[1].start()
        waiting(lambda: [len(restoring(app)) for app in apps[:2]] == [1, 1], "a restore in each of two")
        apps[0].stop()
        threads[0].join(60)
        assert not threads[0].is_alive()
        threads[2].start()
        waiting(lambda: [len(restoring(app)) for app in apps[1:]] == [1, 1], "a restore in each of the other two")
        assert committed(stream) == 200
        held.abort()
        waiting(lambda: committed(stream) == 300, "the rest")
    finally:
        for app, thread in zip(apps, threads, strict=True):
            app.stop()
            if thread.ident is not None:
                thread.join(60)
    verify(stream, stream.state_dir)


@pytest.mark.thorough
def test_a_worker_killed_in_its_restore_goes_on_from_what_it_has(stream, held, worker, waiting):
    changelog = changelog_topic(stream.group, "counts")
    stable = stream.topics.end_offsets(changelog, committed=True)
    ends = stream.topics.end_offsets(changelog, committed=False)
    # Above the last stable offset, only one record can still be read: the marker of the last commit before the open
    # transaction.
    left = [ends[number] - stable[number] + 1 for number in sorted(ends)]
    one = worker("0").start()
    waiting(lambda: restores(one, "remaining") == left, "what is below the open transaction to be replayed")
    assert min(restores(one, "records")) > 0
    below = [stable[number] - 1 for number in sorted(stable)]
    waiting(lambda: noted(one) == below, "what is replayed to be flushed, as nothing more comes")
    one.kill()
    one.start()
    waiting(lambda: restores(one, "remaining"), "the restores to go on")
    assert restores(one, "remaining") == left
    assert restores(one, "records") == [0, 0]
    held.abort()
    waiting(lambda: committed(stream) == 300, "the rest")
    assert one.terminate() == 0
    verify(stream, one.paths.state)


@pytest.mark.thorough
def test_a_worker_frozen_in_its_restore_joins_anew_when_its_successor_went_on(stream, held, worker, waiting):
    zombie, successor = worker("0", home="zombie"), worker("1", home="successor")
    zombie.start()
    waiting(lambda: phases(zombie) == ["restoring", "restoring"], "the restores to wait")
    os.kill(zombie.process.pid, signal.SIGSTOP)
    try:
        successor.start()
        waiting(lambda: phases(successor) == ["restoring", "restoring"], "the successor to have the partitions")
        held.abort()
        waiting(lambda: committed(stream) == 300, "the successor to have done the rest")
    finally:
        os.kill(zombie.process.pid, signal.SIGCONT)
    waiting(lambda: phases(zombie) == phases(successor) == ["running"], f"both to share; it says {zombie.tail()}")
    stream.feed_numbers(100)
    waiting(lambda: committed(stream) == 400, "both to have done all")
    assert zombie.terminate() == 0
    assert successor.terminate() == 0
    verify(stream)


def committed(stream):
    return sum(stream.topics.committed_offsets(stream.group).values())


def restoring(app):
    return app._worker.assignment.restoring if app._worker is not None else {}


def polled_on_from(told_ends):
    return {(place.number, end) for place, ends in told_ends.items() for end in ends}


def phases(worker):
    status = worker.client.status()
    return [] if status is None else [task.phase for task in status.tasks]


def noted(worker):
    """Return the changelog offset that each task's store has on disk, by partition."""
    status = worker.client.status()
    tasks = sorted(status.tasks, key=lambda task: task.task) if status is not None else []
    return [task.stores["counts"]["offset"] for task in tasks if task.stores]


def restores(worker, what):
    """Return the number ``what`` from the worker's status for each running restore, in the order of partitions."""
    status = worker.client.status()
    ours = status is not None and status.pid == worker.process.pid
    tasks = sorted(status.tasks, key=lambda task: task.task) if ours else []
    return [task.restore[what] for task in tasks if task.restore]
