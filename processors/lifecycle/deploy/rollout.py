"""Describes how to run a processor (a rollout): version, slots (one for each worker), settings, and programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.infra.deploy.program_files import ProgramSpec
from holdfast.processors.lifecycle.ports import World

#: The Python module that a worker's process runs.
WORKER = "holdfast.processors"
#: The command-line option of a worker that names the folder of its release.
RELEASE = "--release"


@dataclass(frozen=True, slots=True)
class Rollout:
    """Describes how to run a processor: version, slots (one for each worker) and settings.

    Args:
        inputs: Input topic -> number of partitions.
        environment: The HOLDFAST_* variables of the processor; may contain secrets, so it is not in ``repr``.
        project: The folder that the processor's modules are imported from.
    """

    processor: str
    code_version: str
    slots: tuple[str, ...]
    inputs: Mapping[str, int]
    environment: Mapping[str, str] = field(repr=False)
    project: Path
    #: Further command-line arguments of the worker, for example ``--paused``.
    options: tuple[str, ...] = ()
    #: The folder with the copied code, first on the import path; None if the code was not copied.
    release: Path | None = None
    #: Whether all workers of the old version stop before the first new worker starts. Needed if the two versions divide
    #: their stores into tasks differently; otherwise workers of both versions would write the same changelogs.
    together: bool = False
    #: Whether only the number of slots (places of workers) changes. If so, a worker that already runs the version is
    #: not restarted.
    rescale: bool = False
    #: Maximum seconds that workers may fetch the state of their new tasks if the number of workers changes; 0: no wait.
    warm_s: float = 0.0

    def program(self, slot: str, world: World) -> ProgramSpec:
        """The supervisor's specification of the worker in a slot: command, environment and log file.

        A slot is the place of one worker.
        """
        code = () if self.release is None else (RELEASE, str(self.release))
        arguments = ("--processor", self.processor, "--slot", slot, *code, *self.options)
        return ProgramSpec(
            name=world.paths.program(self.processor, slot),
            command=(sys.executable, "-P", "-m", WORKER, *arguments),
            environment=self.environment,
            directory=self.project,
            stdout_path=world.paths.program_log(self.processor, slot),
        )
