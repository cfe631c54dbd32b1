"""Stores the settings that each release was deployed with, in one private file per release, next to its code.

Invariants:
    - Recovery, scale, restart and rollback start a worker with the settings of its deployment. The settings in the
      environment of the command or run that starts the worker are ignored. Only a deploy changes the recorded settings.
    - Secrets are recorded as keyed digests. The first deploy creates the key, and the key never changes.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import msgspec

from holdfast.infra.database.records import Release
from holdfast.infra.deploy.program_files import asked_of
from holdfast.infra.paths import Paths
from holdfast.infra.settings.of_workers import Recorded, as_recorded, differences, recorded_of
from holdfast.infra.system.files import write_private
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.process import environment_of
from holdfast.infra.system.rooted import PathOutside, inside
from holdfast.processors.lifecycle.deploy.rollout import RELEASE

#: The environment variable with the path of the home folder. It shows whether a process belongs to this home folder.
_HOME = "HOLDFAST_HOME"
_NONE: Mapping[str, int | None] = MappingProxyType({})


class DeployedSettings:
    """Reads and writes the settings with which each release (copied code of a version) was deployed."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def read(self, processor: str, release: str) -> Recorded | None:
        """The settings that a release was deployed with; None if no settings are recorded.

        Earlier versions of Holdfast did not record settings.
        """
        return read_json(self._file(processor, release), Recorded)

    def record(self, processor: str, release: str, environment: Mapping[str, str]) -> None:
        """Record the settings of a release; ``environment`` has the environment variables of its workers."""
        file = self._paths.settings_key
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_private(file, secrets.token_hex(32))
        self.write(processor, release, self.recorded(environment))

    def write(self, processor: str, release: str, recorded: Recorded) -> None:
        """Write back the settings that a release had earlier, for example after a failed deploy replaced them."""
        file = self._file(processor, release)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, msgspec.json.encode(recorded, order="deterministic").decode() + "\n")

    def recorded(self, environment: Mapping[str, str]) -> Recorded:
        """Converts a worker's environment to its recorded form, in which secrets are digests."""
        return recorded_of(environment, self._key())

    def of_slot(self, processor: str, slot: str) -> Recorded | None:
        """The settings with which the supervisor is configured to start the worker in a slot (place of one worker).

        None if the supervisor has no worker for this slot.
        """
        asked = self._asked(processor, slot)
        return None if asked is None else self.recorded(asked[1])

    def of_worker(self, processor: str, slot: str, pid: int | None) -> Recorded | None:
        """The settings that the process of a worker was started with; None if they are unknown.

        The supervisor's configuration can be newer than the process, for example after a deploy that was killed before
        it replaced the process. If the system does not show the environment of the process, the result is ``of_slot``.
        """
        started = None if pid is None else environment_of(pid)
        # A process with another home folder is not this worker: the worker ended, and another program got its process
        # id.
        if started is None or Path(started.get(_HOME, "")) != self._paths.home:
            return self.of_slot(processor, slot)
        return self.recorded(started)

    def imports(self, processor: str, slot: str, release: Release) -> bool:
        """Whether the supervisor starts the worker in a slot (place of one worker) with the code of this release.

        Also true if the supervisor has no program for the slot.
        """
        asked = self._asked(processor, slot)
        if asked is None:
            return True
        command = asked[0]
        return release.folder == (command[command.index(RELEASE) + 1] if RELEASE in command[:-1] else None)

    def _asked(self, processor: str, slot: str) -> tuple[tuple[str, ...], dict[str, str]] | None:
        return asked_of(self._paths.supervisor / "programs", self._paths.program(processor, slot))

    def forget(self, processor: str, release: str) -> None:
        """Delete the recorded settings of a release that was deleted."""
        # A row of Holdfast's registry can name a release folder outside of the home folder. Such a release has no
        # settings file to delete.
        with suppress(PathOutside):
            self._file(processor, release).unlink(missing_ok=True)

    def environment_of(self, processor: str, release: str, present: Mapping[str, str]) -> dict[str, str]:
        """The environment variables for workers of a release: its recorded settings, plus the secrets from ``present``.

        ``present`` has the environment variables for workers according to the settings now. Without recorded settings,
        all variables come from ``present``.
        """
        recorded = self.read(processor, release)
        return dict(present) if recorded is None else as_recorded(present, recorded)

    def changed(
        self, processor: str, release: str, present: Mapping[str, str], workers: Mapping[str, int | None] = _NONE
    ) -> tuple[str, ...]:
        """Texts, one for each setting that differs between ``present`` and the release or its running ``workers``.

        ``present`` has the environment variables for workers according to the settings now. ``workers`` maps a slot
        (place of one worker) to the process id of its worker, or to None. The settings of running workers are compared,
        too, because an interrupted deploy can record new settings while some workers still run with the old ones.
        """
        own = (self.of_worker(processor, slot, pid) for slot, pid in workers.items())
        known = (self.read(processor, release), *own)
        now = self.recorded(present)
        return tuple(dict.fromkeys(text for each in known if each is not None for text in differences(each, now)))

    def _key(self) -> bytes | None:
        try:
            return self._paths.settings_key.read_bytes()[:64] or None
        except OSError:
            return None

    def _file(self, processor: str, release: str) -> Path:
        return inside(inside(self._paths.all_releases, processor) / ".settings", f"{release}.json")
