"""What people are told outside of Dagster (incidents, failed runs), and what of it was told already.

Invariants:
    - Everything is decided from facts that are kept elsewhere, the registry's incidents and Dagster's failed runs: a
      message that could not be sent is no state that could be lost, and whoever recovers never waits for one.
    - A message has one id for good. It is sent until it is accepted (at least once); one that is at fault itself is
      given up after some tries, and one that is a day old is not news any more.
    - While the webhook does not answer, one message is tried after another pause, each longer than the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from holdfast.infra.database.records import Incident
from holdfast.infra.webhook import Answer

Event = Literal["incident.opened", "incident.resolved", "incident.failed", "run.failed"]

#: Before the second try of a webhook that is away, seconds; doubled for each further one, up to the longest.
PAUSE_S, PAUSE_S_MAX = 10.0, 600.0
#: How often a message is sent that the webhook says is wrong.
REFUSALS_MAX = 3
#: What is older is not told any more.
NEWS_FOR = timedelta(days=1)
#: One sending of what waits ends after so long, seconds: it is part of a tick.
SENDING_S = 20.0
_TEXT_MAX = 1500  # Slack takes 3000 of a section; its escapes make some characters five


@dataclass(frozen=True, slots=True)
class Notification:
    """One message for people."""

    id: str
    event: Event
    processor: str | None
    title: str
    text: str
    #: What to do, as a sentence.
    action: str
    at: datetime
    incident: int | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Outbox:
    """What was told, and when the next try is due."""

    told: frozenset[str] = frozenset()
    #: Tries since a message was accepted last.
    failures: int = 0
    not_before: datetime | None = None
    #: How often each message was refused for its own sake.
    refusals: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sending:
    """What one sending came to."""

    outbox: Outbox
    accepted: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    #: Why the last message was not accepted; empty when all were.
    failure: str = ""


def of_incident(incident: Incident) -> tuple[Notification, ...]:
    """What there is to tell of an incident so far: that it was opened, and how it ended."""
    name, number = incident.processor, incident.id
    seen = " ".join(str(each) for each in incident.detail.values() if isinstance(each, str))
    opened = Notification(
        id=f"incident-{number}-opened",
        event="incident.opened",
        processor=name,
        title=f"{name} is {incident.kind}: incident {number}",
        text=_cut(seen) or f"It is {incident.kind}.",
        action="Nothing yet: recovery was asked for, and its end is told here.",
        at=incident.opened_at,
        incident=number,
    )
    if incident.closed_at is None or incident.outcome is None:
        return (opened,)
    resolved = incident.outcome == "resolved"
    seconds = (incident.closed_at - incident.opened_at).total_seconds()
    closed = Notification(
        # An incident that is tried again ends again, and that is another message.
        id=f"incident-{number}-{incident.outcome}-{incident.closed_at:%Y%m%dT%H%M%S}",
        event="incident.resolved" if resolved else "incident.failed",
        processor=name,
        title=f"{name} works again: incident {number}" if resolved else f"{name} needs you: incident {number} failed",
        text=_cut(f"{incident.reason} ({incident.attempts} attempt(s), {seconds:.0f} s)"),
        action="Nothing." if resolved else "Do what the reason asks for; nothing is tried any more until then.",
        at=incident.closed_at,
        incident=number,
    )
    return opened, closed


def of_failed_run(run: str, job: str, cause: str, at: datetime, *, processor: str | None) -> Notification:
    """What there is to tell of a run that failed."""
    return Notification(
        id=f"run-{run}-failed",
        event="run.failed",
        processor=processor,
        title=f"{job} failed" if processor is None else f"{job} of {processor} failed",
        text=_cut(cause),
        action="Open the run in Dagster; its failed step says what to do.",
        at=at,
        run=run,
    )


def waiting(outbox: Outbox, notifications: Iterable[Notification], now: datetime) -> tuple[Notification, ...]:
    """What is to be told still, in order."""
    return tuple(each for each in notifications if each.id not in outbox.told and now - each.at <= NEWS_FOR)


def deliver(
    outbox: Outbox,
    messages: Sequence[Notification],
    send: Callable[[Notification], Answer],
    clock: Callable[[], datetime],
) -> Sending:
    """Send what waits, until the webhook fails or the time is up; nothing before the next try is due."""
    began = clock()
    if outbox.not_before is not None and began < outbox.not_before:
        due = (outbox.not_before - began).total_seconds()
        return Sending(outbox, failure=f"the webhook is tried again in {due:.0f} s" if messages else "")
    accepted: list[str] = []
    given_up: list[str] = []
    failure = ""
    for message in messages:
        if (clock() - began).total_seconds() > SENDING_S:
            failure = "the webhook is slow: the rest is sent next time"
            break
        answer = send(message)
        outbox = _after(outbox, message, answer, clock())
        if answer.accepted:
            accepted.append(message.id)
            continue
        failure = answer.words
        if not answer.refused:
            break
        if message.id in outbox.told:
            given_up.append(message.id)
    return Sending(outbox, tuple(accepted), tuple(given_up), failure)


def _after(outbox: Outbox, message: Notification, answer: Answer, now: datetime) -> Outbox:
    """What is known once a message was sent."""
    refusals = {name: count for name, count in outbox.refusals.items() if name != message.id}
    if answer.accepted:
        return Outbox(outbox.told | {message.id}, refusals=refusals)
    if answer.refused:
        count = outbox.refusals.get(message.id, 0) + 1
        if count >= REFUSALS_MAX:
            return replace(outbox, told=outbox.told | {message.id}, refusals=refusals)
        return replace(outbox, refusals={**refusals, message.id: count})
    pause_s = max(answer.pause_s, min(PAUSE_S_MAX, PAUSE_S * 2 ** min(outbox.failures, 10)))
    return replace(outbox, failures=outbox.failures + 1, not_before=now + timedelta(seconds=pause_s))


def forget(outbox: Outbox, known: Iterable[str]) -> Outbox:
    """Remember only what could come up again."""
    ids = frozenset(known)
    refusals = {name: count for name, count in outbox.refusals.items() if name in ids}
    return replace(outbox, told=outbox.told & ids, refusals=refusals)


def as_data(outbox: Outbox) -> dict[str, Any]:
    """As JSON-ready data."""
    not_before = None if outbox.not_before is None else outbox.not_before.isoformat()
    return {
        "told": sorted(outbox.told),
        "failures": outbox.failures,
        "not_before": not_before,
        "refusals": outbox.refusals,
    }


def from_data(data: dict[str, Any]) -> Outbox:
    """The opposite of ``as_data``."""
    not_before = data["not_before"]
    return Outbox(
        told=frozenset(data["told"]),
        failures=int(data["failures"]),
        not_before=None if not_before is None else datetime.fromisoformat(not_before),
        refusals=dict(data["refusals"]),
    )


def generic(message: Notification, link: str | None) -> dict[str, Any]:
    """A message as a document for programs."""
    return {
        "id": message.id,
        "event": message.event,
        "processor": message.processor,
        "title": message.title,
        "text": message.text,
        "action": message.action,
        "at": message.at.isoformat(),
        "incident": message.incident,
        "run": message.run,
        "link": link,
    }


def slack(message: Notification, link: str | None) -> dict[str, Any]:
    """A message as Slack, and chats that take the same, want it: ``text`` for the list, ``blocks`` for the page."""
    sign = {"incident.resolved": ":white_check_mark:", "incident.opened": ":warning:"}.get(message.event, ":x:")
    title = f"{sign} *{_escaped(message.title)}*"
    body = f"{title}\n{_escaped(message.text)}\n*What to do*: {_escaped(message.action)}"
    where = f"<{link}|Dagster> · " if link else ""
    return {
        "text": _escaped(message.title),
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": body}},
            {
                "type": "context",
                "elements": [{"type": "mrkdwn", "text": f"{where}{message.at:%Y-%m-%d %H:%M:%S} UTC · {message.id}"}],
            },
        ],
    }


def encoded(outbox: Outbox, **beside: Any) -> str:
    """An outbox, and what its keeper has to remember beside it, as text."""
    return json.dumps({**beside, "outbox": as_data(outbox)})


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} …"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
