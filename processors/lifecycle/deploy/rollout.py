"""A rollout: how a processor has to run, and the program of each of its workers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.infra.deploy.program_files import ProgramSpec
from holdfast.processors.lifecycle.ports import World

#: The module that a worker's program runs.
WORKER = "holdfast.processors"
#: The option of a worker that names the folder of its release.
RELEASE = "--release"


@dataclass(frozen=True, slots=True)
class Rollout:
    """How a processor has to run.

    Args:
        inputs: Input topic -> number of partitions.
        environment: The HOLDFAST_* variables of the processor; may hold secrets, never shown.
        project: The folder that the processor's modules are imported from.
    """

    processor: str
    code_version: str
    slots: tuple[str, ...]
    inputs: Mapping[str, int]
    environment: Mapping[str, str] = field(repr=False)
    project: Path
    #: Further arguments of the worker, such as ``--paused``.
    options: tuple[str, ...] = ()
    #: The copy of its code, first on the import path; None when the code was not copied.
    release: Path | None = None
    #: Whether two versions may not run at once, because two groupings of tasks would write the same changelogs.
    together: bool = False
    #: Whether only the slots change: an instance that runs the version keeps its present program.
    rescale: bool = False
    #: How long workers may fetch the state of the tasks that a rescale gives them, seconds; 0 for no wait.
    warm_s: float = 0.0

    def program(self, slot: str, world: World) -> ProgramSpec:
        """The program of one instance."""
        code = () if self.release is None else (RELEASE, str(self.release))
        arguments = ("--processor", self.processor, "--slot", slot, *code, *self.options)
        return ProgramSpec(
            name=world.paths.program(self.processor, slot),
            command=(sys.executable, "-P", "-m", WORKER, *arguments),
            environment=self.environment,
            directory=self.project,
            stdout_path=world.paths.program_log(self.processor, slot),
        )
