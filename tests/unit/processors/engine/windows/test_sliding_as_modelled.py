"""Sliding windows on the engine equal a plain Python model, in any order of messages and despite kills.

The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from holdfast.dataframe.windows import Collect, Count, Sum
from holdfast.processors.engine.state.time.window_keys import chunk_key
from holdfast.processors.engine.windows.sliding import SlidingStore, _Key
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.oracles.sliding import Shape, Sliding, expect
from tests.oracles.window_rules import Event
from tests.window_lives import live_through, world

SEEDS = variants(range(100), tested=6)
KEYS = (b"a", b"b", b"", b"\x00holdfast", b"a/b")


def draw(random: Random, now_ms: int) -> tuple[Shape, list[Event]]:
    """Sliding windows and messages out of order: some are late, some have equal times, some are ahead of the clock."""
    shape = Shape(random.choice([1, 10, 50, 160]), random.choice([0, 5, 40, 700]), random.random() < 0.5)
    events, at, keys = [], 0, KEYS[: random.choice([1, 2, len(KEYS)])]
    for _ in range(random.randint(5, 120)):
        at += random.choice([0, 1, 3, 10, 30, 400 if random.random() < 0.1 else 5])
        time_ms = max(1, at - random.choice([0, 0, 0, 1, 10, shape.length, shape.length + shape.grace, 120]))
        if random.random() < 0.05:
            time_ms = now_ms + random.randint(1_000_000, 3_000_000)
        events.append(Event(random.choice(keys), time_ms, random.randint(1, 9)))
    return shape, events


def build(shape: Shape, state_dir: Path) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        commit_every=7,
    )
    frame = app.dataframe(app.topic("in")).sliding_window(shape.length, shape.grace, "w")
    window = frame.agg(n=Count(), total=Sum("v"), all=Collect("v"))
    placed = window.final() if shape.final else window.current()
    placed.to_topic(app.topic("out"))
    return app


def check(seed: int, tmp_path: Path) -> Sliding:
    random, (cluster, now_ms) = Random(seed), world()
    shape, events = draw(random, now_ms)
    app = build(shape, tmp_path)
    found = live_through(cluster, app, events, random)
    model, results = expect(shape, events, now_ms), [(key, *made.values()) for key, made in found]
    assert len(results) == len(model.results)
    for key in KEYS:
        assert [each for each in results if each[0] == key] == [each for each in model.results if each[0] == key]
    # The store keeps a key's messages that open windows can still need, and other messages in the same chunks.
    kept: dict[bytes, list[tuple[int, int]]] = {}
    for (key, name), made in cluster.state(app, "w").items():
        if name.startswith("m/"):
            kept.setdefault(key, []).extend((time_ms, item["total"]) for time_ms, item in made["items"])
    for key, messages in model.messages.items():
        since = model.times.get(key, -1) - shape.grace - shape.length
        every = sorted((each.time_ms, each.amount) for each in messages)
        chunk_ms = max(1, shape.length // 16, shape.grace // 64)
        needed = [each for each in every if each[0] >= since]
        assert needed == sorted(each for each in kept.get(key, ()) if each[0] >= since)
        assert all(time_ms > since - chunk_ms for time_ms, _ in kept.get(key, ()))
    return model


@pytest.mark.parametrize("seed", SEEDS)
def test_sliding_windows_are_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


# -- planted bugs ------------------------------------------------------------------------------------------------------


def _closes_early(patch: pytest.MonkeyPatch) -> None:
    former = _Key.after

    def runs_ahead(self: _Key, time_ms: int, cap_ms: int) -> _Key:
        made = former(self, time_ms, cap_ms)
        return made._replace(time=made.time + 2)

    patch.setattr(_Key, "after", runs_ahead)


def _closes_twice(patch: pytest.MonkeyPatch) -> None:
    former = SlidingStore._windows
    patch.setattr(
        SlidingStore,
        "_windows",
        lambda self, known, first, last, **given: former(self, known, first - 1, last, **given),
    )


def _counts_late_ones(patch: pytest.MonkeyPatch) -> None:
    former = SlidingStore._keep

    def keeps(self: SlidingStore, known: Any, item: Any) -> Any:
        return former(self, known._replace(closed=-1, time=item[0]), item)

    patch.setattr(SlidingStore, "_keep", keeps)


def _drops_a_chunk_too_soon(patch: pytest.MonkeyPatch) -> None:
    former = SlidingStore._key_moves

    def drops(self: SlidingStore, stored: Any, known: Any, time_ms: int) -> Any:
        results = former(self, stored, known, time_ms)
        if len(known.chunks) > 2:
            self._state.delete(chunk_key(*known.chunks[-2]))
        return results

    patch.setattr(SlidingStore, "_key_moves", drops)


@pytest.mark.parametrize("bug", [_closes_early, _closes_twice, _counts_late_ones, _drops_a_chunk_too_soon])
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    assert is_found(bug, check, tmp_path)
