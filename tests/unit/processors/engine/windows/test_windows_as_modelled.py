"""Windows on the engine equal a plain Python model, in any order of messages and despite kills and restarts.

The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from holdfast.processors.engine.runtime.task import columns
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.oracles.window_rules import Event, Shape, Windows, expect
from tests.simulation import planted_time
from tests.simulation.small_portions import portions_of_time
from tests.simulation.timed import windows
from tests.simulation.timed_model import check_windows
from tests.window_lives import SHORT_S, live_through, put_aside, unlucky, world

SEEDS = variants(range(400), tested=6)
#: ``IDLE_MS`` is the silence after which windows close. It is longer than any silence before the last message.
#: ``SILENCE_S`` is the silence after the last message. It is longer than ``IDLE_MS``.
IDLE_MS, SILENCE_S = 20_000, 100.0


def draw(random: Random, now_ms: int) -> tuple[Shape, list[Event]]:
    """A window and messages out of order: some are late, some have equal times, some are ahead of the clock."""
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


def build(shape: Shape, state_dir: Path, *, idles: bool = False, fails: bool = False) -> Application:
    """An application with windows of this shape in the store ``w``.

    With ``fails``, a step behind the windows raises an error for some results. The output that is sent before this step
    must then be undone.
    """
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        commit_every=7,
        dead_letter_topic="dead" if fails else None,
    )
    frame = app.dataframe(app.topic("in"))
    options: dict[str, Any] = {"close_when_idle": IDLE_MS} if idles else {}
    results = windows(frame, shape, "w", **options)
    sent = results.to_topic(app.topic("out"))
    if fails:
        sent.apply(unlucky)
    return app


def run(seed: int, tmp_path: Path) -> tuple[Windows, list[tuple[Any, ...]], dict[tuple[bytes, str], Any]]:
    """One run with kills. Returns the model, the results in the output topic, and the store in the changelog."""
    random, (cluster, now_ms) = Random(seed), world()
    shape, events = draw(random, now_ms)
    idles = shape.final and shape.closing == "partition" and random.random() < 0.5
    fails = shape.final and seed % 2 == 0
    app = build(shape, tmp_path, idles=idles, fails=fails)
    found = live_through(cluster, app, events, random, SILENCE_S if idles else SHORT_S)
    assert not fails or all(made["total"] % 3 for _, made in found)
    found += put_aside(cluster)
    results = [(key, made["start"], made["end"], made["n"], made["total"]) for key, made in found]
    model = expect(shape, events, now_ms)
    if idles:
        model.go_on(model.time + int(SILENCE_S * 1000) - IDLE_MS)
    return model, results, cluster.state(app, "w")


def check(seed: int, tmp_path: Path) -> None:
    # small limits, so that windows that end at once are closed in several commits
    with pytest.MonkeyPatch.context() as patch:
        # with a minimum batch of 48 messages, smaller batches are computed message by message, not on columns
        patch.setattr(columns, "RUN_MIN", (1, 48)[seed // 2 % 2])
        for module, name, value in portions_of_time(seed):
            patch.setattr(module, name, value)
        model, results, state = run(seed, tmp_path)
    assert Counter(results) == Counter(model.results)
    if not model.shape.final:
        for key in {event[0] for event in results}:
            assert [each for each in results if each[0] == key] == [each for each in model.results if each[0] == key]
    check_windows(model, state)


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_are_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.parametrize("bug", [*planted_time.WINDOWS, *planted_time.RESULTS])
def test_planted_bugs_are_found(bug: str, tmp_path: Path) -> None:
    assert is_found({**planted_time.WINDOWS, **planted_time.RESULTS}[bug], check, tmp_path)
