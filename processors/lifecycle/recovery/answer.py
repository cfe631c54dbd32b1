"""Does a processor work? The answer of its check ``working``, in the words that whoever is called at night needs.

Invariants:
    - A failing answer says what is wrong, since when, the incident's number, and what is being done or the one action.
    - The same facts give the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.infra.database.records import ApplyRecord, Incident
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.ports import ProcessorStatus
from holdfast.processors.lifecycle.recovery.diagnosis import Diagnosis, Healthy, NotDeployed, Starting
from holdfast.processors.lifecycle.recovery.faults import TITLES, Kind, kind_of
from holdfast.processors.lifecycle.recovery.incidents import worst
from holdfast.processors.lifecycle.recovery.remedies import Wait

#: An answer that stays the same is told again after so many seconds, so that its age shows that somebody looks.
TELL_EVERY_S = 300.0
#: Fewer records to process than this are no lag to speak of.
LAG_RECORDS = 100_000
#: For so long the lag may be without shrinking, seconds.
LAG_S = 300.0
#: A lag shrinks when it is less than this part of what it was.
SHRUNK = 0.95


@dataclass(frozen=True, slots=True)
class Answer:
    """What the check says."""

    passed: bool
    kind: Kind
    text: str
    incident: int | None = None
    remedy: str = ""
    action: str = ""
    #: Somebody is to look at it by day: it works, and falls behind.
    only_warns: bool = False

    @property
    def short(self) -> str:
        """What makes it another answer; the seconds in its words do not."""
        return f"{self.passed} {self.kind} {self.incident} {self.remedy} {self.action}"


@dataclass(frozen=True, slots=True)
class Lag:
    """How many records a processor had to process, and since when it has not shrunk."""

    records: int
    since: float


def judge_working(
    found: Mapping[str, Diagnosis],
    incident: Incident | None,
    now: datetime,
    *,
    lag: Lag | None = None,
    attempts: int = 3,
) -> Answer | None:
    """The answer; None when there is none yet, as while a processor starts for the first time.

    Args:
        found: By slot, what is wrong with it.
        incident: The open incident, or else the newest one.
        now: The present moment.
        lag: How far it is behind, as ``next_lag`` remembers it.
        attempts: How many an incident has.
    """
    gravest = worst(found)
    if isinstance(gravest, NotDeployed):
        return Answer(True, gravest.kind, gravest.sentence)
    is_open = incident is not None and incident.is_open
    if isinstance(gravest, Healthy):
        if lag is not None and now.timestamp() - lag.since >= LAG_S:
            return _falls_behind(lag, now)
        said = f" Incident {incident.id} is verified." if incident is not None and is_open else ""
        return Answer(True, gravest.kind, f"It works.{said}", incident.id if incident is not None and is_open else None)
    if isinstance(gravest, Starting) and not is_open:
        return None
    # one that ended tells of this fault only where nothing came since
    told = incident if incident is not None and (is_open or incident.outcome == "failed") else None
    return _failing(found, gravest, told, attempts)


def judge_broken_off(begun: ApplyRecord, found: Mapping[str, Diagnosis]) -> Answer:
    """The answer of a processor that nobody carries an open apply out on any more: it may be half changed.

    Args:
        begun: The apply.
        found: By slot, what is wrong with it.
    """
    plan = plans.decode(begun.plan)
    sick = " ".join(f"Slot {slot}: {each.sentence}" for slot, each in found.items() if each.needs_recovery)
    if plan.after_kill == "go on":
        action = f"holdfast apply resume {begun.id}"
        held = "Recovery keeps its hands off meanwhile."
    else:
        action = f"holdfast apply {begun.verb} {begun.processor}, which is planned anew from what there is"
        held = "Nothing waits for it."
    why = f" It stopped because: {begun.reason.splitlines()[0]}" if begun.reason else ""
    text = (
        f"{_capital(TITLES['apply-broken-off'])}: {begun.verb}, apply {begun.id}, begun by {begun.who} at "
        f"{begun.started_at:%Y-%m-%d %H:%M:%S}Z; stage {len(begun.done)} of {len(plan.stages)} is through.{why} "
        f"{sick}{' ' if sick else ''}{held} What to do: {action}"
    )
    return Answer(False, "apply-broken-off", text, action=action)


def next_lag(before: Lag | None, statuses: Sequence[ProcessorStatus], now: datetime) -> Lag | None:
    """What is to be remembered of a processor's lag: since when it is large and has not shrunk; None when it is small.

    Args:
        before: What was remembered at the last look.
        statuses: What its instances say.
        now: The present moment.
    """
    lags = [at.lag for status in statuses for task in status.tasks for at in task.inputs.values()]
    records = sum(lag for lag in lags if lag is not None)
    if records < LAG_RECORDS:
        return None
    if before is None or records < before.records * SHRUNK:
        return Lag(records, now.timestamp())
    return before


def is_due(answer: Answer, told: Any, now: float) -> bool:
    """Whether an answer is to be told: it is another one than last time, or that was long ago.

    Args:
        answer: The answer.
        told: ``[short, at]`` of the last time, as a cursor has it.
        now: The present moment, seconds since 1970.
    """
    try:
        short, at = told
        return bool(short != answer.short or now - float(at) >= TELL_EVERY_S)
    except (TypeError, ValueError):
        return True


def _falls_behind(lag: Lag, now: datetime) -> Answer:
    since = now.timestamp() - lag.since
    text = (
        f"{_capital(TITLES['lagging'])}: {lag.records:,} records or more are to be processed, and for {since:.0f} s it "
        "got no nearer. What to do: look for what slows it down in its lag, commits and state on this page; give the "
        "topic more partitions or the function less to do."
    )
    return Answer(False, "lagging", text, only_warns=True)


def _failing(found: Mapping[str, Diagnosis], gravest: Diagnosis, incident: Incident | None, attempts: int) -> Answer:
    said = " ".join(f"Slot {slot}: {each.sentence}" for slot, each in found.items() if not isinstance(each, Healthy))
    if incident is None:
        kind = gravest.kind
        doing = Wait(kind).sentence if kind == "broker-away" else "An incident is opened."
        return Answer(False, kind, f"{_capital(TITLES[kind])}. {said} {doing}")
    kind = kind_of(incident.kind) if gravest.kind in ("starting", "dead", "failed") else gravest.kind
    if incident.is_open:
        doing = _doing(incident, attempts)
    else:
        doing = f"Recovery stopped. What to do: {incident.action or f'holdfast incidents show {incident.id}'}"
    since = f"Since {incident.opened_at:%Y-%m-%d %H:%M:%S}Z, incident {incident.id}."
    return Answer(
        False,
        kind,
        f"{_capital(TITLES[kind])}. {said} {since} {doing}",
        incident.id,
        incident.remedy,
        incident.action,
    )


def _doing(incident: Incident, attempts: int) -> str:
    if incident.remedy == Wait.name:
        return Wait(kind_of(incident.kind)).sentence
    done = {"rebuild": "Its local state is set aside and restored", "restart": "It is restarted"}
    number = f", attempt {incident.attempts} of {attempts}" if incident.attempts else ""
    return f"{done.get(incident.remedy, 'Recovery is on its way')}{number}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
