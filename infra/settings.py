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
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.log import configure_logging
from holdfast.infra.paths import Paths
from holdfast.infra.webhook import WebhookSettings

_log = structlog.get_logger("settings")

#: The folder of this checkout: the default home lies below it.
PROJECT = Path(__file__).resolve().parent.parent
#: The folder that `holdfast` is imported from: this checkout, or the environment that the wheel is installed in.
IMPORT_ROOT = Path(__file__).absolute().parents[2]
PREFIX = "HOLDFAST_"
#: The Spark that is kept running on this machine, as a master.
WARM = "warm"
#: Variables of the test suite, which are no settings.
_FOREIGN = ("HOLDFAST_TEST_", "HOLDFAST_KILL_")
#: What the names of settings have in them whose values are never shown.
_SECRET = (
    *("TOKEN", "PASSWORD", "SECRET", "JAAS", "SASL", "CLIENT_CONFIG", "REGISTRY_URL", "CATALOG_URL"),
    *("ACCESS_KEY", "CHECKPOINTS__OPTIONS", "WAREHOUSE__OPTIONS", "SPARK__CONF", "SPARK__MASTER", "WEBHOOK__URL"),
)


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

    master: str = Field(
        default="local[*]",
        description="Where Spark runs: local[*] in the run itself, spark://host:port a standalone cluster, "
        "sc://host:port a Spark Connect server, warm the one that `holdfast spark start` keeps on this machine.",
    )
    driver_memory_mb: int = Field(default=1024, ge=512, description="Heap bound of the driver JVM, MiB.")
    driver_host: str = Field(
        default="127.0.0.1", description="The address that executors reach the driver at; others than loopback need it."
    )
    # Not of a type that hides it: settings become the environment of programs again.
    token: str | None = Field(
        default=None, repr=False, min_length=16, description="The token that the Spark Connect server asks for."
    )
    # may hold passwords, of object stores for one
    conf: dict[str, Annotated[str, BeforeValidator(_as_text)]] = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of Spark, as spark.executor.memory or spark.archives; they win over ours.",
    )

    @property
    def over_connect(self) -> bool:
        """Whether a server elsewhere runs Spark, and no JVM is started here."""
        return self.master == WARM or self.master.startswith("sc://")

    @field_validator("master")
    @classmethod
    def _known_master(cls, value: str) -> str:
        if value.startswith("sc://") and "token=" in value:
            raise ValueError(f"a token does not belong into the URL, which is logged: set {PREFIX}SPARK__TOKEN")
        if value != WARM and not re.match(r"local(-cluster)?(\[[\w*, ]+\])?$|(spark|sc|k8s)://\S+$|yarn$", value):
            raise ValueError("expected local[*], spark://host:port, sc://host:port, warm, or another master of Spark's")
        return value


class WarehouseSettings(BaseModel):
    """Where the tables are, and the catalog that knows them; the same for Spark and for readers without a JVM."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = Field(
        default=None,
        description="The tables' files: a folder (relative to the home), or s3://bucket/prefix. Unset: a folder of the "
        "home.",
    )
    catalog_url: str | None = Field(
        default=None,
        repr=False,
        description="The Iceberg catalog: postgresql://host:port/database, or sqlite:///file. Unset: SQLite in the "
        "home.",
    )
    catalog_user: str | None = Field(default=None, description="The user of a catalog on Postgres.")
    # Not of types that hide them: settings become the environment of programs again.
    catalog_password: str | None = Field(default=None, repr=False, description="The password of that user.")
    s3_endpoint: str | None = Field(default=None, description="An S3-compatible server's URL. Unset: Amazon's.")
    s3_region: str | None = Field(default=None, description="The region of the bucket. Unset: as AWS's SDK finds it.")
    s3_access_key: str | None = Field(
        default=None, repr=False, description="Access key of the bucket. Unset: as AWS's SDK finds it."
    )
    s3_secret_key: str | None = Field(default=None, repr=False, description="Secret of that key.")
    options: dict[str, Annotated[str, BeforeValidator(_as_text)]] = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of the Iceberg catalog and its file access, as s3.session-token.",
    )

    @property
    def on_s3(self) -> bool:
        """Whether the tables' files are in an object store."""
        return (self.url or "").startswith("s3://")

    @field_validator("url")
    @classmethod
    def _known_storage(cls, value: str | None) -> str | None:
        named = re.match(r"([A-Za-z][A-Za-z0-9+]+):(/*)([^/]*)", value or "")
        if named and named[1] != "file" and not (named[1] == "s3" and named[2] == "//" and named[3]):
            raise ValueError("expected a folder, or s3://bucket/prefix")
        return value

    @field_validator("catalog_url")
    @classmethod
    def _known_catalog(cls, value: str | None) -> str | None:
        if not value:
            return value
        if re.match(r"postgresql://[^/@]*@", value):
            raise ValueError(f"user and password go into {PREFIX}WAREHOUSE__CATALOG_USER and __CATALOG_PASSWORD")
        if not re.match(r"postgresql://[^/@]+/[^/]+$|sqlite:///.+", value):
            raise ValueError("expected postgresql://host:port/database, or sqlite:///file")
        return value

    @model_validator(mode="after")
    def _whole(self) -> WarehouseSettings:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError(f"{PREFIX}WAREHOUSE__S3_ACCESS_KEY and __S3_SECRET_KEY are set together or not at all")
        return self


class SnapshotSettings(BaseModel):
    """How often stores are published to the warehouse."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every: Literal["hour", "day"] = Field(default="day", description="The time partitions of snapshots: hour or day.")
    since: date = Field(default=date(2026, 1, 1), description="The first time partition.")
    full_every_hours: float = Field(
        default=168.0, gt=0, description="A snapshot is full, not incremental, when the last full one is older."
    )


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


#: What a worker takes that holds nothing yet: the interpreter, the libraries, their threads.
BASE_BYTES = 160 << 20
#: Below so much beside it, buffers are smaller than single batches.
SHARED_BYTES_MIN = 64 << 20
MEMORY_BYTES_MIN = BASE_BYTES + SHARED_BYTES_MIN


class MemoryTooSmall(SettingsInvalid):
    """The memory bound leaves no room to work in."""


def check_memory_bound(total: object) -> None:
    """Refuse a bound, in bytes, that no worker can work in.

    Raises:
        MemoryTooSmall: It is; with the smallest that works.
    """
    if isinstance(total, bool) or not isinstance(total, int) or total < MEMORY_BYTES_MIN:
        shown = f"{total:,}" if isinstance(total, int) else repr(total)
        raise MemoryTooSmall(
            f"The memory bound is {shown} bytes; a worker needs at least {MEMORY_BYTES_MIN:,} "
            f"({MEMORY_BYTES_MIN >> 20} MiB).",
            action=f"Set HOLDFAST_MEMORY_MAX_MB to {MEMORY_BYTES_MIN >> 20} or more, or memory_max_bytes, in bytes, to "
            f"{MEMORY_BYTES_MIN} or more.",
            seen=total,
            smallest=MEMORY_BYTES_MIN,
        )


class CheckpointSettings(BaseModel):
    """Where processors keep checkpoints of their state, and how often they take them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="Whether checkpoints are stored, and used to restore from.")
    url: str | None = Field(
        default=None,
        description="The checkpoint store: a folder (relative to the home), or s3://bucket/prefix. Unset: a folder of "
        "the home.",
    )
    # Not of a type that hides it: settings become the environment of programs again.
    options: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="Options of the store's fsspec driver (key, secret, ...)."
    )
    every_s: float = Field(default=600.0, gt=0, description="Seconds from one checkpoint of a task to the next.")
    stop_wait_s: float = Field(
        default=5.0, ge=0, description="How many seconds a worker that stops waits for its last checkpoints."
    )


class MaintenanceSettings(BaseModel):
    """How the warehouse's tables are kept; see docs/warehouse-reading.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keep_snapshots: int = Field(default=30, ge=1, description="So many of a store's newest snapshots keep their tag.")
    keep_snapshots_days: float = Field(default=30.0, ge=0, description="Younger snapshots keep their tag, too, days.")
    keep_times_days: float = Field(default=400.0, ge=0, description="Tags of time partitions are kept so long, days.")
    keep_versions_hours: float = Field(
        default=72.0, ge=1, description="Versions without a tag are kept for readers that have begun, hours."
    )
    compact_every: int = Field(
        default=8, ge=1, description="Small files are made into large ones after so many commits to a table."
    )
    leftovers_hours: float = Field(
        default=72.0, ge=24, description="Files of runs that died are deleted when they are so old, hours."
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
        default=None, description="Ivy settings file that names the team's own mirror of jars. Unset: the public one."
    )
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    warehouse: WarehouseSettings = Field(default_factory=WarehouseSettings)
    snapshots: SnapshotSettings = Field(default_factory=SnapshotSettings)
    serving: ServingSettings = Field(default_factory=ServingSettings)
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings)
    maintenance: MaintenanceSettings = Field(default_factory=MaintenanceSettings)
    webhook: WebhookSettings = Field(default_factory=WebhookSettings)
    processors: tuple[str, ...] = Field(
        default=(
            "holdfast.processors.definitions.fleet:application",
            "holdfast.processors.definitions.routes:application",
        ),
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
    restore_target_s: float = Field(
        default=300.0, gt=0, description="A check warns when restoring a changelog from nothing would take longer, s."
    )
    stuck_after_s: float = Field(
        default=30.0, gt=0, description="A processor whose loop was silent for so many seconds counts as stuck."
    )
    archive: Path | None = Field(
        default=None, description="The folder that orphans are copied into. Unset: one of the home."
    )
    orphan_grace_days: float = Field(
        default=7.0, ge=0, description="So old is an orphan's archive before the orphan may be deleted, days."
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
        """The checkpoint store's URL; a folder's path is absolute, a relative one is below the home folder."""
        return self._storage(self.checkpoints.url, self.paths.checkpoint_store)

    @property
    def archive_folder(self) -> Path:
        """Where orphans are archived; a relative path is below the home folder."""
        return self.paths.archive if self.archive is None else self.home / self.archive.expanduser()

    @property
    def warehouse_store(self) -> str:
        """Where the tables' files are: ``s3://bucket/prefix``, or a folder's absolute path."""
        return self._storage(self.warehouse.url, self.paths.warehouse / "data").rstrip("/")

    @property
    def catalog(self) -> str:
        """The Iceberg catalog's URL, without user and password: ``postgresql://...``, or ``sqlite:///`` and a path."""
        url = self.warehouse.catalog_url or ""
        if url.startswith("sqlite:///"):
            return f"sqlite:///{self.home / Path(url.removeprefix('sqlite:///')).expanduser()}"
        return url or f"sqlite:///{self.paths.catalog}"

    def _storage(self, url: str | None, default: Path) -> str:
        """A URL as it is, a folder with its absolute path."""
        if url is None or url == "":
            return str(default)
        folder = url.removeprefix("file://")
        if "://" in folder or re.match(r"[A-Za-z][A-Za-z0-9+]+:", folder):
            return url
        return str(self.home / Path(folder).expanduser())

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
    check_memory_bound(settings.memory_max_mb << 20)
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
