"""Windows on the engine give what plain Python gives, in any disorder, over kills and restarts; planted bugs show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from holdfast.dataframe.windows import Count, Sum
from holdfast.processors.engine.dataframe.stored_windows import Closing
from holdfast.processors.engine.dataframe.window_store import WindowStore
from holdfast.processors.engine.runtime import columns, task_time
from holdfast.processors.engine.state.window_keys import window_of
from tests.tiers import variants
from tests.window_lives import live_through, world
from tests.windowing import Event, Shape, Windows, expect

SEEDS = variants(range(400), tested=12)
#: Longer than any silence before the last message, shorter than the silence behind it.
IDLE_MS, SILENCE_S = 20_000, 100.0


def draw(random: Random, now_ms: int) -> tuple[Shape, list[Event]]:
    """A window, and messages in disorder: some late, some of the same time, some ahead of the clock."""
    duration = random.choice([10, 60, 100])
    step = duration if random.random() < 0.5 else random.choice([10, 20, duration])
    if step > duration:
        step = duration
    grace, closing = random.choice([0, 5, 40]), random.choice(["key", "partition"])
    shape = Shape(duration, step, grace, closing, random.random() < 0.7, random.choice([grace, 200, 86_400_000]))
    events, at = [], 0
    for _ in range(random.randint(5, 120)):
        at += random.choice([0, 1, 3, 10, 30, 200 if random.random() < 0.1 else 5])
        time_ms = max(1, at - random.choice([0, 0, 1, 10, 45, 120]))
        if random.random() < 0.05:
            time_ms = now_ms + random.randint(1_000_000, 3_000_000)
        events.append(Event(random.choice([b"a", b"b", b"", b"\x00holdfast", b"a/b"]), time_ms, random.randint(1, 9)))
    return shape, events


def build(shape: Shape, state_dir: Path, *, idles: bool = False) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        commit_every=7,
    )
    frame = app.dataframe(app.topic("in"))
    times: dict[str, Any] = {"grace_ms": shape.grace, "name": "w", "retention": shape.retention}
    window = (
        frame.tumbling_window(shape.duration, **times)
        if shape.step == shape.duration
        else frame.hopping_window(shape.duration, shape.step, **times)
    ).agg(n=Count(), total=Sum("v"))
    placed: Any = window.final if shape.final else window.current
    options: dict[str, Any] = {"close_when_idle": IDLE_MS} if idles else {}
    placed(closing_strategy=shape.closing, **options).to_topic(app.topic("out"))
    return app


def run(seed: int, tmp_path: Path) -> tuple[Windows, list[tuple[Any, ...]], dict[Any, Any]]:
    """One life: the model, the results in the output topic, and the windows in the changelog."""
    random, (cluster, now_ms) = Random(seed), world()
    shape, events = draw(random, now_ms)
    idles = shape.final and shape.closing == "partition" and random.random() < 0.5
    app = build(shape, tmp_path, idles=idles)
    found = live_through(cluster, app, events, random, SILENCE_S if idles else 3.0)
    results = [(key, made["start"], made["end"], made["n"], made["total"]) for key, made in found]
    state = cluster.state(app, "w")
    windows = {(key, *window): made for (key, name), made in state.items() if (window := window_of(name))}
    model = expect(shape, events, now_ms)
    if idles:
        model.go_on(model.time + int(SILENCE_S * 1000) - IDLE_MS)
    return model, results, windows


def check(seed: int, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:  # so that what ends at once closes in several commits
        patch.setattr(task_time, "CLOSED_AT_ONCE", (1, 3, 5_000)[seed % 3])
        patch.setattr(task_time, "REMOVED_AT_ONCE", (2, 5_000)[seed % 2])
        patch.setattr(columns, "RUN_MIN", (1, 48)[seed // 2 % 2])  # by columns, or message by message
        model, results, windows = run(seed, tmp_path)
    assert Counter(results) == Counter(model.results)
    if not model.shape.final:
        for key in {event[0] for event in results}:
            assert [each for each in results if each[0] == key] == [each for each in model.results if each[0] == key]
    held = {place: (made["count"]["n"], made["sum"]["total"]) for place, made in windows.items()}
    everything = {**model.open, **model.closed}
    lasts = model.shape.grace + model.shape.retention
    # ``key`` closes after its message, so that a window stays at least as long; both remove at a later commit only.
    for place, amounts in everything.items():
        if place in model.open or place[2] + lasts > model.time:
            assert held.pop(place) == (len(amounts), sum(amounts))
    for place, seen in held.items():
        assert model.shape.closing == "key"
        assert seen == (len(everything[place]), sum(everything[place]))


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_are_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def _closes_early(patch: pytest.MonkeyPatch) -> None:
    former = WindowStore.closing

    def early(self: WindowStore, limit: int) -> list[Closing]:
        self._stream.time_ms += 11
        try:
            return former(self, limit)
        finally:
            self._stream.time_ms -= 11

    patch.setattr(WindowStore, "closing", early)


def _counts_late_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowStore, "_is_late", lambda self, end, known: False)


def _closes_twice(patch: pytest.MonkeyPatch) -> None:
    former = WindowStore.load

    def forgets(self: WindowStore) -> Any:
        found = former(self)
        self._closed = "due/"
        return found

    patch.setattr(WindowStore, "load", forgets)


def _forgets_the_time(patch: pytest.MonkeyPatch) -> None:
    former = WindowStore.load

    def forgets(self: WindowStore) -> Any:
        former(self)
        return -1, ()

    patch.setattr(WindowStore, "load", forgets)


@pytest.mark.parametrize("bug", [_closes_early, _counts_late_ones, _closes_twice, _forgets_the_time])
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        for seed in range(60):
            try:
                check(seed, tmp_path / str(seed))
            except (AssertionError, KeyError):
                return
    raise AssertionError("no seed found it")
