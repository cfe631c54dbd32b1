"""kill -9 of a processor with sessions on a real broker: while messages merge sessions, and while many of them close.

Results and changelog are compared with sessions that plain Python computes from the records in the source topic.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest

from holdfast.processors.engine.state.time.window_keys import is_session, window_of
from tests.kafka.killed import BEGIN_MS, Kill, Scenario
from tests.kafka.test_windows_killed import feed
from tests.oracles.sessions import Sessions, Shape, expect
from tests.oracles.window_rules import Event

SHAPE = Shape(1_000, 60_000, "partition", final=True)
KEYS = 60


def sessions(drawn: random.Random, begin: int) -> list[tuple[bytes, int, int]]:
    """Shuffled messages of all keys, further apart than the session gap, so that each opens a session."""
    made = [
        (b"k%d" % key, BEGIN_MS + begin + number * 2_000, drawn.randint(1, 9))
        for number in range(20)
        for key in range(KEYS)
    ]
    drawn.shuffle(made)
    return made


def bridges(drawn: random.Random, begin: int) -> list[tuple[bytes, int, int]]:
    """Shuffled messages between these sessions; each of them merges two sessions."""
    made = [
        (b"k%d" % key, BEGIN_MS + begin + number * 2_000 + 1_000, drawn.randint(1, 9))
        for number in range(19)
        for key in range(KEYS)
        if number % 5  # leaves out some bridges, so that four sessions of each key remain separate
    ]
    drawn.shuffle(made)
    return made


class Visits(Scenario):
    head = """
        from holdfast import Count, Sum
        from holdfast.dataframe.windows import Collect, First, Last
        from holdfast.processors.engine.runtime.task import task_time

        task_time.CLOSED_AT_ONCE = 15  # so that what ends at once takes many commits, and kills hit between them
        """
    topology = """
        sessions = made.dataframe(made.topic(group + "-in")).session_window(1_000, 60_000, "visits")
        columns = sessions.agg(n=Count(), total=Sum("v"), all=Collect("v"), first=First("v"), last=Last("v"))
        columns.final(closing_strategy="partition").to_topic(made.topic(group + "-out"))
        """

    def course(self) -> Iterator[Kill]:
        self.drawn = random.Random(5)
        self.killed.wait_running()
        fed = 0
        for round_ in range(2):
            begin = round_ * 200_000
            opened, between = sessions(self.drawn, begin), bridges(self.drawn, begin)
            fed += feed(self.stream, opened)
            self.wait(self.has_committed(fed), "the sessions to be committed")
            merging = self.has_more_committed()
            fed += feed(self.stream, between)
            yield Kill(merging, "some of the merges to be committed", loses_disk=round_ == 1)
            self.wait(self.has_committed(fed), "the merges to be committed")
            # These messages close all open sessions of each partition at once.
            closing = self.has_more_results(30)
            fed += feed(self.stream, [(b"end-%d" % number, BEGIN_MS + begin + 150_000, 0) for number in range(20)])
            yield Kill(closing, "some sessions to be closed")
        self.wait(self.has_committed(fed), "everything to be committed")

    @cached_property
    def models(self) -> list[Sessions]:
        """For each partition, a model of the sessions, computed from its records."""
        found = []
        for records in self.partitions():
            events = [Event(each.key or b"", each.timestamp_ms, json.loads(each.value or b"")["v"]) for each in records]
            found.append(expect(SHAPE, events, 2 * BEGIN_MS))
        return found

    def truth(self) -> dict[str, Counter[Any]]:
        rows = [(*made[:5], tuple(made[5]), *made[6:]) for model in self.models for made in model.results]
        return {"out": Counter(rows)}

    def sent(self, output: str) -> Counter[Any]:
        return self.documents(
            output, lambda record, each: (record.key, *({**each, "all": tuple(each["all"])}).values())
        )

    def check_ended(self) -> None:
        """Assert that the changelog has each session, open or closed: its key, start, end and number of messages."""
        found: Counter[tuple[bytes, int, int, int]] = Counter()
        for (key, name), made in self.stored("visits").items():
            if is_session(name):
                found[key, made["session"]["start"], made["session"]["end"], made["count"]["n"]] += 1
            elif (window := window_of(name)) is not None:
                found[key, *window, made["count"]["n"]] += 1
        kept = [(key, each) for model in self.models for key, known in model.by_key.items() for each in known]
        assert found == Counter((key, each.start, each.end, len(each.events)) for key, each in kept)
        assert sum(model.merged for model in self.models) == 2 * KEYS * 15


@pytest.mark.thorough
def test_kill_9_in_the_middle_of_merges_neither_loses_nor_doubles_a_session(
    stream: Any, worker: Callable[..., Any]
) -> None:
    Visits(stream, worker).live()
