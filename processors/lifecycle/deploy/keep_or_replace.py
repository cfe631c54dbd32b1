"""Decides whether a deploy keeps, starts or replaces the instance (worker) in a slot (place of one worker).

Invariants:
    - ``step_for`` decides only from its arguments; ``look`` reads the state of the instance.
    - An instance that answers, is not paused by a user, and runs the wanted version, release and settings is kept.
"""

from __future__ import annotations

import time
from typing import Literal

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.infra.settings.of_workers import differences
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.ports import ProcessorStatusSource, World

#: Seconds between two status requests while a deploy waits for workers.
POLL_S = 0.2
#: Maximum seconds to repeat the status request to a live instance; after this time, the instance counts as silent.
PATIENCE_S = 5.0

Step = Literal["keep", "start", "replace"]


def step_for(
    program: ProgramStatus | None, status: ProcessorStatus | None, code_version: str, *, paused: bool = False
) -> Step:
    """Decides whether to keep, start or replace an instance (worker), so that it then runs version ``code_version``.

    An instance that a user paused is replaced, because it reads no input.
    """
    if program is None or not program.alive:
        return "start"
    answers = status is not None and status.pid == program.pid
    if status is None or not answers or status.phase in ("failed", "stopping"):
        return "replace"
    if status.paused and not paused:
        return "replace"
    return "keep" if status.code_version == code_version else "replace"


def step_of(slot: str, rollout: Rollout, world: World) -> Step:
    """Decides whether to keep, start or replace the worker in a slot, from its present process and its status.

    A slot is the place of one worker.
    """
    program, status = look(slot, rollout.processor, world, patience_s=PATIENCE_S)
    step = step_for(program, status, rollout.code_version, paused="--paused" in rollout.options)
    if step == "keep" and not rollout.rescale and _is_other(slot, rollout, program, world):
        # The worker runs the wanted version, but with another copy of the code or with other settings, so it is
        # replaced.
        return "replace"
    return step


def _is_other(slot: str, rollout: Rollout, program: ProgramStatus | None, world: World) -> bool:
    """Whether the supervisor's program or the running worker's settings differ from ``rollout`` (how to run them)."""
    if world.deployer.differs(rollout.program(slot, world)):
        return True
    book = DeployedSettings(world.paths)
    own = book.of_worker(rollout.processor, slot, None if program is None else program.pid)
    return own is not None and bool(differences(own, book.recorded(rollout.environment)))


def look(
    slot: str, processor: str, world: World, *, patience_s: float = 0.0
) -> tuple[ProgramStatus | None, ProcessorStatus | None]:
    """Returns the supervisor's state of an instance (worker) and its status; each is None if unknown.

    The status is the answer of the live process. If the process ended with an error, it is the last status before the
    end. If a live process does not answer, the request is repeated for at most ``patience_s`` seconds.
    """
    deadline = time.monotonic() + patience_s
    while True:
        program = world.deployer.programs().get(world.paths.program(processor, slot))
        if program is None:
            return None, None
        if not program.alive:
            return program, _last_words(program, world.statuses(processor, slot))
        status = world.statuses(processor, slot).status()
        if status is not None and status.pid == program.pid:
            return program, status
        if time.monotonic() >= deadline:
            return program, None
        time.sleep(POLL_S)


def _last_words(program: ProgramStatus, source: ProcessorStatusSource) -> ProcessorStatus | None:
    """The last status of the program's newest process if that process ended with an error; otherwise None."""
    if not program.exit_status or program.started_at is None:
        return None
    failure = source.last_failure()
    # Ignore a failure of an earlier process. The supervisor reports times in whole seconds, so a difference of up to
    # one second is accepted.
    if failure is None or failure.started_at < program.started_at.timestamp() - 1.0:
        return None
    return failure
