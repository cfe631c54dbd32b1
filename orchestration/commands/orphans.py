"""``holdfast orphans``: topics, groups, folders, checkpoints and tables that no registered store owns.

holdfast orphans                      list them, with the state of their archives
holdfast orphans plan                 what an apply would do; exit code 0 nothing to do, 2 changes pending
holdfast orphans apply --confirm H    archive and delete, if the plan still has that hash
holdfast orphans put-back TOPIC       recreate a deleted topic from its archive
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
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
from holdfast.infra.settings import Settings
from holdfast.orchestration.commands.options import Json, Who, command_settings, print_json
from holdfast.orchestration.commands.verbs import CHANGES_PENDING, NOTHING_TO_DO
from holdfast.orchestration.verbs import this_user
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.orphans.cleaning import OrphanCleaning, Survey, as_document
from holdfast.processors.lifecycle.orphans.plan import explain
from holdfast.processors.lifecycle.orphans.put_back import put_back as put_topic_back

Only = Annotated[
    list[str] | None, typer.Option("--only", help="Only orphans that match KIND, NAME or KIND/NAME; repeatable.")
]


def add_orphans(app: typer.Typer) -> None:
    """Add ``orphans`` to the command line."""
    commands = typer.Typer(help="List resources without an owner; archive them, then delete them after a grace period.")
    commands.callback(invoke_without_command=True)(orphans)
    commands.command("plan")(plan)
    commands.command("apply")(apply)
    commands.command("put-back")(put_back)
    app.add_typer(commands, name="orphans")


def orphans(context: typer.Context, as_json: Json = False) -> None:
    """List topics, groups, local state, checkpoints and tables that no registered store owns."""
    if context.invoked_subcommand is not None:
        return
    settings = command_settings()
    with _opened(settings, None) as cleaning:
        survey = cleaning.survey()
    grace = timedelta(days=settings.orphan_grace_days)
    if as_json:
        found = [as_document(each, grace) for each in survey.listed]
        print_json({"orphans": found, "unseen": survey.unseen})
        return
    _print(survey, grace)


def plan(only: Only = None, as_json: Json = False) -> None:
    """Show what an apply would archive and delete. Exit codes: 0 nothing to do, 2 changes pending."""
    with _opened(command_settings(), None) as cleaning:
        found = cleaning.plan(only or ())
    if as_json:
        print_json({"hash": found.hash, "destructive": found.destructive, **msgspec.to_builtins(found)})
    else:
        chosen = "".join(f" --only {each}" for each in only or ())
        how = f"Plan {found.hash}. To apply it: `holdfast orphans apply{chosen} --confirm {found.hash}`"
        typer.echo(explain(found, how if found.steps else ""))
    raise typer.Exit(CHANGES_PENDING if found.steps else NOTHING_TO_DO)


def apply(
    confirm: Annotated[str, typer.Option(help="Hash of the plan, as in `holdfast orphans plan`.")] = "",
    only: Only = None,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Carry out the plan with that hash. Run it again to finish an apply that was broken off."""
    console = Console(stderr=as_json)
    with _opened(command_settings(), who) as cleaning, console.status("…") as line:
        done = cleaning.apply(confirm, only or (), lambda text: line.update(escape(text)))
    if as_json:
        print_json({"plan": confirm, "steps": done})
    else:
        console.print("\n".join(map(escape, done)) or "Nothing to do.", highlight=False, soft_wrap=True)


def put_back(topic: Annotated[str, typer.Argument(help="Name of the deleted topic.")]) -> None:
    """Recreate a deleted topic from its archive: partitions, configuration and records. The topic must not exist."""
    settings = command_settings()
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
    console.print(table if survey.listed else "No orphans: every resource has an owner.")
    for copy in survey.broken_off:
        name = f"{copy.manifest.kind} {escape(copy.manifest.name)}"
        console.print(f"The deletion of {name} was broken off; apply again to finish it.", soft_wrap=True)
    for sentence in survey.unseen:
        console.print(f"[yellow]{escape(sentence)}[/]", soft_wrap=True)


@contextmanager
def _opened(settings: Settings, who: str | None) -> Iterator[OrphanCleaning]:
    with closing(open_registry(settings)) as registry:
        topics = Topics(bootstrap_servers(settings), client_config(settings))
        yield open_cleaning(settings, registry, topics, who or this_user())
