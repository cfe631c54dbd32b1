"""Which settings a worker reads: they are a part of its deployment, so a restart of it has those of its deployment.

Invariants:
    - Each group and each setting is named in ``OF_WORKERS`` or in ``OF_OTHERS``; a test refuses one that is in neither.
    - A secret is recorded by reference, as a variable without a value: the program that starts a worker has the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel

from holdfast.infra.masking import masked
from holdfast.infra.settings import Settings

#: Groups and settings that decide how a worker runs.
OF_WORKERS = frozenset(
    {"kafka", "serving", "checkpoints", "standby_replicas", "memory_max_mb", "log_format", "log_level"}
)
#: The others: of Dagster, the warehouse, the registry and the daemon, or of the place where all of them are.
OF_OTHERS = frozenset(
    {
        *("home", "cache", "group_access", "project", "processors", "workers", "registry_url", "archive"),
        *("orphan_grace_days", "spark", "warehouse", "snapshots", "maintenance", "webhook", "webserver", "runs"),
        *("upkeep", "restore_target_s", "stuck_after_s", "recovery_enabled", "definitions", "ivy_settings"),
    }
)
_PREFIX = "HOLDFAST_"

#: Variable -> its value; None for a secret.
Recorded = dict[str, str | None]


def recorded_of(environment: Mapping[str, str]) -> Recorded:
    """What is recorded of the environment of a worker."""
    return {
        name: None if name in _secrets() or masked(value) != value else value
        for name, value in sorted(environment.items())
        if _is_of_workers(name)
    }


def as_recorded(environment: Mapping[str, str], recorded: Mapping[str, str | None]) -> dict[str, str]:
    """The environment with the recorded settings of workers, and with its own secrets."""
    others = {name: value for name, value in environment.items() if not _is_of_workers(name)}
    secret = {
        name: value for name, value in environment.items() if name in _secrets() or recorded.get(name, "") is None
    }
    return {**others, **secret, **{name: value for name, value in recorded.items() if value is not None}}


def differences(recorded: Mapping[str, str | None], now: Mapping[str, str | None]) -> tuple[str, ...]:
    """How the settings of now differ, a text for each variable; secrets are not compared."""
    found = []
    for name in sorted(recorded.keys() | now.keys()):
        before, after = recorded.get(name, "unset"), now.get(name, "unset")
        if before is not None and after is not None and before != after:
            found.append(f"{name} was {before}, now {after}")
    return tuple(found)


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
