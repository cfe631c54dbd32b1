"""Texts of the webhook's messages (incidents, failed runs), and the record of what was sent.

Invariants:
    - Messages derive from facts kept elsewhere: the registry's incidents and Dagster's failed runs. An unsent
      message loses nothing, and recovery never waits for one.
    - A message keeps its id. It is sent until the webhook accepts it (at least once). A message that the webhook
      refuses is dropped after ``REFUSALS_MAX`` tries; a message older than ``NEWS_FOR`` is not sent.
    - While the webhook does not answer, one message is tried at a time, with growing pauses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.infra.database.records import Incident
from holdfast.infra.webhook import PAUSE_S_MAX as ASKED_PAUSE_S_MAX
from holdfast.infra.webhook import Answer

Event = Literal["incident.opened", "incident.resolved", "incident.failed", "run.failed", "state.needs", "state.over"]

#: Pause before the second try of an unreachable webhook, seconds; it doubles up to the maximum.
PAUSE_S, PAUSE_S_MAX = 10.0, 600.0
#: Maximum number of tries for a message that the webhook refuses.
REFUSALS_MAX = 3
#: Older messages are not sent.
NEWS_FOR = timedelta(days=1)
#: Time limit of one delivery, seconds; it is part of a sensor tick.
SENDING_S = 20.0
_TEXT_MAX = 1500  # Slack allows 3000 per section; escaping turns some characters into five


@dataclass(frozen=True, slots=True)
class Notification:
    """One message of the webhook."""

    id: str
    event: Event
    processor: str | None
    title: str
    text: str
    #: The next action, as a sentence.
    action: str
    at: datetime
    incident: int | None = None
    run: str | None = None


class Need(msgspec.Struct, frozen=True):
    """A state that needs a person: its subject is a processor or a part of the installation."""

    subject: str
    kind: str
    title: str
    text: str
    action: str
    #: None for a part of the installation.
    processor: str | None = None


class SeenNeed(msgspec.Struct, frozen=True):
    """A state since it was first seen; ``ended`` is None while it lasts."""

    need: Need
    since: datetime
    ended: datetime | None = None

    @property
    def identity(self) -> str:
        """The prefix of the ids of the state's messages."""
        return f"state-{self.need.subject}-{self.need.kind}-{self.since:%Y%m%dT%H%M%S}"


class Outbox(msgspec.Struct, frozen=True):
    """Ids of the sent messages, and the time of the next try.

    ``failures`` counts failed tries since the last accepted message; ``refusals`` counts refusals by message id.
    """

    told: frozenset[str] = frozenset()
    failures: int = 0
    not_before: datetime | None = None
    refusals: dict[str, int] = {}


class Cursor(msgspec.Struct, frozen=True):
    """The memory of the sensor: the outbox, and the log position of the last failed run that was handled."""

    outbox: Outbox
    failures_after: int
    #: The states that need a person, by identity (``state_messages``).
    states: dict[str, SeenNeed] = {}


@dataclass(frozen=True, slots=True)
class Sending:
    """Result of one delivery."""

    outbox: Outbox
    accepted: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    #: Why the last message was not accepted; empty when all were accepted.
    failure: str = ""


def of_incident(incident: Incident) -> tuple[Notification, ...]:
    """The messages of an incident so far: its opening, and its end."""
    name, number = incident.processor, incident.id
    seen = " ".join(str(each) for each in incident.detail.values() if isinstance(each, str))
    opened = Notification(
        id=f"incident-{number}-opened",
        event="incident.opened",
        processor=name,
        title=f"{name} is {incident.kind}: incident {number}",
        text=_cut(seen) or f"It is {incident.kind}.",
        action="Nothing yet: recovery is running. Its result follows as a message.",
        at=incident.opened_at,
        incident=number,
    )
    if incident.closed_at is None or incident.outcome is None:
        return (opened,)
    resolved = incident.outcome == "resolved"
    seconds = (incident.closed_at - incident.opened_at).total_seconds()
    closed = Notification(
        # A retried incident ends again, with a separate message.
        id=f"incident-{number}-{incident.outcome}-{incident.closed_at:%Y%m%dT%H%M%S}",
        event="incident.resolved" if resolved else "incident.failed",
        processor=name,
        title=f"{name} works again: incident {number}" if resolved else f"{name} needs you: incident {number} failed",
        text=_cut(f"{incident.reason} ({incident.attempts} attempt(s), {seconds:.0f} s)"),
        action="Nothing." if resolved else "Follow the action in the reason; recovery stays stopped until then.",
        at=incident.closed_at,
        incident=number,
    )
    return opened, closed


def of_failed_run(run: str, job: str, cause: str, at: datetime, *, processor: str | None) -> Notification:
    """The message of a failed run."""
    return Notification(
        id=f"run-{run}-failed",
        event="run.failed",
        processor=processor,
        title=f"{job} failed" if processor is None else f"{job} of {processor} failed",
        text=_cut(cause),
        action="Open the run in Dagster; its failed step names the next action.",
        at=at,
        run=run,
    )


def waiting(outbox: Outbox, notifications: Iterable[Notification], now: datetime) -> tuple[Notification, ...]:
    """The messages to send, in order; each id once, because Dagster may record the failure of a run twice."""
    found = {each.id: each for each in notifications if each.id not in outbox.told and now - each.at <= NEWS_FOR}
    return tuple(found.values())


def deliver(
    outbox: Outbox,
    messages: Sequence[Notification],
    send: Callable[[Notification], Answer],
    clock: Callable[[], datetime],
    *,
    keep: Callable[[Outbox], object],
) -> Sending:
    """Send waiting messages until the webhook fails or the time limit ends; send none before the next try is due.

    ``keep`` stores the outbox after each try, so that a process that dies next has lost no answer.
    """
    began = clock()
    due = 0.0 if outbox.not_before is None else (outbox.not_before - began).total_seconds()
    if 0 < due <= ASKED_PAUSE_S_MAX:  # a later time comes from a clock that was ahead
        return Sending(outbox, failure=f"the next try of the webhook is in {due:.0f} s" if messages else "")
    accepted: list[str] = []
    given_up: list[str] = []
    failure = ""
    for message in messages:
        if (clock() - began).total_seconds() > SENDING_S:
            failure = "the webhook is slow; the rest is sent at the next tick"
            break
        answer = send(message)
        outbox = _after(outbox, message, answer, clock())
        keep(outbox)
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
    """The outbox after one try."""
    refusals = {name: count for name, count in outbox.refusals.items() if name != message.id}
    if answer.accepted:
        return Outbox(outbox.told | {message.id}, refusals=refusals)
    if answer.refused:
        count = outbox.refusals.get(message.id, 0) + 1
        if count >= REFUSALS_MAX:
            return msgspec.structs.replace(outbox, told=outbox.told | {message.id}, refusals=refusals)
        return msgspec.structs.replace(outbox, refusals={**refusals, message.id: count})
    pause_s = max(answer.pause_s, min(PAUSE_S_MAX, PAUSE_S * 2 ** min(outbox.failures, 10)))
    return msgspec.structs.replace(outbox, failures=outbox.failures + 1, not_before=now + timedelta(seconds=pause_s))


def forget(outbox: Outbox, known: Iterable[str]) -> Outbox:
    """Drop the ids of messages that cannot occur again."""
    ids = frozenset(known)
    refusals = {name: count for name, count in outbox.refusals.items() if name in ids}
    return msgspec.structs.replace(outbox, told=outbox.told & ids, refusals=refusals)


def encoded(cursor: Cursor) -> str:
    """A cursor as JSON."""
    return msgspec.json.encode(cursor, order="deterministic").decode()


def decoded(text: str | None) -> Cursor | None:
    """A cursor from its JSON; None when it can't be read, as at the first tick."""
    try:
        return msgspec.json.decode(text or "", type=Cursor)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def generic(message: Notification, link: str | None) -> dict[str, Any]:
    """A message as a document for programs."""
    return {**asdict(message), "at": message.at.isoformat(), "link": link}


def slack(message: Notification, link: str | None) -> dict[str, Any]:
    """A message in Slack's format: ``text`` for the list, ``blocks`` for the page."""
    over = ":white_check_mark:"
    sign = {"incident.resolved": over, "state.over": over, "incident.opened": ":warning:"}.get(message.event, ":x:")
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


def _cut(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]} …"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
