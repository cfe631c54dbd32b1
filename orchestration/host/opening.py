"""Opens Dagster's instance, workspace and log with the functions that Dagster's own commands use.

``LocalInstance`` allows several runs in one process. At the start of each run, Dagster normally configures Python's
logging and closes the log handlers of other runs. A run may hold the lock of a handler while it waits
for the database. If the run that holds the database then waits for this handler, both wait forever (deadlock). The
configuration is only needed for handlers that ``dagster.yaml`` names. Without such handlers, ``LocalInstance``
configures no logging.

Invariants:
    - This module imports no heavy library except Dagster, because every process that opens a ``LocalInstance`` imports
      it.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
import dagster as dg
import yaml
from dagster._cli.utils import get_instance_for_cli, get_possibly_temporary_instance_for_cli
from dagster._cli.workspace.cli_target import workspace_opts_to_load_target
from dagster._core.instance import InstanceRef
from dagster._utils.log import configure_loggers
from dagster_shared.cli import WorkspaceOpts

from holdfast.infra.system.files import replace_text

#: Entries that replace those of ``dagster.yaml`` if runs are executed in a process that shows progress bars on the
#: terminal.
_QUIET = {
    "instance_class": {"module": __name__, "class": "LocalInstance"},
    "compute_logs": {"module": "dagster.core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
}
#: Internal options that only ``dagster dev`` passes to its child commands. Holdfast's commands leave them out.
_OF_DAGSTER_DEV = frozenset({"instance_ref", "shutdown_pipe"})


class LocalInstance(dg.DagsterInstance):
    """A Dagster instance that allows several runs in one process.

    A ``dagster.yaml`` of an older version may also name this class.
    """

    @classmethod
    def config_schema(cls) -> Mapping[str, Any]:
        """The schema of this class's configuration in ``dagster.yaml``, which has no fields."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Mapping[str, Any]:
        """Dagster's default configuration, unchanged."""
        return InstanceRef.config_defaults(base_dir)

    def get_yaml_python_handlers(self) -> Sequence[logging.Handler]:
        """The handlers of Python's logging that ``dagster.yaml`` names; empty if it names none."""
        return super().get_yaml_python_handlers() if self.get_python_log_dagster_handler_config() else []


def open_quiet(home: Path) -> dg.DagsterInstance:
    """The Dagster instance of ``home`` (DAGSTER_HOME), for runs in this process that must not print.

    The output of runs is not captured, because the process draws progress bars on the terminal.
    """
    config = yaml.safe_load((home / "dagster.yaml").read_text(encoding="utf-8")) or {}
    quiet = home / "quiet.yaml"
    replace_text(quiet, yaml.safe_dump(config | _QUIET))
    try:
        return dg.DagsterInstance.from_config(str(home), quiet.name)
    finally:
        quiet.unlink()


def options_of(command: click.Command) -> list[click.Parameter]:
    """The options of one of Dagster's commands, without the internal options of ``dagster dev``."""
    return [each for each in command.params if each.name not in _OF_DAGSTER_DEV]


def open_instance(command: str, *, temporary: bool) -> AbstractContextManager[dg.DagsterInstance]:
    """Context manager with the instance of DAGSTER_HOME. Also sets the variables in an ``.env`` file of this folder.

    Args:
        command: The name of the command that opens the instance, for Dagster's messages.
        temporary: If DAGSTER_HOME is not set: True opens an instance that is deleted at the end; False
            raises an error.
    """
    logger = logging.getLogger("dagster")
    if not temporary:
        return get_instance_for_cli(logger=logger)
    return get_possibly_temporary_instance_for_cli(cli_command=command, logger=logger)


def code_locations(workspace: WorkspaceOpts) -> Any:
    """Dagster's description (load target) of the code locations that the options of a command select."""
    return workspace_opts_to_load_target(workspace)


def write_logs(formatter: str, level: str) -> None:
    """Configure Dagster's logging, which writes to stdout; ``formatter`` is ``colored``, ``json`` or ``rich``."""
    configure_loggers(formatter=formatter, log_level=level.upper())
