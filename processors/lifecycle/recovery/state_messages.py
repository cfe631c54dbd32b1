"""Webhook messages about states that need a person: one at the start of a state, reminders, and one at its end.

    seen ──needs a person for SETTLED_S──► posted ──each repeat──► posted again ──no longer──► over

Invariants:
    - Incidents have separate messages (``webhook_messages``). A state has messages only if no incident already names
      the same action, so that one fault is not reported twice.
    - The ids of a state's messages are fixed from its start, so a repeated tick sends the same ids after a kill.
    - While a processor cannot be read, none of its states begins or ends. "It cannot be read" is a separate state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.recovery.faults import TITLES
from holdfast.processors.lifecycle.recovery.webhook_messages import NEWS_FOR, Need, Notification, SeenNeed
from holdfast.processors.lifecycle.recovery.working_check import Answer

#: Minimum seconds that a state must last before a message reports it. Shorter states are normal while a processor is
#: being changed.
SETTLED_S = 20.0
#: The subject of messages about disk space.
DISK = "the disk"


def need_of(processor: str, answer: Answer, *, is_open: bool) -> Need | None:
    """The message for a processor that needs a person; None if nobody is needed, or if its incident reports the need.

    ``is_open`` is true if the answer's incident is open; messages of an open incident name no action.
    """
    if answer.passed or not answer.action or (answer.incident is not None and not is_open):
        return None
    title = f"{processor} needs you: {TITLES[answer.kind]}"
    return Need(processor, answer.kind, title, answer.text, answer.action, processor)


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
    """The message that the state of a processor cannot be read, so that its faults are unknown."""
    why, action = f"{type(failed).__name__}: {failed}", ""
    if isinstance(failed, HoldfastError):
        why, action = failed.message, failed.action or ""
    subject = f"the state of {processor}"
    return Need(
        subject, "unread", f"{subject} can't be read", why, action or f"Read `holdfast status {processor}`.", processor
    )


def need_of_registry(failed: HoldfastError) -> Need:
    """The message that the registry does not answer, so that no processor is recovered."""
    action = failed.action or "Read `holdfast doctor`."
    return Need("the registry", "unread", "the registry can't be read, so nothing is recovered", failed.message, action)


def follow(
    known: Mapping[str, SeenNeed], needs: Sequence[Need], unread: Collection[str], now: datetime
) -> dict[str, SeenNeed]:
    """The state of every subject after one tick, by identity; ``unread`` are the subjects that could not be read."""
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
            after[name] = msgspec.structs.replace(told, need=asked[place])
        elif told.need.subject in unread:
            after[name] = told
        elif _is_settled(told, now):
            after[name] = msgspec.structs.replace(told, ended=now)
    for place, need in asked.items():
        if place not in lasting:
            told = SeenNeed(need, now)
            after[told.identity] = told
    return after


def messages_of(states: Mapping[str, SeenNeed], repeat: timedelta, now: datetime) -> list[Notification]:
    """The messages of all these states, including those sent earlier; a reminder's id contains its number."""
    found = []
    for told in states.values():
        until = now if told.ended is None else told.ended
        if not _is_settled(told, until):
            continue
        found.append(_message(told, "", told.need.title, told.since))
        if told.ended is not None:
            title = f"{told.need.subject}: over after {_words(told.ended - told.since)}: {told.need.title}"
            found.append(_message(told, "-over", title, told.ended))
        elif number := int((now - told.since) / repeat):
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
    return (now - told.since).total_seconds() >= SETTLED_S


def _words(length: timedelta) -> str:
    minutes = int(length.total_seconds() // 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
