"""The timeline lists a processor's history, such as deploys and incidents. It knows which events are not sent yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.infra.database.records import Action, ApplyRecord, Incident, IncidentNote, StageNote
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.plan import Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Backfill, Clean, Deploy, Request, Stop
from holdfast.processors.lifecycle.recovery.messages import timeline
from holdfast.processors.lifecycle.recovery.messages.timeline import Entry, Event, Record, Series

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=90)


def apply_of(request: Request, who: str = "ann (pid 7)", **facts: Any) -> ApplyRecord:
    plan = Plan(request=request, verdict=Ready("It can be done."))
    usual: dict[str, Any] = {"id": 6, "plan_hash": plan.hash, "plan": plans.encode(plan), "holder": None, "token": 1}
    usual |= {"started_at": NOW, "finished_at": LATER, "outcome": "done", "reason": "", "silent_s": 0.0}
    usual |= {"done": (StageNote(1, "run", "version 2 runs", 1.0, 3.25),)}
    return ApplyRecord(processor=request.processor, verb=plan.verb, who=who, **{**usual, **facts})


def incident(**facts: Any) -> Incident:
    usual: dict[str, Any] = {"id": 7, "processor": "fleet", "kind": "dead", "detail": {"0": "It is gone."}}
    usual |= {"opened_at": NOW, "claimed_by": None, "claimed_at": None, "attempts": 1, "closed_at": None}
    usual |= {"outcome": None, "reason": "", "timeline": (IncidentNote("restart", "slot 0", LATER, 1.0),)}
    return Incident(**{**usual, **facts})


def test_no_duration_is_negative_where_the_clock_was_set_back() -> None:
    (entry,) = timeline.of_apply(apply_of(Deploy("fleet"), finished_at=NOW - timedelta(hours=1)))
    assert entry.seconds == 0.0


def test_an_apply_says_who_what_plan_and_how_long() -> None:
    (entry,) = timeline.of_apply(apply_of(Deploy("fleet")))
    assert (entry.processor, entry.who, entry.seconds, entry.outcome) == ("fleet", "ann (pid 7)", 90.0, "done")
    assert entry.plan == apply_of(Deploy("fleet")).plan_hash
    assert entry.details == ("run: version 2 runs (3.2 s)",)
    assert timeline.of_apply(apply_of(Deploy("fleet"), finished_at=None, outcome=None)) == []


def test_a_deploy_by_a_command_materialises_and_one_by_a_run_was_materialised() -> None:
    (by_command,) = timeline.of_apply(apply_of(Deploy("fleet")))
    events = timeline.events_of(by_command, ("aircraft",), ("aircraft",))
    assert [(each.layer, each.materializes) for each in events] == [("processor", True), ("changelog", True)]
    (by_run,) = timeline.of_apply(apply_of(Deploy("fleet"), who="ann, dagster run 12ab"))
    assert by_run.run == "12ab"
    assert not any(each.materializes for each in timeline.events_of(by_run, ("aircraft",), ("aircraft",)))
    (failed,) = timeline.of_apply(apply_of(Deploy("fleet"), outcome="failed", reason="It did not start."))
    assert not any(each.materializes for each in timeline.events_of(failed, ("aircraft",), ("aircraft",)))
    assert failed.text == "deploy (apply 6) by ann (pid 7): failed. It did not start."


def test_a_verb_is_shown_on_the_stores_that_it_names() -> None:
    (entry,) = timeline.of_apply(apply_of(Backfill("fleet", store="aircraft", source="local")))
    layers = [(each.layer, each.store) for each in timeline.events_of(entry, ("aircraft",), ("aircraft",))]
    assert layers == [("processor", ""), ("state", "aircraft")]
    (stopped,) = timeline.of_apply(apply_of(Stop("fleet")))
    assert [each.layer for each in timeline.events_of(stopped, ("aircraft",), ("aircraft",))] == ["processor"]
    (cleaned,) = timeline.of_apply(apply_of(Clean()))
    assert [each.layer for each in timeline.events_of(cleaned, (), ())] == ["installation"]


def test_a_plan_of_another_version_still_has_its_apply() -> None:
    (entry,) = timeline.of_apply(apply_of(Stop("fleet"), plan="{}"))
    assert (entry.processor, entry.outcome) == ("fleet", "done")


def test_an_incident_opens_and_ends_and_a_retry_does_so_again() -> None:
    (opened,) = timeline.of_incident(incident())
    assert opened.text == "Incident 7 opened: its process is gone. It is gone."
    ended = incident(closed_at=LATER, outcome="failed", reason="Three attempts failed.", action="read the log")
    _, failed = timeline.of_incident(ended)
    assert failed.text.endswith("Three attempts failed. What to do: read the log")
    assert failed.details == ("restart: slot 0",)
    (again,) = timeline.of_incident(incident(retried_at=LATER))
    assert again.identity != opened.identity


def test_only_actions_that_no_apply_records_are_entries() -> None:
    rehearsed = Action(3, "rehearse", "fleet", "ann", "partition 0 restored", "done", NOW, LATER)
    assert [each.outcome for each in timeline.of_action(rehearsed)] == ["done"]
    assert timeline.of_action(Action(4, "deploy", "fleet", "ann", "…", "done", NOW, LATER)) == []


def record(number: int, *, may_change: bool, events: int) -> Record:
    began = NOW + timedelta(seconds=number)
    entry = Entry(f"r{number}", "fleet", "apply", "", began, "done")
    found = tuple(Event(f"r{number} {each}", entry, "processor") for each in range(events))
    return Record(number, may_change, found, began)


Step = st.tuples(st.integers(1, 6), st.booleans(), st.integers(0, 2))


@given(st.lists(st.tuples(st.lists(Step, max_size=6), st.integers(0, 4)), max_size=8))
def test_every_event_is_reported_once_however_few_a_tick_reports(ticks: list[tuple[list[Any], int]]) -> None:
    """Each event is reported once, although a tick reports only as many events as its time allows.

    A record only gains events, and becomes final once.
    """
    series, told = Series(), []
    world: dict[int, tuple[bool, int]] = {}
    for changes, budget in [*ticks, ([], 100), ([], 100)]:
        for number, is_final, more in changes:
            may_change, events = world.get(number, (True, 0))
            if may_change and number <= len(world) + 1:
                world[number] = (not is_final, events + more)
        found = [
            record(number, may_change=may_change, events=events)
            for number, (may_change, events) in sorted(world.items())
            if number > series.low or number in series.above
        ]
        for number, event in timeline.unreported(series, found)[:budget]:
            told.append(event.identity)
            series = timeline.reported(series, number, event.identity)
        series = timeline.settled(series, found)
    assert sorted(told) == sorted(
        f"r{number} {each}" for number, (_, events) in world.items() for each in range(events)
    )
    assert set(series.above) == {number for number, (may_change, _) in world.items() if may_change}


def in_copy(number: int, second: float, *events: float, may_change: bool = False) -> Record:
    """Record ``number`` in a copy of the registry (database). It began at ``second``, with these later ``events``."""
    found = []
    for at in events:
        entry = Entry(f"r{number}", "fleet", "apply", "", NOW + timedelta(seconds=at), "done")
        found.append(Event(f"r{number} at {at:g}", entry, "processor"))
    return Record(number, may_change, tuple(found), NOW + timedelta(seconds=second))


def test_a_registry_is_replaced_where_the_newest_reported_record_is_gone_or_another_one() -> None:
    series = Series(5, {}, NOW + timedelta(seconds=5))
    assert not timeline.is_replaced(series, in_copy(5, 5))
    assert timeline.is_replaced(series, None)
    assert timeline.is_replaced(series, in_copy(5, 6))
    assert not timeline.is_replaced(Series(), None), "nothing was reported yet"
    of_an_older_version = Series(5)
    assert timeline.is_replaced(of_an_older_version, None)
    assert not timeline.is_replaced(of_an_older_version, in_copy(5, 6))


def test_in_an_older_copy_what_began_or_happened_since_the_copy_is_reported() -> None:
    """The registry (Holdfast's database) is replaced by a copy that was made at second 5.

    Record 6 of the former registry began at second 6, so the copy lacks it. The copy later gets its own record 6.
    """
    series = Series(6, {6: ["r6 at 6"]}, NOW + timedelta(seconds=6))
    same = [in_copy(1, 1, 1), in_copy(2, 2, 2, may_change=True), in_copy(3, 3, 3, 12), in_copy(4, 4, 4)]
    later = [in_copy(5, 10, 10), in_copy(6, 11, 11)]
    found = timeline.after_replacement(series, [*same, *later])
    assert (found.low, found.low_began) == (4, NOW + timedelta(seconds=4))
    assert found.above == {2: ["r2 at 2"], 3: ["r3 at 3"]}
    told = [event.identity for _, event in timeline.unreported(found, [*same[1:3], *later])]
    assert told == ["r5 at 10", "r6 at 11", "r3 at 12"]
    assert timeline.after_replacement(series, later) == Series(), "the registry was lost, and made anew"
    of_an_older_version = timeline.after_replacement(Series(6), same)
    assert (of_an_older_version.low, of_an_older_version.above) == (4, {2: ["r2 at 2"]}), "it stored no time"


def test_records_of_one_number_in_two_registries_have_different_identities() -> None:
    (apply,), (again,) = (timeline.of_apply(apply_of(Stop("fleet"), started_at=at)) for at in (NOW, LATER))
    assert apply.identity != again.identity
    (action,), (once_more,) = (
        timeline.of_action(Action(3, "rehearse", "fleet", "ann", "partition 0 restored", "done", at, LATER))
        for at in (NOW, LATER)
    )
    assert action.identity != once_more.identity
