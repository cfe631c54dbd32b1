"""kill -9 of processors that group a stream by another key, on a real broker: in mid-repartition and in mid-purge.

What plain Python makes of the fed messages is compared with the results: each message once, each window once and whole.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from holdfast import Application
from tests.mechanics.tiers import variants

BEGIN_MS = 1_690_000_000_000
MESSAGES, WINDOW_MS, GRACE_MS = 6_000, 2_000, 200

DEFINITION = """
import os
from holdfast import Application
from holdfast.dataframe.windows import Count, Sum
from holdfast.processors.engine.runtime import purge

purge.PURGE_EVERY_S = 0.3


def count(value, state):
    return {"id": value["id"], "n": state.increment("n")}


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}, **settings,
    )
    grouped = made.dataframe(made.topic(group + "-in")).group_by(lambda value: value["to"], name="to", partitions=3)
    grouped.apply(count, stateful=True, store="by-group").to_topic(made.topic(group + "-counted"))
    window = grouped.tumbling_window(2_000, 200, "windows").agg(n=Count(), total=Sum("v")).final()
    window.to_topic(made.topic(group + "-windows"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


class Fed(NamedTuple):
    """One message: its id, its partition, event time, group and amount."""

    id: int
    partition: int
    time_ms: int
    to: str
    v: int


def messages(drawn: random.Random, partitions: int) -> list[Fed]:
    """A backlog; the last partition is an hour behind the others in event time, and fed first."""
    made = []
    for number in range(MESSAGES):
        partition = number * partitions // MESSAGES
        begin = BEGIN_MS - (3_600_000 if partition == partitions - 1 else 0)
        time_ms = begin + (number % (MESSAGES // partitions)) * 10 - drawn.choice([0, 0, GRACE_MS - 1])
        made.append(Fed(number, partition, time_ms, f"g{drawn.randrange(30)}", drawn.randint(1, 9)))
    return made


def feed(stream: Any, given: list[Fed]) -> None:
    producer = Producer({"bootstrap.servers": stream.bootstrap})
    for each in given:
        value = json.dumps({"id": each.id, "to": each.to, "v": each.v}).encode()
        producer.produce(stream.source, value, b"key", partition=each.partition, timestamp=each.time_ms)
    assert producer.flush(60) == 0


def counted(stream: Any) -> Counter[int]:
    return Counter(json.loads(row.value or b"")["id"] for row in stream.read(f"{stream.group}-counted"))


def highest(stream: Any) -> dict[str, int]:
    """By group, the largest count that was sent."""
    found: dict[str, int] = {}
    for row in stream.read(f"{stream.group}-counted"):
        group = (row.key or b"").decode()
        found[group] = max(found.get(group, 0), json.loads(row.value or b"")["n"])
    return found


def windows(stream: Any) -> Counter[tuple[str, int, int, int]]:
    rows = [((row.key or b"").decode(), json.loads(row.value or b"")) for row in stream.read(f"{stream.group}-windows")]
    return Counter((group, value["start"], value["n"], value["total"]) for group, value in rows)


def expected_windows(given: list[Fed]) -> Counter[tuple[str, int, int, int]]:
    """The windows that are over when all is read: the newest message is behind their grace."""
    found: dict[tuple[str, int], list[int]] = {}
    for each in given:
        found.setdefault((each.to, each.time_ms // WINDOW_MS * WINDOW_MS), []).append(each.v)
    newest = max(each.time_ms for each in given)
    return Counter(
        (to, start, len(amounts), sum(amounts))
        for (to, start), amounts in found.items()
        if start + WINDOW_MS + GRACE_MS <= newest
    )


def applied(stream: Any) -> Application:
    namespace: dict[str, Any] = {}
    exec(DEFINITION, namespace)  # the definition that the processes import
    made: Application = namespace["build"](stream.bootstrap, stream.group)
    return made


@pytest.mark.parametrize("workers", variants([1, 3]))
def test_kill_9_neither_loses_nor_doubles_a_message_behind_group_by(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any], workers: int
) -> None:
    given = messages(random.Random(workers), stream.partitions)
    stream.application = lambda: applied(stream)
    stream.provision()
    feed(stream, given)
    made = [worker(str(slot), home=f"home-{slot}") for slot in range(workers)]
    for one in made:
        (one.paths.home / "counting_definition.py").write_text(DEFINITION)
        one.start()
    killed, between = made[0], f"{stream.group}-to-repartition"

    def committed(topic: str) -> int:
        each = stream.topics.committed_offsets(stream.group)
        return sum(offset for place, offset in each.items() if place.topic == topic)

    def purged() -> int:
        return sum(stream.topics.start_offsets(between).values())

    for times, progress in enumerate((lambda: committed(stream.source), lambda: committed(between), purged)):
        before = progress()
        # A quick machine may be done before a look.
        waiting(lambda seen=before, made=progress: made() > seen or purged() >= MESSAGES, "more of the backlog")
        killed.kill()
        if times == 1:
            shutil.rmtree(killed.paths.state, ignore_errors=True)  # it may have had no task with state
        killed.start()
    wanted = expected_windows(given)
    waiting(lambda: counted(stream).total() >= MESSAGES, "all messages to be counted")
    waiting(lambda: windows(stream).total() >= wanted.total(), "all windows that are over to be sent")
    waiting(lambda: purged() >= MESSAGES, "what is processed to be deleted")
    for one in made:  # all may be done before the last kill: the worker behind it may not have begun
        assert one.wait_running().terminate() == 0
    assert counted(stream) == dict.fromkeys(range(MESSAGES), 1)
    assert highest(stream) == Counter(each.to for each in given)
    assert windows(stream) == wanted

    if workers == 1:  # read it again from the sources: nothing that was between the topics counts twice
        applied(stream).clear_state(rewind="earliest")
        made[0].start()
        waiting(lambda: counted(stream).total() >= 2 * MESSAGES, "all messages to be counted again")
        assert made[0].wait_running().terminate() == 0
        assert counted(stream) == dict.fromkeys(range(MESSAGES), 2)
        assert highest(stream) == Counter(each.to for each in given)
