"""Knows which keys of a processor were erased, without knowing the keys, and refuses data that contains one of them.

A key is known by its mark, a keyed hash. The key of the hash is a file in the home folder, for its user only, and not
in Holdfast's registry. So a copy of the registry alone does not tell whether somebody's key was erased.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.infra.paths import Paths
from holdfast.infra.system.files import write_private
from holdfast.processors.lifecycle.plans.certificates import ErasureFacts, decode, mark_of


class ErasedKeyThere(HoldfastError):
    """Data that would be restored contains a key that was erased; nothing was changed.

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


def erasures_of(registry: Registry, processor: str) -> tuple[ErasureFacts, ...]:
    """The erasures of a processor's keys, oldest first."""
    found = []
    for each in registry.erasures.of(processor):
        proven = bool(each.document) and decode(each.document).proven
        found.append(ErasureFacts(each.mark, each.begun_at.timestamp(), each.finished_at is not None, proven))
    return tuple(found)


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

    def erased_at(self, key: bytes) -> datetime | None:
        """When this message key was erased; None if it was not."""
        return self.times.get(mark_of(self.secret, self.processor, key)) if self.times else None

    def among(self, keys: Set[bytes]) -> tuple[bytes, ...]:
        """Those of the message keys that were erased."""
        return tuple(key for key in keys if self.erased_at(key) is not None) if self.times else ()

    def check(self, key: bytes, what: str, action: str) -> None:
        """Raises ErasedKeyThere if this message key was erased; ``what`` names the data that contains it."""
        erased_at = self.erased_at(key)
        if erased_at is None:
            return
        moment = erased_at.astimezone(UTC).isoformat(timespec="seconds")
        raise ErasedKeyThere(
            f"{what} contains a key of {self.processor} that was erased at {moment}; nothing was changed.",
            action=action,
            processor=self.processor,
            erased_at=moment,
            mark=mark_of(self.secret, self.processor, key)[:12],
        )
