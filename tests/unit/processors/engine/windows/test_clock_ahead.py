"""Messages of some keys are dated ahead of the worker's clock.

Their times do not count before the clock has reached them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.dataframe.windows import Count, Sum
from holdfast.processors.engine.aggregates.key_time import KeyTime
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.windows.keys_ahead import KeysAhead
from holdfast.processors.engine.windows.sliding import _Key
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.simulation.disk import SimulatedDisk
from tests.simulation.small_portions import portions_of_time
from tests.window_apps import build
from tests.window_lives import live, world

KINDS: dict[str, Callable[[StreamingDataFrame], Any]] = {
    "tumbling": lambda frame: frame.tumbling_window(1_000, 100, "w"),
    "hopping": lambda frame: frame.hopping_window(1_000, 250, 100, "w"),
    "sessions": lambda frame: frame.session_window(300, 100, "w"),
    "sliding": lambda frame: frame.sliding_window(1_000, 100, "w"),
}


def app_of(kind: str, closing: str = "key", **settings: Any) -> Application:
    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        made: StreamingDataFrame = KINDS[kind](frame).agg(n=Count(), total=Sum()).final(closing)
        return made

    return build(place, **settings)


def results(cluster: InMemoryCluster) -> Counter[tuple[Any, ...]]:
    found = [(record.key, json.loads(record.value or b"")) for _, record in cluster.read("out")]
    return Counter((key, *made.values()) for key, made in found)


def rebuilt(kind: str, messages: list[tuple[bytes, int, int]]) -> Counter[tuple[Any, ...]]:
    """The results of a worker that processes the messages after the clock has passed all their times."""
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for key, at, amount in messages:
        cluster.produce("in", str(amount).encode(), key, timestamp_ms=at)
    cluster.advance(100)
    cluster.run(app_of(kind))
    return results(cluster)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_is_always_ahead_gets_its_results_without_another_message(kind: str) -> None:
    cluster, messages = InMemoryCluster(), list[tuple[bytes, int, int]]()
    cluster.create_topic("in")

    def say(key: bytes, ahead_ms: int) -> None:
        messages.append((key, int(cluster.clock.time() * 1000) + ahead_ms, len(messages) + 1))
        cluster.produce("in", str(messages[-1][2]).encode(), key, timestamp_ms=messages[-1][1])

    for number in range(10):
        for key, ahead_ms in ((b"ahead", 2_000), (b"right", 0), (b"behind", -700)):
            cluster.clock.call_later(0.4 * number + 0.1, lambda key=key, ahead_ms=ahead_ms: say(key, ahead_ms))  # type: ignore[misc]
    cluster.run(app_of(kind), quiet_s=8)
    sent = results(cluster)
    assert {key for key, *_ in sent} == {b"ahead", b"right", b"behind"}
    assert sent == rebuilt(kind, messages)


def test_stream_time_counts_a_time_that_was_ahead_without_another_message() -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    now = int(cluster.clock.time() * 1000)
    for at in (now - 5_000, now + 3_000):
        cluster.produce("in", b"1", b"k", timestamp_ms=at)
    seen: list[int] = []
    cluster.clock.call_later(2, lambda: seen.append(len(cluster.read("out"))))
    cluster.run(app_of("tumbling", "partition"), quiet_s=8)
    assert (seen, sum(results(cluster).values())) == ([0], 1)


def test_a_message_of_a_key_is_late_once_the_clock_has_reached_the_time_that_was_ahead() -> None:
    cluster, told = InMemoryCluster(), list[int]()
    cluster.create_topic("in")
    now = int(cluster.clock.time() * 1000) // 1_000 * 1_000

    def place(frame: StreamingDataFrame) -> StreamingDataFrame:
        window = frame.tumbling_window(1_000, 0, "w", lambda *given: told.append(given[2]))
        return window.count().current()

    # the last message is not late, because the clock has not reached the time of the second one
    for at in (now, now + 4_000, now + 1):
        cluster.produce("in", b"1", b"k", timestamp_ms=at)
    cluster.run(build(place))
    assert told == []
    cluster.advance(10)
    for at in (now + 2, now + 4_001):
        cluster.produce("in", b"1", b"k", timestamp_ms=at)
    cluster.run(build(place))
    assert told == [now + 2]


# -- lives with kills --------------------------------------------------------------------------------------------------


def check(seed: int, tmp_path: Path) -> None:
    """Compare runs with random kills with the expected results.

    The messages of each key are in order. Their times are before, at or ahead of the worker's clock.
    """
    random, (cluster, _) = Random(seed), world()
    kind = random.choice(list(KINDS))
    skews = {b"a": random.choice([500, 2_000, 5_000]), b"b": 0, b"": -900, b"\x00holdfast": 1_000}
    app, disk = app_of(kind, state_dir=tmp_path, commit_every=random.choice([1, 5])), SimulatedDisk()
    messages: list[tuple[bytes, int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in portions_of_time(seed):
            patch.setattr(module, name, value)
        for number in range(random.randint(3, 40)):
            key = random.choice(list(skews))
            messages.append((key, int(cluster.clock.time() * 1000) + skews[key], number))
            cluster.produce("in", str(number).encode(), key, timestamp_ms=messages[-1][1])
            cluster.advance(random.choice([0, 0.1, 0.3, 1]))
            if random.random() < 0.1:
                live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
        cluster.advance(random.choice([0, 4]))
        live(cluster, app, SimulatedDisk(), random)
        live(cluster, app, SimulatedDisk(), None, 8.0)
    assert results(cluster) == rebuilt_in(kind, messages, int(cluster.clock.time() * 1000))


def rebuilt_in(kind: str, messages: list[tuple[bytes, int, int]], now_ms: int) -> Counter[tuple[Any, ...]]:
    cluster = InMemoryCluster()
    cluster.clock.skew_s = now_ms / 1000 - cluster.clock.time()
    cluster.create_topic("in", config={"message.timestamp.after.max.ms": str(2**62)})
    for key, at, amount in messages:
        cluster.produce("in", str(amount).encode(), key, timestamp_ms=at)
    cluster.run(app_of(kind))
    return results(cluster)


@pytest.mark.parametrize("seed", variants(range(60), tested=8))
def test_each_window_is_sent_once_as_in_a_rebuild(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def _never_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyTime, "reach", lambda self, cap_ms: None)


def _waits_for_a_message(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeysAhead, "is_due", lambda self, now_ms: False)


def _next_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    former = KeysAhead.enter

    def enters(self: KeysAhead, time_ms: int, raw_key: bytes) -> None:
        if not self._found:
            former(self, time_ms, raw_key)

    patch.setattr(KeysAhead, "enter", enters)


def _sliding_forgets(patch: pytest.MonkeyPatch) -> None:
    former = _Key.after
    patch.setattr(_Key, "after", lambda self, time_ms, cap_ms: former(self, min(time_ms, cap_ms), cap_ms))


@pytest.mark.parametrize(
    "bug", variants([_never_counts, _waits_for_a_message, _next_is_forgotten, _sliding_forgets], tested=3)
)
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    assert is_found(bug, check, tmp_path)
