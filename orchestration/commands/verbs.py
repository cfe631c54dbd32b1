"""``holdfast plan | explain | apply VERB``: the lifecycle from the command line.

    plan     what would be done, in short; exit code 0 nothing to do, 2 changes pending, 3 refused
    explain  the same in full words; the same exit codes
    apply    does it; what deletes needs --plan with the hash that was shown, or --yes

Invariants:
    - All three decide alike, by ``orchestration.verbs``; nothing is decided here.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.infra.log import configure_logging
from holdfast.infra.settings import load_settings
from holdfast.orchestration.commands.requests import VERBS
from holdfast.orchestration.verbs import Verbs, open_verbs
from holdfast.processors.lifecycle.plans.apply import Applied
from holdfast.processors.lifecycle.plans.explanation import size_and_time
from holdfast.processors.lifecycle.plans.plan import Plan, Refused, as_document
from holdfast.processors.lifecycle.plans.requests import Request

NOTHING_TO_DO, CHANGES_PENDING, REFUSED = 0, 2, 3

Json = Annotated[bool, typer.Option("--json", help="As one JSON document.")]
Who = Annotated[str | None, typer.Option(help="Who does it, for the record; this user when not given.")]


def add_verbs(app: typer.Typer) -> None:
    """Add the three commands with all verbs to the command line."""
    planning = typer.Typer(no_args_is_help=True, help="What a verb would do, in short. Exit codes: 0, 2 changes, 3 no.")
    explaining = typer.Typer(no_args_is_help=True, help="What a verb would do, in full words, and how to undo it.")
    applying = typer.Typer(no_args_is_help=True, help="Do it; see also: list, resume, abandon.")
    for name, build in VERBS.items():
        planning.command(name, help=build.__doc__)(_joined(build, _plan))
        explaining.command(name, help=build.__doc__)(_joined(build, _explain))
        applying.command(name, help=build.__doc__)(_joined(build, _apply))
    applying.command("list")(list_applies)
    applying.command("resume")(resume)
    applying.command("abandon")(abandon)
    app.add_typer(planning, name="plan")
    app.add_typer(explaining, name="explain")
    app.add_typer(applying, name="apply")


def list_applies(
    processor: Annotated[str | None, typer.Argument(help="Only of this processor.")] = None, as_json: Json = False
) -> None:
    """Show what was applied, newest first, and what is open."""
    with _opened(None) as verbs:
        found = verbs.applies(processor)
        alive = {each.id for each in found if each.holder is not None and not verbs.is_broken_off(each)}
    rows = [
        {
            "id": each.id,
            "processor": each.processor,
            "verb": each.verb,
            "plan": each.plan_hash,
            "who": each.who,
            "started_at": each.started_at.isoformat(timespec="seconds"),
            "outcome": each.outcome or ("under way" if each.id in alive else "broken off"),
            "stages_done": len(each.done),
            "reason": each.reason if as_json else next(iter(each.reason.splitlines()), "")[:120],
        }
        for each in found
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("id", "processor", "verb", "plan", "who", "started", "outcome", "stages", "reason")
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    Console().print(table if rows else "Nothing was applied so far.")


def resume(
    apply_id: Annotated[int, typer.Argument(help="The number that `holdfast apply list` shows.")],
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Go on with an apply that was broken off, from the stage it was at."""
    with _opened(who) as verbs:
        _told(lambda tell: verbs.resume(apply_id, tell=tell), as_json=as_json)


def abandon(
    apply_id: Annotated[int, typer.Argument(help="The number that `holdfast apply list` shows.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")],
    who: Who = None,
) -> None:
    """Give an apply that was broken off up, as it stands; nothing is undone."""
    with _opened(who) as verbs:
        record = verbs.abandon(apply_id, reason=reason)
    typer.echo(f"Apply {record.id} ({record.verb} {record.processor}) is given up after {len(record.done)} stage(s).")


def _plan(request: Request, *, as_json: Json = False) -> None:
    with _opened(None) as verbs:
        plan = verbs.plan(request)
        _say_open(verbs, plan, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(as_document(plan), indent=2))
    else:
        _print_short(plan)
    raise typer.Exit(_exit_code(plan))


def _explain(request: Request, *, as_json: Json = False) -> None:
    with _opened(None) as verbs:
        plan = verbs.plan(request)
        _say_open(verbs, plan, as_json=as_json)
        text = verbs.explain(plan)
    if as_json:
        typer.echo(json.dumps({**as_document(plan), "text": text}, indent=2))
    else:
        typer.echo(text)
        if plan.changes:
            typer.echo(_how_to_apply(plan))
    raise typer.Exit(_exit_code(plan))


def _apply(
    request: Request,
    *,
    plan: Annotated[
        str | None, typer.Option("--plan", help="The hash of the plan that was shown and is meant.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it also if it deletes, without naming the plan.")] = False,
    who: Who = None,
    as_json: Json = False,
) -> None:
    with _opened(who) as verbs:
        begun = verbs.begun(request)
        if begun is not None:
            if not as_json:
                typer.echo(
                    f"Going on with apply {begun.id}, confirmed as plan {begun.plan_hash}, which was broken off after "
                    f"{len(begun.done)} stage(s)."
                )
            _told(lambda tell: verbs.resume(begun.id, tell=tell), as_json=as_json)
            return
        decided = verbs.plan(request)
        if not as_json and not isinstance(decided.verdict, Refused):  # the refusal itself tells why, once
            typer.echo(verbs.explain(decided))
        _told(lambda tell: verbs.apply(decided, confirmed=plan, sure=yes, tell=tell), as_json=as_json)


def _told(carry_out: Callable[[Callable[[str], None]], Applied], *, as_json: bool) -> None:
    """Carry out, with a line that says how it gets on."""
    console = Console(stderr=as_json)
    with console.status("…") as line:
        done = carry_out(lambda text: line.update(escape(text)))
    if as_json:
        stages = [{"number": note.number, "text": note.text, "seconds": note.seconds} for note in done.notes]
        document = {"apply": done.id, "plan": done.plan.hash, "stages": stages, "seconds": round(done.seconds, 3)}
        typer.echo(json.dumps(document, indent=2))
    elif done.id is not None:
        console.print(f"[green]done[/] (apply {done.id}, {done.seconds:.1f} s)\n{escape(done.text)}", soft_wrap=True)


def _print_short(plan: Plan) -> None:
    console = Console()
    colour = "red" if isinstance(plan.verdict, Refused) else "yellow" if plan.changes else "green"
    console.print(f"[{colour}]{plan.verb} {escape(plan.processor)}[/]: {escape(plan.verdict.sentence)}", soft_wrap=True)
    if isinstance(plan.verdict, Refused):
        console.print(f"[bold]What to do[/]: {escape(plan.verdict.action)}", soft_wrap=True)
    if not plan.changes:
        return
    table = Table("", "stage", "what")
    for number, stage in enumerate(plan.stages, 1):
        mark = "[red]deletes[/]" if stage.destructive else ""
        table.add_row(str(number), f"{type(stage).__name__} {mark}", escape(stage.says))
    console.print(table)
    if measure := size_and_time(plan):
        console.print(measure, highlight=False, soft_wrap=True)
    console.print(_how_to_apply(plan), highlight=False, soft_wrap=True)


def _how_to_apply(plan: Plan) -> str:
    return f"Plan {plan.hash}. To do it: the same words after `holdfast apply`, with --plan {plan.hash}"


def _say_open(verbs: Verbs, plan: Plan, *, as_json: bool) -> None:
    """Say on stderr that an apply of the processor is open."""
    for each in verbs.applies(plan.processor, 1):
        if each.outcome is None and not as_json:
            if verbs.is_broken_off(each):
                how = f"was broken off; holdfast apply resume {each.id} goes on with it"
            else:
                how = f"is being carried out by {each.holder}"
            typer.echo(f"Apply {each.id} ({each.verb}) of {each.processor} is open: it {how}.", err=True)


def _exit_code(plan: Plan) -> int:
    if isinstance(plan.verdict, Refused):
        return REFUSED
    return CHANGES_PENDING if plan.changes else NOTHING_TO_DO


def _opened(who: str | None) -> Any:
    settings = load_settings()
    configure_logging("WARNING", settings.log_format)
    return open_verbs(settings, who=who)


def _joined(build: Callable[..., Request], act: Callable[..., None]) -> Callable[..., None]:
    """A command with the arguments of the verb and those of what is done with it."""
    own = [each for each in inspect.signature(act).parameters.values() if each.kind is each.KEYWORD_ONLY]
    verbs = list(inspect.signature(build).parameters.values())
    hints = {
        **typing.get_type_hints(build, include_extras=True),
        **typing.get_type_hints(act, include_extras=True),
    }

    def command(**given: Any) -> None:
        request = build(**{each.name: given[each.name] for each in verbs})
        act(request, **{each.name: given[each.name] for each in own})

    parameters = [each.replace(kind=each.KEYWORD_ONLY, annotation=hints[each.name]) for each in (*verbs, *own)]
    command.__name__ = build.__name__
    command.__annotations__ = {each.name: hints[each.name] for each in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command
