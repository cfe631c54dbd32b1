"""Dagster's instance on one machine, named by ``instance_class`` in ``dagster.yaml``: its runs may share a process.

Dagster configures Python's logging at the start of each run, and closes the handlers of all others first. Another run
of the process may hold such a handler while it waits for the database. Who has the database may wait for logging, and
all stand still. The configuration is for handlers that ``dagster.yaml`` names. Without any, nothing is configured.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.instance.ref import InstanceRef
from dagster._serdes import ConfigurableClassData

from holdfast.orchestration.host.sqlite_storage import KeptSqliteStorage


class LocalInstance(dg.DagsterInstance):
    """An instance that keeps its databases open, and whose runs may share a process.

    A storage that ``dagster.yaml`` names is used instead of SQLite.
    """

    @classmethod
    def config_schema(cls) -> Mapping[str, Any]:
        """No fields of its own in ``dagster.yaml``."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Mapping[str, ConfigurableClassData | None]:
        """Dagster's, but for the storage."""
        config = yaml.dump({"base_dir": base_dir}, default_flow_style=False)
        storage = ConfigurableClassData(KeptSqliteStorage.__module__, KeptSqliteStorage.__name__, config)
        return {**InstanceRef.config_defaults(base_dir), "storage": storage}

    def get_yaml_python_handlers(self) -> Sequence[logging.Handler]:
        """The handlers of Python's logging that ``dagster.yaml`` names."""
        return super().get_yaml_python_handlers() if self.get_python_log_dagster_handler_config() else []


def open_quiet(home: Path) -> dg.DagsterInstance:
    """The instance of a home (DAGSTER_HOME); its runs in this process leave the output alone, which draws bars."""
    no_capture = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
    return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides={"compute_logs": no_capture}))
