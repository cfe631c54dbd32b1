"""``holdfast incidents``: lists, shows and acknowledges incidents, and reopens failed incidents for a retry.

Invariants:
    - The commands start no recovery run. ``retry`` only reopens the incident. The recovery sensor then requests a run.
"""

from __future__ import annotations

import getpass
from contextlib import AbstractContextManager, closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.orchestration.commands.options import Json, Who, command_settings, print_answer, print_json, print_rows
from holdfast.processors.lifecycle.ports import now_utc

if TYPE_CHECKING:
    from holdfast.infra.database.records import Incident
    from holdfast.infra.database.registry import Registry

Number = Annotated[int, typer.Argument(help="Number of the incident, as in `holdfast incidents list`.")]
Note = Annotated[str, typer.Option(help="A note to record with the incident.")]


class IncidentRefused(HoldfastError):
    """The incident does not exist, or its state does not allow the command."""

    exit_code = EXIT_BAD_CONFIGURATION


incidents = typer.Typer(no_args_is_help=True, help="List, show, acknowledge and retry incidents.")


@incidents.command("list")
def list_incidents(
    processor: Annotated[str | None, typer.Argument(help="Only incidents of this processor.")] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only open incidents.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Read only this many of the newest incidents.")] = 50,
    as_json: Json = False,
) -> None:
    """List incidents, newest first; for a failed incident also the action that is needed."""
    with _registry() as registry:
        newest = registry.incidents(limit, processor=processor)
    rows = [_row(each) for each in newest if each.is_open or not only_open]
    if as_json:
        print_json(rows)
        return
    columns = ("id", "processor", "kind", "opened", "state", "attempts", "acknowledged by", "what to do")
    print_rows(columns, [{**row, "opened_at": row["opened_at"][:19]} for row in rows], none="No incidents.")


@incidents.command()
def show(number: Number, as_json: Json = False) -> None:
    """Show one incident with its timeline."""
    from rich.markdown import Markdown

    from holdfast.assets.pages.incidents import page_of

    with _registry() as registry:
        incident = _incident(registry, number)
    if as_json:
        print_json(asdict(incident))
    else:
        Console().print(Markdown(page_of(incident)))


@incidents.command()
def acknowledge(number: Number, note: Note = "", who: Who = None, as_json: Json = False) -> None:
    """Record that a person has seen the incident. Recovery is not affected."""
    person, now = who or getpass.getuser(), now_utc()
    with _registry() as registry:
        _incident(registry, number)
        registry.acknowledge_incident(number, person, note, now)
        registry.note_incident(number, "acknowledged", f"by {person}{f': {note}' if note else ''}", now)
        incident = _incident(registry, number)
    sentence = f"Incident {number} of {incident.processor} is acknowledged by {person}."
    print_answer(_row(incident), sentence, as_json=as_json)


@incidents.command()
def retry(number: Number, note: Note = "", who: Who = None, as_json: Json = False) -> None:
    """Reopen a failed incident, so that recovery tries again. Do the incident's action first."""
    person, now = who or getpass.getuser(), now_utc()
    with _registry() as registry:
        before = _incident(registry, number)
        if not registry.retry_incident(number, now):
            raise _not_failed(before, registry)
        registry.note_incident(number, "retry", f"asked for by {person}{f': {note}' if note else ''}", now)
        incident = _incident(registry, number)
    sentence = f"Incident {number} of {incident.processor} is open again; recovery retries it within seconds."
    print_answer(_row(incident), sentence, as_json=as_json)


def _not_failed(incident: Incident, registry: Registry) -> IncidentRefused:
    other = next((each for each in registry.open_incidents() if each.processor == incident.processor), None)
    if other is not None:
        state = f"incident {other.id} of {incident.processor} is open, and recovery works on it"
        action = f"Follow it with `holdfast incidents show {other.id}`."
    else:
        state = f"its outcome is {incident.outcome}; only a failed incident can be retried"
        action = "Choose a failed incident from `holdfast incidents list`."
    return IncidentRefused(f"Incident {incident.id} is not retried: {state}.", action=action, incident=incident.id)


def _incident(registry: Registry, number: int) -> Incident:
    found = registry.incident(number)
    if found is None:
        raise IncidentRefused(
            f"There is no incident {number}.", action="Choose a number from `holdfast incidents list`.", incident=number
        )
    return found


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


def _registry() -> AbstractContextManager[Registry]:
    from holdfast.orchestration.world import open_registry

    return closing(open_registry(command_settings("ERROR")))
