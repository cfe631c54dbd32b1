"""The settings that a worker reads. They are part of its deployment, so a restarted worker keeps them.

Invariants:
    - Each group and each setting is named in ``OF_WORKERS`` or in ``OF_OTHERS``; a test refuses one that is in neither.
    - A secret is recorded by its keyed digest, never by its value: the program that starts a worker has the value. The
      digest tells whether the secret changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache

import msgspec
from pydantic import BaseModel

from holdfast.infra.masking import masked
from holdfast.infra.settings import Settings

#: Groups and settings that decide how a worker runs.
OF_WORKERS = frozenset(
    {
        *("kafka", "schema_registry", "serving", "checkpoints", "standby_replicas", "memory_max_mb"),
        *("log_format", "log_level"),
    }
)
#: Settings that workers do not read: for Dagster, the warehouse, the registry, the daemon, or the location of all.
OF_OTHERS = frozenset(
    {
        *("home", "cache", "group_access", "project", "processors", "workers", "registry_url", "archive"),
        *("orphan_grace_days", "spark", "warehouse", "snapshots", "maintenance", "webhook", "webserver", "runs"),
        *("upkeep", "restore_target_s", "stuck_after_s", "recovery_enabled", "definitions", "ivy_settings"),
    }
)
_PREFIX = "HOLDFAST_"


class Secret(msgspec.Struct, frozen=True):
    """A secret as its digest; computing the digest requires the key of the home folder."""

    digest: str


#: Variable -> its value; a secret is a digest, or None if it was recorded without a key.
Recorded = dict[str, str | Secret | None]


def recorded_of(environment: Mapping[str, str], key: bytes | None = None) -> Recorded:
    """The recorded settings of a worker's environment; ``key`` is the key for digests of secrets."""
    return {
        name: _digest(name, value, key) if name in _secrets() or masked(value) != value else value
        for name, value in sorted(environment.items())
        if _is_of_workers(name)
    }


def shown(recorded: Mapping[str, str | Secret | None]) -> dict[str, str | None]:
    """The settings for printing: secrets without their digests."""
    return {name: value if isinstance(value, str) else None for name, value in recorded.items()}


def as_recorded(environment: Mapping[str, str], recorded: Mapping[str, str | Secret | None]) -> dict[str, str]:
    """The environment with the recorded settings of workers; secrets come from the environment itself."""
    others = {name: value for name, value in environment.items() if not _is_of_workers(name)}
    secret = {
        name: value
        for name, value in environment.items()
        if name in _secrets() or not isinstance(recorded.get(name, ""), str)
    }
    return {**others, **secret, **{name: value for name, value in recorded.items() if isinstance(value, str)}}


def differences(recorded: Mapping[str, str | Secret | None], now: Mapping[str, str | Secret | None]) -> tuple[str, ...]:
    """How the settings of now differ, a text for each variable; a secret without a digest is not compared."""
    found = []
    for name in sorted(recorded.keys() | now.keys()):
        before, after = recorded.get(name, "unset"), now.get(name, "unset")
        if before is None or after is None or before == after:
            continue
        another = "another secret" if isinstance(before, Secret) else "a secret"
        was = "a secret" if isinstance(before, Secret) else before
        found.append(f"{name} was {was}, now {another if isinstance(after, Secret) else after}")
    return tuple(found)


def _digest(name: str, value: str, key: bytes | None) -> Secret | None:
    if key is None:
        return None
    return Secret(hashlib.blake2b(f"{name}={value}".encode(), key=key, digest_size=16).hexdigest())


def _is_of_workers(variable: str) -> bool:
    name = variable.removeprefix(_PREFIX).lower()
    return variable.startswith(_PREFIX) and (name in OF_WORKERS or name.partition("__")[0] in OF_WORKERS)


@cache
def _secrets() -> frozenset[str]:
    return frozenset(_secret_in(_PREFIX, Settings))


def _secret_in(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _secret_in(f"{prefix}{name.upper()}__", kind)
        elif not field.repr:
            yield f"{prefix}{name.upper()}"
