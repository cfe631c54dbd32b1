"""The command groups ``holdfast plan``, ``holdfast explain`` and ``holdfast apply``. A verb is a kind of change.

    plan     prints a short list of stages; exit code 0 nothing to do, 2 changes pending, 3 refused
    explain  prints the full text of the plan; the same exit codes
    apply    carries the plan out; a plan that deletes needs ``--plan HASH`` or ``--yes``

Each verb, for example ``deploy``, is a command in all three groups. To avoid three functions for each verb,
``joined_command`` creates a command from two functions: the verb and the action. Typer reads a command's options from
its signature, so the command gets a signature that joins the parameters of both functions::

    verb     deploy(processor, timeout_s, drop)                 in ``commands.requests``: returns a request
    action   _apply(request, *, plan, yes, who, as_json)        below: plans, explains or applies the request
    command  (*, processor, timeout_s, drop, plan, yes, who, as_json)
             └───── go to the verb ──────┘  └─── go to the action ──┘

Invariants:
    - ``orchestration.verbs`` makes every decision; this module prints the result.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from holdfast.infra.exit_codes import EXIT_CHANGES_PENDING, EXIT_DONE, EXIT_REFUSED
from holdfast.orchestration.commands.changes.requests import VERBS, adopt
from holdfast.orchestration.commands.options import Json, Who, command_settings, print_answer, print_json, print_rows
from holdfast.orchestration.commands.tables import print_table
from holdfast.processors.lifecycle.plans.explanation import explain, size_and_time
from holdfast.processors.lifecycle.plans.plan import Plan, Refused, as_document
from holdfast.processors.lifecycle.plans.requests import OfInstallation, Request
from holdfast.processors.lifecycle.plans.stages import Stage
from holdfast.processors.lifecycle.plans.way_on import way_on

if TYPE_CHECKING:
    from holdfast.infra.database.records import ApplyRecord
    from holdfast.orchestration.verbs import Verbs
    from holdfast.processors.lifecycle.plans.apply import Applied

_CODES = "Exit codes: 0 nothing to do, 2 changes pending, 3 refused."

#: Maximum number of applies (executions of plans) that ``holdfast apply list`` prints.
_LISTED = 20

ApplyNumber = Annotated[int, typer.Argument(help="Number of the apply, as in `holdfast apply list`.")]


def make_plan() -> typer.Typer:
    """Create the command group ``holdfast plan``, which has one command for each verb, for example ``plan deploy``."""
    return _group(f"List the stages of a verb; change nothing. {_CODES}", _plan)


class ExplainGroup(TyperGroup):
    """The group ``holdfast explain``; it also accepts ``NAME --topology`` instead of ``topology NAME``."""

    def in_order(self, args: list[str]) -> list[str]:
        """The arguments with the subcommand first: ``NAME --topology`` becomes ``topology NAME``."""
        if args and args[0] not in self.commands and "--topology" in args:
            return ["topology", *(each for each in args if each != "--topology")]
        return args

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand that the arguments name; click calls this method to parse a command line."""
        return super().resolve_command(ctx, self.in_order(args))


def make_explain() -> typer.Typer:
    """Create the command group ``holdfast explain``: one command for each verb, and the command ``topology``."""
    text = f"Explain a verb: its stages, its effects and how to undo it. {_CODES}"
    group = _group(text, _explain, ExplainGroup)
    group.command("topology")(topology)
    return group


def make_apply() -> typer.Typer:
    """Create the command group ``holdfast apply``: one command for each verb, and ``list``, ``resume``, ``abandon``."""
    applying = _group("Carry out a verb; list, resume and abandon applies.", _apply)
    applying.command("list")(list_applies)
    applying.command("resume")(resume)
    applying.command("abandon")(abandon)
    return applying


def make_registry() -> typer.Typer:
    """Create the command group ``holdfast registry``: ``adopt``, ``backup``, ``restore``."""
    from holdfast.orchestration.commands.changes import registry_copies

    registering = typer.Typer(no_args_is_help=True, help="Back up, restore or correct the registry.")
    registering.command("adopt", help=adopt.__doc__)(joined_command(adopt, _apply))
    registering.command("backup")(registry_copies.backup)
    registering.command("restore")(registry_copies.restore)
    return registering


def _group(help_text: str, action: Callable[..., None], kind: type[TyperGroup] = TyperGroup) -> typer.Typer:
    group = typer.Typer(cls=kind, no_args_is_help=True, help=help_text)
    for name, verb in VERBS.items():
        group.command(name, help=verb.__doc__)(joined_command(verb, action))
    return group


def topology(processor: Annotated[str, typer.Argument(help="Its name.")], as_json: Json = False) -> None:
    """Draw a processor's topics, tasks and stores, from its source topics down. Needs no running broker.

    `holdfast explain NAME --topology` prints the same drawing.
    """
    from holdfast.processors.application.registration import find_processor
    from holdfast.processors.engine.topology_drawing import drawing_of

    found = find_processor(command_settings(), processor).topology
    if not as_json:
        print(drawing_of(found))
        return
    print_json(
        {
            "processor": processor,
            "drawing": drawing_of(found),
            "subtopologies": [
                {"name": each.name, "inputs": list(each.inputs), "stores": list(each.stores)}
                for each in found.subtopologies
            ],
            "repartitions": [
                {"name": each.name, "topic": each.topic, "sources": list(each.sources)} for each in found.repartitions
            ],
        }
    )


def list_applies(
    processor: Annotated[str | None, typer.Argument(help="Only applies of this processor.")] = None,
    as_json: Json = False,
) -> None:
    """List applies with their outcomes, newest first."""
    # Imported late, because these modules load the database library. The list is read from Holdfast's registry alone,
    # without a processor and without Kafka.
    from holdfast.orchestration.world import open_registry
    from holdfast.processors.lifecycle.recovery.incidents import is_broken_off

    with closing(open_registry(command_settings())) as registry:
        applies = registry.journal.applies(_LISTED, processor=processor)
        alive = {each.id for each in applies if not is_broken_off(each)}
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
        for each in applies
    ]
    actions = [None if each.outcome or each.id in alive else way_on(each) for each in applies]
    if as_json:
        print_json([{**row, "action": action} for row, action in zip(rows, actions, strict=True)])
        return
    columns = ("id", "processor", "verb", "plan", "who", "started", "outcome", "stages", "reason")
    print_rows(columns, rows, none="No applies are recorded.")
    for each, action in zip(applies, actions, strict=True):
        if action is not None:
            typer.echo(
                f"Apply {each.id} ({each.verb}) of {each.processor} was broken off. Complete it with `{action}`."
            )


def resume(apply_id: ApplyNumber, who: Who = None, as_json: Json = False) -> None:
    """Resume an interrupted apply from its first unfinished stage."""
    with opened_verbs(who) as verbs:
        after_recovery(apply_id, verbs)
        carry_out(lambda tell: verbs.resume(apply_id, tell=tell), as_json=as_json)


def abandon(
    apply_id: ApplyNumber,
    reason: Annotated[str, typer.Option(help="The reason to record.")],
    who: Who = None,
    as_json: Json = False,
) -> None:
    """Close an interrupted apply without undoing its finished stages. Workers that it paused are resumed or stopped."""
    with opened_verbs(who) as verbs:
        after_recovery(apply_id, verbs)
        told: list[str] = []
        record = verbs.abandon(apply_id, reason=reason, tell=told.append if as_json else typer.echo)
    stages = len(record.done)
    sentence = f"Apply {record.id} ({record.verb} {record.processor}) is abandoned after {stages} stage(s)."
    document = {"apply": record.id, "processor": record.processor, "verb": record.verb}
    print_answer({**document, "stages_done": stages, "told": told}, sentence, as_json=as_json)


def _plan(request: Request, *, as_json: Json = False) -> None:
    plan = _decided(request, as_json=as_json)
    if as_json:
        print_json(as_document(plan))
    else:
        print_short(plan)
        if plan.changes:
            Console().print(_how_to_apply(plan), highlight=False, soft_wrap=True)
    raise typer.Exit(_exit_code(plan))


def _explain(request: Request, *, as_json: Json = False) -> None:
    plan = _decided(request, as_json=as_json)
    how = f"\n{_how_to_apply(plan)}" if plan.changes else ""
    print_answer({**as_document(plan), "text": explain(plan)}, explain(plan) + how, as_json=as_json)
    raise typer.Exit(_exit_code(plan))


def resuming(begun: ApplyRecord) -> str:
    """A sentence that tells the user that an interrupted apply (execution of a plan) is being resumed."""
    return f"Resuming apply {begun.id}: plan {begun.plan_hash} was broken off after {len(begun.done)} stage(s)."


def _apply(
    request: Request,
    *,
    plan: Annotated[str | None, typer.Option("--plan", help="Apply only the plan with this hash.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Apply a plan that deletes without `--plan`.")] = False,
    who: Who = None,
    as_json: Json = False,
) -> None:
    with opened_verbs(who) as verbs:
        after_recovery(request, verbs)
        begun = verbs.begun(request)
        if begun is not None:
            if not as_json:
                typer.echo(resuming(begun))
            carry_out(lambda tell: verbs.resume(begun.id, tell=tell), as_json=as_json)
            return
        decided = verbs.plan(request)
        # A refused plan is not printed, because the error that `apply` raises has the same text.
        if not as_json and not isinstance(decided.verdict, Refused):
            typer.echo(explain(decided))
        carry_out(lambda tell: verbs.apply(decided, confirmed=plan, sure=yes, tell=tell), as_json=as_json)


def after_recovery(of: Request | int, verbs: Verbs) -> None:
    """Wait for the end of a processor's recovery run, if one is live; prints on standard error that it waits.

    ``of`` is a request, or the number of an apply, for this processor. Dagster's jobs wait in the same way. Without the
    wait, a command that `holdfast status` recommends would be refused during a recovery run, about half a minute.
    """
    # imported late, because it loads the database library
    from holdfast.processors.lifecycle.recovery.incidents import await_recovery

    if isinstance(of, int):
        record = verbs.registry.journal.apply_of(of)
        processor = None if record is None else record.processor
    else:
        processor = None if isinstance(of, OfInstallation) else of.processor
    if processor is not None:
        await_recovery(processor, verbs.registry, lambda text: typer.echo(text, err=True))


def carry_out(work: Callable[[Callable[[str], None]], Applied], *, as_json: bool) -> None:
    """Call ``work``, show its progress lines in a spinner, and print its outcome as text or as a JSON document."""
    console = Console(stderr=as_json)
    with console.status("…") as line:
        done = work(lambda text: line.update(escape(text)))
    if as_json:
        stages = [{"number": note.number, "text": note.text, "seconds": note.seconds} for note in done.notes]
        print_json({"apply": done.id, "plan": done.plan.hash, "stages": stages, "seconds": round(done.seconds, 3)})
    elif done.id is not None:
        console.print(f"[green]done[/] (apply {done.id}, {done.seconds:.1f} s)\n{escape(done.text)}", soft_wrap=True)


def print_short(plan: Plan) -> None:
    """Print a plan: its verdict, a table of its stages, and the estimated size and time."""
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
        table.add_row(str(number), f"{stage_name(type(stage))} {mark}", escape(stage.says))
    print_table(table, console)
    if measure := size_and_time(plan):
        console.print(measure, highlight=False, soft_wrap=True)


def stage_name(kind: type[Stage]) -> str:
    """The name of a stage's class as words: ``MakeRelease`` becomes ``make release``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()


def _how_to_apply(plan: Plan) -> str:
    return (
        f"Plan {plan.hash}. To apply it, run the same command with `apply` instead of `plan` or `explain`, and add "
        f"`--plan {plan.hash}`."
    )


def _decided(request: Request, *, as_json: bool) -> Plan:
    """Makes the plan of a request.

    If the processor has an open apply (an unfinished execution of a plan), a line about it is printed on stderr.
    """
    with opened_verbs(None) as verbs:
        plan = verbs.plan(request)
        for each in verbs.applies(plan.processor, 1):
            if each.outcome is None and not as_json:
                if verbs.is_broken_off(each):
                    state = f"was broken off. Complete it with `{way_on(each)}`"
                else:
                    state = f"is being carried out by {each.holder}"
                typer.echo(f"Apply {each.id} ({each.verb}) of {each.processor} {state}.", err=True)
    return plan


def _exit_code(plan: Plan) -> int:
    if isinstance(plan.verdict, Refused):
        return EXIT_REFUSED
    return EXIT_CHANGES_PENDING if plan.changes else EXIT_DONE


def opened_verbs(who: str | None) -> AbstractContextManager[Verbs]:
    """Context manager that yields ``Verbs``, which plans and applies requests, for the settings of this process.

    ``who`` is the user name to record with each applied plan; None records the current user.
    """
    # imported late, because it loads the libraries for Kafka, RocksDB and databases
    from holdfast.orchestration.verbs import open_verbs

    return open_verbs(command_settings(), who=who)


def joined_command(verb: Callable[..., Request], action: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose options are those of both functions, ``verb`` and ``action``.

    The command calls ``verb`` with the options of ``verb``. Then it calls ``action`` with the request that ``verb``
    returned, and with all other options.
    """
    # typer reads annotations as names and looks for them in this module, not in the module of the verb. So the
    # annotations are evaluated here.
    of_verb = list(inspect.signature(verb, eval_str=True).parameters.values())
    of_action = list(inspect.signature(action, eval_str=True).parameters.values())[1:]

    def command(**given: Any) -> None:
        request = verb(**{each.name: given.pop(each.name) for each in of_verb})
        action(request, **given)

    joined = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*of_verb, *of_action)]
    command.__doc__ = verb.__doc__
    command.__signature__ = inspect.Signature(joined)  # type: ignore[attr-defined]
    return command
