"""The recovery sensor in a course (a simulated sequence of commands and faults), and its Dagster runs.

Runs are requested, queued and started as Dagster does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from holdfast.infra.database.records import Incident
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import BrokerUnreachable, CoordinatorMoving
from holdfast.processors.lifecycle.deploy.marking import behind
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, recover, wait_for_broker
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.strangers import find_strangers
from holdfast.processors.lifecycle.recovery.tick import Run, next_run, take_look
from tests.simulation.operation_dagster import Locations, Queue
from tests.simulation.operation_world import LIMITS, OperationWorld, Person
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.workload import GROUP

#: Seconds between two ticks of the sensor, as in ``orchestration.sensors``.
EVERY_S = 10.0
#: Seconds from the start of a run's process to the run's first line of code.
LAUNCH_S = 2.0


class Sensor:
    """The sensor ``processor_recovery``, and Dagster's part: it queues, starts and remembers the requested runs."""

    def __init__(self, world: OperationWorld, tell: Callable[[str], None]) -> None:
        self._world, self._tell = world, tell
        self._ticks = self._asked = 0
        self._answered: Any = {}
        self._tick_process: SimulatedProcess | None = None
        #: The recovery runs that Dagster knows, by incident, newest first.
        self.runs: dict[int, list[_Kept]] = {}
        self._succeeded: set[str] = set()
        self.queue = Queue(world.settings)
        self._locations = Locations(world.settings, world.project)
        #: Whether the sensor is in a code location that can be loaded.
        self._watches = True

    @property
    def busy(self) -> bool:
        """Whether a recovery run is running; a queued run does not count."""
        return any(_lives(run.process) for of in self.runs.values() for run in of)

    def load(self, module: str) -> None:
        """Write the project's own module of Dagster definitions, and reload Dagster's code locations."""
        self._locations.write(module)
        watching = self._locations.watching()
        self._watches = bool(watching)
        self._tell(f"Dagster: the sensor is in {', '.join(watching) or 'no location that loads'}")

    def begin(self) -> None:
        """Start the sensor's ticks."""
        self._world.clock.call_later(EVERY_S, self._due)

    def forget(self) -> None:
        """Delete the first run of each incident from Dagster, if it has ended and is not the only one."""
        for of in self.runs.values():
            if len(of) > 1 and of[-1].is_over:
                of.pop()

    def _due(self) -> None:
        self._world.clock.call_later(EVERY_S, self._due)
        self._dequeue()
        if not self._watches:
            return
        if self._tick_process is not None and _lives(self._tick_process):
            return
        self._ticks += 1
        self._tick_process = self._world.simulation.start(f"tick{self._ticks}", self._tick)

    def _tick(self, process: SimulatedProcess) -> None:
        person = Person(self._world, process)
        try:
            self._look(person, replace(person.acting, logged=lambda name: None))
        except HoldfastError as failed:
            self._tell(f"sensor: {failed.message}")
        except KeyboardInterrupt:
            self._tell(f"sensor: {process.name} was interrupted")

    def _look(self, person: Person, world: Any) -> None:
        registry = world.registry
        waits = next((each for each in registry.open_incidents() if each.processor == GROUP), None)
        deployment = registry.deployment(GROUP)
        if deployment is None:
            return
        conditions = Conditions(person.topics.ping)
        found = take_look(deployment, waits, world, limits=LIMITS, conditions=conditions, answered_at=self._answered)
        if found.seen is not None:
            self._answered = dict(found.seen.answered_at)
            incident = found.seen.incident
            if found.seen.opened and incident is not None:
                self._tell(f"sensor: incident {incident.id}, {incident.kind}: {dict(incident.detail)}")
        if found.due is not None:
            self._request(found.due, world)

    def _request(self, incident: Incident, world: Any) -> None:
        kept = self.runs.setdefault(incident.id, [])
        for run in kept:
            if run.ended_at is None and run.is_over:
                self.queue.leave(run.name)
                run.ended_at = self._world.clock.time()
        known = [run.as_known(run.name in self._succeeded) for run in kept]
        key = next_run(incident.id, known, world, lambda text: self._tell(f"sensor: {text}"))
        if key is None or key in {run.key for run in kept}:
            return  # Dagster drops a request whose run key it already knows
        self._asked += 1
        name, since = f"run{self._asked}", incident.retried_at or incident.opened_at
        kept.insert(0, _Kept(name, key, self._world.now(), since.isoformat(), incident.id))
        self.queue.put(name, incident)
        self._dequeue()
        if kept[0].process is None:
            self._tell(f"{name} waits in Dagster's queue")

    def _dequeue(self) -> None:
        """Start the runs that Dagster dequeues now."""
        for run in [each for of in self.runs.values() for each in of if each.process is None]:
            if not self._watches or not self.queue.starts(run.name):
                continue
            self._world.run_began[run.name] = self._world.clock.monotonic()
            work = partial(self._run, number=run.incident, name=run.name)
            run.process = self._world.simulation.start(run.name, work)

    def _run(self, process: SimulatedProcess, number: int, name: str) -> None:
        """Do the work of a recovery run, as the job ``orchestration.jobs.recover_processor`` does."""
        try:
            process.sleep(LAUNCH_S)
            person = Person(self._world, process)
            try:
                rollout, old = person._rollout(GROUP, None), behind(GROUP, person.acting)
            except (BrokerUnreachable, CoordinatorMoving) as away:
                result = wait_for_broker(number, person.acting, name, away)
            else:
                stores = tuple(each.name for each in self._world.topology.stores)
                state, members = self._world.state_dir, person.topics.group_members
                policy = RecoveryPolicy(
                    limits=LIMITS,
                    conditions=Conditions(person.topics.ping),
                    behind=old,
                    stores=stores,
                    strangers=lambda: find_strangers(GROUP, len(rollout.slots), members, state),
                )
                result = recover(number, rollout, person.acting, run_id=name, policy=policy)
            if result.outcome != "failed":
                self._succeeded.add(name)
            self._tell(f"{name}: {result.outcome}, {result.reason}")
        except HoldfastError as failed:
            self._tell(f"{name}: {failed}")
        except KeyboardInterrupt:
            self._tell(f"{name}: interrupted")


def _lives(process: SimulatedProcess | None) -> bool:
    return process is not None and not (process.ended or process.crashed)


@dataclass
class _Kept:
    """A recovery run that Dagster knows."""

    name: str
    key: str
    created_at: datetime
    since: str
    incident: int
    #: The process of the run; None while the run is queued.
    process: SimulatedProcess | None = None
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended or was killed."""
        return self.process is not None and not _lives(self.process)

    def as_known(self, succeeded: bool) -> Run:
        """The run in the form that the sensor reads."""
        ended = self.ended_at is not None
        return Run(self.name, self.key, self.created_at, self.since, ended, succeeded, self.ended_at or 0.0)
