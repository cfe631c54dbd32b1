"""The settings that a worker reads. A deployment records these settings, so that a restarted worker gets them again.

Invariants:
    - Each group and each setting is in ``OF_WORKERS`` or in ``OF_OTHERS``; a test fails for a setting that is in
      neither.
    - For a secret, only a keyed hash (digest) is recorded, never the value. The digest shows whether the secret
      changed. When a worker is started, its secrets come from the environment of the program that starts it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache

import msgspec
from pydantic import BaseModel

from holdfast.infra.masking import masked
from holdfast.infra.settings import Settings

#: Names of the groups of settings, and of single settings, that a worker reads.
OF_WORKERS = frozenset(
    {
        *("kafka", "schema_registry", "serving", "checkpoints", "standby_replicas", "memory_max_mb"),
        *("log_format", "log_level"),
    }
)
#: Names of the groups of settings, and of single settings, that no worker reads. They are for Dagster, warehouse,
#: registry, daemon or home.
OF_OTHERS = frozenset(
    {
        *("home", "cache", "group_access", "project", "processors", "workers", "registry_url", "archive"),
        *("orphan_grace_days", "spark", "warehouse", "snapshots", "maintenance", "webhook", "webserver", "runs"),
        *("upkeep", "restore_target_s", "stuck_after_s", "recovery_enabled", "definitions", "ivy_settings"),
    }
)
_PREFIX = "HOLDFAST_"


class Secret(msgspec.Struct, frozen=True):
    """A recorded secret: its digest, which was computed with the secret key of the home folder."""

    digest: str


#: Environment variable -> recorded value. A secret is recorded as ``Secret``, or as None if there was no key.
Recorded = dict[str, str | Secret | None]


def recorded_of(environment: Mapping[str, str], key: bytes | None = None) -> Recorded:
    """The settings to record from a worker's environment; ``key`` is the key for digests of secrets, or None."""
    return {
        name: _digest(name, value, key) if name in _secrets() or masked(value) != value else value
        for name, value in sorted(environment.items())
        if _is_of_workers(name)
    }


def shown(recorded: Mapping[str, str | Secret | None]) -> dict[str, str | None]:
    """The recorded settings for printing: variable -> value, and None for secrets."""
    return {name: value if isinstance(value, str) else None for name, value in recorded.items()}


def as_recorded(environment: Mapping[str, str], recorded: Mapping[str, str | Secret | None]) -> dict[str, str]:
    """A copy of ``environment`` with the recorded values of all settings that workers read.

    Secrets keep the values of ``environment``, because their values are not recorded.
    """
    others = {name: value for name, value in environment.items() if not _is_of_workers(name)}
    secret = {
        name: value
        for name, value in environment.items()
        if name in _secrets() or not isinstance(recorded.get(name, ""), str)
    }
    return {**others, **secret, **{name: value for name, value in recorded.items() if isinstance(value, str)}}


def differences(recorded: Mapping[str, str | Secret | None], now: Mapping[str, str | Secret | None]) -> tuple[str, ...]:
    """One text for each setting that differs between ``recorded`` and ``now``. Secrets without digest are skipped."""
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
