"""``holdfast orphans``: what no registered store owns any more; listed, archived, deleted by plan, put back.

holdfast orphans                      list them, and what becomes of each
holdfast orphans plan                 what an apply would do; exit code 0 nothing to do, 2 changes pending
holdfast orphans apply --confirm H    does it, if it is still the plan of that hash
holdfast orphans put-back TOPIC       makes a topic again from its archive
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.assets.orphan_cleaning import open_cleaning
from holdfast.infra.kafka.client import bootstrap_servers, client_config
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.commands.verbs import CHANGES_PENDING, NOTHING_TO_DO
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.orphans.cleaning import OrphanCleaning, Survey, as_document
from holdfast.processors.lifecycle.orphans.plan import explain
from holdfast.processors.lifecycle.orphans.put_back import put_back as put_topic_back

Json = Annotated[bool, typer.Option("--json", help="As one JSON document.")]
Only = Annotated[
    list[str] | None, typer.Option("--only", help="Only these: KIND, NAME or KIND/NAME; may be given several times.")
]
Who = Annotated[str | None, typer.Option(help="Who does it, for the record; this user when not given.")]


def add_orphans(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    commands = typer.Typer(help="List what no registered store owns; archive it, and delete it later, by plan.")
    commands.callback(invoke_without_command=True)(orphans)
    commands.command("plan")(plan)
    commands.command("apply")(apply)
    commands.command("put-back")(put_back)
    app.add_typer(commands, name="orphans")


def orphans(context: typer.Context, as_json: Json = False) -> None:
    """List topics, groups, local state, checkpoints and tables that no registered store owns."""
    if context.invoked_subcommand is not None:
        return
    settings = load_settings()
    with _opened(settings, None) as cleaning:
        survey = cleaning.survey()
    grace = timedelta(days=settings.orphan_grace_days)
    if as_json:
        found = [as_document(each, grace) for each in survey.listed]
        typer.echo(json.dumps({"orphans": found, "unseen": survey.unseen}, indent=2))
        return
    _print(survey, grace)


def plan(only: Only = None, as_json: Json = False) -> None:
    """What would be archived and deleted now; exit code 0 for nothing, 2 for something."""
    with _opened(load_settings(), None) as cleaning:
        found = cleaning.plan(only or ())
    if as_json:
        document = {"hash": found.hash, "destructive": found.destructive, **msgspec.to_builtins(found)}
        typer.echo(json.dumps(document, indent=2))
    else:
        chosen = "".join(f" --only {each}" for each in only or ())
        how = f"Plan {found.hash}. To do it: holdfast orphans apply{chosen} --confirm {found.hash}"
        typer.echo(explain(found, how if found.steps else ""))
    raise typer.Exit(CHANGES_PENDING if found.steps else NOTHING_TO_DO)


def apply(
    confirm: Annotated[str, typer.Option(help="The hash that the plan showed.")] = "",
    only: Only = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Archive and delete what the plan of that hash has; asked for again, go on with what was broken off."""
    console = Console(stderr=as_json)
    with _opened(load_settings(), who) as cleaning, console.status("…") as line:
        done = cleaning.apply(confirm, only or (), lambda text: line.update(escape(text)))
    if as_json:
        typer.echo(json.dumps({"plan": confirm, "steps": done}, indent=2))
    else:
        console.print("\n".join(map(escape, done)) or "There is nothing left to do.", highlight=False, soft_wrap=True)


def put_back(topic: Annotated[str, typer.Argument(help="The name of a topic that was deleted.")]) -> None:
    """Make a topic again from its archive: partitions, configuration and records. Refused where it exists."""
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    topics = Topics(bootstrap_servers(settings), client_config(settings))
    typer.echo(put_topic_back(Archive(settings.archive_folder), topics, topic))


def _print(survey: Survey, grace: timedelta) -> None:
    console = Console()
    table = Table("kind", "name", "processor", "bytes", "why", "archive")
    for each in survey.listed:
        row = as_document(each, grace)
        size = "" if row["size_bytes"] is None else f"{row['size_bytes']:,}"
        cells = (row["kind"], row["name"], row["processor"], size, row["why"], row["state"])
        table.add_row(*map(escape, cells))
    console.print(table if survey.listed else "Everything has an owner.")
    for copy in survey.broken_off:
        console.print(f"The deletion of {copy.manifest.kind} {escape(copy.manifest.name)} was broken off.")
    for sentence in survey.unseen:
        console.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)


@contextmanager
def _opened(settings: Settings, who: str | None) -> Iterator[OrphanCleaning]:
    configure_logging("WARNING", settings.log_format)
    registry = open_registry(settings)
    try:
        topics = Topics(bootstrap_servers(settings), client_config(settings))
        yield open_cleaning(settings, registry, topics, who or f"{getpass.getuser()} (pid {os.getpid()})")
    finally:
        registry.close()
