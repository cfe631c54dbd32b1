"""``holdfast deploy | rollback | restart | scale | restore | stop | erase NAME``: show a plan, ask, and apply it.

The plan and its stages are the same as with ``holdfast apply``; only the question to the user is added here.

Invariants:
    - Exactly the shown plan is applied, because its hash is passed as the confirmed hash.
    - Without a terminal for the question, and without ``--yes``, nothing is changed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.orchestration.commands.changes import requests
from holdfast.orchestration.commands.changes.verbs import (
    after_recovery,
    carry_out,
    joined_command,
    opened_verbs,
    print_short,
    resuming,
)
from holdfast.orchestration.commands.options import Json, Who
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Request


def make_deploy() -> Callable[..., None]:
    """Create the command ``holdfast deploy``."""
    return joined_command(requests.deploy, carry_out_asked)


def make_rollback() -> Callable[..., None]:
    """Create the command ``holdfast rollback``."""
    return joined_command(requests.rollback, carry_out_asked)


def make_restart() -> Callable[..., None]:
    """Create the command ``holdfast restart``."""
    return joined_command(requests.restart, carry_out_asked)


def make_scale() -> Callable[..., None]:
    """Create the command ``holdfast scale``."""
    return joined_command(requests.scale, carry_out_asked)


def make_restore() -> Callable[..., None]:
    """Create the command ``holdfast restore``."""
    return joined_command(requests.restore, carry_out_asked)


def make_stop() -> Callable[..., None]:
    """Create the command ``holdfast stop``."""
    return joined_command(requests.stop, carry_out_asked)


def make_erase() -> Callable[..., None]:
    """Create the command ``holdfast erase``."""
    return joined_command(requests.erase, carry_out_asked)


def carry_out_asked(
    request: Request,
    *,
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply the plan without a question.")] = False,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Show the plan of a request, ask the user to confirm it, and apply exactly this plan."""
    with opened_verbs(who) as verbs:
        after_recovery(request, verbs)
        begun = verbs.begun(request)
        if begun is not None:
            if not as_json:
                typer.echo(resuming(begun))
            _ask(context, begun.plan_hash, sure=yes, silent=as_json)
            carry_out(lambda tell: verbs.resume(begun.id, tell=tell), as_json=as_json)
            return
        plan = verbs.plan(request)
        # A refused plan is not printed here, because the error that ``apply`` raises has the same text.
        if not isinstance(plan.verdict, Refused):
            if not as_json:
                _show(plan)
            if plan.changes:
                _ask(context, plan.hash, sure=yes, silent=as_json)
        # A plan without changes is applied, too. This closes an open apply (an unfinished execution of a plan) whose
        # stages are all done. For a refused plan, `apply` raises the error.
        carry_out(lambda tell: verbs.apply(plan, confirmed=plan.hash, tell=tell), as_json=as_json)


def _show(plan: Plan) -> None:
    print_short(plan)
    if not plan.changes:
        return
    console = Console()
    rows = [("Found", each) for each in plan.findings]
    rows += [("Deleted", each) for each in plan.deleted]
    rows += [("Kept", each) for each in plan.kept]
    rows += [("Undo", plan.undo)] if plan.undo else []
    for name, text in rows:
        console.print(f"[bold]{name}[/]: {escape(text)}", highlight=False, soft_wrap=True)


def _ask(context: typer.Context, plan_hash: str, *, sure: bool, silent: bool) -> None:
    """Ask the user whether to apply a plan; returns if the answer is yes, or at once if ``sure`` is True.

    Raises:
        NotConfirmed: There is no terminal for the question, or ``silent`` is True.
        typer.Exit: The user answered no.
    """
    # imported late, because it loads the database library
    from holdfast.processors.lifecycle.plans.apply import NotConfirmed

    if sure:
        return
    if silent or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise NotConfirmed(
            f"Plan {plan_hash} was not confirmed: there is no terminal to ask in. Nothing was changed.",
            action=f"Confirm it on the command line: `{typed_again(context)} --yes`.",
            plan=plan_hash,
        )
    if not typer.confirm(f"Apply plan {plan_hash}?", default=False):
        typer.echo("Nothing was changed.")
        raise typer.Exit(EXIT_REFUSED)


def typed_again(context: typer.Context) -> str:
    """The command line of a click context, in a form that the user can type again.

    The command line has the command, its arguments, and the options that differ from their defaults.
    """
    path: list[str] = []
    above: Any = context
    # The outermost context is left out, because its name is the file name of the program.
    while above.parent is not None:
        path.insert(0, above.info_name)
        above = above.parent
    arguments: list[str] = []
    options: list[str] = []
    for each in context.command.params:
        value = context.params.get(each.name or "")
        values = value if isinstance(value, list | tuple) else (value,)
        if each.param_type_name == "argument":
            arguments += [str(one) for one in values]
        elif value != each.get_default(context) and value not in (None, ()):
            name = max(each.opts, key=len)
            options += [name] if value is True else [word for one in values for word in (name, str(one))]
    return shlex.join(["holdfast", *path, *arguments, *options])
