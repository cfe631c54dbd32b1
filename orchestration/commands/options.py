"""Options, settings and output that several commands share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from holdfast.infra.log import configure_logging
from holdfast.infra.settings import Settings, load_settings

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Processor = Annotated[str, typer.Argument(help="Name of the processor.", show_default=False)]
Store = Annotated[list[str] | None, typer.Option("--store", help="Only this store; repeatable. Default: all stores.")]
Who = Annotated[str | None, typer.Option(help="Name to record for this change. Default: the current user.")]


def command_settings(log_level: str = "WARNING") -> Settings:
    """The settings of this process; log events below ``log_level`` are not printed."""
    settings = load_settings()
    configure_logging(log_level, settings.log_format)
    return settings


def print_json(document: Any) -> None:
    """Print one indented JSON document on stdout."""
    typer.echo(json.dumps(document, indent=2))
