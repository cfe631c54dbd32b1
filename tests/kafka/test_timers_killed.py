"""kill -9 of a processor with timers on a real broker: while timers are set, and while many of them fire at once.

What plain Python makes of the records in the source topic is compared with what was sent and with the changelog.
"""

from __future__ import annotations

import inspect
import json
import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.infra.kafka.reader import read_range
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.state.own_keys import RESERVED
from tests.mechanics.tiers import variants
from tests.oracles.timers import Event, Model, Step

pytestmark = pytest.mark.thorough

BEGIN_MS, TTL, KEYS = 1_690_000_000_000, 20_000, 60

DEFINITION = (
    """
import os
from typing import Any
from holdfast import Application
from holdfast.processors.engine.runtime.task import task_timers

task_timers.FIRED_AT_ONCE = 15  # so that what is due at once takes many commits, and kills hit between them


"""
    + inspect.getsource(Step)
    + """

def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}, **settings,
    )
    kept = made.store("timed", ttl=20_000)
    made.dataframe(made.topic(group + "-in")).process(Step, store=kept).to_topic(made.topic(group + "-out"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""
)


def messages(drawn: random.Random, begin: int) -> list[tuple[str, int, list[Any]]]:
    """Messages of all keys in some disorder; each sets timers within the next minutes."""
    made = []
    for at in range(begin, begin + 30_000, 100):
        time = BEGIN_MS + max(0, at - drawn.choice([0, 0, 800, 5_000]))
        timer = ["set_timer", drawn.choice("xyz"), time + drawn.choice([50, 3_000, 100_000, 100_001])]
        steps = [timer, ["count", "n"], drawn.choice([["read", "n"], ["cancel", "x"]])]
        made.append((f"k{drawn.randrange(KEYS)}", time, steps))
    return made


def feed(stream: Any, given: list[tuple[str, int, list[Any]]]) -> None:
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    for key, time, steps in given:
        producer.produce(stream.source, json.dumps(steps).encode(), key.encode(), timestamp=time)
    assert producer.flush(60) == 0


def expected(stream: Any) -> list[Model]:
    """By partition, what plain Python makes of the records."""
    found = []
    for number, end in sorted(stream.topics.end_offsets(stream.source, committed=True).items()):
        model = Model(TTL)
        for each in read_range(stream.bootstrap, stream.source, number, 0, end):
            model.take(Event((each.key or b"").decode(), each.timestamp_ms, json.loads(each.value or b"")))
        found.append(model)
    return found


def stored(stream: Any) -> dict[tuple[str, str], int]:
    """The values of functions in the changelog."""
    state: dict[Any, Any] = {}
    for record in stream.read(f"{stream.group}-timed-changelog"):
        if record.key != META_KEY:
            state[split_key(record.key or b"")] = None if record.value is None else decode_value(record.value)
    return {
        (key.decode(), name): value
        for (key, name), value in state.items()
        if value is not None and not name.startswith(RESERVED)
    }


@pytest.mark.parametrize("workers", variants([1, 3], tested=0))
def test_kill_9_neither_loses_nor_doubles_a_timer(
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

    def sent() -> int:
        return sum(stream.topics.end_offsets(stream.sink, committed=True).values())

    part = messages(drawn, 0)
    feed(stream, part)
    waiting(lambda: committed() > 0, "some of the messages to be committed")
    killed.kill()  # while timers are set and fire between messages
    shutil.rmtree(killed.paths.state)
    killed.start()
    waiting(lambda: committed() == len(part), "the messages to be committed")
    # The long timers of all keys are due at once, in each partition: they take some commits.
    seen = sent()
    ends = [(f"end-{number}", BEGIN_MS + 400_000, [["count", "n"]]) for number in range(20)]
    feed(stream, ends)
    waiting(lambda: sent() > seen, "some timers to have fired")
    killed.kill()  # in the middle of firing
    killed.start()
    waiting(lambda: committed() == len(part) + len(ends), "everything to be committed")
    wanted = expected(stream)
    everything = sum(len(model.sent) for model in wanted)
    waiting(lambda: len(stream.read(stream.sink)) >= everything, "all timers to have fired")
    for one in made:
        assert one.wait_running().terminate() == 0
    results = [json.loads(record.value or b"") for record in stream.read(stream.sink)]
    assert sorted(results) == sorted(each for model in wanted for each in model.sent)
    for model in wanted:
        for key in {each[1] for each in model.sent}:
            assert [each for each in results if each[1] == key] == [each for each in model.sent if each[1] == key]
    assert stored(stream) == {
        place: value for model in wanted for place, (value, end, _) in model.values.items() if end > model.time
    }
    assert sum(each[0] == "timer" for each in results) > 100
