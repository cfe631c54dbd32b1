"""The settings with their defaults and meanings. Only this package reads environment variables and the project file.

Every setting is an environment variable ``HOLDFAST_<NAME>``. Two underscores follow the name of a group, as in
``HOLDFAST_KAFKA__BOOTSTRAP_SERVERS``; ``groups`` has a class for each group. The project file (``project_file``) uses
the same names; variables override the project file. ``settings`` defines the order of the sources. Other modules get
the values of settings as arguments.
"""

from holdfast.infra.installation import IMPORT_ROOT
from holdfast.infra.settings.groups import (
    BASE_BYTES,
    MEMORY_BYTES_MIN,
    SHARED_BYTES_MIN,
    WARM,
    CheckpointSettings,
    KafkaSettings,
    MaintenanceSettings,
    MemoryTooSmall,
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
from holdfast.infra.settings.names import PREFIX, SettingsInvalid
from holdfast.infra.settings.schema_registry import SchemaRegistrySettings
from holdfast.infra.settings.secret_fields import Properties
from holdfast.infra.settings.serving import ServingSettings, is_loopback
from holdfast.infra.settings.settings import PROJECT, Settings, load_settings, unknown_variables

__all__ = [
    "BASE_BYTES",
    "IMPORT_ROOT",
    "MEMORY_BYTES_MIN",
    "PREFIX",
    "PROJECT",
    "SHARED_BYTES_MIN",
    "WARM",
    "CheckpointSettings",
    "KafkaSettings",
    "MaintenanceSettings",
    "MemoryTooSmall",
    "OrphanSettings",
    "Properties",
    "RunSettings",
    "SchemaRegistrySettings",
    "ServingSettings",
    "Settings",
    "SettingsInvalid",
    "SnapshotSettings",
    "SparkSettings",
    "UpkeepSettings",
    "WarehouseSettings",
    "WebhookSettings",
    "WebserverSettings",
    "check_memory_bound",
    "is_loopback",
    "load_settings",
    "unknown_variables",
]
