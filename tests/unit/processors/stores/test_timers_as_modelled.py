"""Timers and values that end give what plain Python gives, over kills, lost disks and restarts; planted bugs show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from holdfast import Application
from holdfast.processors.engine.runtime import task_time, task_timers
from holdfast.processors.engine.state import time_index
from holdfast.processors.engine.state.expiries import Expiries
from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE, RESERVED
from holdfast.processors.engine.state.time_index import TimeIndex
from holdfast.processors.engine.state.timers import Timers
from holdfast.processors.engine.state.window_keys import OWN_KEY
from tests.simulation.disk import SimulatedDisk
from tests.tiers import variants
from tests.timing import Event, Model, Step
from tests.window_lives import live, world

SEEDS = variants(range(200), tested=8)
NAMES = ("x", "y", "a/b", "")


def draw(random: Random) -> tuple[int, list[Event]]:
    """A TTL, and messages in disorder."""
    events, at = [], 50
    for _ in range(random.randint(5, 70)):
        at += random.choice([0, 1, 3, 10, 30, 400 if random.random() < 0.1 else 5])
        time = max(1, at - random.choice([0, 0, 0, 1, 20, 90]))
        steps: list[tuple[Any, ...]] = []
        for _ in range(random.randint(1, 4)):
            name = random.choice(NAMES)
            timer = ("set_timer", name, max(0, time + random.choice([-60, -1, 0, 1, 10, 40, 300])))
            steps.append(random.choice([timer, timer, ("cancel", name), ("count", name), ("read", name)]))
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
    """One life: the model, what was sent, and the store's records."""
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
    with pytest.MonkeyPatch.context() as patch:  # so that what is due at once takes several commits
        patch.setattr(task_timers, "FIRED_AT_ONCE", (1, 3, 5_000)[seed % 3])
        patch.setattr(task_timers, "READ_AT_ONCE", (2, 500)[seed % 2])
        patch.setattr(time_index, "NEAR", (1, 4, 1_000)[seed // 6 % 3])
        patch.setattr(task_time, "REMOVED_AT_ONCE", (2, 5_000)[seed % 2])
        model, sent, state = run(seed, home)
    assert sent == model.sent
    values = {(key.decode(), name): value for (key, name), value in state.items() if not name.startswith(RESERVED)}
    assert values == {place: value for place, (value, end) in model.values.items() if end > model.time}
    # Own records: two for each value, two for each timer, the clock.
    own = sum(name.startswith(RESERVED) for _, name in state)
    assert own == 2 * len(values) + 2 * len(model.timers) + ((OWN_KEY, CLOCK_OF_STORE) in state)


@pytest.mark.parametrize("seed", SEEDS)
def test_timers_and_values_are_as_in_plain_python(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


def _timer_lost(patch: pytest.MonkeyPatch) -> None:
    former = TimeIndex.due
    patch.setattr(TimeIndex, "due", lambda self, time_ms, limit: former(self, time_ms, limit)[-1:])


def _timer_twice(patch: pytest.MonkeyPatch) -> None:
    former = Timers.take

    def keeps(self: Timers, due: Any) -> bool:
        taken = former(self, due)
        if taken and due.timer.time % 5 == 0:
            self._state.write_own(due.message_key, f"{RESERVED}timers/{due.timer.name}", ["stream", due.timer.time + 1])
            self._indexes["stream"].enter(due.entry._replace(time_ms=due.timer.time + 1))
        return taken

    patch.setattr(Timers, "take", keeps)


def _expired_value_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Expiries, "are_over", lambda self, key: False)


def _entry_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Expiries, "forget", lambda self, key: None)


def _fires_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task_timers.TaskTimers, "are_due", lambda self: False)


@pytest.mark.parametrize("bug", [_timer_lost, _timer_twice, _expired_value_read, _entry_stays, _fires_late])
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        for seed in range(60):
            try:
                check(seed, tmp_path / str(seed))
            except (AssertionError, KeyError):
                return
    raise AssertionError("no seed found it")
