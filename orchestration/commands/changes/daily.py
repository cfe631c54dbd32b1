"""``holdfast deploy | rollback | restart | scale | restore | stop NAME`` show their plan, ask, and apply it.

The stages, the plan and the confirmed hash are those of ``holdfast apply``; this module only adds the question.

Invariants:
    - What was shown is what is applied: the hash of the shown plan is confirmed.
    - Without a terminal to ask in, and without ``--yes``, nothing is changed.
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
from holdfast.orchestration.commands.changes.verbs import carry_out, joined_command, opened_verbs, print_short, resuming
from holdfast.orchestration.commands.options import Json, Who
from holdfast.processors.lifecycle.plans.plan import Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Request


def make_deploy() -> Callable[..., None]:
    """The command ``holdfast deploy``."""
    return joined_command(requests.deploy, carry_out_asked)


def make_rollback() -> Callable[..., None]:
    """The command ``holdfast rollback``."""
    return joined_command(requests.rollback, carry_out_asked)


def make_restart() -> Callable[..., None]:
    """The command ``holdfast restart``."""
    return joined_command(requests.restart, carry_out_asked)


def make_scale() -> Callable[..., None]:
    """The command ``holdfast scale``."""
    return joined_command(requests.scale, carry_out_asked)


def make_restore() -> Callable[..., None]:
    """The command ``holdfast restore``."""
    return joined_command(requests.restore, carry_out_asked)


def make_stop() -> Callable[..., None]:
    """The command ``holdfast stop``."""
    return joined_command(requests.stop, carry_out_asked)


def carry_out_asked(
    request: Request,
    *,
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply the plan without a question.")] = False,
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Show the plan of a request, ask, and apply exactly this plan."""
    with opened_verbs(who) as verbs:
        begun = verbs.begun(request)
        if begun is not None:
            if not as_json:
                typer.echo(resuming(begun))
            _ask(context, begun.plan_hash, sure=yes, silent=as_json)
            carry_out(lambda tell: verbs.resume(begun.id, tell=tell), as_json=as_json)
            return
        plan = verbs.plan(request)
        if not isinstance(plan.verdict, Refused):  # the error of a refusal has the same text
            if not as_json:
                _show(plan)
            if plan.changes:
                _ask(context, plan.hash, sure=yes, silent=as_json)
        # also for a plan without changes: this closes an apply whose work is done, and raises the error of a refusal
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
    """Ask whether to apply a plan, unless the user is ``sure``; returns when the answer is yes.

    Raises:
        NotConfirmed: There is no terminal to ask the question.
        typer.Exit: The answer is no.
    """
    from holdfast.processors.lifecycle.plans.apply import NotConfirmed  # loads the registry's library

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
    """The command line of a context: its path, its arguments, and the options that differ from their defaults."""
    path: list[str] = []
    above: Any = context
    while above.parent is not None:  # the outermost name is that of the running file, as ``python -m``
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
