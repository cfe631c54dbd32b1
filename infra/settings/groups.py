"""The groups of settings, one class for each prefix ``HOLDFAST_<GROUP>__``; and the minimum memory of a worker."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field, field_validator, model_validator

from holdfast.infra.masking import is_secret_name, secrets_of_url
from holdfast.infra.settings.names import PREFIX, SettingsInvalid
from holdfast.infra.settings.secret_fields import Group, Properties
from holdfast.infra.settings.serving import is_loopback

#: Memory that a worker uses without data, bytes: interpreter, libraries and threads.
BASE_BYTES = 160 << 20
#: Minimum memory in addition to ``BASE_BYTES``, bytes; with less memory, a buffer can't hold a single batch.
SHARED_BYTES_MIN = 64 << 20
#: Minimum value of a worker's memory limit (``HOLDFAST_MEMORY_MAX_MB``), in bytes. The module
#: ``processors.engine.memory_plan`` divides the limit among RocksDB's buffers, caches and queues.
MEMORY_BYTES_MIN = BASE_BYTES + SHARED_BYTES_MIN
#: Matches the name of an S3 bucket, but not a URL that contains a user or a query.
_BUCKET = r"[A-Za-z0-9._-]+"
#: Value of ``HOLDFAST_SPARK__MASTER`` that selects the Spark process started by `holdfast spark start`.
WARM = "warm"
#: Name of the Spark property that switches the authentication of Spark's internal connections on or off.
AUTHENTICATE = "spark.authenticate"
#: Name of the Spark property with the secret of Spark's internal connections.
AUTHENTICATE_SECRET = f"{AUTHENTICATE}.secret"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_PERSON = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
_TOKEN = re.compile(r"[!-~]{16,}")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class KafkaSettings(Group):
    """The settings of the Kafka cluster, of all Kafka clients, and of the embedded broker."""

    bootstrap_servers: str | None = Field(
        default=None, description="Addresses of the Kafka cluster. Unset: the embedded broker is started and used."
    )
    client_config: Properties = Field(
        default_factory=dict,
        repr=False,
        description="librdkafka settings for every client (security.protocol, sasl.*, ssl.*).",
    )
    embedded_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Port of the embedded broker. Unset: a free port."
    )
    embedded_heap_mb: int = Field(default=512, ge=128, le=8192, description="Maximum heap of the embedded broker, MiB.")


class CheckpointSettings(Group):
    """The settings of checkpoints of processors' state: the store, and the interval between two checkpoints."""

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


class MemoryTooSmall(SettingsInvalid):
    """The memory limit of a worker is below ``MEMORY_BYTES_MIN``."""


def check_memory_bound(total: object) -> None:
    """Raise MemoryTooSmall if a memory limit (bytes) is no integer, or is below ``MEMORY_BYTES_MIN``."""
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


class SnapshotSettings(Group):
    """The settings of snapshots of stores, for example the interval at which they are published to the warehouse."""

    every: Literal["hour", "day"] = Field(default="day", description="Time partitions of snapshots: hour or day.")
    since: date | None = Field(
        default=None,
        description="First time partition. Without it, partitions begin when the first processor was deployed.",
    )
    automatic: bool = Field(
        default=True,
        description="Whether the schedule of snapshots and the sensor `kept_green` start switched on.",
    )
    full_every_hours: float = Field(
        default=168.0,
        gt=0,
        description="A snapshot is full once the last full one is older than this, hours; otherwise incremental.",
    )


class WarehouseSettings(Group):
    """The settings of the warehouse: the place of tables and catalog, for Spark and for readers without a JVM."""

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
    s3_endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?\s]+$",
        description="URL of an S3-compatible server, without user and query. Unset: Amazon S3.",
    )
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
        """Whether the files of the warehouse's tables are in S3."""
        return (self.url or "").startswith("s3://")

    @field_validator("url")
    @classmethod
    def _known_storage(cls, value: str | None) -> str | None:
        named = re.match(r"([A-Za-z][A-Za-z0-9+]+):(/*)([^/]*)", value or "")
        if (
            named
            and named[1] != "file"
            and not (named[1] == "s3" and named[2] == "//" and re.fullmatch(_BUCKET, named[3]))
        ):
            raise ValueError("expected a folder, or s3://bucket/prefix")
        return value

    @field_validator("catalog_url")
    @classmethod
    def _known_catalog(cls, value: str | None) -> str | None:
        if not value:
            return value
        if re.match(r"postgresql://[^/@]*@", value):
            raise ValueError(f"set user and password in {PREFIX}WAREHOUSE__CATALOG_USER and __CATALOG_PASSWORD instead")
        if any(
            is_secret_name(name) or name in ("user", "sslpassword") for name, _ in parse_qsl(value.partition("?")[2])
        ):
            raise ValueError(
                f"the URL is shown; set user and password in {PREFIX}WAREHOUSE__CATALOG_USER and "
                f"__CATALOG_PASSWORD, and other secrets in {PREFIX}WAREHOUSE__OPTIONS"
            )
        if not re.match(r"postgresql://[^/@]+/[^/]+$|sqlite:///.+", value):
            raise ValueError("expected postgresql://host:port/database, or sqlite:///file")
        return value

    @model_validator(mode="after")
    def _whole(self) -> WarehouseSettings:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError(f"{PREFIX}WAREHOUSE__S3_ACCESS_KEY and __S3_SECRET_KEY must be set together")
        return self


class MaintenanceSettings(Group):
    """The settings for retention and compaction of the warehouse's tables (docs/warehouse-reading.md)."""

    keep_snapshots: int = Field(default=30, ge=1, description="Number of newest snapshots that keep their tag.")
    keep_snapshots_days: float = Field(default=30.0, ge=0, description="Younger snapshots also keep their tag, days.")
    keep_times_days: float = Field(default=400.0, ge=0, description="Younger time partitions keep their tags, days.")
    keep_versions_hours: float = Field(
        default=72.0, ge=1, description="How long versions without a tag stay for running readers, hours."
    )
    compact_every: int = Field(default=8, ge=1, description="Commits to a table between two compactions.")
    leftovers_hours: float = Field(default=72.0, ge=24, description="Older files of failed runs are deleted, hours.")


class SparkSettings(Group):
    """The settings of Spark: the place where Spark runs, its memory and its secrets."""

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
    secret: str | None = Field(
        default=None,
        repr=False,
        min_length=16,
        description=f"Secret of a standalone cluster, its {AUTHENTICATE_SECRET}.",
    )
    # `repr` does not show this field, because the value may contain passwords, for example of object stores.
    conf: Properties = Field(
        default_factory=dict,
        repr=False,
        description="Further properties of Spark, such as spark.executor.memory; they win over Holdfast's.",
    )

    @property
    def over_connect(self) -> bool:
        """Whether queries run on a Spark Connect server, so that this process starts no JVM."""
        return self.master == WARM or self.master.startswith("sc://")

    @property
    def authenticates(self) -> bool:
        """Whether Spark's internal connections need a secret: always, except with ``spark.authenticate=false``."""
        return self.conf.get(AUTHENTICATE, "true").lower() != "false"

    @model_validator(mode="after")
    def _guarded(self) -> SparkSettings:
        known = self.secret is not None or AUTHENTICATE_SECRET in self.conf
        if self.master.startswith("spark://") and self.authenticates and not known:
            raise ValueError(
                f"a driver of {self.master} without a secret would obey every program that reaches its port; set "
                f"{PREFIX}SPARK__SECRET to the {AUTHENTICATE_SECRET} of the cluster, or switch it off with "
                f'{{"{AUTHENTICATE}": "false"}} in {PREFIX}SPARK__CONF'
            )
        return self

    @field_validator("master")
    @classmethod
    def _known_master(cls, value: str) -> str:
        if value.startswith("sc://") and "token=" in value:
            raise ValueError(f"the URL is logged and must hold no token; set {PREFIX}SPARK__TOKEN instead")
        if value != WARM and not re.match(r"local(-cluster)?(\[[\w*, ]+\])?$|(spark|sc|k8s)://\S+$|yarn$", value):
            known = "local[*], spark://host:port, sc://host:port, warm, or another master URL of Spark"
            raise ValueError(f"expected {known}")
        return value


class RunSettings(Group):
    """The maximum runtimes of Dagster's runs (docs/operations.md). Each kind of run has a field ``<kind>_max_s``."""

    snapshot_max_s: float = Field(
        default=14400.0, gt=0, description="Longest run that checkpoints stores or publishes snapshots, seconds."
    )
    verb_max_s: float = Field(
        default=21600.0, gt=0, description="Longest run that provisions, deploys or applies another verb, seconds."
    )
    recovery_max_s: float = Field(default=900.0, gt=0, description="Longest recovery of one incident, seconds.")
    audit_max_s: float = Field(default=7200.0, gt=0, description="Longest run that only checks assets, seconds.")
    rehearsal_max_s: float = Field(default=7200.0, gt=0, description="Longest rehearsal of a restore, seconds.")
    maintenance_max_s: float = Field(
        default=14400.0, gt=0, description="Longest run that maintains warehouse tables, seconds."
    )
    upkeep_max_s: float = Field(default=1800.0, gt=0, description="Longest run that prunes old records, seconds.")
    other_max_s: float = Field(default=21600.0, gt=0, description="Longest run of any other job, seconds.")


class UpkeepSettings(Group):
    """The settings for retention of the data that the job ``upkeep`` deletes (docs/operations.md)."""

    observations_days: float = Field(
        default=7.0, ge=1, description="Age at which Dagster's events without a run are deleted, days."
    )
    runs_days: float = Field(
        default=30.0, ge=2, description="Age at which successful runs, their events and their output are deleted, days."
    )
    failed_runs_days: float = Field(
        default=90.0, ge=2, description="Age at which failed and canceled runs are deleted, days."
    )
    asset_runs_days: float = Field(
        default=400.0, ge=2, description="Age at which successful runs that materialised assets are deleted, days."
    )
    registry_days: float = Field(
        default=400.0, ge=30, description="Age at which ended applies, incidents and actions are deleted, days."
    )
    releases: int = Field(default=5, ge=1, description="Number of releases kept for each processor.")
    archive_days: float | None = Field(
        default=None, ge=1, description="Age of copies of deleted orphans that are deleted, days. Unset: none is."
    )
    exports_days: float | None = Field(
        default=None, ge=1, description="Age of exports of cleared keys that are deleted, days. Unset: none is."
    )
    log_max_mb: int = Field(
        default=64, ge=1, description="Size at which a log of Dagster, Spark or the broker is rotated, MiB."
    )
    room_min_percent: float = Field(
        default=10.0, ge=0, le=100, description="Free part of a disk below which the check `has_room` fails, percent."
    )


class OrphanSettings(BaseModel):
    """Settings about orphans (resources without an owner).

    ``Settings`` inherits this class, because these variables have no common prefix.
    """

    archive: Path | None = Field(default=None, description="Archive of orphans. Unset: a folder in the home.")
    orphan_grace_days: float = Field(
        default=7.0, ge=0, description="Age of an orphan's archive before the orphan may be deleted, days."
    )


class WebhookSettings(Group):
    """The settings of the webhook that gets messages about incidents and failed runs (docs/operations.md)."""

    url: str | None = Field(
        default=None,
        repr=False,
        pattern=r"^https?://(\[[0-9A-Fa-f:]+\]|[\w.-]+)(:\d+)?([/?][!-~]*)?$",
        description="Webhook for incidents and failed runs. Unset: no messages.",
    )
    kind: Literal["generic", "slack"] = Field(
        default="generic", description="Format of messages: generic (one JSON document each) or slack."
    )
    repeat_hours: float = Field(
        default=24.0, gt=0, description="Hours after which a state that needs a person is posted again while it lasts."
    )
    dagster_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?\s]+$",
        description="URL of Dagster's UI for readers of messages. Unset: the UI of this machine, while it runs.",
    )

    def secrets(self) -> Iterator[str]:
        """The secrets in the webhook's URL: the URL, and parts of its path and query, which may be tokens."""
        return secrets_of_url(self.url or "", whole=True)


class WebserverSettings(Group):
    """The settings of ``holdfast webserver``, Dagster's webserver: address, allowed names, tokens and proxies."""

    host: str = Field(default="127.0.0.1", description="Listening address of Dagster's UI.")
    path_prefix: str = Field(
        default="",
        description="Path below which the UI and the docs are served, as /dagster; links to the docs use it.",
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Further names under which browsers reach the UI: a JSON list of name or name:port.",
    )
    tokens: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Who may use the UI: a JSON object of person or program -> token of 16 visible ASCII characters.",
    )
    proxies: tuple[str, ...] = Field(
        default=(),
        description="Addresses or networks of proxies that sign people in: a JSON list, as 10.0.0.7 or 10.0.0.0/28.",
    )
    identity_header: str = Field(
        default="X-Forwarded-User", description="Header in which these proxies name the person of a request."
    )

    @property
    def asks(self) -> bool:
        """Whether each request must be authenticated: by a token, or by a proxy that names the user."""
        return bool(self.tokens or self.proxies)

    @field_validator("path_prefix")
    @classmethod
    def _path(cls, value: str) -> str:
        if not _PATH.fullmatch(value):
            raise ValueError(f"{value!r} is no path with a slash in front and none behind, as /dagster")
        return value

    @field_validator("hosts")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(each.lower() for each in value)
        for each in lowered:
            if not _HOST.fullmatch(each):
                raise ValueError(f"{each!r} is no name or name:port, as dagster.example.com")
        return lowered

    @field_validator("tokens")
    @classmethod
    def _usable(cls, value: dict[str, str]) -> dict[str, str]:
        for person, token in value.items():
            if not _PERSON.fullmatch(person):
                raise ValueError("a name of a person has a character other than letters, digits and ._@+-")
            if not _TOKEN.fullmatch(token):
                raise ValueError(f"the token of {person} is not 16 visible ASCII characters or more")
        if len(set(value.values())) < len(value):
            raise ValueError("two persons have the same token")
        return value

    @field_validator("proxies")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                ipaddress.ip_network(each)
            except ValueError as wrong:
                raise ValueError(f"{each!r} is no address or network: {wrong}") from wrong
        return value

    @field_validator("identity_header")
    @classmethod
    def _header(cls, value: str) -> str:
        if not _HEADER.fullmatch(value):
            raise ValueError("a header's name has letters, digits and dashes")
        return value

    @model_validator(mode="after")
    def _guarded(self) -> WebserverSettings:
        if not is_loopback(self.host) and not self.asks:
            raise ValueError(
                f"other machines can reach {self.host}, and nobody is asked who they are; set "
                f"{PREFIX}WEBSERVER__TOKENS or {PREFIX}WEBSERVER__PROXIES, or unset {PREFIX}WEBSERVER__HOST to listen "
                "on loopback"
            )
        return self
