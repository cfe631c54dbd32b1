"""``holdfast status``: what runs, every processor, open incidents and applies.

Invariants:
    - Looking only. Each part is told as far as it can be: no registry yet is no error.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.infra.database.registry import Registry
from holdfast.infra.deploy.deployer import open_deployer
from holdfast.infra.kafka.broker import running_broker
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration import local
from holdfast.orchestration.resources import build_world, open_registry
from holdfast.orchestration.verbs import this_process
from holdfast.processors.lifecycle.plans.apply import is_free
from holdfast.processors.lifecycle.ports import now_utc
from holdfast.processors.lifecycle.recovery.diagnosis import Limits
from holdfast.processors.lifecycle.recovery.recovery import observe, worst
from holdfast.processors.lifecycle.recovery.rediscovery import ADOPT, TOLD_S
from holdfast.processors.registration import BrokenDefinition, load_processors


def add_status(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(status)


def status(as_json: Annotated[bool, typer.Option("--json", help="As one JSON document.")] = False) -> None:
    """Show what runs, every processor, and the open incidents and applies."""
    settings = load_settings()
    configure_logging("ERROR", settings.log_format)
    document = describe(settings)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _print(document, Console())


def describe(settings: Settings) -> dict[str, Any]:
    """Everything that ``status`` tells, as JSON-ready data."""
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
        registry = open_registry(settings)
        try:
            _describe_registry(document, settings, registry)
        finally:
            registry.close()
    known = {each["processor"] for each in document["processors"]}
    for definition in load_processors(settings):
        if isinstance(definition, BrokenDefinition):
            sentence = definition.error.strip().splitlines()[-1]
            document["processors"].append(_absent(definition.target, "broken", sentence))
        elif definition.name not in known:
            document["processors"].append(_absent(definition.name, "not-deployed", "It was never deployed."))
    return document


def _describe_registry(document: dict[str, Any], settings: Settings, registry: Registry) -> None:
    world = build_world(settings.paths, registry)
    limits = Limits(stuck_after_s=settings.stuck_after_s)
    for deployment in registry.deployments():
        for slot, each in observe(deployment.processor, world, limits).items():
            alive = each.program is not None and each.program.alive
            said = each.status if alive else None
            document["processors"].append(
                {
                    "processor": deployment.processor,
                    "slot": slot,
                    "desired": deployment.desired,
                    "code_version": deployment.code_version,
                    "diagnosis": worst({slot: each.diagnosis}).kind,
                    "sentence": each.diagnosis.sentence,
                    "phase": None if said is None else said.phase,
                    "paused": bool(getattr(said, "paused", False)),
                    "lag": None if said is None else getattr(said, "lag", None),
                    "processed": None if said is None else getattr(said, "records", {}).get("processed"),
                    "pid": None if said is None else said.pid,
                }
            )
    document["adopted"] = [
        {"processor": each.subject, "at": each.finished_at.isoformat(), "sentence": each.plan}
        for each in registry.actions()
        if each.verb == ADOPT and (now_utc() - each.finished_at).total_seconds() < TOLD_S
    ]
    document["incidents"] = [
        {"id": each.id, "processor": each.processor, "kind": each.kind, "opened_at": each.opened_at.isoformat()}
        for each in registry.open_incidents()
    ]
    holder, now = this_process(), now_utc()
    document["applies"] = [
        {
            "id": each.id,
            "processor": each.processor,
            "verb": each.verb,
            "state": "broken off" if is_free(each, holder, now) else "under way",
            "stages_done": len(each.done),
            "reason": each.reason,
        }
        for each in registry.journal.applies(open_only=True)
    ]


def _absent(processor: str, diagnosis: str, sentence: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("slot", "code_version", "phase", "lag", "processed", "pid"))
    told = {"processor": processor, "desired": "-", "diagnosis": diagnosis, "sentence": sentence, "paused": False}
    return {**nothing, **told}


def _print(document: dict[str, Any], console: Console) -> None:
    for name, value in document["services"].items():
        console.print(f"  {name:<12} {value or 'not running'}", highlight=False, soft_wrap=True)
    table = Table("processor", "wanted", "state", "phase", "lag, records", "processed", "pid")
    for each in document["processors"]:
        # One that is paused looks healthy, and does nothing.
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
        how = f"{each['state']} after {each['stages_done']} stage(s)"
        way = f"; holdfast apply resume {each['id']}" if each["state"] == "broken off" else ""
        console.print(
            f"  [yellow]apply {each['id']}[/]: {each['verb']} {escape(each['processor'])} is {how}{way}", soft_wrap=True
        )
