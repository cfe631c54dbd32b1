"""``holdfast status``: services, processors, open incidents and open applies; with ``--sizes`` the disk.

Invariants:
    - Reads only. A part that does not exist yet, such as the registry, is empty in the answer and no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.orchestration.commands.options import Json, command_settings, print_json, print_rows
from holdfast.processors.lifecycle.ports import now_utc
from holdfast.processors.lifecycle.recovery.diagnosis import Limits
from holdfast.processors.lifecycle.recovery.incidents import observe
from holdfast.processors.lifecycle.recovery.rediscovery import ADOPT, TOLD_S

if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry
    from holdfast.infra.settings import Settings


def status(
    as_json: Json = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Show instead what uses the disk, largest first, and what bounds it.")
    ] = False,
) -> None:
    """Show services, processors, open incidents and open applies."""
    settings = command_settings("ERROR")
    if sizes:
        _print_sizes(describe_sizes(settings), as_json=as_json)
        return
    document = describe(settings)
    if as_json:
        print_json(document)
    else:
        _print(document, Console())


def describe(settings: Settings) -> dict[str, Any]:
    """The JSON document of ``holdfast status``: services, processors, incidents, adopted processors, applies."""
    from holdfast.infra.deploy.deployer import open_deployer
    from holdfast.infra.kafka.broker import running_broker
    from holdfast.orchestration import local
    from holdfast.orchestration.world import open_registry
    from holdfast.processors.registration import BrokenDefinition, load_processors

    paths = settings.paths
    broker = running_broker(paths.kafka)
    pid = open_deployer(paths).pid()
    daemon, web = local.running(settings, local.DAEMON), local.running(settings, local.WEBSERVER)
    document: dict[str, Any] = {
        "home": str(paths.home),
        "services": {
            "kafka": settings.kafka.bootstrap_servers or (None if broker is None else broker.bootstrap),
            "supervisor": None if pid is None else f"process {pid}",
            "daemon": None if daemon is None else f"process {daemon.pid}",
            "dagster": None if web is None else web.url,
        },
        "processors": [],
        "incidents": [],
        "adopted": [],
        "applies": [],
    }
    if settings.registry_url is not None or paths.registry.exists() or pid is not None:
        with closing(open_registry(settings)) as registry:
            _describe_registry(document, settings, registry)
    known = {each["processor"] for each in document["processors"]}
    for definition in load_processors(settings):
        if isinstance(definition, BrokenDefinition):
            sentence = definition.error.strip().splitlines()[-1]
            document["processors"].append(_row(definition.target, "broken", sentence))
        elif definition.name not in known:
            sentence = f"Never deployed; start it with `holdfast apply deploy {definition.name}`."
            document["processors"].append(_row(definition.name, "not-deployed", sentence))
    return document


def describe_sizes(settings: Settings) -> dict[str, Any]:
    """The JSON document of ``holdfast status --sizes``: owners of disk space, largest first, and the verdict."""
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


def _describe_registry(document: dict[str, Any], settings: Settings, registry: Registry) -> None:
    from holdfast.orchestration.verbs import this_process
    from holdfast.orchestration.world import build_world
    from holdfast.processors.lifecycle.plans.apply import is_free

    world = build_world(settings.paths, registry)
    limits = Limits(stuck_after_s=settings.stuck_after_s)
    for deployment in registry.deployments():
        for slot, each in observe(deployment.processor, world, limits).items():
            row = _row(deployment.processor, each.diagnosis.kind, each.diagnosis.sentence)
            row |= {"slot": slot, "desired": deployment.desired, "code_version": deployment.code_version}
            if (worker := each.living) is not None:
                row |= {"phase": worker.phase, "paused": getattr(worker, "paused", False), "pid": worker.pid}
                row |= {"lag": getattr(worker, "lag", None)}
                row |= {"processed": getattr(worker, "records", {}).get("processed")}
            document["processors"].append(row)
    document["adopted"] = [
        {"processor": each.subject, "at": each.finished_at.isoformat(), "sentence": each.plan}
        for each in registry.actions()
        if each.verb == ADOPT and (now_utc() - each.finished_at).total_seconds() < TOLD_S
    ]
    document["incidents"] = [
        {"id": each.id, "processor": each.processor, "kind": each.kind, "opened_at": each.opened_at.isoformat()}
        for each in registry.open_incidents()
    ]
    holder = this_process()
    document["applies"] = [
        {
            "id": each.id,
            "processor": each.processor,
            "verb": each.verb,
            "state": "broken off" if is_free(each, holder) else "under way",
            "stages_done": len(each.done),
            "reason": each.reason,
        }
        for each in registry.journal.applies(open_only=True)
    ]


def _row(processor: str, diagnosis: str, sentence: str) -> dict[str, Any]:
    """The part of the document about one processor, of which no more is known."""
    unknown = dict.fromkeys(("slot", "code_version", "phase", "lag", "processed", "pid"))
    known = {"processor": processor, "desired": "-", "diagnosis": diagnosis, "sentence": sentence, "paused": False}
    return {**unknown, **known}


def print_services(services: Iterable[tuple[str, str | None]], console: Console) -> None:
    """Print one line for each service: name and address, or that it does not run."""
    for name, address in services:
        console.print(f"  {name:<12} {escape(address or 'not running')}", highlight=False, soft_wrap=True)


def _print(document: dict[str, Any], console: Console) -> None:
    print_services(document["services"].items(), console)
    table = Table("processor", "desired", "state", "phase", "lag, records", "processed", "pid")
    for each in document["processors"]:
        # a paused processor is healthy, but reads no input
        paused = " [red]PAUSED[/]" if each["paused"] else ""
        state = "down" if (each["desired"], each["diagnosis"]) == ("stopped", "not-deployed") else each["diagnosis"]
        cells = (escape(each["processor"]), each["desired"], state + paused)
        rest = ("-" if each[name] is None else str(each[name]) for name in ("phase", "lag", "processed", "pid"))
        table.add_row(*cells, *rest)
    if document["processors"]:
        console.print(table)
    for each in document["adopted"]:
        console.print(f"  [yellow]adopted[/]: {escape(each['sentence'])}", soft_wrap=True)
    for incident in document["incidents"]:
        console.print(f"  [yellow]incident {incident['id']}[/]: {incident['processor']} {incident['kind']}")
    for each in document["applies"]:
        state = f"{each['state']} after {each['stages_done']} stage(s)"
        action = f"; resume it with `holdfast apply resume {each['id']}`" if each["state"] == "broken off" else ""
        console.print(
            f"  [yellow]apply {each['id']}[/]: {each['verb']} {escape(each['processor'])} is {state}{action}",
            soft_wrap=True,
        )
