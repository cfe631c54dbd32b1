"""Knows which keys of a processor were erased, without knowing the keys, and refuses data that contains one of them.

A key is known by its mark, a keyed hash. The key of the hash is a file in the home folder, for its user only, and not
in Holdfast's registry. So a copy of the registry alone does not tell whether somebody's key was erased.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.infra.paths import Paths
from holdfast.infra.system.files import write_private
from holdfast.processors.engine.changelog.format import META_KEY, FormatUnknown, split_key
from holdfast.processors.engine.state.exports import entry_of
from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.certificates import ErasureFacts, decode, mark_of
from holdfast.processors.lifecycle.ports import World


class ErasedKeyThere(ApplyFailed):
    """Data that would be restored has a key that was erased; nothing was changed, and the apply has ended.

    Fields: ``processor``, ``erased_at``, ``mark``.
    """

    exit_code = EXIT_REFUSED


def secret_of(paths: Paths) -> bytes:
    """The secret of keyed hashes in this installation; the first call creates it."""
    file = paths.settings_key
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, secrets.token_hex(32))
    return file.read_bytes()[:64]


@dataclass(frozen=True)
class ErasedKeys:
    """The erased keys of one processor: ``times`` maps a key's mark to the time of its newest erasure."""

    processor: str
    secret: bytes
    times: Mapping[str, datetime]

    @staticmethod
    def of(registry: Registry, paths: Paths, processor: str) -> ErasedKeys:
        """The erased keys of a processor, read from Holdfast's registry."""
        times = {each.mark: each.begun_at for each in registry.erasures.of(processor)}
        return ErasedKeys(processor, secret_of(paths) if times else b"", times)

    def mark(self, key: bytes) -> str:
        """The keyed hash of a message key."""
        return mark_of(self.secret, self.processor, key)

    def erased_at(self, key: bytes, written: datetime | None = None) -> datetime | None:
        """When this message key was erased; None if it was not, or if data of the time ``written`` is from after it."""
        moment = self.times.get(self.mark(key)) if self.times else None
        return None if moment is None or (written is not None and written > moment) else moment

    def check(self, key: bytes, written: datetime | None, what: str, action: str) -> None:
        """Raises ErasedKeyThere if data of the time ``written`` contains a key that was erased later.

        ``written`` is None if the time is unknown; ``what`` names the data.
        """
        erased_at = self.erased_at(key, written)
        if erased_at is None:
            return
        moment = erased_at.astimezone(UTC).isoformat(timespec="seconds")
        raise ErasedKeyThere(
            f"{what} has a key of {self.processor} that was erased at {moment}; nothing was changed.",
            action=action,
            processor=self.processor,
            erased_at=moment,
            mark=self.mark(key)[:12],
        )

    def lines_in(self, path: str) -> tuple[int, ...]:
        """The numbers of the lines of an export file that have an erased key; empty for a file that can't be read.

        A file that was exported after the erasure has state of later messages. Its name says when it was exported.
        """
        if not self.times:
            return ()
        found, written = [], exported_at(Path(path).name)
        with suppress(OSError, HoldfastError), Path(path).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip() and self.erased_at(entry_of(line, number).message_key, written) is not None:
                    found.append(number)
        return tuple(found)


class ErasuresOfWorld:
    """The part of ``FactSource`` that is about erased keys; ``_world`` has the registry and the home folder."""

    _world: World

    def erasures(self, processor: str) -> tuple[ErasureFacts, ...]:
        """The erasures of the processor's keys, oldest first."""
        found = []
        for each in self._world.registry.erasures.of(processor):
            proven = bool(each.document) and decode(each.document).proven
            found.append(ErasureFacts(each.mark, each.begun_at.timestamp(), each.finished_at is not None, proven))
        return tuple(found)

    def erased_lines(self, processor: str, path: str) -> tuple[int, ...]:
        """The numbers of the lines of an export file that have a key of the processor that was erased later."""
        return ErasedKeys.of(self._world.registry, self._world.paths, processor).lines_in(path)

    def mark(self, processor: str, key: str) -> str:
        """The keyed hash of a message key, with which erasures name it."""
        return mark_of(secret_of(self._world.paths), processor, key.encode())


def nothing_erased(processor: str) -> ErasedKeys:
    """The erased keys of an installation without erasures."""
    return ErasedKeys(processor, b"", {})


def exported_at(name: str) -> datetime | None:
    """The time in the name of an export file; None for a name without one."""
    try:
        return datetime.strptime(name.partition("-")[0][:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def message_key_in(key: bytes | None) -> bytes:
    """The message key in the key of a changelog record; empty for other records."""
    try:
        return b"" if key is None or key == META_KEY else split_key(key)[0]
    except (FormatUnknown, ValueError):
        return b""
