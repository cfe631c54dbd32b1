"""``holdfast incidents``: what went wrong, what was done about it, who has seen it, and another try.

Invariants:
    - Nothing is started here: another try is made by the recovery sensor, as every first one is.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table

from holdfast.assets.incidents import page_of
from holdfast.infra.database.records import Incident
from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.infra.log import configure_logging
from holdfast.infra.settings import load_settings
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.ports import now_utc

Json = Annotated[bool, typer.Option("--json", help="As one JSON document.")]
Number = Annotated[int, typer.Argument(help="The number that `holdfast incidents list` shows.")]
Who = Annotated[str | None, typer.Option(help="Who does it, for the record; this user when not given.")]
Note = Annotated[str, typer.Option(help="What is known or done, for the record.")]


class IncidentRefused(HoldfastError):
    """There is no such incident, or it can't be done to it."""

    exit_code = EXIT_BAD_CONFIGURATION


def add_incidents(app: typer.Typer) -> None:
    """Add the command to the command line."""
    incidents = typer.Typer(no_args_is_help=True, help="What went wrong, and what was done about it.")
    incidents.command("list")(list_incidents)
    incidents.command("show")(show)
    incidents.command("acknowledge")(acknowledge)
    incidents.command("retry")(retry)
    app.add_typer(incidents, name="incidents")


def list_incidents(
    processor: Annotated[str | None, typer.Argument(help="Only of this processor.")] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that are open.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """Show incidents, newest first."""
    with _registry() as registry:
        found = registry.incidents(limit, processor=processor)
    rows = [_row(each) for each in found if each.is_open or not only_open]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("id", "processor", "kind", "opened", "state", "attempts", "seen by", "what to do")
    for row in rows:
        shown = {**row, "opened_at": row["opened_at"][:19]}
        table.add_row(*(escape("" if value is None else str(value)) for value in shown.values()))
    Console().print(table if rows else "No incidents.")


def show(number: Number, as_json: Json = False) -> None:
    """Show one incident with its whole story."""
    with _registry() as registry:
        found = _incident(registry, number)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, default=_plain))
    else:
        Console().print(Markdown(page_of(found)))


def acknowledge(number: Number, note: Note = "", who: Who = None, as_json: Json = False) -> None:
    """Keep for the record that somebody has seen it; recovery goes on as before."""
    person, now = who or getpass.getuser(), now_utc()
    with _registry() as registry:
        _incident(registry, number)
        registry.acknowledge_incident(number, person, note, now)
        registry.note_incident(number, "acknowledged", f"by {person}{f': {note}' if note else ''}", now)
        found = _incident(registry, number)
    _tell(found, f"Incident {number} of {found.processor} is acknowledged by {person}.", as_json=as_json)


def retry(number: Number, note: Note = "", who: Who = None, as_json: Json = False) -> None:
    """Have a failed incident tried again, with all its attempts: after what it asked for is done."""
    person, now = who or getpass.getuser(), now_utc()
    with _registry() as registry:
        before = _incident(registry, number)
        if not registry.retry_incident(number, now):
            raise _not_failed(before, registry)
        registry.note_incident(number, "retry", f"asked for by {person}{f': {note}' if note else ''}", now)
        found = _incident(registry, number)
    said = f"Incident {number} of {found.processor} is open again; the recovery sensor tries it within seconds."
    _tell(found, said, as_json=as_json)


def _not_failed(incident: Incident, registry: Registry) -> IncidentRefused:
    other = next((each for each in registry.open_incidents() if each.processor == incident.processor), None)
    if other is not None:
        said = f"Incident {other.id} of {incident.processor} is open"
        action = f"Nothing: it is worked on. See holdfast incidents show {other.id}."
    else:
        said = f"Incident {incident.id} of {incident.processor} is {incident.outcome}"
        action = "Only a failed incident is tried again; holdfast incidents list shows them."
    return IncidentRefused(f"{said}: there is nothing to be tried again.", action=action, incident=incident.id)


def _incident(registry: Registry, number: int) -> Incident:
    found = registry.incident(number)
    if found is None:
        raise IncidentRefused(
            f"There is no incident {number}.",
            action="Name one that `holdfast incidents list` shows.",
            incident=number,
        )
    return found


def _tell(incident: Incident, said: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(_row(incident), indent=2) if as_json else said)


def _row(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "processor": incident.processor,
        "kind": incident.kind,
        "opened_at": incident.opened_at.isoformat(timespec="seconds"),
        "state": incident.outcome or (incident.remedy if incident.remedy == "wait" else "open"),
        "attempts": incident.attempts,
        "acknowledged_by": incident.acknowledged_by,
        "action": incident.action,
    }


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)


@contextmanager
def _registry() -> Iterator[Registry]:
    settings = load_settings()
    configure_logging("ERROR", settings.log_format)
    registry = open_registry(settings)
    try:
        yield registry
    finally:
        registry.close()
