"""Timers and values with a TTL equal a plain Python model, despite kills, lost disks and restarts.

The tests also find bugs that are planted in the engine's code on purpose.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from tests.mechanics.planted_seeds import is_found
from tests.mechanics.tiers import variants
from tests.oracles.timers import Event, Model, Step
from tests.simulation import planted_time
from tests.simulation.disk import SimulatedDisk
from tests.simulation.small_portions import portions_of_time
from tests.simulation.timed_model import check_timers
from tests.window_lives import live, world

SEEDS = variants(range(200), tested=4)
NAMES = ("x", "y", "a/b", "")


def draw(random: Random) -> tuple[int, list[Event]]:
    """Draw a TTL, and messages that are out of order."""
    events, at = [], 50
    for _ in range(random.randint(5, 70)):
        at += random.choice([0, 1, 3, 10, 30, 400 if random.random() < 0.1 else 5])
        time = max(1, at - random.choice([0, 0, 0, 1, 20, 90]))
        steps: list[tuple[Any, ...]] = []
        for _ in range(random.randint(1, 4)):
            name = random.choice(NAMES)
            timer = ("set_timer", name, max(0, time + random.choice([-60, -1, 0, 1, 10, 40, 300])))
            steps.append(
                random.choice(
                    [timer, timer, *((call, name) for call in ("cancel", "count", "read", "count", "delete"))]
                )
            )
        if random.random() < 0.08:
            steps.append(("fail",))
        events.append(Event(random.choice(["a", "ab", "b", "\x00holdfast"]), time, tuple(steps)))
    return random.choice([1, 20, 100]), events


def build(ttl: int, state_dir: Path) -> Application:
    app = Application(
        "in-memory",
        consumer_group="g",
        auto_offset_reset="earliest",
        loglevel=None,
        state_dir=state_dir,
        commit_every=7,
        dead_letter_topic="dead",
    )
    app.dataframe(app.topic("in")).process(Step, store=app.store("s", ttl=ttl)).to_topic(app.topic("out"))
    return app


def run(seed: int, home: Path) -> tuple[Model, list[Any], dict[Any, Any]]:
    """One run with kills. Returns the model, the outputs, and the records of the store."""
    random, (cluster, _) = Random(seed), world()
    cluster.create_topic("dead", config={"message.timestamp.after.max.ms": str(2**62)})
    ttl, events = draw(random)
    app, disk, model = build(ttl, home), SimulatedDisk(), Model(ttl)
    for event in events:
        if random.random() < 0.04:
            live(cluster, app, disk, random)
        cluster.produce("in", json.dumps(event.steps).encode(), event.key.encode(), timestamp_ms=event.time)
        model.take(event)
    for _ in range(2):
        live(cluster, app, disk if random.random() < 0.5 else SimulatedDisk(), random)
    live(cluster, app, SimulatedDisk(), None)
    return model, [json.loads(record.value or b"") for _, record in cluster.read("out")], cluster.state(app, "s")


def check(seed: int, home: Path) -> None:
    # small limits, so that timers and values that are due at once take several commits
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in portions_of_time(seed):
            patch.setattr(module, name, value)
        model, sent, state = run(seed, home)
    assert sent == model.sent
    check_timers(model, state)


@pytest.mark.parametrize("seed", SEEDS)
def test_timers_and_values_are_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.parametrize("bug", planted_time.TIMERS)
def test_planted_bugs_are_found(bug: str, tmp_path: Path) -> None:
    assert is_found(planted_time.TIMERS[bug], check, tmp_path)


def test_a_restart_between_timers_goes_on_with_what_their_values_were(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        planted_time.settled_forgotten(patch)
        with pytest.raises(AssertionError):
            check(142, tmp_path / "planted")
    check(142, tmp_path / "right")
