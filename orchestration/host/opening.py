"""How Dagster is opened: its instance, workspace and log, as Dagster's own commands do it; and for runs of one process.

Dagster configures Python's logging at the start of each run, and closes the handlers of all others first. Another run
of the process may hold such a handler while it waits for the database. Who has the database may wait for logging, and
all stand still. The configuration is for handlers that ``dagster.yaml`` names. Without any, nothing is configured.

Invariants:
    - Loading this module imports Dagster alone: every process of an instance that names ``LocalInstance`` loads it.
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

#: What differs from ``dagster.yaml`` for runs that share a process with a terminal.
_QUIET = {
    "instance_class": {"module": __name__, "class": "LocalInstance"},
    "compute_logs": {"module": "dagster.core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"},
}
#: Options that ``dagster dev`` gives to the commands that it starts; nothing starts those of Holdfast like that.
_OF_DAGSTER_DEV = frozenset({"instance_ref", "shutdown_pipe"})


class LocalInstance(dg.DagsterInstance):
    """An instance whose runs may share a process; a ``dagster.yaml`` of a former version names it, too."""

    @classmethod
    def config_schema(cls) -> Mapping[str, Any]:
        """No fields of its own in ``dagster.yaml``."""
        return {}

    @classmethod
    def config_defaults(cls, base_dir: str) -> Mapping[str, Any]:
        """Dagster's own."""
        return InstanceRef.config_defaults(base_dir)

    def get_yaml_python_handlers(self) -> Sequence[logging.Handler]:
        """The handlers of Python's logging that ``dagster.yaml`` names."""
        return super().get_yaml_python_handlers() if self.get_python_log_dagster_handler_config() else []


def open_quiet(home: Path) -> dg.DagsterInstance:
    """The instance of a home (DAGSTER_HOME); its runs in this process leave the output alone, which draws bars."""
    config = yaml.safe_load((home / "dagster.yaml").read_text(encoding="utf-8")) or {}
    quiet = home / "quiet.yaml"
    replace_text(quiet, yaml.safe_dump(config | _QUIET))
    try:
        return dg.DagsterInstance.from_config(str(home), quiet.name)
    finally:
        quiet.unlink()


def options_of(command: click.Command) -> list[click.Parameter]:
    """The options of one of Dagster's commands that a person can give."""
    return [each for each in command.params if each.name not in _OF_DAGSTER_DEV]


def open_instance(command: str, *, temporary: bool) -> AbstractContextManager[dg.DagsterInstance]:
    """The instance of DAGSTER_HOME, with the variables of an ``.env`` in this folder, until the block ends.

    Args:
        command: Who opens it, for its messages.
        temporary: Without DAGSTER_HOME an instance that is deleted at the end, in place of an error.
    """
    logger = logging.getLogger("dagster")
    if not temporary:
        return get_instance_for_cli(logger=logger)
    return get_possibly_temporary_instance_for_cli(cli_command=command, logger=logger)


def code_locations(workspace: WorkspaceOpts) -> Any:
    """What Dagster loads code locations from, by the options of a command."""
    return workspace_opts_to_load_target(workspace)


def write_logs(formatter: str, level: str) -> None:
    """Write Dagster's log to the output: ``formatter`` is ``colored``, ``json`` or ``rich``."""
    configure_loggers(formatter=formatter, log_level=level.upper())
