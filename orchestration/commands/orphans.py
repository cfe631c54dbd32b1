"""``holdfast orphans``: what no registered store owns any more. Looking only."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from infra.kafka.client import bootstrap_servers, client_config
from infra.kafka.topics import Topics
from infra.log import configure_logging
from infra.settings import load_settings
from orchestration.resources import open_registry
from processors.lifecycle.orphan_facts import orphans_of


def add_orphans(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(orphans)


def orphans(as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False) -> None:
    """List topics, groups, local state, checkpoints and tables that no registered store owns."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    registry = open_registry(settings)
    try:
        topics = Topics(bootstrap_servers(settings), client_config(settings))
        found, unseen = orphans_of(settings, registry, topics)
    finally:
        registry.close()
    if as_json:
        typer.echo(json.dumps({"orphans": [asdict(each) for each in found], "unseen": unseen}, indent=2))
        return
    console = Console()
    table = Table("kind", "name", "processor", "bytes", "why")
    for each in found:
        size = "" if each.size_bytes is None else f"{each.size_bytes:,}"
        table.add_row(each.kind, escape(each.name), escape(each.processor), size, escape(each.why))
    console.print(table if found else "Everything has an owner.")
    for sentence in unseen:
        console.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)
