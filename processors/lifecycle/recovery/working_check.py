"""The result of the asset check ``working``: whether a processor works, and if not, the next action.

Invariants:
    - A failing answer names the fault, its start, the incident, and the next action or the running recovery.
    - The same facts give the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from holdfast.infra.database.records import ApplyRecord, Incident
from holdfast.infra.errors import in_one_line
from holdfast.processors.lifecycle.plans import way_on
from holdfast.processors.lifecycle.plans.facts.behind import Behind
from holdfast.processors.lifecycle.recovery.diagnosis import (
    Dead,
    Diagnosis,
    Differs,
    Failed,
    Healthy,
    NotDeployed,
    Outdated,
    Starting,
    Unsupervised,
    in_words,
    worst,
)
from holdfast.processors.lifecycle.recovery.faults import TITLES, Kind, kind_of
from holdfast.processors.lifecycle.recovery.lagging import Lag, is_lasting, lagging_words
from holdfast.processors.lifecycle.recovery.limits import ATTEMPTS
from holdfast.processors.lifecycle.recovery.remedies import Wait, retry_of
from holdfast.processors.lifecycle.verbs.refusals import shared_with

#: Name of the asset check.
WORKING = "working"

#: The colors of an answer. Red: a person must act now. Yellow: a warning, or a state that ends by itself.
#: Grey: the state is unknown, or the processor should not run.
Colour = Literal["green", "yellow", "grey", "red"]

#: Kinds of failures that need no warning about workers of another installation in the group. The action for such a
#: failure starts no worker here, or already mentions the other installation.
_ASKED_FIRST: frozenset[Kind] = frozenset({"registry-behind", "supervisor-silent", "held-elsewhere"})
#: The text that comes before the action in an answer.
ACTION_MARK = " What to do: "

#: Seconds after which an unchanged answer is recorded again, so that a recent answer shows that the sensor is alive.
TELL_EVERY_S = 1800.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One result of the check ``working``."""

    passed: bool
    kind: Kind
    text: str
    incident: int | None = None
    remedy: str = ""
    action: str = ""
    #: Whether the answer is only a warning, because the processor works but falls behind or is paused.
    only_warns: bool = False

    @property
    def short(self) -> str:
        """A text by which answers are compared. It has no durations, because a longer duration is no new answer."""
        return f"{self.passed} {self.kind} {self.incident} {self.remedy} {self.action}"

    @property
    def colour(self) -> Colour:
        """The color that shows the answer's urgency. A starting processor, or one with only a warning, is yellow."""
        if self.passed:
            return "grey" if self.kind == "not-deployed" else "green"
        return "yellow" if self.only_warns or self.kind == "starting" else "red"


#: The answer for a processor that is starting for the first time.
STARTING = Answer(False, "starting", "The processor is starting; not every partition has a running task yet.")


def judge_working(
    found: Mapping[str, Diagnosis],
    incident: Incident | None,
    now: datetime,
    *,
    lag: Lag | None = None,
    processor: str = "",
    attempts: int = ATTEMPTS,
) -> Answer | None:
    """The result of the check ``working`` for a processor; None while the processor starts for the first time.

    ``found`` has the diagnosis of each slot (place of one worker). ``incident`` is the open incident; if none is open,
    it is the newest incident. ``lag`` is the result of ``next_lag``. ``processor`` is the processor's name, which a
    command about the lag needs. ``attempts`` is the maximum number of attempts for one incident.
    """
    gravest = worst(found)
    if isinstance(gravest, Outdated):
        return judge_behind(gravest.behind, gravest.hangs)
    if isinstance(gravest, NotDeployed):
        return Answer(True, gravest.kind, gravest.sentence)
    is_open = incident is not None and incident.is_open
    if isinstance(gravest, Unsupervised):
        text = f"{_capital(TITLES[gravest.kind])}. {in_words(found)} What to do: {gravest.action}"
        return Answer(False, gravest.kind, text, action=gravest.action)
    if isinstance(gravest, Differs):
        said = in_words({slot: each for slot, each in found.items() if isinstance(each, Differs)})
        text = f"{_capital(TITLES[gravest.kind])}. {said} What to do: {gravest.action}"
        return Answer(False, gravest.kind, text, action=gravest.action, only_warns=gravest.warns)
    if isinstance(gravest, Healthy):
        if lag is not None and is_lasting(lag, now):
            words, command = lagging_words(lag, processor, now)
            text = f"{_capital(TITLES['lagging'])}: {words}"
            return Answer(False, "lagging", text, action=command, only_warns=True)
        said = f" Incident {incident.id} is verified." if incident is not None and is_open else ""
        return Answer(True, gravest.kind, f"It works.{said}", incident.id if incident is not None and is_open else None)
    if isinstance(gravest, Starting) and not is_open:
        return None
    # A closed incident explains the present fault only if its recovery failed.
    told = incident if incident is not None and (is_open or incident.outcome == "failed") else None
    return _failing(found, gravest, told, attempts)


def judge_pause(answer: Answer, last: ApplyRecord | None) -> Answer:
    """The result of the check for a paused processor.

    The result is a warning. It is a failure if the newest apply (``last``, execution of a plan) was ended early,
    because that apply may have left the processor paused.
    """
    if answer.kind != "paused" or last is None or last.outcome not in ("abandoned", "failed"):
        return answer
    text, _, todo = answer.text.partition(ACTION_MARK)
    left = f"Apply {last.id} ({last.verb}), which ended as {last.outcome}, may have left it so."
    return replace(answer, text=f"{text} {left}{ACTION_MARK}{todo}", only_warns=False)


def judge_behind(old: Behind, hangs: str = "") -> Answer:
    """The answer if Holdfast's registry was replaced by a backup, so that it lacks the newest deployment.

    ``hangs`` is the action that makes a silent supervisor answer again. It comes first, because the correction of the
    registry asks the supervisor for the running workers.
    """
    action = f"{hangs} Then: {old.action}" if hangs else old.action
    text = f"{_capital(TITLES['registry-behind'])}. {old.sentence} What to do: {action}"
    return Answer(False, "registry-behind", text, action=action)


def judge_interrupted(begun: ApplyRecord, found: Mapping[str, Diagnosis], incident: Incident | None = None) -> Answer:
    """The result of the check for a processor whose apply (execution of a plan) was interrupted before its last stage.

    ``incident`` is the open incident; if none is open, it is the newest incident.
    """
    plan, action = way_on.read(begun), _way_on(begun, found, incident)
    if hangs := next(filter(None, map(_silent_supervisor, found.values())), ""):
        # While the supervisor does not answer, no command reaches a worker. So the supervisor's action comes first.
        action = f"{hangs} Then: {action}"
    sick = in_words({slot: each for slot, each in found.items() if each.needs_recovery})
    if way_on.keeps_recovery_away(begun):
        held = "Recovery leaves the processor alone until then."
    else:
        held = "Recovery does not wait for it."
    total = "an unknown number of" if plan is None else str(len(plan.stages))
    why = f" It stopped because: {in_one_line(begun.reason)}" if begun.reason else ""
    text = (
        f"{_capital(TITLES['apply-broken-off'])}: {begun.verb}, apply {begun.id}, started by {begun.who} at "
        f"{begun.started_at:%Y-%m-%d %H:%M:%S}Z; {len(begun.done)} of {total} stages are done.{why} "
        f"{sick}{' ' if sick else ''}{held} What to do: {action}"
    )
    return Answer(False, "apply-broken-off", text, action=action)


def _way_on(begun: ApplyRecord, found: Mapping[str, Diagnosis], incident: Incident | None) -> str:
    """The command that ends an interrupted apply, with an alternative if the recorded version does not start.

    An apply is the execution of a plan.
    """
    action, held = way_on.way_on(begun), way_on.keeps_recovery_away(begun)
    failed = incident if incident is not None and incident.outcome == "failed" else None
    down, instead = any(each.needs_recovery for each in found.values()), way_on.abandon_of(begun)
    if failed is not None and down and not held and way_on.needs_workers(begun):
        if retry_of(failed.id) in failed.action:
            return f"{failed.action}; then, when all workers run: {action}"
        # The incident's action starts another apply (of a plan), which is refused while the interrupted apply is open.
        return f"{instead}; then: {failed.action}"
    waits, comes = way_on.waits_with_whole_state(begun), way_on.resumes_to_whole_state(begun)
    meant = any(not isinstance(each, NotDeployed) for each in found.values())
    if held and (down if waits else meant and comes):
        # The alternative is named even if no worker has failed, because a killed or stopped worker may fail to start.
        return f"{action}; or, if its workers do not start: {instead}, and recovery continues."
    ended = any(map(_ended_by_itself, found.values()))
    if held or not (waits or comes) or not ended or failed is None or failed.opened_at < begun.started_at:
        return action
    # `holdfast apply resume` is not proposed, because recovery has already restarted the workers without success.
    return f"{instead}; then: {failed.action}"


def _ended_by_itself(found: Diagnosis) -> bool:
    """Whether a worker ended on its own, by an error or a crash, so that it may end again after a restart."""
    return isinstance(found, Failed) or (isinstance(found, Dead) and found.exit_status is not None)


def _silent_supervisor(found: Diagnosis) -> str:
    """The action that makes the supervisor answer again; empty if it answers."""
    if isinstance(found, Unsupervised):
        return found.action
    return found.hangs if isinstance(found, NotDeployed) else ""


def asks_to_start(answer: Answer) -> bool:
    """Whether an answer of the check tells the user to start workers.

    Such a command is refused while another installation has workers in the group.
    """
    return not answer.passed and bool(answer.action) and answer.kind not in _ASKED_FIRST


def judge_beside(answer: Answer, processor: str, strangers: Sequence[str]) -> Answer:
    """Adds to an answer the action to stop the workers that another installation has in the group.

    ``strangers`` has the workers of the other installation, as texts. Without them, the answer is unchanged.
    """
    if not strangers or not asks_to_start(answer):
        return answer
    text, todo, _ = answer.text.partition(ACTION_MARK)
    there = f"stop {processor} there (`holdfast apply stop {processor}` in that installation)"
    # If the incident failed because of workers of another installation, its action already begins with this text.
    action = answer.action if answer.action.startswith(there) else f"{there}; then: {answer.action}"
    said = f"{text} {shared_with(processor, strangers)}{ACTION_MARK}{action}" if todo else answer.text
    return replace(answer, text=said, action=action)


def judge_applying(begun: ApplyRecord) -> Answer:
    """The result of the check while an apply (plan execution) changes the processor, which may be down meanwhile."""
    plan = way_on.read(begun)
    stages = "an unknown number of" if plan is None else str(len(plan.stages))
    text = (
        f"Apply {begun.id} ({begun.verb}, started by {begun.who}) changes {begun.processor}; {len(begun.done)} of "
        f"{stages} stages are done. It ends without an action."
    )
    return Answer(False, "starting", text)


def is_due(answer: Answer, told: Any, now: float) -> bool:
    """Whether an answer must be recorded: it differs from the last recorded answer, or that answer is too old.

    A recorded answer is too old after ``TELL_EVERY_S`` seconds. ``told`` has the text ``short`` and the time of the
    last recorded answer, from the sensor's cursor. ``now`` is in seconds since 1970.
    """
    try:
        short, at = told
        return bool(short != answer.short or abs(now - float(at)) >= TELL_EVERY_S)
    except (TypeError, ValueError):
        return True


def _failing(found: Mapping[str, Diagnosis], gravest: Diagnosis, incident: Incident | None, attempts: int) -> Answer:
    said = in_words({slot: each for slot, each in found.items() if not isinstance(each, Healthy)})
    if incident is None:
        kind = gravest.kind
        doing = Wait(kind).sentence if kind == "broker-away" else "The recovery sensor opens an incident."
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
        about = f" for slot {', '.join(incident.asks)} meanwhile" if incident.asks else ""
        meanwhile = f" What to do{about}: {incident.action}" if incident.action else ""
        return f"{Wait(kind_of(incident.kind)).sentence}{meanwhile}"
    done = {"rebuild": "Recovery sets its local state aside and restores it", "restart": "Recovery restarts it"}
    number = f", attempt {incident.attempts} of {attempts}" if incident.attempts else ""
    return f"{done.get(incident.remedy, 'Recovery is starting')}{number}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
