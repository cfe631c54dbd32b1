"""What runs in a slot, and whether a deploy keeps, starts or replaces it.

Invariants:
    - ``step_for`` decides on facts alone; ``look`` gets them.
    - An instance that answers, is not paused by a user, and runs the wanted version, release and settings is kept.
"""

from __future__ import annotations

import time
from typing import Literal

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.ports import ProcessorStatusSource, World

#: Interval between checks of a condition, seconds.
POLL_S = 0.2
#: How long a live instance without an answer is asked again before it counts as silent, seconds.
PATIENCE_S = 5.0

Step = Literal["keep", "start", "replace"]


def step_for(
    program: ProgramStatus | None, status: ProcessorStatus | None, code_version: str, *, paused: bool = False
) -> Step:
    """The step that makes an instance run the version; an instance that a user paused must be replaced."""
    if program is None or not program.alive:
        return "start"
    answers = status is not None and status.pid == program.pid
    if status is None or not answers or status.phase in ("failed", "stopping"):
        return "replace"
    if status.paused and not paused:
        return "replace"
    return "keep" if status.code_version == code_version else "replace"


def step_of(slot: str, rollout: Rollout, world: World) -> Step:
    """The step that makes the slot's instance run the rollout, by the instance as it is now."""
    program, status = look(slot, rollout.processor, world, patience_s=PATIENCE_S)
    step = step_for(program, status, rollout.code_version, paused="--paused" in rollout.options)
    if step == "keep" and not rollout.rescale and world.deployer.differs(rollout.program(slot, world)):
        return "replace"  # another release of this version, or other settings: also one worker after the other
    return step


def look(
    slot: str, processor: str, world: World, *, patience_s: float = 0.0
) -> tuple[ProgramStatus | None, ProcessorStatus | None]:
    """The program of an instance, and the status of its present process, or the last status of its failed process.

    A live process that does not answer is asked again for ``patience_s`` seconds.
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
    """The last status of the program's last process, if it ended with an error; never the status of an older one."""
    if not program.exit_status or program.started_at is None:
        return None
    failure = source.last_failure()
    # The deployer's times are whole seconds.
    if failure is None or failure.started_at < program.started_at.timestamp() - 1.0:
        return None
    return failure
