"""A processor scales between one, two and four workers under load and kills. Each message counts once.

A new worker fetches its state before it gets partitions.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast.infra.deploy.workers_change_file import read_change
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy import deployment
from holdfast.processors.lifecycle.plans.apply import ApplyInProgress
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Refused
from holdfast.processors.lifecycle.plans.requests import Clear, Everything, Prefix, Restart, Scale, Stop
from holdfast.processors.lifecycle.recovery.attempt import recover
from holdfast.processors.lifecycle.recovery.incidents import Notice, notice
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.working_check import judge_working
from tests.parts.operated import Killed, Operated, killing_at_stages

PARTITIONS = 6


@pytest.fixture
def wide(operated: Operated) -> Operated:
    """A running processor whose input topic has six partitions."""
    admin = AdminClient({"bootstrap.servers": operated.topics.bootstrap})
    for made in admin.create_partitions([NewPartitions(f"{operated.group}-in", PARTITIONS)]).values():
        made.result(30)
    operated.bring_up()
    return operated


class Feed:
    """Sends messages while its block runs. ``sent`` counts the messages by key."""

    def __init__(self, operated: Operated) -> None:
        self.sent: Counter[str] = Counter()
        self._producer = Producer({"bootstrap.servers": operated.topics.bootstrap, "linger.ms": 5})
        self._topic = f"{operated.group}-in"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            for _ in range(20):
                key = f"key-{number % 500}"
                self._producer.produce(self._topic, b"1", key.encode())
                self.sent[key] += 1
                number += 1
            self._producer.poll(0)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def statuses(operated: Operated, slots: int) -> dict[str, ProcessorStatus | None]:
    clients = [ProcessorClient(operated.group, str(slot), operated.settings.paths) for slot in range(slots)]
    return {client.slot: client.status() for client in clients}


def share(operated: Operated, slots: int) -> list[int]:
    """The number of running tasks in each worker."""
    found = statuses(operated, slots).values()
    return [0 if each is None else sum(task.phase == "running" for task in each.tasks) for each in found]


def outputs(operated: Operated) -> Counter[str]:
    """The number of committed outputs of each key."""
    topic = f"{operated.group}-out"
    reader = Consumer(
        {"bootstrap.servers": operated.topics.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
    )
    ends = operated.topics.settled_end_offsets(topic)
    reader.assign([Place(topic, number, 0) for number in ends])
    counted: Counter[str] = Counter()
    try:
        while any(place.offset < ends[place.partition] for place in reader.position(list(reader.assignment()))):
            for message in reader.consume(1_000, 1.0):
                if message.error() is None:
                    counted[message.key().decode()] += 1
    finally:
        reader.close()
    return counted


class Silence:
    """Watches the group's commits.

    `during` prints the longest time for which a partition had no new committed offset.
    """

    def __init__(self, operated: Operated) -> None:
        self._operated = operated
        self._stop = threading.Event()
        self._longest = 0.0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        topics, group = Topics(self._operated.topics.bootstrap), self._operated.group
        seen: dict[int, tuple[int, float]] = {}
        while not self._stop.wait(0.1):
            now = time.monotonic()
            for place, offset in topics.committed_offsets(group).items():
                before, since = seen.get(place.number, (-1, now))
                seen[place.number] = (offset, now if offset != before else since)
                self._longest = max(self._longest, now - seen[place.number][1])

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Watch commits during the block. Afterwards print the longest time for which a partition had no commit."""
        began, self._longest = time.monotonic(), 0.0
        yield
        print(f"{what}: {time.monotonic() - began:.1f} s, a partition was silent for up to {self._longest:.1f} s")

    def __enter__(self) -> Silence:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_one_worker_becomes_four_and_two_under_load_with_kills(wide: Operated) -> None:
    heard: list[str] = []

    def scale(workers: int) -> None:
        plan = wide.verbs.plan(Scale(wide.group, workers))
        with silence.during(f"{workers} workers"):
            wide.verbs.apply(plan, confirmed=plan.hash, tell=heard.append)

    with Feed(wide) as feed, Silence(wide) as silence:
        wide.processed(2_000)
        scale(4)
        assert sorted(share(wide, 4)) == [1, 1, 2, 2]
        # the new workers got the state before the partitions, so their tasks replayed only a tail
        assert any("fetches state" in line for line in heard), heard
        for slot in ("1", "2", "3"):
            status = statuses(wide, 4)[slot]
            assert status is not None
            assert all(task.restored < 1_500 for task in status.tasks), status
        victim = statuses(wide, 4)["2"]
        assert victim is not None
        with silence.during("kill -9 of one of four"):
            os.kill(victim.pid, signal.SIGKILL)
            wide.wait_for(lambda: sum(share(wide, 4)) == PARTITIONS, "the others to have its partitions")
        scale(4)
        wide.wait_for(lambda: sorted(share(wide, 4)) == [1, 1, 2, 2], "four workers again")
        scale(2)
        assert share(wide, 2) == [3, 3]
        assert read_change(wide.settings.paths, wide.group) is None
        before = sum(feed.sent.values())
        wide.processed(before)
    wide.processed(sum(feed.sent.values()))
    assert wide.logged() == dict(feed.sent)
    assert outputs(wide) == feed.sent
    assert isinstance(wide.verbs.plan(Scale(wide.group, 2)).verdict, NothingToDo)


@pytest.mark.thorough
def test_an_operator_that_is_killed_in_mid_change_leaves_nothing_that_waits(wide: Operated) -> None:
    wide.feed(100, 5)
    wide.processed(500)
    plan = wide.verbs.plan(Scale(wide.group, 3))

    def die(text: str) -> None:
        if "fetches state" in text or "prepared" in text:
            raise Killed(text)

    with pytest.raises(Killed):
        wide.verbs.apply(plan, confirmed=plan.hash, tell=die)
    wide.do(Scale(wide.group, 3))
    assert share(wide, 3) == [2, 2, 2]
    wide.do(Scale(wide.group, 1, warm_s=0.0))
    assert share(wide, 1) == [PARTITIONS]
    assert set(wide.verbs.plan(Scale(wide.group, 1)).basis["alive"]) == {"0"}


@pytest.mark.thorough
def test_fewer_workers_that_were_broken_off_leave_none_that_nobody_knows(
    wide: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide.feed(100, 5)
    wide.processed(500)
    wide.do(Scale(wide.group, 3))
    plan = wide.verbs.plan(Scale(wide.group, 2, warm_s=0.0))

    def die(*arguments: object) -> None:
        raise Killed("before the third worker is removed")

    with monkeypatch.context() as patch:
        patch.setattr(deployment, "remove_others", die)
        with pytest.raises(Killed):
            wide.verbs.apply(plan, confirmed=plan.hash)
    assert wide.verbs.registry.deployment(wide.group).slots == ("0", "1")  # type: ignore[union-attr]
    assert sum(share(wide, 3)) == PARTITIONS
    # the third worker's partitions can be read, audited and cleared like all other partitions
    found = wide.verbs.query(wide.group, "counts", Everything(), 1_000)
    assert len(found.places) == PARTITIONS
    assert not any(each.differences or each.unowned for each in wide.verbs.audit(wide.group, ("counts",)))
    _clear_all_but_one_stage(wide)
    found = wide.verbs.query(wide.group, "counts", Everything(), 1_000)
    assert (len(found.places), len(found.rows)) == (PARTITIONS, 0)
    again = wide.verbs.plan(Scale(wide.group, 2, warm_s=0.0))
    assert "2 workers in place of 3" in again.verdict.sentence
    wide.verbs.apply(again, confirmed=again.hash)
    assert share(wide, 3) == [3, 3, 0]
    assert isinstance(wide.verbs.plan(Scale(wide.group, 2)).verdict, NothingToDo)


def _clear_all_but_one_stage(wide: Operated) -> None:
    """Clear all keys with a command that is killed after each stage (step of its plan).

    Until the clear is resumed, other verbs (operator commands) are refused.

    After the resume, a restart is accepted again.
    """
    clear = wide.verbs.plan(Clear(wide.group, selection=Prefix("k")))  # all keys: Everything() would require a stop
    struck: set[str] = set()
    with pytest.raises(Killed):
        wide.verbs.apply(clear, confirmed=clear.hash, tell=killing_at_stages(struck))
    (begun,) = wide.verbs.registry.journal.applies(open_only=True)
    restart = wide.verbs.plan(Restart(wide.group))
    with pytest.raises(ApplyInProgress, match="was broken off") as refused:
        wide.verbs.apply(restart, confirmed=restart.hash)
    assert f"`holdfast apply resume {begun.id}`" in refused.value.action
    wide.verbs.resume(begun.id)
    assert wide.verbs.registry.journal.applies(open_only=True) == ()
    assert wide.verbs.plan(Restart(wide.group)).changes


@pytest.mark.thorough
def test_more_workers_than_partitions_are_told_and_take_over(operated: Operated) -> None:
    operated.bring_up()
    plan = operated.verbs.plan(Scale(operated.group, 3))
    assert any("1 worker will have none" in each for each in plan.findings), plan.findings
    operated.verbs.apply(plan, confirmed=plan.hash)
    assert sorted(share(operated, 3)) == [0, 1, 1]
    operated.do(Stop(operated.group))
    refused = operated.verbs.plan(Scale(operated.group, 2)).verdict
    assert isinstance(refused, Refused)
    assert "is stopped" in refused.sentence


@pytest.mark.thorough
def test_recovery_names_and_mends_the_one_slot_of_several_that_died(wide: Operated) -> None:
    plan = wide.verbs.plan(Scale(wide.group, 2))
    wide.verbs.apply(plan, confirmed=plan.hash)
    wide.wait_for(lambda: share(wide, 2) == [3, 3], "both workers to have tasks")
    before = {slot: each.pid for slot, each in statuses(wide, 2).items() if each is not None}
    world, limits = wide.verbs._world, Limits()
    os.kill(before["1"], signal.SIGKILL)

    def seen() -> Notice:
        return notice(wide.group, world, limits, answered_at={})

    wide.wait_for(lambda: seen().incident, "the incident")
    found = seen()
    incident = found.incident
    assert incident is not None
    told = judge_working(found.diagnoses, incident, world.clock())
    assert told is not None
    assert "Slot 1: Its process was killed by SIGKILL." in told.text
    assert "Slot 0" not in told.text, "what works is not named"

    result = recover(incident.id, wide.verbs._rollout(wide.group, None), world, run_id="a test")
    assert result.outcome == "resolved"
    wide.wait_for(lambda: sorted(share(wide, 2)) == [3, 3], "both workers to have tasks again")
    after = {slot: each.pid for slot, each in statuses(wide, 2).items() if each is not None}
    assert after["0"] == before["0"], "the worker that lived was not touched"
    assert after["1"] != before["1"]
