"""kill -9 of a processor with sessions on a real broker: while messages merge sessions, and while many of them close.

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

from holdfast import Application
from holdfast.infra.kafka.reader import read_range
from holdfast.processors.engine.changelog.format import META_KEY, decode_value, split_key
from holdfast.processors.engine.state.time.window_keys import is_session, window_of
from tests.kafka.test_windows_killed import feed
from tests.oracles.sessions import Sessions, Shape, expect
from tests.oracles.window_rules import Event

#: Event times begin here.
BEGIN_MS = 1_690_000_000_000
SHAPE = Shape(1_000, 60_000, "partition", final=True)
KEYS = 60

DEFINITION = """
import os
from holdfast import Application, Count, Sum
from holdfast.dataframe.windows import Collect, First, Last
from holdfast.processors.engine.runtime.task import task_time

task_time.CLOSED_AT_ONCE = 15  # so that what ends at once takes many commits, and kills hit between them


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", commit_interval=0.2, loglevel=None,
        consumer_extra_config={"session.timeout.ms": 3000, "heartbeat.interval.ms": 700}, **settings,
    )
    sessions = made.dataframe(made.topic(group + "-in")).session_window(1_000, 60_000, "visits")
    columns = sessions.agg(n=Count(), total=Sum("v"), all=Collect("v"), first=First("v"), last=Last("v"))
    columns.final(closing_strategy="partition").to_topic(made.topic(group + "-out"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


def sessions(drawn: random.Random, begin: int) -> list[tuple[bytes, int, int]]:
    """Messages of all keys that open sessions further apart than the gap, in any order."""
    made = [
        (b"k%d" % key, BEGIN_MS + begin + number * 2_000, drawn.randint(1, 9))
        for number in range(20)
        for key in range(KEYS)
    ]
    drawn.shuffle(made)
    return made


def bridges(drawn: random.Random, begin: int) -> list[tuple[bytes, int, int]]:
    """Messages between these sessions, in any order: each merges two."""
    made = [
        (b"k%d" % key, BEGIN_MS + begin + number * 2_000 + 1_000, drawn.randint(1, 9))
        for number in range(19)
        for key in range(KEYS)
        if number % 5  # so that four sessions of each key are left
    ]
    drawn.shuffle(made)
    return made


def expected(stream: Any) -> list[Sessions]:
    """By partition, what plain Python makes of the records."""
    found = []
    for number, end in sorted(stream.topics.end_offsets(stream.source, committed=True).items()):
        records = read_range(stream.bootstrap, stream.source, number, 0, end)
        events = [Event(each.key or b"", each.timestamp_ms, json.loads(each.value or b"")["v"]) for each in records]
        found.append(expect(SHAPE, events, 2 * BEGIN_MS))
    return found


def stored(stream: Any) -> Counter[tuple[bytes, int, int, int]]:
    """The sessions in the changelog, open and closed: key, start, end, and the number of messages."""
    state: dict[Any, Any] = {}
    for record in stream.read(f"{stream.group}-visits-changelog"):
        if record.key != META_KEY:
            place = split_key(record.key or b"")
            state[place] = None if record.value is None else decode_value(record.value)
    found: Counter[tuple[bytes, int, int, int]] = Counter()
    for (key, name), made in state.items():
        if made is not None and is_session(name):
            found[key, made["session"]["start"], made["session"]["end"], made["count"]["n"]] += 1
        elif made is not None and (window := window_of(name)) is not None:
            found[key, *window, made["count"]["n"]] += 1
    return found


def sent(stream: Any) -> list[tuple[Any, ...]]:
    made = [(record.key, json.loads(record.value or b"")) for record in stream.read(stream.sink)]
    return [(key, *({**each, "all": tuple(each["all"])}).values()) for key, each in made]


@pytest.mark.thorough
def test_kill_9_in_the_middle_of_merges_neither_loses_nor_doubles_a_session(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any]
) -> None:
    drawn = random.Random(5)
    namespace: dict[str, Any] = {}
    exec(DEFINITION, namespace)  # the definition that the process imports
    application: Application = namespace["build"](stream.bootstrap, stream.group)
    stream.application = lambda: application
    stream.provision()
    killed = worker("0", home="home-0")
    (killed.paths.home / "counting_definition.py").write_text(DEFINITION)
    killed.start()
    killed.wait_running()

    def committed() -> int:
        return sum(stream.topics.committed_offsets(stream.group).values())

    def results() -> int:
        return sum(stream.topics.end_offsets(stream.sink, committed=True).values())

    fed = 0
    for round_ in range(2):
        begin = round_ * 200_000
        opened, between = sessions(drawn, begin), bridges(drawn, begin)
        feed(stream, opened)
        fed += len(opened)
        waiting(lambda seen=fed: committed() == seen, "the sessions to be committed")
        feed(stream, between)
        waiting(lambda seen=fed: committed() > seen, "some of the merges to be committed")
        killed.kill()  # in the middle of merging
        fed += len(between)
        if round_ == 1:
            shutil.rmtree(killed.paths.state)
        killed.start()
        waiting(lambda seen=fed: committed() == seen, "the merges to be committed")
        seen = results()
        ends = [(b"end-%d" % number, BEGIN_MS + begin + 150_000, 0) for number in range(20)]
        feed(stream, ends)  # in each partition, all sessions end at once
        fed += len(ends)
        waiting(lambda seen=seen: results() > seen + 30, "some sessions to be closed")
        killed.kill()  # in the middle of closing
        killed.start()
    waiting(lambda: committed() == fed, "everything to be committed")
    wanted = expected(stream)
    everything = sum(len(model.results) for model in wanted)
    waiting(lambda: len(sent(stream)) >= everything, "all sessions to be closed")
    assert killed.wait_running().terminate() == 0
    hashable = [(*made[:5], tuple(made[5]), *made[6:]) for model in wanted for made in model.results]
    assert Counter(sent(stream)) == Counter(hashable)
    kept = [(key, each) for model in wanted for key, found in model.by_key.items() for each in found]
    assert stored(stream) == Counter((key, each.start, each.end, len(each.events)) for key, each in kept)
    assert sum(model.merged for model in wanted) == 2 * KEYS * 15
