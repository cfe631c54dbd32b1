"""The settings with which releases were deployed, in a private file for each release next to its code.

Invariants:
    - Whatever starts a worker again (recovery, scale, restart, a rollback) starts it with the settings of its
      deployment, not with those of its own environment. Only a deploy changes them.
    - The key of the digests of secrets is made by the first deploy of a home, and stays.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.infra.database.records import Release
from holdfast.infra.deploy.program_files import asked_of
from holdfast.infra.paths import Paths
from holdfast.infra.settings.of_workers import Recorded, as_recorded, differences, recorded_of
from holdfast.infra.system.files import write_private
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.rooted import PathOutside, inside
from holdfast.processors.lifecycle.deploy.rollout import RELEASE


class DeployedSettings:
    """The recorded settings of the releases of this home."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def read(self, processor: str, release: str) -> Recorded | None:
        """The settings of a release; None if none are recorded, as by an older version of Holdfast."""
        return read_json(self._file(processor, release), Recorded)

    def record(self, processor: str, release: str, environment: Mapping[str, str]) -> None:
        """Record the settings of a release from this environment of its workers."""
        file = self._paths.settings_key
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_private(file, secrets.token_hex(32))
        self.write(processor, release, self.recorded(environment))

    def write(self, processor: str, release: str, recorded: Recorded) -> None:
        """Put recorded settings of a release back."""
        file = self._file(processor, release)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, msgspec.json.encode(recorded, order="deterministic").decode() + "\n")

    def recorded(self, environment: Mapping[str, str]) -> Recorded:
        """The recorded form of an environment of this home's workers."""
        return recorded_of(environment, self._key())

    def of_slot(self, processor: str, slot: str) -> Recorded | None:
        """The settings with which the present program of a slot was registered; None if unknown."""
        asked = self._asked(processor, slot)
        return None if asked is None else self.recorded(asked[1])

    def imports(self, processor: str, slot: str, release: Release) -> bool:
        """Whether the present program of a slot imports this release; also true if unknown."""
        asked = self._asked(processor, slot)
        if asked is None:
            return True
        command = asked[0]
        return release.folder == (command[command.index(RELEASE) + 1] if RELEASE in command[:-1] else None)

    def _asked(self, processor: str, slot: str) -> tuple[tuple[str, ...], dict[str, str]] | None:
        return asked_of(self._paths.supervisor / "programs", self._paths.program(processor, slot))

    def forget(self, processor: str, release: str) -> None:
        """Delete the settings of a pruned release."""
        with suppress(PathOutside):  # a row with a path outside of the home has no file here
            self._file(processor, release).unlink(missing_ok=True)

    def environment_of(self, processor: str, release: str, present: Mapping[str, str]) -> dict[str, str]:
        """The environment of a release's workers.

        ``present`` has the secrets, and everything if nothing is recorded.
        """
        recorded = self.read(processor, release)
        return dict(present) if recorded is None else as_recorded(present, recorded)

    def changed(
        self, processor: str, release: str, present: Mapping[str, str], slots: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """How the present settings differ from the settings of a release, and of the running ``slots``.

        An interrupted deploy has recorded the new settings before each worker had them.
        """
        known = (self.read(processor, release), *(self.of_slot(processor, slot) for slot in slots))
        now = self.recorded(present)
        return tuple(dict.fromkeys(text for each in known if each is not None for text in differences(each, now)))

    def _key(self) -> bytes | None:
        try:
            return self._paths.settings_key.read_bytes()[:64] or None
        except OSError:
            return None

    def _file(self, processor: str, release: str) -> Path:
        return inside(inside(self._paths.all_releases, processor) / ".settings", f"{release}.json")
