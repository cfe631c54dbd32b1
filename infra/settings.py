"""The only reader of the environment: what the team can set, with its default and its meaning.

Every setting is an environment variable ``HOLDFAST_<NAME>``; nested groups use two underscores
(``HOLDFAST_KAFKA__BOOTSTRAP_SERVERS``). Components never read the environment themselves: they are given values.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from infra.paths import Paths

#: The folder of this checkout: the default home lies below it.
PROJECT = Path(__file__).resolve().parent.parent


class SettingsInvalid(HoldfastError):
    """A setting in the environment can't be used."""

    exit_code = EXIT_BAD_CONFIGURATION


class KafkaSettings(BaseModel):
    """Where Kafka is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap_servers: str | None = Field(
        default=None, description="The team's cluster. Unset: the embedded broker is started and used."
    )
    client_config: dict[str, str] = Field(
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
    processors: tuple[str, ...] = Field(
        default=("processors.definitions.fleet:application", "processors.definitions.routes:application"),
        description="The processors to run, each as module:attribute naming an Application (JSON list).",
    )
    registry_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the registry. Unset: SQLite below the home folder."
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
    def registry(self) -> str:
        """The registry's SQLAlchemy URL."""
        return self.registry_url or f"sqlite:///{self.paths.registry}"


def load_settings(**overrides: Any) -> Settings:
    """Read the environment.

    Raises:
        SettingsInvalid: A variable has a value that can't be used; names the variable, the value and the rule.
    """
    try:
        return Settings(**overrides)
    except SettingsError as unreadable:
        field = re.search(r'field "(\w+)"', str(unreadable))
        prefix = "HOLDFAST_" + (field[1].upper() if field is not None else "")
        seen = sorted(name for name in os.environ if name.upper().startswith(prefix)) or [prefix]
        raise SettingsInvalid(
            f"Setting {' or '.join(seen)} is not the JSON that it has to be.",
            action='Write lists as ["a", "b"] and objects as {"name": "value"}; see docs/settings.md.',
            variable=seen[0],
        ) from unreadable
    except ValidationError as invalid:
        first = invalid.errors()[0]
        variable = "HOLDFAST_" + "__".join(str(part) for part in first["loc"]).upper()
        raise SettingsInvalid(
            f"Setting {variable} has the value {first.get('input')!r}: {first['msg']}.",
            action=f"Set {variable} to a value that fits, or unset it to take the default.",
            variable=variable,
        ) from invalid
