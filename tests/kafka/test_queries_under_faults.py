"""Random queries while workers are killed, frozen, restarted, and restored: each answer equals the committed fold.

The input topic is the truth. The count of a key in an answer must be the number of its records before the offset that
the answer carries. No answer may be older than the bound that the documentation promises.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.topics.reader import read_range
from holdfast.processors.engine.runtime.ownership.freshness import GAP_S_MAX
from tests.kafka.conftest import SESSION_MS

KEYS = 40
#: Seconds. An answer is at most as old as the gap after which a worker refuses, and the session of a lost member.
OLDEST_S = GAP_S_MAX + SESSION_MS / 1000
#: Seconds by which the clocks of the test and of a worker may differ: one counts monotonic time, the other the time of
#: a commit.
CLOCKS_S = 0.05


@dataclass(frozen=True)
class Answer:
    """One answer: when it was asked for and received, and what it says."""

    asked_at: float
    received_at: float
    key: str
    partition: int
    offset: int
    count: int
    worker: str
    is_stale: bool
    age_s: float


@dataclass
class Questions:
    """Threads that ask random workers for random keys, until they have enough answers."""

    workers: list[Any]
    wanted: int
    answers: list[Answer] = field(default_factory=list)
    refusals: Counter[int] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    def ask(self, seed: int) -> None:
        """Ask until there are enough answers, or an answer is odd."""
        chance = random.Random(seed)
        with httpx.Client(trust_env=False, timeout=30) as client:
            while len(self.answers) < self.wanted and not self.odd:
                try:
                    self._ask_once(client, chance)
                except (httpx.HTTPError, OSError, ValueError, KeyError):  # the worker is dead or starts
                    self.gone.wait(0.05)

    def _ask_once(self, client: httpx.Client, chance: random.Random) -> None:
        worker, key = chance.choice(self.workers), f"k{chance.randrange(KEYS + 2)}"
        known = json.loads(worker.paths.endpoint(worker.stream.group, worker.slot).read_text())
        headers, asked_at = {"Authorization": f"Bearer {known['state_token']}"}, time.monotonic()
        demand = {"stale_ok": "60"} if chance.random() < 0.3 else {"wait": "0.2"}
        answer = client.get(f"{known['url']}/stores/counts/keys/{quote(key)}", params=demand, headers=headers)
        if answer.status_code not in (200, 404):
            self.refusals[answer.status_code] += 1
            if answer.status_code != 503 or "Retry-After" not in answer.headers:
                self.odd.append(f"{answer.status_code}: {answer.text}")
            return
        said = answer.json()
        for at in [said["position"]] if said["found"] else said["positions"]:
            count = said["state"]["n"] if said["found"] else 0
            (offset,) = at["inputs"].values()
            received_at = time.monotonic()
            asked, place = f"{worker.slot}<-{at['worker']} {at['source']}", at["partition"]
            self.sources[at["source"]] += 1
            stale = "stale_ok" in demand
            self.answers.append(Answer(asked_at, received_at, key, place, offset, count, asked, stale, at["age_s"]))


def feed_on(stream: Any, done: threading.Event) -> None:
    """Feed records of random keys, some at a time, until ``done``."""
    chance = random.Random(1)
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    while not done.wait(0.02):
        for _ in range(20):
            producer.produce(stream.source, b"1", b"k%d" % chance.randrange(KEYS))
        producer.flush(30)


def break_something(worker: Any, stream: Any, chance: random.Random, done: threading.Event) -> str:
    """Do one random harm to a running worker, and let it work again."""
    kind = chance.choice(["kill", "freeze", "long freeze", "restart", "lose the disk"])
    if kind in ("freeze", "long freeze"):
        worker.process.send_signal(signal.SIGSTOP)
        done.wait(chance.uniform(0.5, 2.0) if kind == "freeze" else chance.uniform(1, 2) * SESSION_MS / 1000)
        worker.process.send_signal(signal.SIGCONT)
    elif kind == "restart":
        worker.terminate()
        worker.start()
    else:
        worker.kill()
        if kind == "lose the disk":
            worker.lose_state()
        worker.start()
    done.wait(chance.uniform(0.5, 3.0))
    return kind


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("answers", "workers"),
    [
        pytest.param(300, 2, id="300 answers of two workers", marks=pytest.mark.slow),
        pytest.param(1000, 1, id="1,000 answers of one worker", marks=pytest.mark.thorough),
        pytest.param(4000, 2, id="4,000 answers of two workers", marks=pytest.mark.thorough),
        pytest.param(5000, 3, id="5,000 answers of three workers", marks=pytest.mark.thorough),
    ],
)
def test_each_answer_is_the_committed_fold_at_its_position(
    stream: Any, worker: Any, answers: int, workers: int
) -> None:
    stream.partitions = 2
    running = [worker(slot=str(number)) for number in range(workers)]
    for each in running:
        each.environment["HOLDFAST_STANDBY_REPLICAS"] = "1"
        each.start()
    for each in running:
        each.wait_running()
    asked, done, chance = Questions(running, answers), threading.Event(), random.Random(workers)
    threads = [threading.Thread(target=asked.ask, args=(seed,)) for seed in range(4)]
    feeder = threading.Thread(target=feed_on, args=(stream, done))
    harms: Counter[str] = Counter()
    try:
        for thread in (feeder, *threads):
            thread.start()
        while any(thread.is_alive() for thread in threads):
            harms[break_something(chance.choice(running), stream, chance, done)] += 1
    finally:
        asked.wanted = 0
        for thread in threads:
            thread.join()
        done.set()
        feeder.join()
        for each in running:
            with suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGCONT)
    assert not asked.odd
    print(f"{len(asked.answers)} answers, {dict(asked.sources)}, refused {dict(asked.refusals)}, harms {dict(harms)}")
    assert wrong_answers(stream, asked.answers) == []
    assert old_answers([each for each in asked.answers if not each.is_stale], lambda _: OLDEST_S) == []
    # Each answer says how old it is at most, also an answer that may be stale.
    assert old_answers(asked.answers, lambda answer: answer.age_s + CLOCKS_S) == []


def wrong_answers(stream: Any, answers: list[Answer]) -> list[Answer]:
    """The answers whose count is not the number of the key's records before their offset."""
    wrong = []
    for number, end in stream.topics.end_offsets(stream.source, committed=True).items():
        records = [
            (each.offset, (each.key or b"").decode())
            for each in read_range(stream.bootstrap, stream.source, number, 0, end)
        ]
        counts: Counter[str] = Counter()
        at = 0
        for each in sorted((each for each in answers if each.partition == number), key=lambda each: each.offset):
            while at < len(records) and records[at][0] < each.offset:
                counts[records[at][1]] += 1
                at += 1
            if counts[each.key] != each.count:
                wrong.append(each)
    return wrong


def old_answers(answers: list[Answer], age_s: Callable[[Answer], float]) -> list[tuple[Answer, int]]:
    """The answers that are behind an answer that somebody had received ``age_s`` before they were asked for."""
    old = []
    for number in {each.partition for each in answers}:
        received = sorted((each.received_at, each.offset) for each in answers if each.partition == number)
        times, newest_at = [at for at, _ in received], list(accumulate((offset for _, offset in received), max))
        for each in (each for each in answers if each.partition == number):
            before = bisect_left(times, each.asked_at - age_s(each))
            newest = newest_at[before - 1] if before else 0
            if each.offset < newest:
                old.append((each, newest))
    return old
