"""Many timers of one key are set and fire. However many there are, each commit sets and fires only a limited number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.changelog.format import META_KEY, split_key
from holdfast.processors.engine.runtime.task import task_timers
from holdfast.processors.engine.state.time import time_index
from holdfast.processors.engine.steps import processing
from tests.mechanics.tiers import variants
from tests.unit.processors.engine.state.time.test_timers import T, build, errors, own, results, send


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    for topic in ("in", "out", "dead"):
        made.create_topic(topic)
    return made


@pytest.mark.parametrize("at_once", [1, 3, 5_000])
def test_many_that_are_due_at_once_fire_in_bounded_steps_before_the_next_message(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(task_timers, "FIRED_AT_ONCE", at_once)
    monkeypatch.setattr(task_timers, "READ_AT_ONCE", 2)
    send(cluster, 0, *(["set", f"x{number:02}", 5] for number in range(20)))
    send(cluster, 9)
    send(cluster, 10)
    cluster.run(build())
    names = [value[0] for value in results(cluster)]
    assert names == ["message", "message", *(f"x{number:02}" for number in range(20)), "message"]
    assert own(cluster) == set()
    assert cluster.committed_offsets("g") != {}


class Many:
    """Sets timers of one key. A message is a pair: the number of the first timer, and how many timers to set."""

    def on_message(self, value: Any, context: Any) -> None:
        first, count = value
        for number in range(first, first + count):
            context.set_timer(f"t{number:07}", at=T + 1_000 + number)

    def on_timer(self, name: str, time: int, context: Any) -> None:
        assert name == f"t{time - T - 1_000:07}"
        context.emit(1)


def many(**settings: Any) -> Application:
    app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None, **settings)
    app.dataframe(app.topic("in")).process(Many, store="s").to_topic(app.topic("out"))
    return app


def transactions(cluster: InMemoryCluster) -> list[tuple[int, int]]:
    """For each commit: how many timers it set and how many it deleted."""
    found, made = [], [0, 0]
    for _, record in cluster.read("g-s-changelog"):
        if record.key == META_KEY:
            found.append((made[0], made[1]))
            made = [0, 0]
        elif split_key(record.key or b"")[1].startswith("__holdfast/timers/"):
            made[record.value is None] += 1
    return found


@pytest.mark.parametrize(
    ("timers", "by_message", "near", "fired", "at_once"),
    variants([(3_000, 30, 20, 40, 100), (600, 60, 20, 40, 100), (1_000_000, 2_000, None, None, None)]),
)
@pytest.mark.timeout(3_600)
def test_many_timers_of_a_key_are_set_and_fire_in_steps_of_bounded_size(
    cluster: InMemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    timers: int,
    by_message: int,
    near: int | None,
    fired: int | None,
    at_once: int | None,
) -> None:
    """The number of timers changes neither the size of a commit, nor its number of reads, nor the memory for timers."""
    for module, name, size in (
        (time_index, "NEAR", near),
        (task_timers, "FIRED_AT_ONCE", fired),
        (task_timers, "SET_AT_ONCE", at_once),
    ):
        monkeypatch.setattr(module, name, size or getattr(module, name))
    remembered: list[int] = []
    read_on = time_index.TimeIndex.put_back

    def put_back(self: Any, entry: Any) -> None:
        read_on(self, entry)
        remembered.append(len(self._near)) if len(self._near) > max(remembered, default=0) else None

    monkeypatch.setattr(time_index.TimeIndex, "put_back", put_back)
    for first in range(0, timers, by_message):
        send(cluster, 0, first, by_message)
    cluster.run(many(state_dir=tmp_path))
    sets, deletes = (sum(each) for each in zip(*transactions(cluster), strict=True))
    assert (sets, deletes) == (timers, 0)
    send(cluster, 10_000_000, 0, 0)
    cluster.run(many(state_dir=tmp_path), quiet_s=3_600)  # a write that waits for the disk takes simulated time
    done = transactions(cluster)
    assert sum(each for _, each in done) == timers
    assert len(cluster.read("out")) == timers
    assert max(each for each, _ in done) <= task_timers.SET_AT_ONCE + by_message
    assert max(each for _, each in done) <= task_timers.FIRED_AT_ONCE
    assert max(remembered) <= 2 * time_index.NEAR
    assert own(cluster) == set()


def test_a_message_that_sets_too_many_timers_fails_and_sets_none(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing, "TIMERS_OF_A_CALL_MAX", 5)
    send(cluster, 0, 0, 5)
    send(cluster, 0, 5, 6)
    cluster.run(many(dead_letter_topic="dead"))
    [error] = errors(cluster)
    assert "6 timers in one call of `on_message`, expected at most 5" in error
    assert len([name for _, name in own(cluster) if name.startswith("__holdfast/timers/")]) == 5
