"""``holdfast registry backup`` copies Holdfast's registry to a file; ``holdfast registry restore`` puts a copy back.

Holdfast's registry is its database of deployments, incidents and applies (executions of plans).
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.infra.home import claim_home
from holdfast.orchestration.commands.options import Json, command_settings, print_json

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings


def backup(
    copy: Annotated[Path, typer.Argument(help="The new file.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Copy the registry to a file, while it is in use. For SQLite; Postgres has `pg_dump`.

    The registry has deployments, incidents and applies. State, topics and tables are not in it.
    """
    from holdfast.infra.database.copies import back_up

    back_up(command_settings().registry, copy)
    if as_json:
        print_json({"file": str(copy), "bytes": copy.stat().st_size})
        return
    typer.echo(f"{copy} is a copy of the registry. `holdfast registry restore {copy}` puts it back.")


def restore(
    copy: Annotated[Path, typer.Argument(help="A file of `holdfast registry backup FILE`.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do it without a question.")] = False,
    as_json: Json = False,
) -> None:
    """Replace the registry's content by a copy. Everything may run meanwhile.

    Deployments that are newer than the copy are red in `holdfast status`, with the command that records them again.
    """
    from holdfast.infra.database.copies import CopyRefused, put_back
    from holdfast.processors.lifecycle.ports import now_utc

    settings = command_settings()
    claim_home(settings)
    _refuse_beside_applies(settings)
    if not yes:
        if as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise CopyRefused(
                "The copy was not put back: there is no terminal to ask in. Nothing was changed.",
                action=f"Repeat the command with `--yes`: `holdfast registry restore {copy} --yes`.",
                file=str(copy),
            )
        if not typer.confirm(f"Replace the registry's content by {copy}?", default=False):
            typer.echo("Nothing was changed.")
            raise typer.Exit(EXIT_REFUSED)
    aside = put_back(
        settings.registry, copy, now_utc(), in_use=_in_use(settings), check=lambda: _refuse_beside_applies(settings)
    )
    if as_json:
        print_json({"file": str(copy), "damaged": None if aside is None else str(aside)})
        return
    typer.echo(f"The registry has the content of {copy}. `holdfast status` names the deployments that are newer.")
    if aside is not None:
        typer.echo(
            f"The damaged file is {aside}; delete it when it is no longer needed. `holdfast up` starts everything."
        )


def _refuse_beside_applies(settings: Settings) -> None:
    """Refuse to put a copy back while an apply (execution of a plan) is under way.

    The copy may lack the apply's record, which contains the lease (the right of one process to change a processor). The
    schema is not migrated, because a newer version of Holdfast may have migrated it.
    """
    from holdfast.infra.database.copies import CopyRefused
    from holdfast.infra.database.errors import RegistryUnavailable
    from holdfast.infra.database.registry import Registry
    from holdfast.processors.lifecycle.recovery.incidents import is_broken_off

    if settings.registry_url is None and not settings.paths.registry.exists():
        return
    try:
        with closing(Registry(settings.registry)) as registry:
            live = [each for each in registry.journal.applies(open_only=True) if not is_broken_off(each)]
    except RegistryUnavailable:  # A damaged registry can't be read; the copy must be allowed to replace it.
        return
    for each in live:
        raise CopyRefused(
            f"Apply {each.id} ({each.verb} of {each.processor}, started by {each.who}) is under way.",
            action="Wait for its end, or end its process; then repeat the command.",
            file=str(settings.paths.registry),
        )


def _in_use(settings: Settings) -> bool:
    """Whether a service of this installation runs. Such a service may have the file of Holdfast's registry open."""
    from holdfast.infra.deploy.deployer import open_deployer
    from holdfast.infra.deploy.program_files import SupervisorSilent
    from holdfast.orchestration.host import local

    try:
        supervised = open_deployer(settings.paths).running()
    except SupervisorSilent:
        supervised = True
    return supervised or any(local.running(settings, name) is not None for name in (local.DAEMON, local.WEBSERVER))
