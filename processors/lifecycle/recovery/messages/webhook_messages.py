"""Texts of the webhook's messages (incidents, failed runs), and the record of the messages that were sent.

A *problem* in this module is a condition that needs a person's action, for example a full disk. It is reported apart
from incidents. The code calls it a ``Need``. The events ``state.needs`` and ``state.over`` report its start and its
end.

Invariants:
    - Messages are derived from the registry's incidents and Dagster's failed runs. If a message is not sent, no fact is
      lost, and recovery never waits for a message.
    - The id of a message never changes. A message is sent again until the webhook accepts it (at-least-once). A message
      that the webhook refuses is dropped after ``REFUSALS_MAX`` tries; a message older than ``NEWS_FOR`` is not sent.
    - While the webhook does not answer, only one message is tried at a time, with growing pauses.
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
from holdfast.processors.lifecycle.recovery.lagging import Lag

Event = Literal["incident.opened", "incident.resolved", "incident.failed", "run.failed", "state.needs", "state.over"]

#: First and maximum pause, in seconds, between tries while the webhook can't be reached; each try doubles the pause.
PAUSE_S, PAUSE_S_MAX = 10.0, 600.0
#: Maximum number of tries for a message that the webhook refuses.
REFUSALS_MAX = 3
#: Maximum age of a message; older messages are not sent.
NEWS_FOR = timedelta(days=1)
#: Maximum seconds of one delivery. A delivery runs in a tick of the sensor, which must stay short.
SENDING_S = 20.0
_TEXT_MAX = 1500  # Slack allows 3000 characters per section, and escaping makes a text longer (``&`` as ``&amp;``)


@dataclass(frozen=True, slots=True)
class Notification:
    """One message for the webhook."""

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
    """A problem that needs a person's action.

    ``subject`` says where the problem is: a processor, or for example the disk. ``kind`` is the kind of problem.
    """

    subject: str
    kind: str
    title: str
    text: str
    action: str
    #: The processor; None if the problem concerns no single processor, for example a full disk.
    processor: str | None = None


class SeenNeed(msgspec.Struct, frozen=True):
    """A problem (``need``) with the times of its start and its end, as the sensor has seen them.

    ``since`` is the time when the problem was first seen. ``ended`` is None while the problem lasts. ``changed`` is the
    time since which the problem has its present action. It is None if the first message names this action.
    """

    need: Need
    since: datetime
    ended: datetime | None = None
    changed: datetime | None = None
    #: Whether the problem's first message was due in some tick. It then stays due, even if the clock of that tick was
    #: wrong and a later tick finds that the problem has not lasted long enough.
    posted: bool = False

    @property
    def identity(self) -> str:
        """The id of this problem; the ids of all its messages start with it."""
        return f"state-{self.need.subject}-{self.need.kind}-{self.since:%Y%m%dT%H%M%S}"


class Outbox(msgspec.Struct, frozen=True):
    """The ids of messages that are not sent again (``told``), and the earliest time of the next try (``not_before``).

    ``failures`` counts failed tries since the last accepted message; ``refusals`` counts refusals by message id.
    """

    told: frozenset[str] = frozenset()
    failures: int = 0
    not_before: datetime | None = None
    refusals: dict[str, int] = {}


class Cursor(msgspec.Struct, frozen=True):
    """The data that the sensor keeps between two ticks, as its Dagster cursor.

    ``failures_after`` is the position in Dagster's event log of the last failed run that was handled.
    """

    outbox: Outbox
    failures_after: int
    #: Identity -> problem that needs a person's action (module ``state_messages``).
    states: dict[str, SeenNeed] = {}
    #: Processor -> its lag. A message reports the lag if it has not shrunk for some time.
    lags: dict[str, Lag] = {}


@dataclass(frozen=True, slots=True)
class Sending:
    """The result of sending messages in one tick."""

    outbox: Outbox
    accepted: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    #: The reason why the last message was not accepted; empty if the webhook accepted all messages.
    failure: str = ""


def of_incident(incident: Incident) -> tuple[Notification, ...]:
    """The messages about an incident: one about its opening and, once it is closed, one about its end."""
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
        # The id contains the time, because a retried incident ends a second time, and needs a second message.
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
    """The message about a failed run."""
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
    """The messages to send, in order: those not sent yet and not older than ``NEWS_FOR``.

    Messages with the same id are sent once, because Dagster may record a run's failure twice.
    """
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
    """Send the messages in order until the webhook fails or ``SENDING_S`` seconds have passed.

    Nothing is sent before the time ``not_before`` of the outbox. ``keep`` stores the outbox after each try, so that the
    result of a try is not lost if the process is killed.
    """
    began = clock()
    due = 0.0 if outbox.not_before is None else (outbox.not_before - began).total_seconds()
    # The wait for the next try is never longer than this maximum. If ``not_before`` is further ahead, the clock was
    # wrong when it was stored, so it is ignored.
    if 0 < due <= ASKED_PAUSE_S_MAX:
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
    """The ``outbox`` after one try to send a message; after a failed try, it says how long the next try must wait."""
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
    """A copy of ``outbox`` with only the ids in ``known``, which are the ids of messages that can still occur."""
    ids = frozenset(known)
    refusals = {name: count for name, count in outbox.refusals.items() if name in ids}
    return msgspec.structs.replace(outbox, told=outbox.told & ids, refusals=refusals)


def encoded(cursor: Cursor) -> str:
    """Encodes a cursor as JSON."""
    return msgspec.json.encode(cursor, order="deterministic").decode()


def decoded(text: str | None) -> Cursor | None:
    """Decodes a cursor from JSON; None if the text is unreadable, for example at the first tick."""
    try:
        return msgspec.json.decode(text or "", type=Cursor)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def generic(message: Notification, link: str | None) -> dict[str, Any]:
    """A message as a JSON document that programs can read."""
    return {**asdict(message), "at": message.at.isoformat(), "link": link}


def slack(message: Notification, link: str | None) -> dict[str, Any]:
    """A message in Slack's format: ``text`` is shown in notifications, ``blocks`` in the channel."""
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
