"""Fills Holdfast's registry again after it was lost: from the supervisor's programs and the answers of workers.

    empty registry, but programs exist ──► rediscover ──► deployments and releases, each recorded as *adopted*

Invariants:
    - Only an empty registry is filled, so no existing record is replaced.
    - No program is started or stopped.
    - Shadows (second runs of a processor's functions), and programs of other software, are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.processors.lifecycle.deploy.rollout import WORKER

#: The name of adoptions in the registry's list of actions (field ``verb``). An adoption records a discovered
#: deployment.
ADOPT = "adopt"
#: Seconds for which ``holdfast status`` shows an adoption: a deployment that was recorded again after the registry
#: (database of deployments) was lost.
TOLD_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Found:
    """A worker's program: command, environment, supervisor state, and code version.

    ``program`` is None if the supervisor state is unknown. ``version`` is from the worker's last answer, None without
    an answer.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    program: ProgramStatus | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """A processor that was discovered from the supervisor's programs.

    ``release`` is the folder of the processor's code, and ``target`` is its definition (``module:attribute``). They are
    None if no program names them. ``told`` is true if a worker reported the code version.
    """

    processor: str
    code_version: str
    slots: tuple[str, ...]
    desired: Literal["deployed", "stopped"]
    release: Path | None
    target: str | None
    told: bool

    @property
    def sentence(self) -> str:
        """A sentence about the adopted processor, and about the source from which its version is known."""
        meant = "meant to run" if self.desired == "deployed" else "stopped"
        by = "from its own answer" if self.told else "from its program"
        return (
            f"The registry was empty: {self.processor} was adopted from its programs as version {self.code_version} "
            f"({by}), slot {', '.join(self.slots)}, {meant}."
        )

    @property
    def action(self) -> str:
        """The next action for the user."""
        lost = "Earlier incidents and applies are lost."
        if self.desired == "deployed":
            return f"{lost} No action is needed; `holdfast status` shows it."
        return f"{lost} If it is meant to run: `holdfast apply deploy {self.processor}`."


def rediscover(found: Sequence[Found], defined: Mapping[str, str]) -> tuple[Adopted, ...]:
    """The processors of these programs, sorted by name.

    ``defined`` has the code version of each definition. That version is used only if neither a worker nor a release
    names a version.
    """
    slots: dict[str, dict[str, tuple[Found, Path | None]]] = {}
    for each in found:
        asked = _asked(each.command)
        if asked is not None:
            processor, slot, release = asked
            slots.setdefault(processor, {})[slot] = (each, release)
    adopted = []
    for processor, by_slot in sorted(slots.items()):
        programs = [each for each, _ in by_slot.values()]
        told = next((each.version for each in programs if each.version is not None), None)
        release = next((folder for _, folder in by_slot.values() if folder is not None), None)
        of_folder = None if release is None else release.name.partition("-")[0]
        version = told or of_folder or defined.get(processor)
        if version is None:
            continue
        meant = any(_meant(each.program) for each in programs)
        targets = {target for each in programs if (target := _target(each.environment)) is not None}
        adopted.append(
            Adopted(
                processor,
                version,
                tuple(sorted(by_slot)),
                "deployed" if meant else "stopped",
                release,
                targets.pop() if len(targets) == 1 else None,
                told is not None,
            )
        )
    return tuple(adopted)


def _meant(program: ProgramStatus | None) -> bool:
    """Whether a program should run: it runs now, or its process died without a requested stop."""
    return program is not None and (program.alive or program.state in ("EXITED", "FATAL", "BACKOFF"))


def _asked(command: Sequence[str]) -> tuple[str, str, Path | None] | None:
    """Parses the command of a worker into processor, slot (place of one worker) and release folder.

    None for a shadow (second run of a processor's functions), and for a program of other software.
    """
    if WORKER not in command:
        return None
    parser = _Quiet(add_help=False)
    for name in ("--processor", "--slot", "--release", "--shadow"):
        parser.add_argument(name)
    try:
        given, _ = parser.parse_known_args(list(command[list(command).index(WORKER) + 1 :]))
    except ValueError:
        return None
    if given.processor is None or given.shadow is not None:
        return None
    return given.processor, given.slot or "0", None if given.release is None else Path(given.release)


def _target(environment: Mapping[str, str]) -> str | None:
    """The definition (``module:attribute``) with which a worker was started, from its environment; otherwise None."""
    try:
        targets = json.loads(environment.get("HOLDFAST_PROCESSORS", "[]"))
    except ValueError:
        return None
    return str(targets[0]) if isinstance(targets, list) and len(targets) == 1 else None


class _Quiet(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
