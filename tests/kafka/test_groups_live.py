"""Producers feed a grouped stream on a real broker while its workers die, freeze or join. No message is late.

Each message is produced at its event time. The final windows are compared with windows that plain Python computes from
the produced messages.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import Application
from tests.mechanics.constants import build_of
from tests.mechanics.tiers import variants

WINDOW_MS, GRACE_MS, PER_S = 2_000, 500, 90

DEFINITION = """
import os
from holdfast import Application
from holdfast.dataframe.windows import Count, Sum


def build(bootstrap, group, **settings):
    made = Application(
        bootstrap, consumer_group=group, auto_offset_reset="earliest", loglevel=None,
        consumer_extra_config={"session.timeout.ms": 10000, "heartbeat.interval.ms": 1000}, **settings,
    )
    grouped = made.dataframe(made.topic(group + "-in")).group_by("to", "to", partitions=3)
    window = grouped.tumbling_window(2_000, 500, "windows").agg(n=Count(), total=Sum("v")).final()
    window.to_topic(made.topic(group + "-windows"))
    return made


if "TEST_GROUP" in os.environ:
    application = build(os.environ["TEST_BOOTSTRAP"], os.environ["TEST_GROUP"])
"""


def applied(stream: Any) -> Application:
    made: Application = build_of(DEFINITION)(stream.bootstrap, stream.group)
    return made


class Live:
    """A producer that sends messages with the current time to all partitions in turn."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.given: list[tuple[str, int, int]] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic, self._partitions = topic, partitions
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _run(self) -> None:
        drawn = random.Random(1)
        number = 0
        while not self._ends.wait(1 / PER_S):
            number += 1
            partition = number % self._partitions
            to, v, now = f"g{drawn.randrange(9)}", drawn.randint(1, 9), int(time.time() * 1000)
            value = json.dumps({"to": to, "v": v}).encode()
            self._producer.produce(self._topic, value, b"key", partition=partition, timestamp=now)
            self._producer.poll(0)
            self.given.append((to, now, v))

    @property
    def over(self) -> Counter[tuple[str, int, int, int]]:
        """The windows that must be closed at the event time of the newest message, according to plain Python."""
        found: dict[tuple[str, int], list[int]] = {}
        for to, at, v in self.given:
            found.setdefault((to, at // WINDOW_MS * WINDOW_MS), []).append(v)
        newest = self.given[-1][1]
        return Counter(
            (to, start, len(amounts), sum(amounts))
            for (to, start), amounts in found.items()
            if start + WINDOW_MS + GRACE_MS <= newest
        )


def windows(stream: Any) -> Counter[tuple[str, int, int, int]]:
    rows = [((row.key or b"").decode(), json.loads(row.value or b"")) for row in stream.read(f"{stream.group}-windows")]
    return Counter((group, value["start"], value["n"], value["total"]) for group, value in rows)


@pytest.mark.parametrize(
    ("workers", "how"), variants([(2, "kill"), (2, "freeze"), (3, "kill"), (1, "kill"), (1, "more")], tested=0)
)
def test_live_messages_are_in_their_windows_whatever_becomes_of_a_worker(
    stream: Any, worker: Callable[..., Any], waiting: Callable[..., Any], workers: int, how: str
) -> None:
    stream.application = lambda: applied(stream)
    stream.provision()
    made = [worker(str(slot), home=f"home-{slot}") for slot in range(workers + (how == "more"))]
    for one in made:
        (one.paths.home / "counting_definition.py").write_text(DEFINITION)
    for one in made[:workers]:
        one.start()
    with Live(stream.bootstrap, stream.source, stream.partitions) as live:
        waiting(lambda: windows(stream).total() >= 20, "windows before the outage")
        victim, fed = made[0], len(live.given)
        if how == "kill":
            victim.kill()
        elif how == "freeze":
            os.kill(victim.wait_running().process.pid, signal.SIGSTOP)
        else:
            made[-1].start()
        waiting(lambda: len(live.given) >= fed + 5 * PER_S, "messages of the outage")
        if how == "kill":
            victim.start()
        elif how == "freeze":
            os.kill(victim.process.pid, signal.SIGCONT)
        fed = len(live.given)
        waiting(lambda: len(live.given) >= fed + 5 * PER_S, "messages behind the outage")
    wanted = live.over
    waiting(lambda: windows(stream).total() >= wanted.total(), "all windows that are over to be sent")
    assert windows(stream) == wanted
    for one in made:
        assert one.wait_running().terminate() == 0
