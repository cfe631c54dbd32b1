"""Sessions on the engine equal a plain Python model, in any order of messages and despite kills and restarts.

The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.oracles.sessions import Sessions, Shape, expect
from tests.oracles.window_rules import Event
from tests.simulation import planted_time
from tests.simulation.small_portions import portions_of_time
from tests.simulation.timed import sessions
from tests.simulation.timed_model import check_sessions
from tests.window_lives import SHORT_S, live_through, put_aside, unlucky, world

SEEDS = variants(range(100), tested=4)
#: ``IDLE_MS`` is the silence after which sessions close. It is longer than any silence before the last message.
#: ``SILENCE_S`` is the silence after the last message. It is longer than ``IDLE_MS``.
IDLE_MS, SILENCE_S = 20_000, 100.0
KEYS = (b"a", b"b", b"", b"\x00holdfast", b"a/b")


def draw(random: Random, now_ms: int) -> tuple[Shape, list[Event]]:
    """Sessions and messages out of order: some are late, some between two sessions, some ahead of the clock."""
    gap, grace = random.choice([1, 10, 25]), random.choice([0, 5, 40, 150])
    retention = random.choice([max(gap, grace), 200, 86_400_000])
    shape = Shape(gap, grace, random.choice(["key", "partition"]), random.random() < 0.7, retention)
    events, at = [], 0
    keys = KEYS[: random.choice([1, 2, len(KEYS)])]
    for _ in range(random.randint(5, 120)):
        at += random.choice([0, 1, gap + 1, 3 * gap // 2, 2 * gap, 200 if random.random() < 0.1 else 5])
        time_ms = max(1, at - random.choice([0, 0, 0, gap // 2, gap, gap, 3 * gap, 120]))
        if random.random() < 0.05:
            time_ms = now_ms + random.randint(1_000_000, 3_000_000)
        key = random.choice(keys)
        events.append(Event(key, time_ms, random.randint(1, 9)))
        if random.random() < 0.2:  # add a message of another session, and then one that joins both sessions
            events += [Event(key, time_ms + offset, random.randint(1, 9)) for offset in (2 * gap, gap)]
    return shape, events


def build(shape: Shape, state_dir: Path, *, idles: bool = False, fails: bool = False) -> Application:
    """An application with sessions of this shape in the store ``w``.

    With ``fails``, a step behind the sessions raises an error for some results. The output that is sent before this
    step must then be undone.
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
    options: dict[str, Any] = {"close_when_idle": IDLE_MS} if idles else {}
    results = sessions(app.dataframe(app.topic("in")), shape, "w", **options)
    sent = results.to_topic(app.topic("out"))
    if fails:
        sent.apply(unlucky)
    return app


def run(seed: int, tmp_path: Path) -> tuple[Sessions, list[tuple[Any, ...]], dict[tuple[bytes, str], Any]]:
    """One run with kills. Returns the model, the results in the output topic, and the store in the changelog."""
    random, (cluster, now_ms) = Random(seed), world()
    shape, events = draw(random, now_ms)
    idles = shape.final and shape.closing == "partition" and random.random() < 0.5
    fails = shape.final and seed % 2 == 0
    app = build(shape, tmp_path, idles=idles, fails=fails)
    found = live_through(cluster, app, events, random, SILENCE_S if idles else SHORT_S)
    assert not fails or all(made["total"] % 3 for _, made in found)
    found += put_aside(cluster)
    model = expect(shape, events, now_ms)
    if idles:
        model.go_on(model.time + int(SILENCE_S * 1000) - IDLE_MS)
    return model, [(key, *made.values()) for key, made in found], cluster.state(app, "w")


def check(seed: int, tmp_path: Path) -> Sessions:
    # small limits, so that sessions that end at once are closed in several commits
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in portions_of_time(seed):
            patch.setattr(module, name, value)
        model, results, state = run(seed, tmp_path)
    hashable = [(*made[:5], tuple(made[5]), *made[6:]) for made in model.results]
    assert Counter((*made[:5], tuple(made[5]), *made[6:]) for made in results) == Counter(hashable)
    if not model.shape.final:
        for key in KEYS:
            assert [each for each in results if each[0] == key] == [each for each in model.results if each[0] == key]
    check_sessions(model, state)
    return model


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_are_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def test_the_seeds_merge_sessions_and_have_late_messages() -> None:
    drawn = [draw(Random(seed), 10**9) for seed in range(6)]
    models = [expect(shape, events, 10**9) for shape, events in drawn]
    assert sum(model.merged for model in models) > 10
    assert sum(model.late for model in models) > 10


@pytest.mark.parametrize("bug", [*planted_time.SESSIONS, *variants(planted_time.RESULTS, tested=0)])
def test_planted_bugs_are_found(bug: str, tmp_path: Path) -> None:
    assert is_found({**planted_time.SESSIONS, **planted_time.RESULTS}[bug], check, tmp_path)
