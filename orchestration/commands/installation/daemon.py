"""``holdfast daemon``: Dagster's daemon in the foreground, for example as a systemd service."""

from __future__ import annotations

import os

import typer

from holdfast.orchestration.commands.options import command_settings
from holdfast.orchestration.host import local


def daemon(context: typer.Context) -> None:
    """Run Dagster's daemon in the foreground: schedules, sensors and runs; takes the options of dagster-daemon run.

    `holdfast up` starts the same daemon in the background. The daemon keeps its code server until the project's code
    changes. `dagster-daemon run` starts a new code server each minute, which always uses a tenth of a core.
    """
    # imported late, because it loads all of Dagster
    from holdfast.orchestration.host.daemon.serving import daemon_command

    settings = command_settings("INFO")
    os.environ.setdefault("DAGSTER_HOME", str(local.prepare(settings)))
    daemon_command(settings).main(context.args, prog_name="holdfast daemon", standalone_mode=False)
