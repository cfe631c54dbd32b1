"""The settings, with defaults and meanings; the only module that reads the environment.

Every setting is an environment variable ``HOLDFAST_<NAME>``; two underscores separate groups
(``HOLDFAST_KAFKA__BOOTSTRAP_SERVERS``). Other modules get values as arguments.
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

_log = structlog.get_logger("settings")

#: The folder of this checkout; holds the default home.
PROJECT = Path(__file__).resolve().parent.parent
#: The folder that contains the package ``holdfast``: this checkout, or the environment with the wheel.
IMPORT_ROOT = Path(__file__).absolute().parents[2]
PREFIX = "HOLDFAST_"
#: Value of ``HOLDFAST_SPARK__MASTER`` for the Spark that `holdfast spark start` keeps running.
WARM = "warm"
#: Prefixes of the test suite's variables, which are no settings.
_FOREIGN = ("HOLDFAST_TEST_", "HOLDFAST_KILL_")
#: The value of a setting whose name contains one of these is never shown.
_SECRET = (
    *("TOKEN", "PASSWORD", "SECRET", "JAAS", "SASL", "CLIENT_CONFIG", "REGISTRY_URL", "CATALOG_URL"),
    *("ACCESS_KEY", "CHECKPOINTS__OPTIONS", "WAREHOUSE__OPTIONS", "SPARK__CONF", "SPARK__MASTER", "WEBHOOK__URL"),
)


class SettingsInvalid(HoldfastError):
    """A setting has a value that can't be used."""

    exit_code = EXIT_BAD_CONFIGURATION


def _as_text(value: Any) -> Any:
    """A number or boolean of JSON in librdkafka's syntax."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


#: Settings of a library by name.
Properties = dict[str, Annotated[str, BeforeValidator(_as_text)]]


class _Group(BaseModel):
    """Settings with a common prefix. Secrets are plain strings, because settings become the environment of programs."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(_Group):
    """The Kafka cluster and the embedded broker."""

    bootstrap_servers: str | None = Field(
        default=None, description="Addresses of the Kafka cluster. Unset: the embedded broker is started and used."
    )
    client_config: Properties = Field(
        default_factory=dict, description="librdkafka settings for every client (security.protocol, sasl.*, ssl.*)."
    )
    embedded_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Port of the embedded broker. Unset: a free port."
    )
    embedded_heap_mb: int = Field(default=512, ge=128, le=8192, description="Maximum heap of the embedded broker, MiB.")


class SparkSettings(_Group):
    """Where and how Spark runs."""

    master: str = Field(
        default="local[*]",
        description="Where Spark runs: local[*] in the run itself, spark://host:port on a standalone cluster, "
        "sc://host:port on a Spark Connect server, warm on the Spark that `holdfast spark start` keeps running.",
    )
    driver_memory_mb: int = Field(default=1024, ge=512, description="Maximum heap of the driver JVM, MiB.")
    driver_host: str = Field(
        default="127.0.0.1",
        description="The driver's address for executors; executors on other machines need one that is not loopback.",
    )
    token: str | None = Field(default=None, repr=False, min_length=16, description="Token of the Spark Connect server.")
    # may hold passwords, such as those of object stores
    conf: Properties = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of Spark, such as spark.executor.memory; they win over Holdfast's.",
    )

    @property
    def over_connect(self) -> bool:
        """Whether a Spark Connect server runs Spark, so that this process starts no JVM."""
        return self.master == WARM or self.master.startswith("sc://")

    @field_validator("master")
    @classmethod
    def _known_master(cls, value: str) -> str:
        if value.startswith("sc://") and "token=" in value:
            raise ValueError(f"the URL is logged and must hold no token; set {PREFIX}SPARK__TOKEN instead")
        if value != WARM and not re.match(r"local(-cluster)?(\[[\w*, ]+\])?$|(spark|sc|k8s)://\S+$|yarn$", value):
            known = "local[*], spark://host:port, sc://host:port, warm, or another master URL of Spark"
            raise ValueError(f"expected {known}")
        return value


class WarehouseSettings(_Group):
    """The tables' files and their catalog, for Spark and for readers without a JVM."""

    url: str | None = Field(
        default=None,
        description="Place of the tables: a folder (relative to the home), or s3://bucket/prefix. Unset: a folder in "
        "the home.",
    )
    catalog_url: str | None = Field(
        default=None,
        repr=False,
        description="The Iceberg catalog: postgresql://host:port/database, or sqlite:///file. Unset: SQLite in the "
        "home.",
    )
    catalog_user: str | None = Field(default=None, description="User of a catalog on Postgres.")
    catalog_password: str | None = Field(default=None, repr=False, description="Password of that user.")
    s3_endpoint: str | None = Field(default=None, description="URL of an S3-compatible server. Unset: Amazon S3.")
    s3_region: str | None = Field(default=None, description="Region of the bucket. Unset: the AWS SDK finds it.")
    s3_access_key: str | None = Field(
        default=None, repr=False, description="Access key for the bucket. Unset: the AWS SDK finds it."
    )
    s3_secret_key: str | None = Field(default=None, repr=False, description="Secret of the access key.")
    options: Properties = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of the Iceberg catalog and its file access, such as s3.session-token.",
    )

    @property
    def on_s3(self) -> bool:
        """Whether the tables' files are in S3."""
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
            raise ValueError(f"set user and password in {PREFIX}WAREHOUSE__CATALOG_USER and __CATALOG_PASSWORD instead")
        if not re.match(r"postgresql://[^/@]+/[^/]+$|sqlite:///.+", value):
            raise ValueError("expected postgresql://host:port/database, or sqlite:///file")
        return value

    @model_validator(mode="after")
    def _whole(self) -> WarehouseSettings:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError(f"{PREFIX}WAREHOUSE__S3_ACCESS_KEY and __S3_SECRET_KEY must be set together")
        return self


class SnapshotSettings(_Group):
    """How often snapshots of stores are published."""

    every: Literal["hour", "day"] = Field(default="day", description="Time partitions of snapshots: hour or day.")
    since: date = Field(default=date(2026, 1, 1), description="First time partition.")
    full_every_hours: float = Field(
        default=168.0,
        gt=0,
        description="A snapshot is full once the last full one is older than this, hours; otherwise incremental.",
    )


class ServingSettings(_Group):
    """The HTTP server of each processor."""

    host: str = Field(default="127.0.0.1", description="Listening address of a processor's HTTP server.")
    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of that server. 0: any free port; several workers on one machine need 0.",
    )
    token: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^[!-~]{16,}$",
        description="Token of requests: 16 visible ASCII characters or more. Unset: a random token for each start.",
    )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @model_validator(mode="after")
    def _guarded(self) -> ServingSettings:
        if not self.on_loopback and self.token is None:
            raise ValueError(
                f"other machines can reach {self.host}, and no token is set; set {PREFIX}SERVING__TOKEN, or "
                f"unset {PREFIX}SERVING__HOST to listen on loopback"
            )
        return self


#: Memory of an empty worker, bytes: the interpreter, the libraries, their threads.
BASE_BYTES = 160 << 20
#: Smallest memory beside ``BASE_BYTES``, bytes: with less, buffers are smaller than single batches.
SHARED_BYTES_MIN = 64 << 20
#: Smallest memory bound of a worker, bytes (``HOLDFAST_MEMORY_MAX_MB``). ``processors.engine.memory_plan`` splits the
#: bound over RocksDB's buffers, caches and queues.
MEMORY_BYTES_MIN = BASE_BYTES + SHARED_BYTES_MIN


class MemoryTooSmall(SettingsInvalid):
    """The memory bound is below ``MEMORY_BYTES_MIN``."""


def check_memory_bound(total: object) -> None:
    """Raise MemoryTooSmall for a memory bound, in bytes, that is no integer or below ``MEMORY_BYTES_MIN``."""
    if isinstance(total, bool) or not isinstance(total, int) or total < MEMORY_BYTES_MIN:
        shown = f"{total:,}" if isinstance(total, int) else repr(total)
        raise MemoryTooSmall(
            f"The memory bound is {shown} bytes; a worker needs at least {MEMORY_BYTES_MIN:,} "
            f"({MEMORY_BYTES_MIN >> 20} MiB).",
            action=f"Set `HOLDFAST_MEMORY_MAX_MB` to {MEMORY_BYTES_MIN >> 20} or more, or `memory_max_bytes` to "
            f"{MEMORY_BYTES_MIN} or more.",
            seen=total,
            smallest=MEMORY_BYTES_MIN,
        )


class CheckpointSettings(_Group):
    """Where processors store checkpoints of their state, and how often."""

    enabled: bool = Field(default=True, description="Whether processors store checkpoints and restore from them.")
    url: str | None = Field(
        default=None,
        description="The checkpoint store: a folder (relative to the home), or s3://bucket/prefix. Unset: a folder in "
        "the home.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="Options of the store's fsspec driver, such as key and secret."
    )
    every_s: float = Field(default=600.0, gt=0, description="Interval between two checkpoints of a task, seconds.")
    stop_wait_s: float = Field(
        default=5.0, ge=0, description="How long a stopping worker waits for its last checkpoints, seconds."
    )


class MaintenanceSettings(_Group):
    """Retention and compaction of the warehouse's tables (docs/warehouse-reading.md)."""

    keep_snapshots: int = Field(default=30, ge=1, description="Number of newest snapshots that keep their tag.")
    keep_snapshots_days: float = Field(default=30.0, ge=0, description="Younger snapshots also keep their tag, days.")
    keep_times_days: float = Field(default=400.0, ge=0, description="Younger time partitions keep their tags, days.")
    keep_versions_hours: float = Field(
        default=72.0, ge=1, description="How long versions without a tag stay for running readers, hours."
    )
    compact_every: int = Field(default=8, ge=1, description="Commits to a table between two compactions.")
    leftovers_hours: float = Field(default=72.0, ge=24, description="Older files of failed runs are deleted, hours.")


class WebhookSettings(_Group):
    """Where incidents and failed runs are reported (docs/operations.md)."""

    url: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^https?://(\[[0-9A-Fa-f:]+\]|[\w.-]+)(:\d+)?([/?][!-~]*)?$",
        description="Webhook for incidents and failed runs. Unset: no messages.",
    )
    kind: Literal["generic", "slack"] = Field(
        default="generic", description="Format of messages: generic (one JSON document each) or slack."
    )
    dagster_url: str | None = Field(
        default=None,
        pattern=r"^https?://[!-~]+$",
        description="URL of Dagster's UI for readers of messages. Unset: the UI of this machine, while it runs.",
    )


class Settings(BaseSettings):
    """All settings; read once with ``load_settings``, and passed on as values."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", env_nested_delimiter="__", extra="ignore", frozen=True)

    home: Path = Field(default=PROJECT / ".holdfast", description="The home: the folder that Holdfast writes to.")
    cache: Path = Field(
        default=Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "holdfast",
        description="Folder of downloaded jars, shared by clones.",
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
        description="The processors to run: a JSON list of module:attribute, each an Application.",
    )
    standby_replicas: int = Field(
        default=0,
        ge=0,
        description="Standby replicas: how many other workers follow each task's changelogs for a quick takeover.",
    )
    registry_url: str | None = Field(
        default=None, description="SQLAlchemy URL of the registry. Unset: SQLite in the home."
    )
    memory_max_mb: int = Field(default=1024, gt=0, description="Memory bound of a worker, MiB, for all its buffers.")
    restore_target_s: float = Field(
        default=300.0,
        gt=0,
        description="A check warns when a full restore from the changelog would take longer, seconds.",
    )
    stuck_after_s: float = Field(
        default=30.0, gt=0, description="Silence of a processor's loop after which it counts as stuck, seconds."
    )
    archive: Path | None = Field(default=None, description="Archive of orphans. Unset: a folder in the home.")
    orphan_grace_days: float = Field(
        default=7.0, ge=0, description="Age of an orphan's archive before the orphan may be deleted, days."
    )
    recovery_enabled: bool = Field(default=True, description="Whether the recovery sensor starts switched on.")
    log_format: str = Field(default="text", pattern="^(text|json)$", description="Format of log lines: text or json.")
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Lowest logged level.")

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
        """URL of the checkpoint store, or the absolute path of its folder."""
        return self._storage(self.checkpoints.url, self.paths.checkpoint_store)

    @property
    def archive_folder(self) -> Path:
        """The archive of orphans; a relative setting is below the home folder."""
        return self.paths.archive if self.archive is None else self.home / self.archive.expanduser()

    @property
    def warehouse_store(self) -> str:
        """Place of the tables' files: ``s3://bucket/prefix``, or the absolute path of a folder."""
        return self._storage(self.warehouse.url, self.paths.warehouse / "data").rstrip("/")

    @property
    def catalog(self) -> str:
        """URL of the Iceberg catalog without user and password: ``postgresql://...``, or ``sqlite:///`` and a path."""
        url = self.warehouse.catalog_url or ""
        if url.startswith("sqlite:///"):
            return f"sqlite:///{self.home / Path(url.removeprefix('sqlite:///')).expanduser()}"
        return url or f"sqlite:///{self.paths.catalog}"

    def _storage(self, url: str | None, default: Path) -> str:
        """A URL unchanged, or the absolute path of a folder."""
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
    """The settings of the environment; logs a warning for each unknown ``HOLDFAST_`` variable, once.

    Raises:
        SettingsInvalid: A value can't be used; names the variable, the value and the rule.
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
        raise _invalid(invalid) from None  # the cause would show every value
    check_memory_bound(settings.memory_max_mb << 20)
    _warn_of_unknown(settings)
    return settings


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. Names other than ``localhost`` count as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Unknown names with the prefix of settings -> the most similar setting, or None."""
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
    """Each variable, and whether further variables below it may have free names, as keys of an object."""
    for name, field in model.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield variable, False
            yield from _variables(field.annotation, f"{variable}__")
        else:
            yield variable, field.default_factory is dict


def _nearest(variable: str) -> str | None:
    """The most similar setting, compared without the common prefix."""
    near = difflib.get_close_matches(variable.removeprefix(PREFIX), dict(_variables(Settings, "")), 1)
    return PREFIX + near[0] if near else None


_warned: set[str] = set()


def _warn_of_unknown(settings: Settings) -> None:
    for name, nearest in unknown_variables(os.environ).items():
        if name in _warned:
            continue
        _warned.add(name)
        if not structlog.is_configured():  # an unconfigured log writes to stdout, where programs read results
            configure_logging(settings.log_level, settings.log_format)
        _log.warning("unknown setting: it has no effect", variable=name, nearest=nearest, see="docs/settings.md")


def _invalid(invalid: ValidationError) -> SettingsInvalid:
    first = invalid.errors()[0]
    variable = PREFIX + "__".join(str(part) for part in first["loc"]).upper()
    if first["type"] == "extra_forbidden":
        nearest = _nearest(variable)
        return SettingsInvalid(
            f"There is no setting {variable}" + ("." if nearest is None else f"; the nearest is {nearest}."),
            action="Correct the name, or unset the variable; docs/settings.md lists all settings.",
            variable=variable,
        )
    given, rule = first.get("input"), first["msg"].removeprefix("Value error, ")
    hidden = isinstance(given, dict) or any(part in variable for part in _SECRET)
    value = "can't be used" if hidden else f"has the value {given!r}"
    of_several = isinstance(given, dict) and first["type"] == "value_error"
    return SettingsInvalid(
        f"Setting {variable} {value}: {rule}.",
        action="Change the settings that the rule names; docs/settings.md lists all settings."
        if of_several
        else f"Set `{variable}` to a value that fits, or unset it to take the default.",
        variable=variable,
    )
