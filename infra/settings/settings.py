"""The class of all settings, and the priority of their sources: arguments, environment variables, project file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from holdfast.infra.installation import CHECKOUT
from holdfast.infra.log import configure_logging, get_logger, is_configured
from holdfast.infra.masking import masked, remember
from holdfast.infra.paths import Paths
from holdfast.infra.settings.groups import (
    CheckpointSettings,
    KafkaSettings,
    MaintenanceSettings,
    OrphanSettings,
    RunSettings,
    SnapshotSettings,
    SparkSettings,
    UpkeepSettings,
    WarehouseSettings,
    WebhookSettings,
    WebserverSettings,
    check_memory_bound,
)
from holdfast.infra.settings.names import PREFIX, SettingsInvalid, field_at, nearest_setting, settings_of
from holdfast.infra.settings.project_file import ProjectFile
from holdfast.infra.settings.project_source import ProjectSource, origin_of, project_of
from holdfast.infra.settings.schema_registry import FormatSettings
from holdfast.infra.settings.secret_fields import Concealing
from holdfast.infra.settings.serving import ServingSettings

_log = get_logger("settings")

#: The folder in which the default home folder lies: this checkout, or, with a wheel, the working directory.
PROJECT = CHECKOUT or Path.cwd()
#: Prefixes of the test suite's environment variables, which are no settings.
_FOREIGN = ("HOLDFAST_TEST_", "HOLDFAST_KILL_")
#: Environment variables of Dagster and of the AWS SDK with secrets. They are no settings, but must be masked, too.
_FOREIGN_SECRETS = ("DAGSTER_POSTGRES_PASSWORD", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class Settings(OrphanSettings, FormatSettings, Concealing, BaseSettings):
    """All settings. A process reads them with ``load_settings``, and passes the object to functions that need it."""

    model_config = SettingsConfigDict(env_prefix="HOLDFAST_", env_nested_delimiter="__", extra="ignore", frozen=True)

    project: Path | None = Field(
        default=None,
        description="The project's folder: its settings are read, its modules are imported. "
        "Unset: the nearest one upwards.",
    )
    home: Path = Field(default=PROJECT / ".holdfast", description="The home: the folder that Holdfast writes to.")
    cache: Path = Field(
        default=Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "holdfast",
        description="Folder of downloaded jars, shared by clones.",
    )
    ivy_settings: Path | None = Field(
        default=None, description="Ivy settings file that names the team's own mirror of jars. Unset: the public one."
    )
    group_access: bool = Field(
        default=False,
        description="Whether the group of the home folder may read and write it. False: only the user of the process.",
    )
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    spark: SparkSettings = Field(default_factory=SparkSettings)
    warehouse: WarehouseSettings = Field(default_factory=WarehouseSettings)
    snapshots: SnapshotSettings = Field(default_factory=SnapshotSettings)
    serving: ServingSettings = Field(default_factory=ServingSettings)
    checkpoints: CheckpointSettings = Field(default_factory=CheckpointSettings)
    maintenance: MaintenanceSettings = Field(default_factory=MaintenanceSettings)
    webhook: WebhookSettings = Field(default_factory=WebhookSettings)
    webserver: WebserverSettings = Field(default_factory=WebserverSettings)
    runs: RunSettings = Field(default_factory=RunSettings)
    upkeep: UpkeepSettings = Field(default_factory=UpkeepSettings)
    processors: tuple[str, ...] = Field(
        default=(
            "holdfast.processors.definitions.fleet:application",
            "holdfast.processors.definitions.routes:application",
            "holdfast.processors.definitions.rotations:application",
            "holdfast.processors.definitions.delays:application",
            "holdfast.processors.definitions.weather:application",
            "holdfast.processors.definitions.models:application",
            "holdfast.processors.definitions.carriers:application",
        ),
        description="The processors to run: a list of modules, or of module:attribute, each an Application.",
    )
    definitions: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$",
        description="The module with the project's own Dagster definitions. Unset: those of its processors alone.",
    )
    workers: dict[str, int] = Field(
        default_factory=dict,
        description='Number of workers of processors: a JSON object, as {"fleet": 4}. Others keep theirs, at first 1.',
    )
    standby_replicas: int = Field(
        default=0,
        ge=0,
        description="Standby replicas: how many other workers follow each task's changelogs for a quick takeover.",
    )
    registry_url: str | None = Field(
        default=None, repr=False, description="SQLAlchemy URL of the registry. Unset: SQLite in the home."
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
    recovery_enabled: bool = Field(default=True, description="Whether the recovery sensor starts switched on.")
    log_format: str = Field(default="text", pattern="^(text|json)$", description="Format of log lines: text or json.")
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Lowest logged level.")

    @classmethod
    def settings_customise_sources(  # pydantic calls this method with these names of parameters
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources of settings by priority: arguments override variables, variables override the project file."""
        given = getattr(init_settings, "init_kwargs", {})
        return init_settings, env_settings, ProjectSource(settings_cls, project_of(given))

    @field_validator("project", mode="before")
    @classmethod
    def _no_project(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("project", mode="after")
    @classmethod
    def _absolute_project(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("home", "cache", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @property
    def paths(self) -> Paths:
        """The paths of files and folders in the home folder."""
        return Paths(self.home)

    @property
    def workers_directory(self) -> Path:
        """The working directory of workers: the project's folder; otherwise the checkout, or the home's parent."""
        return self.project or CHECKOUT or self.home.parent

    @property
    def checkpoint_store(self) -> str:
        """The URL of the checkpoint store; if the store is a folder, its absolute path."""
        return self._storage(self.checkpoints.url, self.paths.checkpoint_store)

    @property
    def archive_folder(self) -> Path:
        """The folder with archived copies of orphans (resources without an owner).

        A relative path in the setting starts in the home folder.
        """
        return self.paths.archive if self.archive is None else self.home / self.archive.expanduser()

    @property
    def warehouse_store(self) -> str:
        """The place of the tables' files: ``s3://bucket/prefix``, or the absolute path of a folder."""
        return self._storage(self.warehouse.url, self.paths.warehouse / "data").rstrip("/")

    @property
    def catalog(self) -> str:
        """The URL of the Iceberg catalog, without user and password: ``postgresql://…`` or ``sqlite:///…``."""
        url = self.warehouse.catalog_url or ""
        if url.startswith("sqlite:///"):
            return f"sqlite:///{self.home / Path(url.removeprefix('sqlite:///')).expanduser()}"
        return url or f"sqlite:///{self.paths.catalog}"

    def _storage(self, url: str | None, default: Path) -> str:
        """Returns ``url`` unchanged if it is a URL; a folder (or ``default`` for None) becomes an absolute path."""
        if url is None or url == "":
            return str(default)
        folder = url.removeprefix("file://")
        if "://" in folder or re.match(r"[A-Za-z][A-Za-z0-9+]+:", folder):
            return url
        return str(self.home / Path(folder).expanduser())

    @property
    def registry(self) -> str:
        """The SQLAlchemy URL of the registry's database."""
        return self.registry_url or f"sqlite:///{self.paths.registry}"


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from environment and project file; ``overrides`` have priority.

    After the call, all secrets in the settings are masked in texts (``infra.masking``). Logs one warning for each
    unknown ``HOLDFAST_`` variable.

    Raises:
        SettingsInvalid: A value can't be used, or the project file has an unknown key. The error names the variable or
            the line, the value, and the rule.
    """
    project = project_of(overrides)
    if project is not None:
        _refuse_unknown_keys(project)
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
        # The cause is left out, because its text shows all values, also secrets.
        raise _invalid(invalid, project) from None
    remember(settings.secrets())
    remember(value for name in _FOREIGN_SECRETS if (value := os.environ.get(name)))
    check_memory_bound(settings.memory_max_mb << 20)
    _warn_of_unknown(settings)
    return settings


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Maps each name that begins with ``HOLDFAST_`` but is no setting to the most similar variable, or to None."""
    known = {each.variable: each.holds_keys for each in settings_of(Settings)}
    unknown: dict[str, str | None] = {}
    for name in sorted(names):
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in known or upper.startswith(_FOREIGN):
            continue
        if not any(holds_keys and upper.startswith(f"{group}__") for group, holds_keys in known.items()):
            unknown[name] = _nearest(upper)
    return unknown


def _nearest(variable: str) -> str | None:
    """The environment variable of the setting with the most similar name; None if no name is similar."""
    near = nearest_setting(Settings, variable)
    return None if near is None else near.variable


_warned: set[str] = set()


def _warn_of_unknown(settings: Settings) -> None:
    for name, nearest in unknown_variables(os.environ).items():
        if name in _warned:
            continue
        _warned.add(name)
        # An unconfigured structlog writes to stdout, where commands print their results.
        if not is_configured():
            configure_logging(settings.log_level, settings.log_format)
        _log.warning("unknown setting: it has no effect", variable=name, nearest=nearest, see="docs/settings.md")


def _refuse_unknown_keys(project: ProjectFile) -> None:
    """Raise SettingsInvalid if the project file has a key that is no setting; the error names the first such key."""
    known = {each.key: each for each in settings_of(Settings)}
    groups = {key[:1] for key in known if len(key) > 1}
    for name, value in project.table.items():
        if (name,) in groups:
            below = value if isinstance(value, dict) else {}
            unknown: tuple[str, ...] | None = next(((name, one) for one in below if (name, one) not in known), None)
        else:
            unknown = None if (name,) in known and name != "project" else (name,)
        if unknown is None:
            continue
        near = nearest_setting(Settings, ".".join(unknown))
        raise SettingsInvalid(
            f"{project.place(*unknown)}: there is no setting {'.'.join(unknown)}"
            + ("." if near is None else f"; the nearest is {near.name}."),
            action="Correct the key, or delete that line; docs/settings.md lists all settings.",
            key=".".join(unknown),
        )


def _invalid(invalid: ValidationError, project: ProjectFile | None) -> SettingsInvalid:
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
    hidden = isinstance(given, dict) or _is_secret(first["loc"])
    value = "can't be used" if hidden else f"has the value {masked(repr(given))}"
    of_several = isinstance(given, dict) and first["type"] == "value_error"
    origin = origin_of(tuple(str(part) for part in first["loc"]), project)
    name, set_it = f"Setting {variable}", f"Set `{variable}`"
    if origin.in_file and project is not None:
        key = ".".join(str(part) for part in first["loc"])
        name, set_it = f"{origin.place}: setting {key}", f"Set `{key}` in that line"
    return SettingsInvalid(
        f"{name} {value}: {rule}.",
        action="Change the settings that the rule names; docs/settings.md lists all settings."
        if of_several
        else f"{set_it} to a value that fits, or {'delete the line' if origin.in_file else 'unset it'} to take the "
        "default.",
        variable=variable,
    )


def _is_secret(place: tuple[int | str, ...]) -> bool:
    """Whether the setting at this key of the model is a secret, or is inside a secret setting."""
    return any(not field.repr for end in range(len(place)) if (field := field_at(Settings, place[: end + 1])))
