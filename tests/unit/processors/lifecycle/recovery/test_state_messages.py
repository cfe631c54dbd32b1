"""Each state that needs a person has one event with an action.

The tests try all combinations of slot, record, apply and incident.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from holdfast.infra.database.records import ApplyRecord, Deployment, DesiredState, Incident
from holdfast.infra.deploy.program_files import ProgramState, ProgramStatus
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.plans.behind import Behind
from holdfast.processors.lifecycle.recovery import webhook_messages
from holdfast.processors.lifecycle.recovery.diagnosis import (
    Dead,
    Diagnosis,
    Differs,
    Failed,
    Healthy,
    NotDeployed,
    Outdated,
    Starting,
    Stuck,
    Unsupervised,
    Waiting,
    diagnose,
)
from holdfast.processors.lifecycle.recovery.incidents import meant
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import judge
from holdfast.processors.lifecycle.recovery.state_messages import (
    SETTLED_S,
    follow,
    messages_of,
    need_of,
    need_of_disk,
)
from holdfast.processors.lifecycle.recovery.webhook_messages import Cursor, Need, Outbox, SeenNeed

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SLOTS: tuple[Diagnosis, ...] = (
    Healthy("running"),
    NotDeployed(),
    Starting("restoring"),
    Waiting(),
    Dead(1, None),
    Dead(64, None),
    Stuck(90.0),
    Failed({"message": "no", "cause": "poison-message"}),
    Differs("paused", "It is paused.", "holdfast resume", warns=True),
    Differs("other-version", "It runs v1.", "holdfast apply deploy fleet"),
    Unsupervised("running", "holdfast up"),
    Outdated(cast(Behind, type("Old", (), {"sentence": "It is older.", "action": "holdfast registry adopt fleet"}))),
)


def incident(**facts: Any) -> Incident:
    usual: dict[str, Any] = {"id": 7, "processor": "fleet", "kind": "dead", "detail": {}, "opened_at": NOW}
    rest: dict[str, Any] = {"claimed_by": None, "claimed_at": None, "attempts": 1, "closed_at": None, "outcome": None}
    return Incident(**{**usual, **rest, "reason": "", "timeline": (), **facts})


INCIDENTS: tuple[Incident | None, ...] = (
    None,
    incident(remedy="restart"),
    incident(remedy="wait"),
    incident(remedy="wait", action="Free the disk.", asks={"0": "disk-full"}),
    incident(closed_at=NOW, outcome="failed", action="holdfast incidents retry 7"),
    incident(closed_at=NOW, outcome="resolved"),
)


def apply_of(holder: str | None) -> ApplyRecord:
    facts: dict[str, Any] = {"id": 3, "processor": "fleet", "verb": "deploy", "plan_hash": "", "plan": "{}", "who": "a"}
    times: dict[str, Any] = {"started_at": NOW, "finished_at": None, "outcome": None, "reason": "", "done": ()}
    return ApplyRecord(**facts, **times, holder=holder, token=1, silent_s=0.0)


APPLIES = (None, apply_of("a run of Dagster"), apply_of(None))
LASTS = (None, replace(apply_of(None), finished_at=NOW, outcome="abandoned"))


def test_each_state_passes_moves_by_itself_within_a_limit_or_is_told_once() -> None:
    seen = Counter[str]()
    pairs = itertools.combinations_with_replacement(SLOTS, 2)
    for slots, known, begun, last in itertools.product(pairs, INCIDENTS, APPLIES, LASTS):
        found = dict(zip(("0", "1"), slots, strict=True))
        answer = judge(found, known, begun, begun or last, NOW)
        state = f"{slots}, incident {known and (known.outcome, known.remedy, known.asks)}, apply {begun}: {answer}"
        is_open = known is not None and known.is_open
        need = need_of("fleet", answer, is_open=is_open)
        of_incident = () if known is None else webhook_messages.of_incident(known)
        failed = any(each.event == "incident.failed" for each in of_incident)
        if answer.passed:
            assert need is None, state
            seen["passes"] += 1
        elif need is not None:
            assert need.action, state
            assert need.text, state
            assert not (failed and answer.incident is not None), f"two events: {state}"
            seen["told"] += 1
        elif answer.incident is not None and not is_open:
            assert failed, state
            seen["told with its incident"] += 1
        else:
            # These states end: a start has a timeout, an apply a lease, an incident a number of attempts. The sensor
            # opens an incident within one tick.
            moving = answer.kind == "starting" or is_open or any(each.needs_recovery for each in slots)
            assert moving or answer.kind == "broker-away", state
            seen["moves"] += 1
    assert set(seen) == {"passes", "told", "told with its incident", "moves"}


#: The states that a deployment record can have.
WORDS: tuple[DesiredState, ...] = ("deployed", "deploying", "stopped")
LONG_AGO = NOW - timedelta(hours=1)


def program(state: ProgramState, since: datetime = LONG_AGO) -> ProgramStatus:
    alive = state == "RUNNING"
    return ProgramStatus("fleet-0", state, 7 if alive else None, None if alive else 1, since, None)


def worker(**facts: Any) -> ProcessorStatus:
    usual: dict[str, Any] = {"processor": "fleet", "slot": "0", "pid": 7, "phase": "running", "guarantee": ""}
    times = {"started_at": LONG_AGO.timestamp(), "heartbeat_at": NOW.timestamp()}
    counts: dict[str, Any] = {"error": None, "records": {}, "commits": {}, "tasks": ()}
    return ProcessorStatus(**{**usual, "code_version": "v1", **times, **counts, **facts})


#: What runs in a slot, according to the supervisor and to the worker itself.
MACHINES: tuple[tuple[ProgramStatus | None, ProcessorStatus | None], ...] = (
    (None, None),
    (program("EXITED"), None),
    (program("STOPPED"), None),
    (program("RUNNING"), None),
    (program("RUNNING", NOW), None),
    (program("RUNNING"), worker()),
    (program("RUNNING"), worker(phase="restoring")),
    (program("RUNNING"), worker(paused=True)),
    (program("RUNNING"), worker(code_version="v0")),
    (program("RUNNING"), worker(phase="failed", error={"message": "no", "cause": "poison-message"})),
)


def test_no_word_of_a_record_hides_what_runs_but_that_of_a_live_apply() -> None:
    """Whatever the record says: a fault ends within a time limit, is recovered, or is reported."""
    seen = Counter[str]()
    for word, begun, last, machine in itertools.product(WORDS, APPLIES, LASTS, MACHINES):
        recorded = Deployment("fleet", "v1", ("0",), word, 4, LONG_AGO)
        desired = meant(recorded, begun)
        slot = diagnose(*machine, desired, NOW, Limits(), slot="0")
        answer = judge({"0": slot}, None, begun, begun or last, NOW)
        told = need_of("fleet", answer, is_open=False)
        is_live = begun is not None and begun.holder is not None
        state = f"{word}, apply {begun}, last {last}, {machine}: {slot}, {answer}"
        if word == "deploying" and is_live:
            assert desired.desired == "deploying", state
            assert answer.passed or answer.kind == "starting", f"a live apply ends by itself: {state}"
        else:
            assert desired.desired == ("stopped" if word == "stopped" else "deployed"), state
            assert slot.kind != "starting" or is_about_to_run(machine), f"the word alone says so: {state}"
            assert answer.passed or told or slot.needs_recovery or is_live or slot.kind == "starting", state
        if answer.passed:
            runs = machine[0] is not None and machine[0].alive
            assert is_live or begun is None, f"an interrupted apply is told: {state}"
            assert runs is (desired.desired != "stopped"), state
        seen[f"{word}: {'passes' if answer.passed else 'told' if told else 'moves'}"] += 1
    assert len(seen) == 3 * len(WORDS), seen


def is_about_to_run(machine: tuple[ProgramStatus | None, ProcessorStatus | None]) -> bool:
    """Whether the program was started just now, or reports that it restores its state."""
    known, answer = machine
    return known is not None and (known.since == NOW or (answer is not None and answer.phase == "restoring"))


def need(kind: str = "paused", subject: str = "fleet") -> Need:
    return Need(subject, kind, f"{subject} needs you", "It is paused.", "holdfast apply deploy fleet", subject)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def events(states: dict[str, SeenNeed], now: datetime, repeat: timedelta = DAY) -> list[tuple[str, str]]:
    return [
        (each.event, each.id.removeprefix("state-fleet-paused-20260301T120000"))
        for each in messages_of(states, repeat, now)
    ]


def test_a_state_is_told_once_it_lasts_again_by_the_setting_and_when_it_is_over() -> None:
    states = follow({}, [need()], (), NOW)
    assert events(states, NOW) == [], "a tick may look in the middle of a change"
    states = follow(states, [need()], (), after(SETTLED_S))
    assert events(states, after(SETTLED_S)) == [("state.needs", "")]
    hour = timedelta(hours=1)
    assert events(states, after(2 * 3600 + 5), hour) == [("state.needs", ""), ("state.needs", "-again-2")]
    states = follow(states, [], (), after(4 * 3600))
    assert events(states, after(4 * 3600), hour) == [("state.needs", ""), ("state.over", "-over")]
    (_, over) = messages_of(states, hour, after(4 * 3600))
    assert over.title == "fleet: over after 4 h 0 min: fleet needs you"
    assert follow(states, [], (), after(4 * 3600) + DAY + hour) == {}


def test_what_ends_before_it_is_told_is_forgotten_and_another_state_is_told_anew() -> None:
    states = follow({}, [need()], (), NOW)
    assert follow(states, [], (), after(5)) == {}
    states = follow(states, [need("versions-differ")], (), after(60))
    assert len(states) == 2
    assert {each.need.kind for each in states.values() if each.ended is None} == {"versions-differ"}


def test_a_processor_that_can_not_be_read_is_neither_told_nor_over() -> None:
    states = follow({}, [need()], (), NOW)
    assert follow(states, [], {"fleet"}, after(60)) == states
    assert follow({}, [], {"fleet"}, NOW) == {}


def test_the_states_survive_in_the_cursor_and_a_former_cursor_is_read() -> None:
    states = follow({}, [need()], (), NOW)
    kept = webhook_messages.decoded(webhook_messages.encoded(Cursor(Outbox(), 4, states)))
    assert kept is not None
    assert kept.states == states
    former = webhook_messages.decoded('{"outbox":{"told":[]},"failures_after":4}')
    assert former is not None
    assert former.states == {}


@pytest.mark.parametrize(("free", "told"), [(4.9, True), (5.0, False)])
def test_a_full_disk_is_told_with_the_command(free: float, told: bool) -> None:
    found = need_of_disk(free, 5.0, "/home")
    assert (found is not None) is told
    assert found is None or "holdfast status --sizes" in found.action
