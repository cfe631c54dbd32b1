"""A machine on which several operators and the recovery sensor act at once: versions, silence, and who interrupts whom.

The parts of ``lifecycle_world``, with what production adds around them: releases with files, the deployed rollout,
``resume`` and ``abandon``, the recovery sensor with its runs, and the standing that ``holdfast status`` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent  # type: ignore[import-untyped]

from holdfast.assets.rollouts import deployed_rollout, slots_now
from holdfast.infra.database.records import ApplyRecord, Incident
from holdfast.infra.deploy.programs import SupervisorSilent
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import BrokerUnreachable, CoordinatorMoving
from holdfast.processors.application import Application
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.deploy.code_files import Code, CodeFile, digest_of
from holdfast.processors.lifecycle.deploy.deployment import Rollout
from holdfast.processors.lifecycle.deploy.marking import behind
from holdfast.processors.lifecycle.deploy.present import slots_at_work
from holdfast.processors.lifecycle.deploy.releases import ReleaseFailed
from holdfast.processors.lifecycle.deploy.running import rollout_of_release
from holdfast.processors.lifecycle.recovery import incidents, recovery
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.diagnosis import Limits
from holdfast.processors.lifecycle.recovery.incidents import is_applied, notice, wait_on, waits_for
from holdfast.processors.lifecycle.recovery.recovery import RecoveryPolicy, recover, wait_for_broker
from holdfast.processors.lifecycle.recovery.standing import Standing, standing, what_is_left
from tests.simulation.lifecycle_machine import Program, SimulatedDeployer
from tests.simulation.lifecycle_world import LifecycleWorld, Operator, OperatorsHold, virtual_time
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.workload import GROUP

#: As in ``orchestration.sensors``: between two ticks, runs of one incident, and the pause between them, seconds.
EVERY_S, RUNS_MAX, PAUSE_S = 10.0, 3, 30.0
#: From the request of a run to its first line, seconds.
LAUNCH_S = 2.0
#: A call of a silent supervisor ends with an error after so long, seconds.
SUPERVISOR_WAIT_S = 5.0
#: A worker that sleeps so long or longer waits for messages, seconds.
IDLE_S = 0.1
LIMITS = Limits()


class OperationWorld(LifecycleWorld):
    """The machine, with a definition in a file that changes, and a supervisor and a broker that may be silent."""

    def __init__(self, schedule: Any, folder: Path, template: Path) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        self.version = ""
        self._described: Any = None
        self.define("v1")
        super().__init__(schedule, folder, template)
        self.slots = ("0", "1")
        #: Until when the supervisor answers nothing, in virtual seconds.
        self.silent_until = 0.0
        #: A worker without messages looks again after so many virtual seconds: most of a course is quiet.
        self.idle_s = 0.5
        #: Called at each point of each process.
        self.strikes: list[Callable[[SimulatedProcess, str], bool]] = []
        self.strike = lambda process, name: any(each(process, name) for each in list(self.strikes))

    # -- the definition --------------------------------------------------------------------------------------------

    def define(self, version: str) -> None:
        """The project's file defines this version from now on."""
        self.version = version
        (self.project / "app.py").write_text(f"{version}\n")

    def code(self) -> Code:
        files = (CodeFile("app.py", self.project / "app.py"),)
        return Code("app:application", files, digest_of(files))

    @property
    def topology(self) -> Topology:
        """The description of the version that is defined now."""
        described: Topology = replace(self._described, code_version=self.version)
        return described

    @topology.setter
    def topology(self, described: Topology) -> None:
        self._described = described

    def started(self, program: Program, slot: str, start: Start) -> Application:
        """A program with a release imports it; one without imports what is in the project now."""
        given = program.spec.command
        folder = Path(given[given.index("--release") + 1]) if "--release" in given else self.project
        version = (folder / "app.py").read_text().strip()
        made = self.application(slot, start)
        described: Topology = replace(self._described, code_version=version)
        made.topology = lambda: described  # type: ignore[method-assign]
        return made

    def launch(self, program: Program) -> None:
        super().launch(program)
        process = program.process
        assert process is not None
        sleep = process.sleep

        def sleep_longer(seconds: float) -> None:
            sleep(self.idle_s if IDLE_S <= seconds < self.idle_s else seconds)

        process.sleep = sleep_longer  # type: ignore[method-assign]

    def now(self) -> datetime:
        """The time of the world, as records have it."""
        return datetime.fromtimestamp(self.clock.time(), UTC)

    # -- who acts --------------------------------------------------------------------------------------------------

    def operator(self, process: SimulatedProcess) -> Person:
        return Person(self, process)

    def current(self) -> SimulatedProcess:
        """The process that runs now."""
        here = getcurrent()
        return next(each for each in self.simulation.processes if each._greenlet is here)


class SilentDeployer:
    """The supervisor, which may be silent for a while; otherwise ``of`` answers."""

    def __init__(self, world: OperationWorld, process: SimulatedProcess) -> None:
        self._of, self._world, self._process = SimulatedDeployer(world, process), world, process

    def __getattr__(self, name: str) -> Any:
        if self._world.clock.monotonic() < self._world.silent_until:
            self._process.sleep(SUPERVISOR_WAIT_S)
        if self._world.clock.monotonic() < self._world.silent_until:
            raise SupervisorSilent("The supervisor hangs.", action="End it: `holdfast down`, then `holdfast up`.")
        return getattr(self._of, name)


@dataclass(frozen=True)
class _Machine:
    """``assets.ports.Machine``."""

    world: Any
    project: Path

    def environment(self) -> dict[str, str]:
        return {}


class Person(Operator):
    """Who runs one command, or one tick of the sensor, or one run of recovery: what ``orchestration.verbs`` is."""

    def __init__(self, world: OperationWorld, process: SimulatedProcess) -> None:
        super().__init__(world, process)
        self.world = world
        deployer: Any = SilentDeployer(world, process)
        self.acting = replace(self.acting, deployer=deployer)
        self.facts._world = self.acting

    def resume(self, number: int) -> None:
        """Resumes an apply, as ``Verbs.resume`` does."""
        record = self._open(number)
        if record is not None:
            self._applier().resume(record)

    def abandon(self, number: int) -> tuple[str, ...]:
        """Abandons an apply, as ``Verbs.abandon`` does; returns what the apply leaves."""
        record = self._open(number)
        if record is None:
            return ()
        self._applier().abandon(record, "not needed")
        return what_is_left(GROUP, self.acting, LIMITS)

    def standing(self) -> Standing:
        """What status shows."""
        return standing(GROUP, self.acting, LIMITS)

    def _open(self, number: int) -> ApplyRecord | None:
        record = self.journal.apply_of(number)
        return record if record is not None and record.finished_at is None else None

    def _slots(self, processor: str) -> tuple[str, ...]:
        return slots_at_work(processor, self.acting)

    def _rollout(self, processor: str, release_id: str | None) -> Rollout:
        """The slots and programs of a release, as ``Verbs`` finds them."""
        machine: Any = _Machine(self.acting, self.world.project)
        definition: Any = SimpleNamespace(name=processor, topology=self.world.topology)
        topics: Any = self.topics
        if release_id is None:
            return deployed_rollout(processor, lambda name: definition, topics, machine)
        release = self.acting.registry.releases.find(processor, release_id)
        if release is None:
            raise ReleaseFailed(f"There is no release {release_id}.", action="Make a new plan.")
        return rollout_of_release(release, topics, slots_now(processor, machine), {}, self.world.project)


class Sensor:
    """The sensor ``processor_recovery`` and the runs that it asks for, as ``orchestration.sensors`` has them."""

    def __init__(self, world: OperationWorld, tell: Callable[[str], None]) -> None:
        self._world, self._tell = world, tell
        self._ticks = 0
        self._answered: Any = {}
        self._tick_process: SimulatedProcess | None = None
        #: The runs of an incident, newest last: process and when it was seen to have ended.
        self.runs: dict[int, list[tuple[str, SimulatedProcess]]] = {}
        self._ended_at: dict[str, float] = {}
        self._succeeded: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether a run works."""
        return any(_lives(process) for of in self.runs.values() for _, process in of)

    def begin(self) -> None:
        """Tick from now on."""
        self._world.clock.call_later(EVERY_S, self._due)

    def _due(self) -> None:
        self._world.clock.call_later(EVERY_S, self._due)
        if self._tick_process is not None and _lives(self._tick_process):
            return
        self._ticks += 1
        self._tick_process = self._world.simulation.start(f"tick{self._ticks}", self._tick)

    def _tick(self, process: SimulatedProcess) -> None:
        person = Person(self._world, process)
        world: Any = replace(person.acting, logged=lambda name: None)
        try:
            self._look(person, world)
        except HoldfastError as failed:
            self._tell(f"sensor: {failed.message}")

    def _look(self, person: Person, world: Any) -> None:
        registry = world.registry
        deployment = registry.deployment(GROUP)
        if deployment is None or behind(GROUP, world) is not None:
            return
        if incidents.wanted(deployment, world).desired == "deploying":
            return
        waiting = next((each for each in registry.open_incidents() if each.processor == GROUP), None)
        seen = notice(GROUP, world, LIMITS, answered_at=self._answered)
        self._answered = dict(seen.answered_at)
        incident = seen.incident or waiting
        if seen.opened and incident is not None:
            self._tell(f"sensor: incident {incident.id}, {incident.kind}: {dict(incident.detail)}")
        if incident is None or not incident.is_open or is_applied(GROUP, world):
            return
        lasting = waits_for(incident, seen.diagnoses, Conditions(person.topics.ping))
        if lasting:
            wait_on(incident, seen.worst, lasting, world)
            return
        self._request(incident.id, registry)

    def _request(self, number: int, registry: Any) -> None:
        """As ``orchestration.sensors._request``."""
        runs, now = self.runs.setdefault(number, []), self._world.clock.monotonic()
        for name, process in runs:
            if not _lives(process):
                self._ended_at.setdefault(name, now)
        incident: Incident | None = registry.incident(number)
        if incident is None or not incident.is_open or any(_lives(process) for _, process in runs):
            return
        if incident.claimed_by is not None:
            if incident.claimed_by not in {name for name, _ in runs} and incident.is_worked_on:
                return
            registry.release_incident(incident.id, incident.claimed_by)
        since = incident.retried_at
        epoch = self._world.clock.time() - now
        tried = [
            name
            for name, _ in runs
            if name not in self._succeeded and (since is None or self._ended_at[name] + epoch > since.timestamp())
        ]
        if len(tried) >= RUNS_MAX:
            reason = f"{len(tried)} runs ended without closing the incident"
            registry.close_incident(incident.id, "failed", self._world.now(), reason=reason)
            self._tell(f"sensor: {reason}")
            return
        if tried and now - max(self._ended_at[name] for name in tried) < PAUSE_S * 2 ** (len(tried) - 1):
            return
        name = f"run{number}.{len(runs) + 1}"
        runs.append((name, self._world.simulation.start(name, lambda process: self._run(process, number, name))))

    def _run(self, process: SimulatedProcess, number: int, name: str) -> None:
        """As ``orchestration.jobs.recover_processor``."""
        try:
            process.sleep(LAUNCH_S)
            person = Person(self._world, process)
            try:
                rollout, old = person._rollout(GROUP, None), behind(GROUP, person.acting)
            except (BrokerUnreachable, CoordinatorMoving) as away:
                result = wait_for_broker(number, person.acting, name, away)
            else:
                stores = tuple(each.name for each in self._world.topology.stores)
                policy = RecoveryPolicy(
                    limits=LIMITS, conditions=Conditions(person.topics.ping), behind=old, stores=stores
                )
                result = recover(number, rollout, person.acting, run_id=name, policy=policy)
            if result.outcome != "failed":
                self._succeeded.add(name)
            self._tell(f"{name}: {result.outcome}, {result.reason}")
        except HoldfastError as failed:
            self._tell(f"{name}: {failed}")
        except KeyboardInterrupt:
            self._tell(f"{name}: interrupted")


def _lives(process: SimulatedProcess) -> bool:
    return not (process.ended or process.crashed)


@contextmanager
def parts_of_operation(world: OperationWorld) -> Iterator[None]:
    """Who waits waits in virtual time, recovery beats in it, and whoever looks sees who is gone."""
    with (
        patch.object(recovery, "Hold", lambda: OperatorsHold(world, world.current())),
        patch.object(incidents, "is_gone", world.is_gone),
        virtual_time(world),
    ):
        yield
