"""Deploy: run a version of a processor in its slots, and wait until it processes every input partition.

A slot is the place of one worker. Decisions use two inputs: the supervisor's state of each program, and the status that
each worker reports. The module ``keep_or_replace`` and the function ``what_is_missing`` make the decisions. The other
functions act and wait.

Invariants:
    - An instance (worker) that already runs the version is not restarted.
    - The deployment is recorded before the first change, so recovery leaves the processor alone during a deploy. After
      a failure the record remains, and recovery retries the deployment.
    - A deploy succeeds when every instance is running and each input partition has a restored task in one instance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.infra.errors import HoldfastError
from holdfast.infra.log import get_logger
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.keep_or_replace import POLL_S, Step, look, step_of
from holdfast.processors.lifecycle.deploy.marking import keep_mark
from holdfast.processors.lifecycle.deploy.present import remove_others
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.deploy.warming import change_of_workers, let_join, unprepared
from holdfast.processors.lifecycle.deploy.watch import Counted, committed_of, counted, progresses, puts_aside
from holdfast.processors.lifecycle.deploy.wording import how_it_ended, last_lines, listed, log_tail
from holdfast.processors.lifecycle.ports import NotStarted, World

log = get_logger(__name__)


class DeploymentFailed(NotStarted):
    """A deployed processor failed to start, or failed soon after its start.

    Fields: ``slot``, ``exit_status``, ``log`` (last lines of the worker's log), ``error`` (the error that the worker
    reported).
    """


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a deployment or recovery: the phase of each worker, and the partitions without a running task."""

    processor: str
    #: Maps each slot (one for each worker) to the phase of its worker, or to ``silent`` if the worker does not answer.
    phases: Mapping[str, str]
    #: Input partitions (topic, number) that no instance processes yet.
    missing: tuple[tuple[str, int], ...]
    seconds: float

    @property
    def ready(self) -> bool:
        """Whether every instance runs and every input partition is processed."""
        return not self.missing and all(phase == "running" for phase in self.phases.values())

    @property
    def sentence(self) -> str:
        """The progress as text: one sentence without a full stop."""
        phases = ", ".join(f"{slot}: {phase}" for slot, phase in self.phases.items())
        waits = "" if not self.missing else "; not processed: " + listed(self.missing)
        return f"{self.processor} ({phases}){waits} after {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class DeploymentResult:
    """The result of a successful deployment: every input partition is processed by a worker."""

    processor: str
    code_version: str
    #: Slots (one for each worker) whose process was started or replaced; all other slots already ran the version.
    started: tuple[str, ...]
    statuses: Mapping[str, ProcessorStatus]
    seconds: float


OnProgress = Callable[[Progress], None]


def what_is_missing(
    inputs: Mapping[str, int], statuses: Mapping[str, ProcessorStatus | None]
) -> tuple[tuple[str, int], ...]:
    """The input partitions (topic, number) that no instance processes at present, sorted."""
    worked_on = {
        (topic, task.partition)
        for status in statuses.values()
        if status is not None
        for task in status.tasks
        if task.phase == "running"
        for topic in task.inputs
    }
    wanted = [(topic, partition) for topic, count in sorted(inputs.items()) for partition in range(count)]
    return tuple(pair for pair in wanted if pair not in worked_on)


def deploy(
    rollout: Rollout,
    world: World,
    *,
    timeout_s: float = 120.0,
    who: str = "unknown",
    progress: OnProgress | None = None,
    settle_s: float = 0.0,
    hold: bool = False,
) -> DeploymentResult:
    """Run a processor, and wait until it processes every input partition.

    Args:
        rollout: Version, slots (places of workers) and settings that the processor has to run with.
        world: Access to the supervisor, Holdfast's registry and the workers.
        timeout_s: Maximum seconds from the start of the instances until they are ready.
        who: Name of the user or Dagster run, for the registry.
        progress: Called at each check.
        settle_s: Maximum seconds to watch, after the start, whether every input partition progresses (function
            ``settle``).
        hold: Whether the registry keeps the state "deploying" after a failure. Use True if the caller acts after the
            failure, for example by a rollback.

    Raises:
        DeploymentFailed: An instance ended, failed, runs another version, or was not ready in time. Also raised if half
            or more of the messages went to dead letters, unless the previous version did the same.
        holdfast.infra.deploy.program_files.SupervisorUnavailable: The supervisor did not start or answer.
    """
    ready = partial(
        wait_ready, rollout, world, timeout_s=timeout_s, code_version=rollout.code_version, progress=progress
    )
    began, started_at = time.monotonic(), world.clock()
    world.deployer.start()
    former = counted(look(slot, rollout.processor, world)[1] for slot in rollout.slots if settle_s)
    _record(rollout, world, "deploying")
    outcome = "interrupted"
    try:
        if rollout.together:
            _stop_other_versions(rollout, world)
            remove_others(rollout.processor, rollout.slots, world)
        with change_of_workers(rollout.processor, rollout.slots, world, rollout.warm_s) as change:
            started = _bring_up_all(rollout, world, timeout_s=timeout_s, progress=progress)
            if change is not None:
                _wait_prepared(rollout, world, progress)
                let_join(rollout.processor, change, world)
            remove_others(rollout.processor, rollout.slots, world)
            statuses = ready()
        statuses = settle(rollout, world, statuses, settle_s=settle_s, progress=progress)
        # If a rebalance began during the watch, an instance is not in the phase "running". Wait until it is again.
        if any(status.phase != "running" for status in statuses.values()):
            statuses = ready()
        aside = puts_aside(former, statuses, started) if settle_s else None
        if aside is not None:
            raise _put_aside(aside, rollout)
        outcome = "done"
    except HoldfastError as failed:
        outcome = f"failed: {failed.message}"
        raise
    finally:
        _record(rollout, world, "deploying" if hold and outcome.startswith("failed") else "deployed")
        plan = f"run version {rollout.code_version} in slots {', '.join(rollout.slots)}"
        world.registry.record_action("deploy", rollout.processor, who, plan, outcome, started_at, world.clock())
    seconds = time.monotonic() - began
    log.info("processor.deployed", processor=rollout.processor, started=list(started), seconds=round(seconds, 3))
    return DeploymentResult(rollout.processor, rollout.code_version, started, statuses, seconds)


def stop(processor: str, world: World, *, who: str = "unknown") -> tuple[str, ...]:
    """Stop every instance (worker) of the processor after a final commit; returns the slots of these workers.

    The stop is recorded first, so that recovery does not restart an instance that is being stopped.

    Raises:
        holdfast.infra.deploy.program_files.SupervisorSilent: The supervisor does not answer. Nothing is stopped or
            recorded.
    """
    up, started_at = world.deployer.running(), world.clock()
    deployment = world.registry.record_stopped(processor, started_at)
    if deployment is None:
        return ()
    keep_mark(world.registry, world.paths, processor)
    stopped: list[str] = []
    if up:
        stopped += remove_others(processor, deployment.slots, world)
        known = world.deployer.programs()
        for slot in deployment.slots:
            name = world.paths.program(processor, slot)
            if name in known:
                world.deployer.stop_program(name)
                stopped.append(slot)
    plan = f"stop slots {', '.join(deployment.slots)}"
    world.registry.record_action("stop", processor, who, plan, "done", started_at, world.clock())
    log.info("processor.stopped", processor=processor, slots=stopped)
    return tuple(stopped)


def wait_ready(
    rollout: Rollout,
    world: World,
    *,
    timeout_s: float,
    code_version: str | None = None,
    progress: OnProgress | None = None,
) -> dict[str, ProcessorStatus]:
    """Wait until every instance runs and every input partition is processed; returns the status of each slot.

    A slot is the place of one worker. Every instance must report ``code_version``; None accepts any version.

    Raises:
        DeploymentFailed: An instance ended, failed, runs another version, or was not ready in time.
    """
    began = time.monotonic()
    while True:
        statuses: dict[str, ProcessorStatus] = {}
        phases = {}
        for slot in rollout.slots:
            program, status = look(slot, rollout.processor, world)
            _refuse_ended(slot, program, status, rollout, world)
            if status is not None:
                _refuse_version(slot, status, code_version, rollout)
                statuses[slot] = status
            phases[slot] = "silent" if status is None else status.phase
        seen = Progress(rollout.processor, phases, what_is_missing(rollout.inputs, statuses), time.monotonic() - began)
        if progress is not None:
            progress(seen)
        if seen.ready:
            return statuses
        if seen.seconds > timeout_s:
            raise _too_late(seen, rollout, world)
        time.sleep(POLL_S)


def settle(
    rollout: Rollout,
    world: World,
    ready: Mapping[str, ProcessorStatus],
    *,
    settle_s: float,
    progress: OnProgress | None = None,
) -> dict[str, ProcessorStatus]:
    """Watch a processor that was just started until every input partition progresses, at most ``settle_s`` seconds.

    If an instance (worker) fails at its first messages, the deploy fails. If a partition makes no progress, the deploy
    does not fail. A partition progresses when its committed offset has grown since the start of the watch, or when its
    lag is 0. ``ready`` has the statuses of the instances when all of them ran.

    Raises:
        DeploymentFailed: An instance ended or failed during the watch.
    """
    began = time.monotonic()
    statuses = dict(ready)
    at_first = committed_of(statuses)
    while time.monotonic() - began < settle_s and not progresses(statuses, at_first):
        if progress is not None:
            phases = dict.fromkeys(rollout.slots, "settling")
            progress(Progress(rollout.processor, phases, (), time.monotonic() - began))
        time.sleep(POLL_S)
        for slot in rollout.slots:
            program, status = look(slot, rollout.processor, world)
            _refuse_ended(slot, program, status, rollout, world)
            if status is not None:
                statuses[slot] = status
    return statuses


def _stop_other_versions(rollout: Rollout, world: World) -> None:
    """Stop every instance (worker) that will be replaced, if workers of both versions must not run at the same time."""
    for slot in rollout.slots:
        if step_of(slot, rollout, world) == "replace":
            world.deployer.stop_program(world.paths.program(rollout.processor, slot))


def _wait_prepared(rollout: Rollout, world: World, progress: OnProgress | None) -> None:
    """Wait until every worker has fetched the state of the tasks that it will get; at most ``rollout.warm_s``."""
    began = time.monotonic()
    while True:
        statuses: dict[str, ProcessorStatus | None] = {}
        for slot in rollout.slots:
            program, statuses[slot] = look(slot, rollout.processor, world)
            _refuse_ended(slot, program, statuses[slot], rollout, world)
        seconds = time.monotonic() - began
        waiting = unprepared(statuses, seconds)
        if progress is not None:
            phases = {slot: "fetches state" if slot in waiting else "prepared" for slot in rollout.slots}
            progress(Progress(rollout.processor, phases, (), seconds))
        if not waiting or seconds > rollout.warm_s:
            log.info("processor.warm", processor=rollout.processor, cold=list(waiting), seconds=round(seconds, 3))
            return
        time.sleep(POLL_S)


def _bring_up_all(rollout: Rollout, world: World, *, timeout_s: float, progress: OnProgress | None) -> tuple[str, ...]:
    """Start every instance (worker) of the processor that does not run yet; returns the slots that were started.

    A slot is the place of one worker. A live instance is replaced only after the instances started earlier are running,
    so that most partitions always have an owner.
    """
    started: list[str] = []
    for slot in rollout.slots:
        step = step_of(slot, rollout, world)
        if step == "replace" and started and not rollout.together:
            before, version = replace(rollout, slots=tuple(started), inputs={}), rollout.code_version
            wait_ready(before, world, timeout_s=timeout_s, code_version=version, progress=progress)
        if _bring_up(slot, rollout, world, step):
            started.append(slot)
    return tuple(started)


def _bring_up(slot: str, rollout: Rollout, world: World, step: Step) -> bool:
    """Start the instance (worker) in a slot if it does not run yet; returns whether it was started.

    A slot is the place of one worker.
    """
    spec = rollout.program(slot, world)
    if rollout.rescale and step == "keep":
        return False
    # The supervisor stops the instance if the command or the environment of its program changed. Then ``apply`` returns
    # True, and the step is decided again.
    if world.deployer.apply(spec):
        step = step_of(slot, rollout, world)
    log.info("processor.step", processor=rollout.processor, slot=slot, step=step)
    if step == "keep":
        return False
    if step == "replace":
        world.deployer.stop_program(spec.name)
    world.deployer.start_program(spec.name)
    return True


def _record(rollout: Rollout, world: World, desired: Literal["deploying", "deployed"]) -> None:
    known = world.registry.deployment(rollout.processor)
    # If Holdfast's registry was lost, generations (deployment numbers) continue after the newest generation in the
    # changelogs.
    after, _ = (world.logged(rollout.processor) if known is None else None) or (0, "")
    world.registry.record_deployment(
        rollout.processor, rollout.code_version, rollout.slots, world.clock(), desired=desired, after=after
    )
    keep_mark(world.registry, world.paths, rollout.processor)


def _refuse_ended(
    slot: str, program: ProgramStatus | None, status: ProcessorStatus | None, rollout: Rollout, world: World
) -> None:
    error = None if status is None else status.error
    if program is not None and program.alive and (status is None or status.phase != "failed"):
        return
    name = world.paths.program(rollout.processor, slot)
    lines: tuple[str, ...] = ()
    if program is None:
        happened, exit_status = "is not known to the supervisor", None
    else:
        exit_status = program.exit_status
        happened = "failed" if program.alive else f"ended ({how_it_ended(program)})"
        lines = log_tail(name, world.deployer)
    reported = "" if not error else f" Its error: {error.get('message')}"
    action = (error or {}).get("action") or (
        f"Read {world.paths.program_log(rollout.processor, slot)}, then `holdfast apply deploy {rollout.processor}`."
    )
    raise DeploymentFailed(
        f"Processor {rollout.processor} slot {slot} {happened}.{reported}{last_lines(lines)}",
        action=str(action),
        processor=rollout.processor,
        slot=slot,
        exit_status=exit_status,
        error=None if error is None else dict(error),
        log=lines,
    )


def _refuse_version(slot: str, status: ProcessorStatus, code_version: str | None, rollout: Rollout) -> None:
    if code_version is None or status.code_version in ("", code_version):
        return
    raise DeploymentFailed(
        f"Processor {rollout.processor} slot {slot} runs version {status.code_version}, expected {code_version}; "
        f"it was just started from {rollout.project}.",
        action="The code changed during the deployment, or the deploying process has old code loaded. Reload "
        f"Dagster's code location if it deploys; then `holdfast apply deploy {rollout.processor}`.",
        processor=rollout.processor,
        slot=slot,
        found=status.code_version,
        expected=code_version,
    )


def _too_late(seen: Progress, rollout: Rollout, world: World) -> DeploymentFailed:
    slow = next((slot for slot, phase in seen.phases.items() if phase != "running"), rollout.slots[0])
    lines = log_tail(world.paths.program(rollout.processor, slow), world.deployer)
    return DeploymentFailed(
        f"Not ready in time: {seen.sentence}.{last_lines(lines)}",
        action="If it restores large state, follow it with `holdfast status`; else read "
        f"{world.paths.program_log(rollout.processor, slow)}.",
        processor=rollout.processor,
        slot=slow,
        exit_status=None,
        error=None,
        log=lines,
    )


def _put_aside(aside: Counted, rollout: Rollout) -> DeploymentFailed:
    return DeploymentFailed(
        f"Version {rollout.code_version} of {rollout.processor} put {aside.aside:,} of its first {aside.processed:,} "
        "messages into dead letters; expected: less than half, as before it.",
        action=f"Read the reasons in the headers of the dead letters, correct the definition, then `holdfast apply "
        f"deploy {rollout.processor}`.",
        processor=rollout.processor,
    )
