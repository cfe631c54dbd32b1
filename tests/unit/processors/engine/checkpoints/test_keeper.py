"""The keeper, a part of the worker that uploads checkpoints, retries after errors and reports.

Its disk and its store are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.settings import CheckpointSettings
from holdfast.processors.engine.checkpoints.keeper import RETRY_FIRST_S, CheckpointKeeper
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.task_meta import StoreOffset, TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.process import InlineProcess
from tests.simulation.disk import SimulatedDisk
from tests.simulation.objects import SimulatedObjects


@dataclass
class Kept:
    """A running task, its keeper, and the simulated clock, disk and store."""

    clock: VirtualClock
    disk: SimulatedDisk
    store: SimulatedObjects
    keeper: CheckpointKeeper
    task: Task
    offset: int = 0

    def commit(self) -> None:
        self.offset += 1
        assert self.task.store is not None
        at = StoreOffset("changelog", "id", self.offset, {"in": self.offset})
        self.task.correct(TaskMeta({"in": self.offset}, {"counts": at}, self.offset, complete_at=self.clock.time()))
        self.task.store.write([(b"\x06counts" + b"%d" % self.offset, b"v")], self.task.meta)

    def turns(self, seconds: float = 0.0) -> None:
        """Let the worker run its loop for some seconds of simulated time."""
        until = self.clock.monotonic() + seconds
        while True:
            for _ in range(40):
                self.keeper.tend([self.task])
            if self.clock.monotonic() >= until:
                return
            self.clock.advance_to(min(until, self.clock.monotonic() + 1.0))

    def manifests(self) -> list[str]:
        return [name for name in self.store.objects if "/manifests/" in name]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    clock, disk = VirtualClock(), SimulatedDisk()
    process, store = InlineProcess(clock), SimulatedObjects(clock)
    files = disk.attach(process)
    folder = StateFolder(tmp_path, "group", "0")
    keeper = CheckpointKeeper(
        store.attach(process), files, folder, clock, CheckpointSettings(every_s=60.0, stop_wait_s=5.0), "code"
    )
    task = Task("in-0", "in", 0, ("in",))
    task.open(TaskStore(files, folder.task(task.name)), ("counts",))
    task.move(TaskPhase.RUNNING)
    yield Kept(clock, disk, store, keeper, task)
    task.close()
    folder.release()


def scratch(kept: Kept) -> list[Path]:
    return [path for path in kept.disk.paths if path.parent.name.startswith(".")]


def test_nothing_is_taken_before_its_time_nor_without_anything_new(kept):
    kept.commit()
    kept.turns(59)
    assert kept.manifests() == []
    kept.turns(2)
    assert len(kept.manifests()) == 1
    kept.turns(300)
    assert kept.keeper.told()["uploads"] == 1
    kept.commit()
    kept.turns(61)
    assert kept.keeper.told()["uploads"] == 2
    assert scratch(kept) == []


def test_a_task_without_any_commit_has_nothing_to_keep(kept):
    assert kept.keeper.ask_now([kept.task]) == []
    kept.turns(200)
    assert kept.store.objects == {}


@pytest.mark.parametrize("fault", ["away", "full", "answers"])
def test_a_store_that_fails_is_tried_again_later_and_later_and_says_so(kept, fault):
    if fault == "away":
        kept.store.refuses = "away"
    elif fault == "full":
        kept.store.full = True
    else:
        kept.store.lost_answers = 1_000
    kept.commit()
    assert kept.keeper.ask_now([kept.task]) == ["in-0"]
    kept.turns()
    told = kept.keeper.told()
    assert (told["ok"], told["failures"], told["retry_in_s"]) == (False, 1, RETRY_FIRST_S)
    kept.turns(RETRY_FIRST_S)
    assert kept.keeper.told()["failures"] == 2
    kept.turns(RETRY_FIRST_S)
    assert kept.keeper.told()["failures"] == 2
    kept.turns(RETRY_FIRST_S)
    assert kept.keeper.told()["failures"] == 3
    assert scratch(kept) == []
    kept.store.refuses, kept.store.full, kept.store.lost_answers = None, False, 0
    assert kept.keeper.ask_now([kept.task]) == ["in-0"]
    kept.turns()
    told = kept.keeper.told()
    assert (told["ok"], told["error"], told["uploads"], told["retry_in_s"]) == (True, None, 1, None)


def test_a_full_disk_costs_the_checkpoint_only(kept):
    kept.commit()
    kept.disk.full = True
    kept.keeper.ask_now([kept.task])
    kept.turns()
    assert "can't be checkpointed" in kept.keeper.told()["error"]
    assert kept.task.store.failure is None
    kept.disk.full = False
    kept.turns(RETRY_FIRST_S)
    assert kept.keeper.told()["uploads"] == 1


def test_a_slow_store_has_one_upload_under_way_that_is_told(kept):
    kept.store.step_s = 30.0
    kept.commit()
    kept.keeper.ask_now([kept.task])
    kept.turns(50)
    told = kept.keeper.told()
    assert (told["uploading"]["task"], told["uploads"], told["ok"]) == ("in-0", 0, True)
    assert len(scratch(kept)) == 1
    kept.turns(50)
    told = kept.keeper.told()
    assert (told["uploads"], told["ok"], told["failures"]) == (0, False, 0)
    assert "it is slow" in told["error"]
    kept.turns(1_000)
    told = kept.keeper.told()
    assert (told["uploads"], told["ok"], told["error"]) == (1, True, None)


def test_the_end_waits_for_the_last_checkpoint(kept):
    kept.commit()
    kept.keeper.take_all([kept.task])
    kept.task.close()
    kept.keeper.finish()
    assert len(kept.manifests()) == 1


@pytest.mark.parametrize("fault", ["away", "slow"])
def test_the_end_waits_no_longer_than_it_may(kept, fault):
    if fault == "away":
        kept.store.refuses = "away"
    else:
        kept.store.step_s = 1_000.0
    kept.commit()
    kept.keeper.take_all([kept.task])
    before = kept.clock.monotonic()
    kept.keeper.finish()
    kept.keeper.close()
    assert kept.clock.monotonic() - before <= 5.2
    assert kept.manifests() == []
    assert scratch(kept) == []


def test_what_a_former_life_left_is_cleared_away(kept, tmp_path):
    kept.commit()
    kept.store.step_s = 1_000.0
    kept.keeper.ask_now([kept.task])
    kept.turns()
    assert len(scratch(kept)) == 1
    process: Any = InlineProcess(kept.clock)
    folder = kept.keeper._folder
    CheckpointKeeper(
        kept.store.attach(process), kept.disk.attach(process), folder, kept.clock, CheckpointSettings(), "code"
    )
    assert scratch(kept) == []
