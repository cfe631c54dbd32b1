"""The cost of a message does not grow with the number of partitions, because a batch touches its own task only."""

from typing import Any

import pytest

from holdfast import Application
from holdfast.processors.engine.runtime.commit_pace import Overlays
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.testing import InMemoryCluster


def count(value: Any, state: Any) -> None:
    state.set("n", state.get("n", 0) + 1)


def looks_at_tasks(partitions: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the engine asks a task for its uncommitted bytes when each partition has one message."""
    cluster = InMemoryCluster()
    cluster.create_topic("in", partitions)
    for number in range(partitions):
        cluster.produce("in", b"1", b"k", partition=number)
    app = Application(
        "in-memory", consumer_group="p", auto_offset_reset="earliest", loglevel=None, state_backend="memory"
    )
    app.dataframe(app.topic("in")).update(count, stateful=True, store="s")
    looked: list[str] = []
    asked = Task.dirty_bytes

    def dirty_bytes(self: Task) -> int:
        looked.append(self.name)
        return asked(self)

    monkeypatch.setattr(Task, "dirty_bytes", dirty_bytes)
    cluster.run(app)
    monkeypatch.undo()
    return len(looked)


def test_a_batch_touches_its_own_task_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_at_tasks(5, monkeypatch) == 5
    assert looks_at_tasks(50, monkeypatch) == 50


def test_the_size_of_all_overlays_follows_each_task() -> None:
    overlays = Overlays()
    for task, size in (("a", 10), ("b", 5), ("a", 30), ("b", 0), ("c", 1)):
        overlays.grown(task, size)
    assert overlays.total == 31
    overlays.clear()
    overlays.grown("a", 2)
    assert overlays.total == 2
