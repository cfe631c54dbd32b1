"""``holdfast webserver``: Dagster's UI in the foreground, for example as a systemd service."""

from __future__ import annotations

import os

import typer

from holdfast.orchestration.commands.options import command_settings
from holdfast.orchestration.host import local


def webserver(context: typer.Context) -> None:
    """Serve Dagster's UI in the foreground, behind checks of host, origin and token; takes dagster-webserver's options.

    `holdfast up` starts the same webserver in the background. Other machines can use it only if
    `HOLDFAST_WEBSERVER__TOKENS` or `HOLDFAST_WEBSERVER__PROXIES` is set (docs/operations.md).
    """
    # imported late, because it loads all of Dagster
    from holdfast.orchestration.host.front.serving import webserver_command

    settings = command_settings("INFO")
    os.environ.setdefault("DAGSTER_HOME", str(local.prepare(settings)))
    webserver_command(settings).main(context.args, prog_name="holdfast webserver", standalone_mode=False)
