"""Each state of a processor that needs a person sends one message with an action.

The tests try all combinations of worker, deployment record, apply (execution of a plan) and incident.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import pytest

from holdfast.infra.database.records import ApplyRecord, Deployment, DesiredState, Incident
from holdfast.infra.deploy.program_files import ProgramState, ProgramStatus
from holdfast.infra.errors import HoldfastError
from holdfast.infra.webhook import TIMEOUT_S
from holdfast.orchestration.sensors.webhook import NOTIFY_EVERY_S
from holdfast.processors.engine.serving.status import ProcessorStatus
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
    Stuck,
    Unsupervised,
    Waiting,
    diagnose,
)
from holdfast.processors.lifecycle.recovery.faults import Kind
from holdfast.processors.lifecycle.recovery.incidents import meant
from holdfast.processors.lifecycle.recovery.lagging import LAG_S, Lag
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.messages import webhook_messages
from holdfast.processors.lifecycle.recovery.messages.state_messages import (
    BROKER,
    BROKER_AWAY,
    LASTING,
    LASTING_S,
    NO_ROOM,
    PASSING_S,
    SCHEMAS_AWAY,
    SETTLED_S,
    follow,
    messages_of,
    need_of,
    need_of_code,
    need_of_disk,
    need_of_registry,
    need_of_unread,
    settles_s,
    without_repeats,
)
from holdfast.processors.lifecycle.recovery.messages.webhook_messages import Cursor, Event, Need, Outbox, SeenNeed
from holdfast.processors.lifecycle.recovery.processor_now import judge
from holdfast.processors.lifecycle.recovery.working_check import Answer

DOCS = Path(__file__).resolve().parents[6] / "docs"
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
    incident(kind="disk-full", remedy="wait"),
    incident(kind="schema-registry-away", remedy="wait"),
    incident(remedy="wait", action="Free the disk.", asks={"0": "disk-full"}),
    incident(closed_at=NOW, outcome="failed", action="holdfast incidents retry 7"),
    incident(closed_at=NOW, outcome="resolved"),
)


def apply_of(holder: str | None) -> ApplyRecord:
    facts: dict[str, Any] = {"id": 3, "processor": "fleet", "verb": "deploy", "plan_hash": "", "plan": "{}", "who": "a"}
    times: dict[str, Any] = {"started_at": NOW, "finished_at": None, "outcome": None, "reason": "", "done": ()}
    return ApplyRecord(**facts, **times, holder=holder, token=1, silent_s=0.0)


APPLIES = (None, apply_of("a run of Dagster"), apply_of(None))
LASTS = (
    None,
    *(replace(apply_of(None), finished_at=NOW, outcome=each) for each in ("abandoned", "failed", "superseded", "done")),
)


#: Seconds within which a message reports each kind of state, as docs/tasks/alerts.md promises.
PROMISED_S = {"60 s": 60.0, "6 min": 360.0, "61 min": 3_660.0}


def told_after_s(kind: str) -> float:
    """The maximum number of seconds from the start of a state to its message.

    A state must last for a minimum time. Then two ticks of the sensor and one slow answer of a worker can pass.
    """
    return settles_s(kind) + 2 * NOTIFY_EVERY_S + TIMEOUT_S


def check_told(answer: Answer, known: Incident | None, *facts: Any) -> str:
    """Check that an answer of the check `working` has exactly one message if it does not pass.

    Returns "passes", "told with its incident", or the message's kind.
    """
    state = answer, known, facts
    is_open = known is not None and known.is_open
    need = need_of("fleet", answer, is_open=is_open)
    of_incident = () if known is None else webhook_messages.of_incident(known)
    failed = any(each.event == "incident.failed" for each in of_incident)
    if answer.passed:
        assert need is None, state
        return "passes"
    if answer.incident is not None and not is_open:
        assert failed, state
        assert need is None, ("two events", state)
        return "told with its incident"
    assert need is not None, state
    assert need.action, state
    assert need.text, state
    return need.kind


def test_each_state_passes_or_is_told_once_within_its_limit() -> None:
    seen = Counter[str]()
    pairs = itertools.combinations_with_replacement(SLOTS, 2)
    for slots, known, begun, last in itertools.product(pairs, INCIDENTS, APPLIES, LASTS[:2]):
        found = dict(zip(("0", "1"), slots, strict=True))
        answer = judge(found, known, begun, begun or last, NOW)
        told = check_told(answer, known, slots, begun)
        if told in ENDS_BY_ITSELF:
            # These states end without a person: a start has a time limit, an apply (a running plan) has a lease, and an
            # incident has limited attempts. The sensor opens an incident within one tick.
            is_open = known is not None and known.is_open
            moving = answer.kind == "starting" or is_open or any(each.needs_recovery for each in slots)
            assert moving or told == BROKER_AWAY, (answer, known, slots, begun)
        seen[told] += 1
    assert {"passes", "told with its incident", NO_ROOM, *ENDS_BY_ITSELF} <= set(seen), seen


ENDS_BY_ITSELF = {BROKER_AWAY, SCHEMAS_AWAY, LASTING}
#: The desired states that a deployment record can have.
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


#: What is known of one worker: the supervisor's status of its program (None without a program), and the worker's own
#: status (None without an answer).
Machine = tuple[ProgramStatus | None, ProcessorStatus | None]
WORKS: Machine = (program("RUNNING"), worker())
MACHINES: tuple[Machine, ...] = (
    (None, None),
    (program("EXITED"), None),
    (program("STOPPED"), None),
    (program("RUNNING"), None),
    (program("RUNNING", NOW), None),
    (program("RUNNING"), worker()),
    (program("RUNNING"), worker(phase="restoring")),
    (program("RUNNING"), worker(phase="waiting")),
    (program("RUNNING"), worker(paused=True)),
    (program("RUNNING"), worker(code_version="v0")),
    (program("RUNNING"), worker(phase="failed", error={"message": "no", "cause": "poison-message"})),
    (program("EXITED"), worker(phase="failed", error={"message": "full", "cause": "disk-full"})),
    (program("EXITED"), worker(phase="failed", error={"message": "away", "cause": "schema-registry-away"})),
)


def test_each_record_with_each_incident_and_apply_is_told_once_within_its_limit() -> None:
    """Each combination of deployment record, two workers, incident and applies sends one message within its limit."""
    seen = Counter[str]()
    # The second worker works, or is in the same state as the first. The test above tries more pairs.
    pairs = [(each, beside) for each in MACHINES for beside in (WORKS, each)]
    for word, machines, begun in itertools.product(WORDS, pairs, APPLIES):
        recorded = Deployment("fleet", "v1", ("0", "1"), word, 4, LONG_AGO)
        desired = meant(recorded, begun)
        found = {
            slot: diagnose(*machine, desired, NOW, Limits(), slot=slot)
            for slot, machine in zip(recorded.slots, machines, strict=True)
        }
        for known, last in itertools.product(INCIDENTS, LASTS[:2]):
            answer = judge(found, known, begun, begun or last, NOW)
            seen[check_told(answer, known, word, begun, machines, found)] += 1
    limits = {kind: told_after_s(kind) for kind in seen if kind not in ("passes", "told with its incident")}
    assert {kind for kind, limit in limits.items() if limit > PROMISED_S["60 s"]} == ENDS_BY_ITSELF
    assert max(limits.values()) <= PROMISED_S["61 min"]


def kinds_of_answers() -> set[str]:
    """The kinds of messages of processors without an incident, and of processors that wait for an external system."""
    waiting = (Failed({"message": "no", "cause": cause}) for cause in ("disk-full", "schema-registry-away"))
    others: tuple[Diagnosis, ...] = (
        Differs("other-settings", "It has others.", "holdfast apply deploy fleet"),
        *waiting,
    )
    pairs = itertools.combinations_with_replacement((*SLOTS, *others), 2)
    lag = Lag(200_000, NOW.timestamp() - 2 * LAG_S)
    found = set[str]()
    for slots, begun in itertools.product(pairs, APPLIES):
        answer = judge(dict(zip(("0", "1"), slots, strict=True)), None, begun, begun, NOW, lag=lag, processor="fleet")
        told = need_of("fleet", answer, is_open=False)
        found |= set() if told is None else {told.kind}
    differs = Differs("unwanted-worker", "It runs beyond the record.", "holdfast apply scale fleet 1")
    told = need_of("fleet", judge({"0": differs}, None, None, None, NOW), is_open=False)
    return found if told is None else {*found, told.kind}


def test_the_page_of_alerts_lists_every_state_with_its_limit() -> None:
    page, events = ((DOCS / name).read_text() for name in ("tasks/alerts.md", "operations.md"))
    rows = re.findall(r"^\| (`[^|]*|the incident's kind) \| [^|]* \| (\d+ \w+) \| [^|]* \|$", page, re.MULTILINE)
    listed = {kind: limit for names, limit in rows for kind in re.findall(r"`([^`]+)`", names)}
    machine = [
        need_of_disk(1.0, 5.0, "/home"),
        need_of_code("a", "b", "c"),
        need_of_registry(HoldfastError("no", action="")),
    ]
    of_machine = {each.kind for each in (*machine, need_of_unread("fleet", ValueError())) if each is not None}
    assert set(listed) == kinds_of_answers() | of_machine
    assert {kind for kind, limit in listed.items() if told_after_s(kind) > PROMISED_S[limit]} == set()
    assert set(re.findall(r"^\| `(\w+\.\w+)` \|", events, re.MULTILINE)) == set(get_args(Event))


def test_a_state_that_needs_a_person_is_told_within_a_minute() -> None:
    assert told_after_s("paused") <= PROMISED_S["60 s"]


def waits(kind: Kind, cause: str) -> Answer:
    slot: Diagnosis = Waiting() if kind == "broker-away" else Failed({"message": "no", "cause": cause})
    known = None if kind == "broker-away" else incident(kind=kind, remedy="wait")
    return judge({"0": slot}, known, None, None, NOW)


@pytest.mark.parametrize(
    ("kind", "limit_s", "action"),
    [
        ("disk-full", SETTLED_S, "holdfast status --sizes"),
        ("broker-away", PASSING_S, "holdfast doctor"),
        ("schema-registry-away", PASSING_S, "schema registry"),
    ],
)
def test_what_recovery_waits_for_is_told_once_it_lasts_and_when_it_is_over(
    kind: Kind, limit_s: float, action: str
) -> None:
    told = need_of("fleet", waits(kind, kind), is_open=True)
    assert told is not None
    states = follow({}, [told], (), NOW)
    almost, enough = after(limit_s - 1), after(limit_s)
    assert messages_of(follow(states, [told], (), almost), DAY, almost) == []
    states = follow(states, [told], (), enough)
    (message,) = messages_of(states, DAY, enough)
    assert (message.event, action in message.action) == ("state.needs", True)
    states = follow(states, [], (), later := after(limit_s + 60))
    assert [each.event for each in messages_of(states, DAY, later)] == ["state.needs", "state.over"]


def test_one_broker_that_is_away_has_one_message_for_all_processors() -> None:
    away = waits("broker-away", "")
    needs = [need_of(name, away, is_open=False) for name in ("fleet", "routes")]
    states = follow({}, [each for each in needs if each is not None], (), NOW)
    assert [each.need.subject for each in states.values()] == [BROKER]


def test_a_disk_that_has_a_message_has_no_other_one_for_who_waits_for_it() -> None:
    home, waiting = need_of_disk(1.0, 5.0, "/home"), need_of("fleet", waits("disk-full", "disk-full"), is_open=True)
    assert home is not None
    assert waiting is not None
    assert without_repeats([waiting, need(), home]) == [need(), home]
    assert without_repeats([waiting, need()]) == [waiting, need()]


def test_a_start_that_goes_on_is_told_after_its_limit_although_its_slots_change() -> None:
    first = need_of("fleet", judge({"0": Starting("restoring")}, None, None, None, NOW), is_open=False)
    dead = judge({"0": Dead(1, None)}, incident(remedy="restart"), None, None, NOW)
    second = need_of("fleet", dead, is_open=True)
    assert first is not None
    assert second is not None
    states = follow(follow({}, [first], (), NOW), [second], (), after(60))
    (message,) = messages_of(follow(states, [second], (), after(LASTING_S)), DAY, after(LASTING_S))
    assert "holdfast logs fleet" in message.action


def test_no_word_of_a_record_hides_what_runs_but_that_of_a_live_apply() -> None:
    """While a live apply (a running plan) changes a processor, the recorded state ``deploying`` may hide a fault.

    In all other cases, a fault ends within a time limit, is recovered, or is reported.
    """
    seen = Counter[str]()
    for word, begun, last, machine in itertools.product(WORDS, APPLIES, LASTS, MACHINES):
        recorded = Deployment("fleet", "v1", ("0",), word, 4, LONG_AGO)
        desired = meant(recorded, begun)
        slot = diagnose(*machine, desired, NOW, Limits(), slot="0")
        answer = judge({"0": slot}, None, begun, begun or last, NOW)
        need = need_of("fleet", answer, is_open=False)
        told = need is not None and need.kind not in ENDS_BY_ITSELF
        is_live = begun is not None and begun.holder is not None
        state = f"{word}, apply {begun}, last {last}, {machine}: {slot}, {answer}"
        if word == "deploying" and is_live:
            assert desired.desired == "deploying", state
            assert answer.passed or answer.kind == "starting", f"a live apply ends by itself: {state}"
        else:
            assert desired.desired == ("stopped" if word == "stopped" else "deployed"), state
            assert slot.kind != "starting" or is_about_to_run(machine), f"the word alone says so: {state}"
            moves = slot.needs_recovery or is_live or slot.kind in ("starting", "broker-away")
            assert answer.passed or told or moves, state
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


def test_another_action_of_a_state_is_told_once_it_lasts() -> None:
    other = Need("fleet", "paused", "fleet needs you", "It is paused.", "holdfast apply abandon 4", "fleet")
    third = msgspec.structs.replace(other, action="holdfast apply resume 4")
    states = follow(follow({}, [need()], (), NOW), [other], (), after(5))
    assert [each.action for each in messages_of(states, DAY, after(30))] == [other.action], "the first was not told"
    states = follow(states, [third], (), after(40))
    assert [each.id.endswith("0000") for each in messages_of(states, DAY, after(45))] == [True]
    states = follow(states, [third], (), after(60))
    _, message = messages_of(states, DAY, after(60))
    assert (message.event, message.action) == ("state.needs", third.action)
    assert message.id.endswith("-changed-20260301T120040")
    # an action text that changes at each tick, like an estimate, is not sent each time
    for second in range(75, 300, 15):
        states = follow(states, [msgspec.structs.replace(third, action=f"{second}")], (), after(second))
        assert len(messages_of(states, DAY, after(second))) == 1


@pytest.mark.parametrize("ahead", [timedelta(hours=6), timedelta(days=3), timedelta(minutes=30)])
def test_a_state_that_began_while_the_clock_was_ahead_is_told_and_over(ahead: timedelta) -> None:
    states = follow({}, [need()], (), NOW + ahead)
    states = follow(states, [need()], (), after(15))
    assert events(states, after(15)) != []
    assert [each.event for each in messages_of(states, DAY, after(15))] == ["state.needs"]
    states = follow(states, [], (), after(30))
    assert [each.event for each in messages_of(states, DAY, after(30))] == ["state.needs", "state.over"]


def test_what_was_told_while_the_clock_was_ahead_is_over_once_it_ended() -> None:
    """A message that was sent while the clock was ahead is followed by a second message when its state ends.

    A simulated operation found this case. The clock was six hours ahead for one tick of the sensor, so a new state
    seemed to be six hours old.
    """
    states = follow({}, [need()], (), NOW)
    ahead = NOW + timedelta(hours=6)
    states = follow(states, [need()], (), ahead)
    (told,) = messages_of(states, DAY, ahead)
    states = follow(states, [need()], (), after(5))
    assert messages_of(states, DAY, after(5)) == [told], "it is told already"
    states = follow(states, [], (), after(10))
    assert [each.id for each in messages_of(states, DAY, after(10))] == [told.id, f"{told.id}-over"]


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
