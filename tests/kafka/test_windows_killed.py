"""kill -9 of processors with windows on a real broker: while windows fill, and while many of them close at once.

What plain Python makes of the records in the source topic is compared with the results and with the changelog.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.reader import read_range
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.state.time.window_keys import window_of
from tests.mechanics.tiers import variants
from tests.oracles.window_rules import Event, Shape, Windows, expect

#: Event times begin here: a whole number of windows since 1970.
BEGIN_MS = 1_690_000_000_000
SHAPE = Shape(10_000, 5_000, 2_000, "partition", final=True)
KEYS = 150

DEFINITION = """
import os
from holdfast import Application, Count, Sum
from holdfast.processors.engine.runtime.task import task_time

task_time.CLOSED_AT_ONCE = 15  # so that what ends at once takes many commits, and kills hit between them


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}, **settings,
    )
    window = made.dataframe(made.topic(group + "-in")).hopping_window(10_000, 5_000, 2_000, name="hops")
    window.agg(n=Count(), total=Sum("v")).final(closing_strategy="partition").to_topic(made.topic(group + "-out"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


def messages(drawn: random.Random, begin: int, seconds: int) -> list[tuple[bytes, int, int]]:
    """Messages of all keys in disorder; some are late."""
    made = []
    for at in range(begin, begin + seconds * 1_000, 250):
        for _ in range(12):
            late = drawn.choice([0, 0, 0, 900, 4_000, 25_000])
            made.append((b"k%d" % drawn.randrange(KEYS), BEGIN_MS + max(0, at - late), drawn.randint(1, 9)))
    return made


def feed(stream: Any, given: list[tuple[bytes, int, int]]) -> None:
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    for key, time_ms, amount in given:
        producer.produce(stream.source, json.dumps({"v": amount}).encode(), key, timestamp=time_ms)
    assert producer.flush(60) == 0


def expected(stream: Any) -> list[Windows]:
    """By partition, what plain Python makes of the records."""
    found = []
    for number, end in sorted(stream.topics.end_offsets(stream.source, committed=True).items()):
        records = read_range(stream.bootstrap, stream.source, number, 0, end)
        events = [Event(each.key or b"", each.timestamp_ms, json.loads(each.value or b"")["v"]) for each in records]
        found.append(expect(SHAPE, events, 2 * BEGIN_MS))
    return found


def stored(stream: Any) -> dict[tuple[bytes, int, int], tuple[int, int]]:
    """The windows in the changelog."""
    state: dict[Any, Any] = {}
    for record in stream.read(f"{stream.group}-hops-changelog"):
        if record.key == META_KEY:
            continue
        place = split_key(record.key or b"")
        state[place] = None if record.value is None else decode_value(record.value)
    return {
        (key, *window): (made["count"]["n"], made["sum"]["total"])
        for (key, name), made in state.items()
        if made is not None and (window := window_of(name)) is not None
    }


def sent(stream: Any) -> list[tuple[Any, ...]]:
    made = [(record.key, json.loads(record.value or b"")) for record in stream.read(stream.sink)]
    return [(key, each["start"], each["end"], each["n"], each["total"]) for key, each in made]


@pytest.mark.parametrize("workers", variants([1, 3]))
def test_kill_9_neither_loses_nor_doubles_a_window(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any], workers: int
) -> None:
    drawn = random.Random(workers)
    namespace: dict[str, Any] = {}
    exec(DEFINITION, namespace)  # the definition that the processes import
    application: Application = namespace["build"](stream.bootstrap, stream.group)
    stream.application = lambda: application
    stream.provision()
    made = [worker(str(slot), home=f"home-{slot}") for slot in range(workers)]
    for one in made:
        (one.paths.home / "counting_definition.py").write_text(DEFINITION)
        one.start()
    killed = made[0]
    killed.wait_running()

    def committed() -> int:
        return sum(stream.topics.committed_offsets(stream.group).values())

    def results() -> int:
        return sum(stream.topics.end_offsets(stream.sink, committed=True).values())

    fed = 0
    for round_ in range(2):
        before = committed()
        part = messages(drawn, round_ * 60_000, 40)
        feed(stream, part)
        fed += len(part)
        waiting(lambda seen=before: committed() > seen, "some of the round to be committed")
        killed.kill()  # in the middle of filling windows
        if round_ == 1:
            shutil.rmtree(killed.paths.state)
        killed.start()
        waiting(lambda seen=fed: committed() == seen, "the round to be committed")
        # All open windows end at once, in each partition: they take some ten commits.
        seen = results()
        ends = [(b"end-%d" % number, BEGIN_MS + round_ * 60_000 + 55_000, 0) for number in range(20)]
        feed(stream, ends)
        fed += len(ends)
        waiting(lambda seen=seen: results() > seen + 30, "some windows to be closed")
        killed.kill()  # in the middle of closing
        killed.start()
    waiting(lambda: committed() == fed, "everything to be committed")
    wanted = expected(stream)
    everything = sum(len(model.results) for model in wanted)
    waiting(lambda: len(sent(stream)) >= everything, "all windows to be closed")
    for one in made:
        assert one.wait_running().terminate() == 0
    assert Counter(sent(stream)) == Counter(result for model in wanted for result in model.results)
    kept = {place: amounts for model in wanted for place, amounts in {**model.open, **model.closed}.items()}
    assert stored(stream) == {place: (len(amounts), sum(amounts)) for place, amounts in kept.items()}
    assert sum(model.late for model in wanted) > 0
