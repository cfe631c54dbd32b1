"""The only reader of the environment: what the team can set, with its default and its meaning.

Every setting is an environment variable ``HOLDFAST_<NAME>``; nested groups use two underscores
(``HOLDFAST_KAFKA__BOOTSTRAP_SERVERS``). Components never read the environment themselves: they are given values.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from infra.log import configure_logging
from infra.paths import Paths

_log = structlog.get_logger("settings")

#: The folder of this checkout: the default home lies below it.
PROJECT = Path(__file__).resolve().parent.parent
PREFIX = "HOLDFAST_"
#: Variables of the test suite, which are no settings.
_FOREIGN = ("HOLDFAST_TEST_", "HOLDFAST_KILL_")
#: What the names of settings have in them whose values are never shown.
_SECRET = ("TOKEN", "PASSWORD", "SECRET", "JAAS", "SASL", "CLIENT_CONFIG", "REGISTRY_URL", "CHECKPOINTS__OPTIONS")


class SettingsInvalid(HoldfastError):
    """A setting in the environment can't be used."""

    exit_code = EXIT_BAD_CONFIGURATION


def _as_text(value: Any) -> Any:
    """Numbers and booleans of JSON as librdkafka writes them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class KafkaSettings(BaseModel):
    """Where Kafka is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap_servers: str | None = Field(
        default=None, description="The team's cluster. Unset: the embedded broker is started and used."
    )
    client_config: dict[str, Annotated[str, BeforeValidator(_as_text)]] = Field(
        default_factory=dict, description="librdkafka settings for every client (security.protocol, sasl.*, ssl.*)."
    )
    embedded_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Port of the embedded broker. Unset: a free one is chosen."
    )
    embedded_heap_mb: int = Field(default=512, ge=128, le=8192, description="Heap bound of the embedded broker, MiB.")


class SparkSettings(BaseModel):
    """How Spark runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    master: str = Field(default="local[*]", description="Spark master URL.")
    driver_memory_mb: int = Field(default=1024, ge=512, description="Heap bound of the driver JVM, MiB.")


class ServingSettings(BaseModel):
    """Where processors answer over HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="Address that a processor's status and control listen on.")
    port: int = Field(
        default=0, ge=0, le=65535, description="Port of it. 0: any free one, as several workers on one machine need."
    )
    # Not of a type that hides it: settings become the environment of programs again.
    token: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[!-~]{16,}$",
        description="Token that requests carry: 16 visible ASCII characters or more. Unset: drawn at each start.",
    )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @model_validator(mode="after")
    def _guarded(self) -> ServingSettings:
        if not self.on_loopback and self.token is None:
            raise ValueError(
                f"{self.host} can be reached from other machines, and no token is set: set {PREFIX}SERVING__TOKEN, or "
                f"unset {PREFIX}SERVING__HOST to listen on loopback"
            )
        return self


class CheckpointSettings(BaseModel):
    """Where processors keep checkpoints of their state, and how often they take them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="Whether checkpoints are stored, and used to restore from.")
    url: str | None = Field(
        default=None, description="The checkpoint store: a folder, or s3://bucket/prefix. Unset: a folder of the home."
    )
    # Not of a type that hides it: settings become the environment of programs again.
    options: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="Options of the store's fsspec driver (key, secret, ...)."
    )
    every_s: float = Field(default=600.0, gt=0, description="Seconds from one checkpoint of a task to the next.")
    stop_wait_s: float = Field(
        default=5.0, ge=0, description="How many seconds a worker that stops waits for its last checkpoints."
    )


class Settings(BaseSettings):
    """All settings, read once at the edge and passed down as values."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", env_nested_delimiter="__", extra="ignore", frozen=True)

    home: Path = Field(default=PROJECT / ".holdfast", description="The folder that holds all that Holdfast writes.")
    cache: Path = Field(
        default=Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "holdfast",
        description="The folder of downloaded jars, shared by clones.",
    )
    ivy_settings: Path | None = Field(
        default=None, description="Ivy settings file that names the team's own mirror of jars. Unset: Ivy's default."
    )
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    serving: ServingSettings = Field(default_factory=ServingSettings)
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings)
    processors: tuple[str, ...] = Field(
        default=("processors.definitions.fleet:application", "processors.definitions.routes:application"),
        description="The processors to run, each as module:attribute naming an Application (JSON list).",
    )
    standby_replicas: int = Field(
        default=0, ge=0, description="How many other processes follow each task's changelogs, ready to take it over."
    )
    registry_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the registry. Unset: SQLite below the home folder."
    )
    memory_max_mb: int = Field(
        default=1024, gt=0, description="Memory that one worker is to stay within, MiB; split over caches and buffers."
    )
    stuck_after_s: float = Field(
        default=30.0, gt=0, description="A processor whose loop was silent for so many seconds counts as stuck."
    )
    recovery_enabled: bool = Field(default=True, description="Whether the recovery sensor starts switched on.")
    log_format: str = Field(default="text", pattern="^(text|json)$", description="Log lines as text or as json.")
    log_level: str = Field(
        default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="The least level that is logged."
    )

    @field_validator("home", "cache", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @property
    def paths(self) -> Paths:
        """Names below the home folder."""
        return Paths(self.home)

    @property
    def checkpoint_store(self) -> str:
        """The checkpoint store's URL."""
        return self.checkpoints.url or str(self.paths.checkpoint_store)

    @property
    def registry(self) -> str:
        """The registry's SQLAlchemy URL."""
        return self.registry_url or f"sqlite:///{self.paths.registry}"


def load_settings(**overrides: Any) -> Settings:
    """Read the environment; a variable of ours that means nothing is warned of, once for each process.

    Raises:
        SettingsInvalid: A variable has a value that can't be used; names the variable, the value and the rule.
    """
    try:
        settings = Settings(**overrides)
    except SettingsError as unreadable:
        field = re.search(r'field "(\w+)"', str(unreadable))
        prefix = PREFIX + (field[1].upper() if field is not None else "")
        seen = sorted(name for name in os.environ if name.upper().startswith(prefix)) or [prefix]
        raise SettingsInvalid(
            f"Setting {' or '.join(seen)} is not the JSON that it has to be.",
            action='Write lists as ["a", "b"] and objects as {"name": "value"}; see docs/settings.md.',
            variable=seen[0],
        ) from unreadable
    except ValidationError as invalid:
        raise _invalid(invalid) from None  # the cause would show every value that was given
    _warn_of_unknown(settings)
    return settings


def is_loopback(host: str) -> bool:
    """Whether an address, or ``localhost``, is reached from this machine only; other names count as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Those names that look like settings and are none -> the nearest setting's name, None when none is near."""
    known = dict(_variables(Settings, PREFIX))
    unknown: dict[str, str | None] = {}
    for name in sorted(names):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known or upper.startswith(_FOREIGN):
            continue
        if not any(holds_keys and upper.startswith(f"{group}__") for group, holds_keys in known.items()):
            unknown[name] = _nearest(upper)
    return unknown


def _variables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, bool]]:
    """Each variable, and whether variables of free names may hang below it (as keys of an object)."""
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield variable, False
            yield from _variables(field.annotation, f"{variable}__")
        else:
            yield variable, field.default_factory is dict


def _nearest(variable: str) -> str | None:
    """The most similar setting's name, the prefix that they all have left out of it."""
    near = difflib.get_close_matches(variable.removeprefix(PREFIX), dict(_variables(Settings, "")), 1)
    return PREFIX + near[0] if near else None


_warned: set[str] = set()


def _warn_of_unknown(settings: Settings) -> None:
    for name, nearest in unknown_variables(os.environ).items():
        if name in _warned:
            continue
        _warned.add(name)
        if not structlog.is_configured():  # it would go to standard output, between what programs read there
            configure_logging(settings.log_level, settings.log_format)
        _log.warning("unknown setting: it has no effect", variable=name, nearest=nearest, see="docs/settings.md")


def _invalid(invalid: ValidationError) -> SettingsInvalid:
    first = invalid.errors()[0]
    variable = PREFIX + "__".join(str(part) for part in first["loc"]).upper()
    if first["type"] == "extra_forbidden":
        nearest = _nearest(variable)
        return SettingsInvalid(
            f"There is no setting {variable}" + ("." if nearest is None else f"; the nearest is {nearest}."),
            action="Correct the name, or unset it; docs/settings.md lists all settings.",
            variable=variable,
        )
    given, rule = first.get("input"), first["msg"].removeprefix("Value error, ")
    hidden = isinstance(given, dict) or any(part in variable for part in _SECRET)
    value = "can't be used" if hidden else f"has the value {given!r}"
    of_several = isinstance(given, dict) and first["type"] == "value_error"
    return SettingsInvalid(
        f"Setting {variable} {value}: {rule}.",
        action="Change what it names; docs/settings.md has all settings."
        if of_several
        else f"Set {variable} to a value that fits, or unset it to take the default.",
        variable=variable,
    )
