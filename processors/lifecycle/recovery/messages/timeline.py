"""Computes the history of a processor from Holdfast's registry: one entry for each apply, incident and action.

An apply is the execution of a plan.

    applies, incidents, actions ──entries (pure)──► Entry ──► Dagster's timeline, `holdfast history`

Invariants:
    - An entry is computed from a registry record. The same record always gives an entry with the same identity.
    - A registry that was restored from a backup assigns some record numbers a second time. Two records with equal
      numbers still have entries with different identities, because each identity contains the time of the event.
    - An entry exists only for an event that is over: an apply ended, or an incident was opened or closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from holdfast.infra.database.records import Action, ApplyRecord, Incident
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.plan import PlanUnreadable
from holdfast.processors.lifecycle.plans.requests import Backfill, Clear, Deploy, OfInstallation, Provision, Restore
from holdfast.processors.lifecycle.recovery.faults import TITLES, kind_of

EntryKind = Literal["apply", "incident", "action", "run"]
Layer = Literal["processor", "state", "changelog", "installation"]
#: Actions outside of an apply (execution of a plan). Only these actions get a separate entry, because each apply
#: already has an entry.
_OWN_ACTIONS = frozenset({"adopt", "rehearse"})
#: Prefix of ``who`` if a Dagster run did the action; the run id follows (``assets.launched_by``).
_RUN = "dagster run "


@dataclass(frozen=True, slots=True)
class Entry:
    """One event on the timeline of a processor."""

    #: Identifies the event; it is the same each time the event is read.
    identity: str
    processor: str
    kind: EntryKind
    #: The event as a sentence.
    text: str
    at: datetime
    outcome: str
    who: str = ""
    #: The hash of the plan that the event carried out; empty if the event has no plan.
    plan: str = ""
    seconds: float | None = None
    #: The stores whose state the event changed; empty if it concerns all stores or none.
    stores: tuple[str, ...] = ()
    #: Whether the event made the topics (``provisions``) or the version (``deploys``) equal to the definition.
    provisions: bool = False
    deploys: bool = False
    #: Further lines of text, for example the stages of an executed plan with their results.
    details: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """The id of the Dagster run that caused the event; empty if no Dagster run caused it."""
        return self.who.rpartition(_RUN)[2] if _RUN in self.who else ""


class Series(msgspec.Struct):
    """The progress of reports to Dagster for one table of Holdfast's registry (database of applies and incidents).

    All present events of the records up to the number ``low`` are reported to Dagster. ``above`` lists the reported
    events of two kinds of records: records after ``low``, and records that may still get more events.
    """

    low: int = 0
    #: Record number -> identities of its events that are already reported.
    above: dict[int, list[str]] = {}
    #: The time when record ``low`` began. It shows whether the registry still has this record. None if ``low`` is 0, or
    #: if a version of Holdfast that did not store the time wrote the progress.
    low_began: datetime | None = None


def of_apply(record: ApplyRecord) -> list[Entry]:
    """The timeline entry of an apply (execution of a plan) that has ended; empty while the apply is open."""
    if record.finished_at is None or record.outcome is None:
        return []
    try:
        request = plans.decode(record.plan).request
    except PlanUnreadable:  # The plan is unreadable, because another version of Holdfast recorded it.
        request = None
    stores: tuple[str, ...] = ()
    if isinstance(request, Clear | Restore):
        stores = request.stores
    elif isinstance(request, Backfill):
        stores = (request.store,)
    done = record.outcome == "done"
    why = f" {record.reason}" if record.reason else ""
    return [
        Entry(
            identity=f"apply-{record.id}-{record.started_at:%Y%m%dT%H%M%S}",
            processor="" if isinstance(request, OfInstallation) else record.processor,
            kind="apply",
            text=f"{record.verb} (apply {record.id}) by {record.who}: {record.outcome}.{why}",
            at=record.finished_at,
            outcome=record.outcome,
            who=record.who,
            plan=record.plan_hash,
            seconds=max(0.0, (record.finished_at - record.started_at).total_seconds()),
            stores=stores,
            provisions=done and isinstance(request, Provision | Deploy),
            deploys=done and isinstance(request, Deploy),
            details=tuple(f"{note.stage}: {note.text} ({note.seconds:.1f} s)" for note in record.done),
        )
    ]


def of_incident(incident: Incident) -> list[Entry]:
    """The timeline entries of an incident: one for its opening and, once it is closed, one for its end.

    A retried incident gets separate entries for its second opening and end.
    """
    title = TITLES[kind_of(incident.kind)]
    seen = " ".join(str(each) for each in incident.detail.values())
    opened = incident.retried_at or incident.opened_at
    again = "opened again" if incident.retried_at else "opened"
    found = [
        Entry(
            identity=f"incident-{incident.id}-opened-{opened:%Y%m%dT%H%M%S}",
            processor=incident.processor,
            kind="incident",
            text=f"Incident {incident.id} {again}: {title}. {seen}",
            at=opened,
            outcome="opened",
        )
    ]
    if incident.closed_at is not None:
        action = f" What to do: {incident.action}" if incident.action and incident.outcome == "failed" else ""
        found.append(
            Entry(
                identity=f"incident-{incident.id}-{incident.outcome}-{incident.closed_at:%Y%m%dT%H%M%S}",
                processor=incident.processor,
                kind="incident",
                text=f"Incident {incident.id} {incident.outcome}: {title}. {incident.reason}{action}",
                at=incident.closed_at,
                outcome=str(incident.outcome),
                who="" if incident.claimed_by is None else f"{_RUN}{incident.claimed_by}",
                seconds=(incident.closed_at - opened).total_seconds(),
                details=tuple(f"{note.step}: {note.text}" for note in incident.timeline if note.at >= opened),
            )
        )
    return found


def of_action(action: Action) -> list[Entry]:
    """The timeline entry of an action outside of an apply: an adoption or a rehearsal. Empty for all other actions.

    An apply is the execution of a plan.
    """
    if action.verb not in _OWN_ACTIONS:
        return []
    return [
        Entry(
            identity=f"action-{action.id}-{action.started_at:%Y%m%dT%H%M%S}",
            processor=action.subject,
            kind="action",
            text=f"{action.verb} by {action.who}: {action.plan}",
            at=action.finished_at,
            outcome=action.outcome,
            who=action.who,
            seconds=max(0.0, (action.finished_at - action.started_at).total_seconds()),
        )
    ]


@dataclass(frozen=True, slots=True)
class Event:
    """A timeline entry for one Dagster asset; ``identity`` is different for every event."""

    identity: str
    entry: Entry
    layer: Layer
    #: The store, for an event of a changelog or state asset; empty for an event of a processor or of the installation.
    store: str = ""

    @property
    def materializes(self) -> bool:
        """Whether this event counts as a materialization of the asset, because a command deployed or provisioned it.

        A deploy by a Dagster run does not count, because the run has already recorded a materialization.
        """
        made = {"processor": self.entry.deploys, "changelog": self.entry.provisions}
        return made.get(self.layer, False) and not self.entry.run


@dataclass(frozen=True, slots=True)
class Record:
    """One record of Holdfast's registry (an apply, incident or action), with its number and timeline events."""

    number: int
    #: Whether the record may still get more events, for example because its apply (execution of a plan) is open.
    may_change: bool
    events: tuple[Event, ...]
    began: datetime


def events_of(entry: Entry, stores: Sequence[str], logged: Sequence[str]) -> list[Event]:
    """The events of an entry, one for each Dagster asset that the entry concerns.

    ``stores`` are the stores of the processor, ``logged`` the stores with a changelog. An entry about all stores
    becomes an event of the processor's asset only.
    """
    if not entry.processor:
        return [Event(f"{entry.identity} installation", entry, "installation")]
    found = [Event(f"{entry.identity} processor", entry, "processor")]
    found += [Event(f"{entry.identity} state {each}", entry, "state", each) for each in entry.stores if each in stores]
    if entry.provisions:
        found += [Event(f"{entry.identity} changelog {each}", entry, "changelog", each) for each in logged]
    return found


def is_replaced(series: Series, at_low: Record | None) -> bool:
    """Whether Holdfast's registry lacks record ``low`` or has another one, because an older copy of it was put back.

    ``at_low`` is the record that now has the number ``low``; None if no record has this number.
    """
    if series.low == 0:
        return False
    return at_low is None or series.low_began not in (None, at_low.began)


def after_replacement(series: Series, records: Sequence[Record]) -> Series:
    """The progress of reports to Dagster, after an older copy of the registry has replaced the registry.

    ``series`` is the progress before the replacement. ``records`` are the copy's records up to the number ``low``. The
    copy lacks the former record ``low``, so the copy was made before that record began. A record or event of the copy
    that is later than this time counts as new. Everything else counts as reported.
    """
    limit = series.low_began
    known = [each for each in records if limit is None or each.began <= limit]
    newest = max(known, key=lambda each: each.number, default=None)
    if newest is None:
        return Series()
    above = {}
    for each in known:
        told = [event.identity for event in each.events if limit is None or event.entry.at <= limit]
        if each.may_change or len(told) < len(each.events):
            above[each.number] = told
    return Series(newest.number, above, newest.began)


def unreported(series: Series, records: Sequence[Record]) -> list[tuple[int, Event]]:
    """The events that Dagster does not have yet, each with the number of its record, ordered by time."""
    found = [
        (record.number, event)
        for record in records
        for event in record.events
        if event.identity not in series.above.get(record.number, ())
    ]
    return sorted(found, key=lambda each: (each[1].entry.at, each[0]))


def reported(series: Series, number: int, identity: str) -> Series:
    """A copy of ``series`` in which the event ``identity`` of record ``number`` is marked as reported."""
    above = {**series.above, number: [*series.above.get(number, ()), identity]}
    return Series(series.low, above, series.low_began)


def settled(series: Series, records: Sequence[Record]) -> Series:
    """A copy of ``series`` after its records were reported: ``low`` is raised, and ``above`` is shortened.

    ``low`` can become greater than the number of a record that may still get more events. Such a record stays in
    ``above``, so that it is read again.
    """
    above, low, began, is_next = dict(series.above), series.low, series.low_began, True
    done = set()
    for record in sorted(records, key=lambda each: each.number):
        told = above.get(record.number, [])
        is_reported = all(each.identity in told for each in record.events)
        if record.may_change:
            above[record.number] = told
        elif is_reported:
            done.add(record.number)
        is_next = is_next and (is_reported or record.number <= low)
        if is_next and record.number > low:
            low, began = record.number, record.began
    return Series(low, {number: told for number, told in above.items() if number > low or number not in done}, began)
