"""A store is rebuilt from its topic while the processor runs. Every key counts once, even if processes are killed."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.processors.engine.changelog.format import decode_value, split_key
from holdfast.processors.engine.changelog.names import shadow_group
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Backfill, Clear, Deploy, Keys, Restore
from tests.oracles.fold import fold_changelog
from tests.parts.operated import Killed, Operated

KEYS = 40
NEW_STORE = """
frame.apply(lambda value, state: state.set("n", state.get("n", 0) + 1), stateful=True, store="newer")
"""
STAGES = [
    "remove_shadow",
    "start_shadow",
    "wait_for_shadow",
    "pause_processor",
    "finish_shadow",
    "adopt_store",
    "resume_processor",
    "remove_shadow",
]


class Feed:
    """Sends messages, and counts them by key for the comparison."""

    def __init__(self, operated: Operated) -> None:
        self._topic = f"{operated.group}-in"
        self._producer = Producer({"bootstrap.servers": operated.topics.bootstrap})
        self.sent: dict[str, int] = {}

    def send(self, count: int) -> None:
        for number in range(count):
            key = f"key-{number % KEYS}"
            self._producer.produce(self._topic, b"1", key.encode())
            self.sent[key] = self.sent.get(key, 0) + 1
        assert self._producer.flush(30) == 0

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Send messages on a thread during the block."""
        over = threading.Event()

        def feed() -> None:
            while not over.wait(0.02):
                self.send(7)

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def total(self) -> int:
        return sum(self.sent.values())


def spoil(operated: Operated, keys: int = 9) -> None:
    """Clear some keys. Their counts are then wrong until the rebuild."""
    operated.do(Clear(operated.group, ("counts",), Keys(tuple(f"key-{number}" for number in range(keys)))))


def begun(operated: Operated) -> Feed:
    operated.bring_up()
    feed = Feed(operated)
    feed.send(4_000)
    operated.processed(4_000)
    spoil(operated)
    return feed


def outputs(operated: Operated) -> int:
    """The number of outputs that a read_committed reader sees."""
    ends = operated.topics.settled_end_offsets(f"{operated.group}-out")
    reader = Consumer(
        {
            "bootstrap.servers": operated.topics.bootstrap,
            "group.id": f"{operated.group}-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(f"{operated.group}-out", number, 0) for number in ends])
    seen, open_ends = 0, set(ends)
    while open_ends:
        message = reader.poll(30.0)
        assert message is not None
        if message.error() is None:
            seen += 1
        else:
            open_ends.discard(message.partition())
    reader.close()
    return seen


def logged(operated: Operated, store: str) -> dict[str, int]:
    """The count of each key, from a store's changelog."""
    topic, found = f"{operated.group}-{store}-changelog", {}
    for number, end in operated.topics.settled_end_offsets(topic).items():
        records = read_range(operated.topics.bootstrap, topic, number, 0, end)
        found |= {split_key(key)[0].decode(): decode_value(value) for key, value in fold_changelog(records).items()}
    return found


def compact(operated: Operated, feed: Feed) -> None:
    """Make the broker's log cleaner remove all overwritten records in the changelog's closed segments."""
    topic, topics = operated.changelog, operated.topics
    soon = {"segment.ms": "1000", "min.compaction.lag.ms": "0", "min.cleanable.dirty.ratio": "0.01"}
    topics.alter(topic, {**soon, "max.compaction.lag.ms": "1000"})

    def records() -> int:
        ends = topics.settled_end_offsets(topic)
        return sum(len(list(read_range(topics.bootstrap, topic, n, 0, end))) for n, end in ends.items())

    before = records()
    feed.send(KEYS)
    operated.processed(feed.total)
    operated.wait_for(lambda: records() < before / 2, "the cleaner to have run")


def nothing_is_left(operated: Operated) -> None:
    group = shadow_group(operated.group, "counts")
    assert operated.topics.describe([f"{group}-counts-changelog"]) == {}
    assert operated.topics.committed_offsets(group) == {}
    assert not list(operated.settings.paths.state.glob(f"{group}*"))
    assert not operated.settings.paths.endpoint(group, "0").exists()


def all_is_counted_once(operated: Operated, feed: Feed) -> None:
    operated.processed(feed.total)
    operated.wait_for(lambda: operated.logged() == feed.sent, "all counts")
    assert operated.verbs.audit(operated.group, ())[0].differences == ()
    nothing_is_left(operated)


def kill(client: ProcessorClient) -> None:
    status = client.status()
    if status is not None:
        os.kill(status.pid, signal.SIGKILL)


def test_a_store_is_built_anew_while_input_keeps_coming_and_every_key_counts_once(operated: Operated) -> None:
    feed = begun(operated)
    plan = operated.verbs.plan(Backfill(operated.group, "counts", "topic"))
    assert plan.destructive
    assert operated.logged() != feed.sent
    with feed.going_on():
        done = operated.verbs.apply(plan, confirmed=plan.hash, tell=print)
    print(done.text)
    assert [note.stage for note in done.notes] == STAGES
    all_is_counted_once(operated, feed)
    assert outputs(operated) == feed.total
    compact(operated, feed)
    operated.do(Restore(operated.group, source="changelog"))
    feed.send(100)
    all_is_counted_once(operated, feed)


@pytest.mark.thorough
def test_a_store_that_is_new_in_a_version_gets_what_was_read_before_it(operated: Operated) -> None:
    operated.bring_up()
    feed = Feed(operated)
    feed.send(800)
    operated.processed(800)
    (module,) = (each.target.partition(":")[0] for each in [operated.verbs.definition(operated.group)])
    file = Path(str(sys.modules[module].__file__))
    file.write_text(file.read_text() + NEW_STORE)
    importlib.invalidate_caches()
    sys.modules.pop(module)
    operated.do(Deploy(operated.group))
    feed.send(200)
    operated.processed(1_000)
    assert operated.client.count("newer", all=True)["keys"] == KEYS
    assert logged(operated, "newer") != feed.sent
    plan = operated.verbs.plan(Backfill(operated.group, "newer", "topic"))
    done = operated.verbs.apply(plan, confirmed=plan.hash)
    assert f"{KEYS} entries differed or were missing and are set" in done.text
    feed.send(200)
    operated.processed(feed.total)
    assert logged(operated, "newer") == feed.sent
    assert operated.logged() == feed.sent


@pytest.mark.thorough
def test_killed_at_every_stage_with_its_workers_it_ends_right(operated: Operated) -> None:
    feed = begun(operated)
    shadow = ProcessorClient(shadow_group(operated.group, "counts"), "0", operated.settings.paths)
    plan = operated.verbs.plan(Backfill(operated.group, "counts", "topic"))
    struck: set[str] = set()

    def strike(text: str) -> None:
        print(text)
        for number in range(1, len(STAGES) + 1):
            mark = f"stage {number} of"
            if text.startswith(mark) and mark not in struck:
                struck.add(mark)
                raise Killed(text)
            if text.startswith(mark) and f"workers {mark}" not in struck:
                struck.add(f"workers {mark}")
                if number in (3, 6):
                    kill(shadow)
                if number in (3, 6, 7):
                    kill(operated.client)
        if "takes over" in text and "within" not in struck:
            struck.add("within")
            raise Killed(text)

    with feed.going_on():
        done = operated.do_although_killed(plan, strike)
    assert [note.stage for note in done.notes] == STAGES
    assert len(struck) == 2 * len(STAGES) + 1
    all_is_counted_once(operated, feed)
    assert outputs(operated) == feed.total


@pytest.mark.thorough
def test_a_command_that_was_killed_while_the_processor_is_paused_is_gone_on_with_by_the_same_words(
    operated: Operated,
) -> None:
    feed = begun(operated)
    words = ["apply", "backfill", operated.group, "--store", "counts", "--from", "topic", "--yes"]

    def paused() -> bool:
        status = operated.client.status()
        return process.poll() is not None or (status is not None and status.paused)

    with feed.going_on():
        process = operated.command(*words)
        operated.wait_for(paused, "the pause")
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        process = operated.command(*words)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
    all_is_counted_once(operated, feed)


@pytest.mark.thorough
def test_one_that_is_given_up_while_paused_leaves_the_processor_working(operated: Operated) -> None:
    feed = begun(operated)
    before = operated.logged()
    record = operated.killed_while_paused(Backfill(operated.group, "counts", "topic"), stage=7)
    operated.verbs.abandon(record.id, reason="not needed")
    feed.send(80)
    operated.processed(feed.total)
    assert operated.logged() == {key: before.get(key, 0) + 2 for key in feed.sent}
    nothing_is_left(operated)


@pytest.mark.thorough
def test_a_topic_that_lost_its_beginning_is_refused_unless_it_is_said_to_do(operated: Operated) -> None:
    begun(operated)
    topic = f"{operated.group}-in"
    admin = AdminClient({"bootstrap.servers": operated.topics.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 10)]).values():
        future.result(30)
    refused = operated.verbs.plan(Backfill(operated.group, "counts", "topic")).verdict
    assert isinstance(refused, Refused)
    assert f"{topic}[0] begins at offset 10" in refused.sentence
    assert "warehouse" in refused.action
    plan = operated.verbs.plan(Backfill(operated.group, "counts", "topic", from_available=True))
    assert plan.changes
    assert any("before offset 10" in said for said in plan.deleted)
