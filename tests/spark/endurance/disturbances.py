"""Disturbs the processor and Spark while snapshots are taken. The disturbances are drawn from a seed."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.infra.errors import HoldfastError
from holdfast.infra.waiting import wait_until
from holdfast.processors.lifecycle.plans.requests import (
    Backfill,
    Clear,
    Deploy,
    Keys,
    Provision,
    Request,
    Restore,
    Stop,
)
from holdfast.processors.snapshots.manifest import SnapshotManifest
from tests.spark.endurance.definition import STORE
from tests.spark.endurance.lives import CLEAR, REBUILD, RESEED, RESTORE, REWIND, Action, Lives, topic_ids
from tests.spark.endurance.publisher import Publisher
from tests.spark.endurance.surroundings import KEYS, PATIENCE_S, Run

#: The weight of each disturbance in the random choice.
WEIGHTS = {
    "kill the driver": 3,
    "kill an executor": 4,
    "kill the worker": 4,
    "clear keys": 10,
    "rebuild from the topic": 4,
    "backfill from local": 2,
    "clear all and rewind": 2,
    "restore a version": 2,
}


@dataclass
class Disturbances:
    """Draws and carries out disturbances.

    ``before_a_life_ends`` is called before a command deletes the changelog topic, which ends a life of the changelog.
    It returns the table versions that can be restored.
    """

    run: Run
    publisher: Publisher
    lives: Lives
    rng: random.Random
    before_a_life_ends: Callable[[], dict[str, SnapshotManifest]]
    counts: Counter[str] = field(default_factory=Counter)
    resumed: int = 0

    @staticmethod
    def beginning(group: str) -> tuple[Request, ...]:
        """The requests that create the processor's topics and start it."""
        return Provision(group), Deploy(group)

    def one(self) -> str:
        """Carry out one random disturbance. Returns its name, or "" if there is nothing to disturb."""
        return self.do(self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])

    def do(self, name: str) -> str:
        acts: dict[str, Callable[[], bool]] = {
            "kill the driver": self.kill_the_driver,
            "kill an executor": self.kill_an_executor,
            "kill the worker": self.kill_the_worker,
            "clear keys": self.clear_keys,
            "rebuild from the topic": self.rebuild,
            "backfill from local": self.backfill_local,
            "clear all and rewind": self.rewind,
            "restore a version": self.restore,
        }
        assert set(acts) == set(WEIGHTS)
        done = acts[name]()
        if done:
            self.counts[name] += 1
        return name if done else ""

    # -- disturbances by kill -9 ---------------------------------------------------------------------------------------

    def kill_the_driver(self) -> bool:
        """Kill the driver's Python process or its JVM."""
        return self._kill(self.publisher.pids())

    def kill_an_executor(self) -> bool:
        return self._kill(self.run.cluster.executors())

    def kill_the_worker(self) -> bool:
        status = self.run.client.status()
        if status is None or not self._kill([status.pid]):
            return False
        assert wait_until(lambda: not self.run.client.alive(), PATIENCE_S, every_s=0.1)
        self._do(Deploy(self.run.group))
        self.run.wait_running(but=status.pid)
        return True

    def _kill(self, pids: list[int]) -> bool:
        with suppress(ProcessLookupError):
            if pids:
                os.kill(self.rng.choice(pids), signal.SIGKILL)
                return True
        return False

    # -- disturbances by owner commands --------------------------------------------------------------------------------

    def clear_keys(self) -> bool:
        keys = frozenset(f"k{self.rng.randrange(KEYS)}" for _ in range(self.rng.randrange(1, 40)))
        self.lives.advance()
        self._do(Clear(self.run.group, stores=(STORE,), selection=Keys(tuple(sorted(keys)))))
        self.lives.advance(Action(CLEAR, keys))
        return True

    def rebuild(self) -> bool:
        self.lives.advance()
        self._do(Backfill(self.run.group, STORE, "topic"))
        self.lives.advance(Action(REBUILD))
        return True

    def rewind(self) -> bool:
        self._stop()
        self.lives.advance()
        self._do(Clear(self.run.group, rewind="earliest"))
        self.lives.advance(Action(REWIND))
        self._do(Deploy(self.run.group))
        self.run.wait_running()
        return True

    def backfill_local(self) -> bool:
        self._stop()
        self.lives.advance()
        self.before_a_life_ends()
        floors = self.lives.now()
        self.run.topics.delete(self.run.changelog)
        self._do(Backfill(self.run.group, STORE, "local"))
        self._do(Deploy(self.run.group))
        self.run.wait_running()
        self.lives.begin(floors)
        self.lives.advance(Action(RESEED))
        return True

    def restore(self) -> bool:
        self._stop()
        self.lives.advance()
        known = self.before_a_life_ends()
        if not known:
            self._do(Deploy(self.run.group))
            return False
        tag = self.rng.choice(sorted(known))
        parts = known[tag].partitions
        life = self.lives.of(topic_ids(parts))
        floors = {part.partition: life.floors(part.partition, part.end) for part in parts}
        self._do(Restore(self.run.group, at=tag))
        self._do(Deploy(self.run.group))
        self.run.wait_running()
        self.lives.begin(floors)
        self.lives.advance(Action(RESTORE))
        return True

    def _stop(self) -> None:
        self._do(Stop(self.run.group))
        gone = lambda: self.run.topics.members(self.run.group) == 0  # noqa: E731
        assert wait_until(gone, PATIENCE_S, every_s=0.2), "the group still has members"

    def _do(self, request: Request) -> None:
        """Plan and carry out a request.

        If it is interrupted, resume it with the command that the error message names.
        """
        plan = self.run.verbs.plan(request)
        try:
            self.run.verbs.apply(plan, confirmed=plan.hash)
            return
        except HoldfastError as broken:
            print(f"broken off: {request}: {broken}", flush=True)
        self.resumed += 1
        record = self.run.verbs.begun(request)
        if record is None:
            plan = self.run.verbs.plan(request)
            self.run.verbs.apply(plan, confirmed=plan.hash)
        else:
            self.run.verbs.resume(record.id)
