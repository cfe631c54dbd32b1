"""Decides whether a deploy keeps, starts or replaces the instance (worker) in a slot.

Invariants:
    - ``step_for`` decides on facts only; ``look`` reads the facts.
    - An instance that answers, is not paused by a user, and runs the wanted version, release and settings is kept.
"""

from __future__ import annotations

import time
from typing import Literal

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.ports import ProcessorStatusSource, World

#: Seconds between two checks of a condition.
POLL_S = 0.2
#: Maximum seconds to keep asking a live instance for its status before it counts as silent.
PATIENCE_S = 5.0

Step = Literal["keep", "start", "replace"]


def step_for(
    program: ProgramStatus | None, status: ProcessorStatus | None, code_version: str, *, paused: bool = False
) -> Step:
    """The step after which an instance runs the version; an instance that a user paused is replaced."""
    if program is None or not program.alive:
        return "start"
    answers = status is not None and status.pid == program.pid
    if status is None or not answers or status.phase in ("failed", "stopping"):
        return "replace"
    if status.paused and not paused:
        return "replace"
    return "keep" if status.code_version == code_version else "replace"


def step_of(slot: str, rollout: Rollout, world: World) -> Step:
    """The step after which the slot's instance runs the rollout, from its current program and status."""
    program, status = look(slot, rollout.processor, world, patience_s=PATIENCE_S)
    step = step_for(program, status, rollout.code_version, paused="--paused" in rollout.options)
    if step == "keep" and not rollout.rescale and world.deployer.differs(rollout.program(slot, world)):
        # another release of the same version, or other settings: replaced one worker after the other, too
        return "replace"
    return step


def look(
    slot: str, processor: str, world: World, *, patience_s: float = 0.0
) -> tuple[ProgramStatus | None, ProcessorStatus | None]:
    """The program of an instance, and its status.

    The status is the one of the present process, or the last one of a process that ended with an error. A live process
    that does not answer is asked again for at most ``patience_s`` seconds.
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
    """The last status of the program's most recent process if it ended with an error, never of an earlier process."""
    if not program.exit_status or program.started_at is None:
        return None
    failure = source.last_failure()
    # The supervisor reports times in whole seconds, so a difference of up to one second is accepted.
    if failure is None or failure.started_at < program.started_at.timestamp() - 1.0:
        return None
    return failure
