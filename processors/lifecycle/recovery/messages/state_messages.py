"""Webhook messages about problems: conditions that need a person's action, for example a full disk.

A problem has one message at its start, reminders while it lasts, and one message at its end.

    seen ──lasts for settles_s──► posted ──each repeat──► posted again ──no longer──► over

Invariants:
    - If a processor does not work, a message about its failed incident or its problem is sent within ``settles_s``. For
      a problem that should end by itself, ``settles_s`` is longer.
    - Incidents have separate messages (``webhook_messages``). A problem has messages only if no incident already names
      the same action, so that one fault is not reported twice.
    - The ids of a problem's messages are fixed from its start, so a repeated tick sends the same ids after a kill.
    - A problem whose action changes, and stays so for ``SETTLED_S``, is posted again with its new action.
    - While a processor cannot be read, none of its problems begins or ends. "It cannot be read" is a separate problem.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.plans.requests import INSTALLATION
from holdfast.processors.lifecycle.recovery.ages import is_ahead
from holdfast.processors.lifecycle.recovery.faults import TITLES
from holdfast.processors.lifecycle.recovery.messages.webhook_messages import NEWS_FOR, Need, Notification, SeenNeed
from holdfast.processors.lifecycle.recovery.working_check import ACTION_MARK, Answer

#: Minimum seconds that a problem must last before a message reports it. Shorter problems are normal while a processor
#: is being changed.
SETTLED_S = 20.0
#: Minimum seconds before a message reports that no broker, or no schema registry, answers. Most of these services
#: restart sooner.
PASSING_S = 300.0
#: Minimum seconds before a message reports a start, a recovery or an apply (execution of a plan) that should end by
#: itself but lasts.
LASTING_S = 3_600.0
#: The subjects of messages that concern all processors: the disk and the brokers.
DISK, BROKER = "the disk", "the broker"
#: Kinds of problems in messages: no disk space, no broker answers, no schema registry answers, and a state that should
#: end by itself but lasts.
NO_ROOM, BROKER_AWAY, SCHEMAS_AWAY, LASTING = "no-room", "broker-away-lasts", "schema-registry-away-lasts", "lasting"


def settles_s(kind: str) -> float:
    """Minimum seconds that a problem of this kind must last before a message reports it."""
    return {BROKER_AWAY: PASSING_S, SCHEMAS_AWAY: PASSING_S, LASTING: LASTING_S}.get(kind, SETTLED_S)


def need_of(processor: str, answer: Answer, *, is_open: bool) -> Need | None:
    """The message for a processor that does not work; None if it works, or if its failed incident reports the fault.

    ``answer`` is the result of the processor's check ``working``. ``is_open`` is true if the incident in the answer is
    open. Messages about an open incident name no action, so this message is then needed. If the problem should end by
    itself, the message is due only after ``settles_s``.
    """
    if answer.passed or (answer.incident is not None and not is_open):
        return None
    action = answer.action or answer.text.partition(ACTION_MARK)[2]
    if not action:
        return _need_of_lasting(processor, answer)
    title = f"{processor} needs you: {TITLES[answer.kind]}"
    return Need(processor, answer.kind, title, answer.text, action, processor)


def _need_of_lasting(processor: str, answer: Answer) -> Need:
    """The message for a processor with a problem that should end by itself."""
    title = f"{processor} does not recover by itself: {TITLES[answer.kind]}"
    match answer.kind:
        case "disk-full":
            action = "Make room on the disk. `holdfast status --sizes` names what uses it, and what makes room."
            return Need(processor, NO_ROOM, title, answer.text, action, processor)
        case "broker-away":
            action = (
                "Start the broker, or correct its address. `holdfast doctor` names the address that does not answer."
            )
            return Need(BROKER, BROKER_AWAY, "no broker answers, so no processor works", answer.text, action)
        case "schema-registry-away":
            action = f"Start the schema registry, or correct its address in the definition of {processor}."
            return Need(processor, SCHEMAS_AWAY, title, answer.text, action, processor)
    action = f"Read `holdfast status {processor}` and `holdfast logs {processor}`: they name what it waits for."
    if processor == INSTALLATION:
        action = "Read `holdfast apply list`: it names who started the apply. Wait for its process, or end it."
    return Need(processor, LASTING, title, answer.text, action, processor)


def without_repeats(needs: Sequence[Need]) -> list[Need]:
    """Removes messages of processors that wait for disk space, if another message of the list is about the disk."""
    is_told = any(each.subject == DISK for each in needs)
    return [each for each in needs if not (is_told and each.kind == NO_ROOM)]


def need_of_disk(free_percent: float, least_percent: float, home: str) -> Need | None:
    """The message that the disk of the home folder needs space; None if at least ``least_percent`` is free."""
    if free_percent >= least_percent:
        return None
    text = f"The disk of {home} has {free_percent:.1f} % free, expected {least_percent:g} % or more."
    action = "`holdfast status --sizes` names what uses the disk, and what makes room."
    return Need(DISK, "full", "the disk is nearly full", text, action)


def need_of_code(subject: str, sentence: str, action: str) -> Need:
    """The message that Dagster cannot load a definition or a code location."""
    return Need(subject, "bad-configuration", f"{subject} can't be loaded", sentence, action)


def need_of_unread(processor: str, failed: Exception) -> Need:
    """The message that the status of a processor cannot be read, so that its faults are unknown."""
    why, action = f"{type(failed).__name__}: {failed}", ""
    if isinstance(failed, HoldfastError):
        why, action = failed.message, failed.action or ""
    subject = f"the state of {processor}"
    return Need(
        subject, "unread", f"{subject} can't be read", why, action or f"Read `holdfast status {processor}`.", processor
    )


def need_of_registry(failed: HoldfastError) -> Need:
    """The message that Holdfast's registry does not answer, so that no processor is recovered."""
    action = failed.action or "Read `holdfast doctor`."
    return Need("the registry", "unread", "the registry can't be read, so nothing is recovered", failed.message, action)


def follow(
    known: Mapping[str, SeenNeed], needs: Sequence[Need], unread: Collection[str], now: datetime
) -> dict[str, SeenNeed]:
    """Returns all problems after one tick of the sensor, by identity.

    ``known`` has the problems after the previous tick, and ``needs`` has the problems that this tick has seen.
    ``unread`` are the subjects (for example processors) that this tick could not read.
    """
    asked = {(each.subject, each.kind): each for each in needs}
    after: dict[str, SeenNeed] = {}
    lasting: set[tuple[str, str]] = set()
    for name, told in known.items():
        place = told.need.subject, told.need.kind
        if told.ended is not None:
            if now - told.ended <= NEWS_FOR:
                after[name] = told
        elif place in asked:
            lasting.add(place)
            is_other = asked[place].action != told.need.action and _is_settled(told, now)
            changed = now if is_other else told.changed
            posted = told.posted or _is_settled(told, now)
            after[name] = msgspec.structs.replace(told, need=asked[place], changed=changed, posted=posted)
        elif told.need.subject in unread:
            after[name] = told
        elif told.posted or _is_settled(told, now):
            after[name] = msgspec.structs.replace(told, ended=now)
    for place, need in asked.items():
        if place not in lasting:
            told = SeenNeed(need, now)
            after[told.identity] = told
    return after


def messages_of(states: Mapping[str, SeenNeed], repeat: timedelta, now: datetime) -> list[Notification]:
    """The messages about all these problems, including the messages that were sent earlier.

    The id of a reminder contains the reminder's number.
    """
    found = []
    for told in states.values():
        until = now if told.ended is None else told.ended
        if not (told.posted or _is_settled(told, until)):
            continue
        found.append(_message(told, "", told.need.title, told.since))
        if told.changed is not None and _lasts(told.changed, until, SETTLED_S):
            found.append(_message(told, f"-changed-{told.changed:%Y%m%dT%H%M%S}", told.need.title, told.changed))
        if told.ended is not None:
            title = f"{told.need.subject}: over after {_words(told.ended - told.since)}: {told.need.title}"
            found.append(_message(told, "-over", title, told.ended))
        elif (number := int((now - told.since) / repeat)) > 0:
            title = f"{told.need.title}, since {_words(number * repeat)}"
            found.append(_message(told, f"-again-{number}", title, told.since + number * repeat))
    return found


def _message(told: SeenNeed, end: str, title: str, at: datetime) -> Notification:
    is_over = end == "-over"
    return Notification(
        id=f"{told.identity}{end}",
        event="state.over" if is_over else "state.needs",
        processor=told.need.processor,
        title=title,
        text=told.need.text,
        action="Nothing." if is_over else told.need.action,
        at=at,
    )


def _is_settled(told: SeenNeed, now: datetime) -> bool:
    return _lasts(told.since, now, settles_s(told.need.kind))


def _lasts(since: datetime, now: datetime, seconds: float) -> bool:
    """Whether ``since`` is at least this long ago.

    True for a time in the future, because a wrong clock recorded it.
    """
    return is_ahead(since, now) or (now - since).total_seconds() >= seconds


def _words(length: timedelta) -> str:
    minutes = int(length.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
