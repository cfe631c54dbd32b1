"""``holdfast status``: prints services, processors, incidents and open applies, with a reason if one is not green.

An open apply is an execution of a plan that has not ended. With ``--sizes``, the command prints instead how much disk
space each kind of data uses.

Invariants:
    - ``orchestration.view.reasons`` decides the colours; its texts are the texts of the asset checks.
    - This command only reads. A part that does not exist yet, such as Holdfast's registry, is shown as empty, not as an
      error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.assets.layers import is_ours
from holdfast.infra.deploy.program_files import SupervisorSilent
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands import completion
from holdfast.orchestration.commands.options import Json, command_settings, print_json, print_rows
from holdfast.processors.lifecycle.ports import now_utc
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.rediscovery import ADOPT, TOLD_S

if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry
    from holdfast.infra.deploy.deployer import LocalDeployer
    from holdfast.infra.settings import Settings
    from holdfast.orchestration.view.reasons import Reason


class NothingOfThatName(HoldfastError):
    """No processor and no asset has the given name. Field: name."""

    exit_code = EXIT_BAD_CONFIGURATION


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Only this processor with its assets, or only this asset. Default: everything.",
            show_default=False,
            autocompletion=completion.processors,
        ),
    ] = None,
    as_json: Json = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Show instead what uses the disk, largest first, and what bounds it.")
    ] = False,
) -> None:
    """Show what runs, and for all that is not green the reason and the next action. Exit code 1: something is red.

    Red needs an action now; yellow is a warning; grey is not running, not materialised or not checked.
    """
    settings = command_settings("ERROR")
    if sizes:
        _print_sizes(describe_sizes(settings), as_json=as_json)
        return
    document = describe(settings, name)
    if as_json:
        print_json(document)
    else:
        _print(document, Console(), each_grey=name is not None)
    raise typer.Exit(int(document["colour"] == "red"))


def describe(settings: Settings, name: str | None = None) -> dict[str, Any]:
    """The JSON document of ``holdfast status``: services, processors, incidents, open applies, and reasons for colours.

    An open apply is an execution of a plan that has not ended. ``name`` limits the document to one processor or asset.

    Raises:
        NothingOfThatName: No processor and no asset has this name.
    """
    from holdfast.infra.deploy.deployer import open_deployer
    from holdfast.infra.kafka.embedded.broker import running_broker
    from holdfast.orchestration.commands.reports.processor_rows import bare_row
    from holdfast.orchestration.host import local
    from holdfast.orchestration.project.unloaded import read_unloaded
    from holdfast.orchestration.view import reasons
    from holdfast.orchestration.view.asset_page import read_pages
    from holdfast.orchestration.world import open_registry
    from holdfast.processors.application.broken_definition import BrokenDefinition
    from holdfast.processors.application.registration import load_processors

    paths = settings.paths
    broker = running_broker(paths.kafka)
    supervisor = supervisor_of(open_deployer(paths))
    daemon, web = local.running(settings, local.DAEMON), local.running(settings, local.WEBSERVER)
    document: dict[str, Any] = {
        "home": str(paths.home),
        "services": {
            "kafka": settings.kafka.bootstrap_servers or (None if broker is None else broker.bootstrap),
            "supervisor": supervisor,
            "daemon": None if daemon is None else f"process {daemon.pid}",
            "dagster": None if web is None else web.url,
        },
        "processors": [],
        "incidents": [],
        "adopted": [],
        "applies": [],
    }
    found = reasons.of_services(document["services"])
    found += [] if daemon is None else reasons.of_locations(read_unloaded(settings))
    if settings.registry_url is not None or paths.registry.exists() or supervisor is not None:
        with closing(open_registry(settings)) as registry:
            found += _describe_registry(document, settings, registry)
    known = {each["processor"] for each in document["processors"]}
    for definition in load_processors(settings):
        if isinstance(definition, BrokenDefinition):
            document["processors"].append(bare_row(definition.target, "broken", definition.fault))
            found.append(reasons.of_definition(definition))
        elif definition.name not in known:
            sentence = f"Never deployed; start it with `holdfast apply deploy {definition.name}`."
            document["processors"].append(bare_row(definition.name, "not-deployed", sentence))
            found.append(reasons.of_undeployed(definition.name))
    running = {each["processor"] for each in document["processors"] if each["desired"] not in ("-", "stopped")}
    pages = read_pages(settings) or ()
    found += reasons.of_assets(pages, frozenset(running), reasons.read_grey(settings), "" if web is None else web.url)
    if name is not None:
        found = only(name, document, [each.name for each in pages], found)
    document["colour"] = reasons.colour_of(found)
    document["reasons"] = [asdict(each) for each in reasons.ordered(found)]
    return document


def only(name: str, document: dict[str, Any], assets: Sequence[str], found: Sequence[Reason]) -> list[Reason]:
    """Removes everything but the processor or asset ``name`` from the document; returns the reasons about it."""
    processors = {each["processor"] for each in document["processors"]}
    if name not in processors and not any(is_of(name, each) for each in assets):
        own = [each for each in assets if not is_ours(tuple(each.split("/")))]
        raise NothingOfThatName(
            f"There is no processor and no asset {name!r}; there are {', '.join(sorted(processors) + own) or 'none'}.",
            action="Correct the name. Assets are known while Dagster's webserver runs: `holdfast up`.",
            name=name,
        )
    for part in ("processors", "incidents", "adopted", "applies"):
        document[part] = [each for each in document[part] if each["processor"] == name]
    return [each for each in found if is_of(name, each.subject.partition(" ")[2].partition(", check ")[0])]


def is_of(name: str, subject: str) -> bool:
    """Whether a subject (the text that names a processor, asset or service) belongs to the processor or asset ``name``.

    For example, ``fleet`` and ``state/fleet/seen_state`` both belong to ``fleet``.
    """
    return name == subject or name in subject.split("/")


def describe_sizes(settings: Settings) -> dict[str, Any]:
    """The JSON document of ``holdfast status --sizes``: disk space by kind of data, and whether enough is free."""
    from holdfast.processors.lifecycle.health.growth import judge_room, measure, owners

    used = measure(owners(settings))
    verdict = judge_room(used, settings.upkeep.room_min_percent)
    return {
        "home": str(settings.home),
        "has_room": verdict.passed,
        "sentence": verdict.sentence,
        "action": None if verdict.passed else verdict.action,
        "owners": [
            {
                "owner": each.owner.name,
                "bytes": each.size_bytes,
                "what": each.owner.what,
                "places": [str(place) for place in each.owner.places],
                "to_make_room": each.owner.action,
            }
            for each in used
        ],
    }


def _print_sizes(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    rows = [
        {"owner": each["owner"], "MiB": f"{each['bytes'] / (1 << 20):,.1f}", "to make room": each["to_make_room"]}
        for each in document["owners"]
    ]
    print_rows(("owner", "MiB", "to make room"), rows, none="Nothing uses the disk.")
    typer.echo(document["sentence"] + ("" if document["action"] is None else f" What to do: {document['action']}"))


def supervisor_of(deployer: LocalDeployer) -> str | None:
    """Text with the supervisor's process id, and whether it answers; None if the supervisor does not run."""
    from holdfast.orchestration.view.reasons import HANGS

    try:
        return f"process {deployer.pid()}" if deployer.running() else None
    except SupervisorSilent as hangs:
        return f"process {hangs.fields['pid']}, {HANGS}"


def _describe_registry(document: dict[str, Any], settings: Settings, registry: Registry) -> list[Reason]:
    """Adds deployments, incidents and open applies to the document; returns why processors are not green."""
    from holdfast.orchestration.commands.reports.processor_rows import describe_processor
    from holdfast.orchestration.view import reasons
    from holdfast.orchestration.world import build_world
    from holdfast.processors.lifecycle.plans.way_on import way_on
    from holdfast.processors.lifecycle.recovery.incidents import is_broken_off
    from holdfast.processors.lifecycle.recovery.processor_now import applies_beside

    world, found = build_world(settings, registry), []
    limits = Limits(stuck_after_s=settings.stuck_after_s)
    deployments = registry.deployments()
    for deployment in deployments:
        rows, why = describe_processor(deployment, world, limits)
        document["processors"] += rows
        found += why
    for begun, answer in applies_beside(world, {each.processor for each in deployments}):
        found += [reasons.of_apply(begun, answer)] if is_broken_off(begun) else []
    document["adopted"] = [
        {"processor": each.subject, "at": each.finished_at.isoformat(), "sentence": each.plan}
        for each in registry.actions()
        if each.verb == ADOPT and (now_utc() - each.finished_at).total_seconds() < TOLD_S
    ]
    document["incidents"] = [
        {"id": each.id, "processor": each.processor, "kind": each.kind, "opened_at": each.opened_at.isoformat()}
        for each in registry.open_incidents()
    ]
    document["applies"] = [
        {
            "id": each.id,
            "processor": each.processor,
            "verb": each.verb,
            "state": "broken off" if is_broken_off(each) else "under way",
            "stages_done": len(each.done),
            "reason": each.reason,
            "action": way_on(each) if is_broken_off(each) else None,
        }
        for each in registry.journal.applies(open_only=True)
    ]
    return found


def print_services(services: Iterable[tuple[str, str | None]], console: Console) -> None:
    """Print one line for each service: its name, and its address or ``not running``."""
    for name, address in services:
        console.print(f"  {name:<12} {escape(address or 'not running')}", highlight=False, soft_wrap=True)


def _parts_in_words(processors: list[dict[str, Any]]) -> list[str]:
    """Lines about the subtopologies of a worker, if it has several of them, or if messages wait for another input."""
    found = []
    for each in processors:
        parts = each["subtopologies"]
        for part in parts:
            if len(parts) < 2 and not part["awaited"]:
                continue
            lags = ", ".join(
                f"{topic} {'unknown' if lag is None else f'{lag:,} records'}" for topic, lag in part["lags"].items()
            )
            waits = f"; messages wait for older ones of {', '.join(part['awaited'])}" if part["awaited"] else ""
            tasks = f"{part['running']} of {part['tasks']} tasks run"
            found.append(
                f"{each['processor']}, slot {each['slot']}, {part['subtopology']}: {tasks}; lag of {lags}{waits}"
            )
    return found


def _print(document: dict[str, Any], console: Console, *, each_grey: bool = False) -> None:
    from holdfast.orchestration.commands.reports.status_parts import print_reasons, print_workers, schedules_in_words
    from holdfast.orchestration.view.reasons import Reason

    print_services(document["services"].items(), console)
    print_workers(document["processors"], console)
    for line in (*_parts_in_words(document["processors"]), *schedules_in_words(document["processors"])):
        console.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
    for warning in dict.fromkeys(text for each in document["processors"] for text in each["warnings"]):
        console.print(f"  [yellow]warning[/]: {escape(warning)}", soft_wrap=True)
    for each in document["processors"]:
        if each["arrivals"] is not None and each["arrivals"]["action"] is not None:
            told = f"{each['processor']}, slot {each['slot']}: {each['arrivals']['sentence']}"
            console.print(f"  [yellow]warning[/]: {escape(told)}", highlight=False, soft_wrap=True)
            console.print(f"       What to do: {escape(each['arrivals']['action'])}", highlight=False, soft_wrap=True)
    for each in document["adopted"]:
        console.print(f"  [yellow]adopted[/]: {escape(each['sentence'])}", soft_wrap=True)
    for incident in document["incidents"]:
        console.print(f"  [yellow]incident {incident['id']}[/]: {incident['processor']} {incident['kind']}")
    for each in document["applies"]:
        state = f"{each['state']} after {each['stages_done']} stage(s)"
        action = f"; complete it with `{each['action']}`" if each.get("action") else ""
        console.print(
            f"  [yellow]apply {each['id']}[/]: {each['verb']} {escape(each['processor'])} is {state}{action}",
            soft_wrap=True,
        )
    print_reasons([Reason(**each) for each in document["reasons"]], console, each_grey=each_grey)
