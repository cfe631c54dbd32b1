"""A plan is applied on a real registry (Holdfast's database): in order, recorded, and resumed after a kill.

Only one process at a time may apply a plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.infra.database.applies import ApplyJournal
from holdfast.infra.database.errors import HoldLost
from holdfast.infra.database.lease_times import SILENT_S
from holdfast.infra.database.records import StageNote
from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.plans import holding
from holdfast.processors.lifecycle.plans.apply import (
    Applied,
    Applier,
    ApplyInProgress,
    ApplyLost,
    Done,
    Executor,
    Holder,
    NotConfirmed,
    PlanRefused,
    PlanStale,
    ProgressLog,
    RecoveryInProgress,
    check_shown,
)
from holdfast.processors.lifecycle.plans.facts.facts import DeploymentFacts
from holdfast.processors.lifecycle.plans.holding import TOPICS, Hold, fenced
from holdfast.processors.lifecycle.plans.plan import Plan, PlanUnreadable, decode, encode
from holdfast.processors.lifecycle.plans.requests import Clear, Keys, Prefix, Restore, Stop
from holdfast.processors.lifecycle.plans.stages import RunProcessor, Stage, StopProcessor
from holdfast.processors.lifecycle.verbs.table import decide
from tests.unit.processors.lifecycle.worlds import stopped, two_widths_topology, world_of

TOPOLOGY = two_widths_topology()  # a clear of this topology has one stage for each of its two subtopologies
NOW = datetime(2027, 1, 1, tzinfo=UTC)
ME, OTHER = Holder("me"), Holder("other")
STOP = Stop("orders")


class Killed(BaseException):
    """Raised in place of a kill: the process is gone."""


class Doing:
    """Records the stages that it carries out. In the stage with this number, it dies or fails."""

    def __init__(self, *, dies_in: int | None = None, fails_in: int | None = None) -> None:
        self.done: list[str] = []
        self.dies_in, self.fails_in = dies_in, fails_in

    def __call__(self, processor: str, stage: Stage, tell: object) -> Done:
        number = len(self.done) + 1
        self.done.append(type(stage).__name__)
        if number == self.dies_in:
            raise Killed
        if number == self.fails_in:
            raise HoldfastError("the disk is full.", action="Make room.")
        return Done(f"did {type(stage).__name__}", 7_000.0)


class DatabaseClock:
    """The clock of the registry (Holdfast's database), moved by the test."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def database_clock() -> DatabaseClock:
    return DatabaseClock()


@pytest.fixture
def registry(tmp_path: Path, database_clock: DatabaseClock) -> Iterator[Registry]:
    registry = Registry(f"sqlite:///{tmp_path}/registry.db", database_clock)
    registry.migrate()
    yield registry
    registry.close()


@pytest.fixture
def journal(registry: Registry) -> ApplyJournal:
    return registry.journal


def apply(  # tidy: allow-wide because each argument is a part of the applier
    plan: Plan,
    execute: Executor,
    journal: ApplyJournal,
    *,
    who: str,
    holder: Holder,
    tell: ProgressLog = lambda text: None,
    clock: Callable[[], datetime] = lambda: NOW,
) -> Applied:
    return Applier(execute, journal, who, holder, tell, clock).apply(plan)


def clearing() -> Plan:
    return decide(Clear("orders"), stopped(TOPOLOGY), TOPOLOGY)


def test_stages_are_done_in_order_and_recorded(journal: ApplyJournal) -> None:
    doing = Doing()
    done = apply(clearing(), doing, journal, who="ada", holder=ME, clock=lambda: NOW)
    assert doing.done == ["RunProcessor", "ClearKeys", "ClearKeys", "StopProcessor"]
    (record,) = journal.applies()
    assert (record.outcome, record.who, record.plan_hash) == ("done", "ada", clearing().hash)
    assert [note.stage for note in record.done] == ["run_processor", "clear_keys", "clear_keys", "stop_processor"]
    assert done.id == record.id
    assert "3. did ClearKeys" in done.text
    assert journal.stage_rates("orders")["clear_keys"][0] == 14_000.0, "of both stages"


@pytest.mark.parametrize("dies_in", [1, 2, 3, 4])
def test_a_killed_apply_goes_on_with_its_own_plan_from_the_stage_it_was_at(journal: ApplyJournal, dies_in: int) -> None:
    first = Doing(dies_in=dies_in)
    with pytest.raises(Killed):
        apply(clearing(), first, journal, who="ada", holder=ME, clock=lambda: NOW)
    again = Doing()
    gone = Holder("other", is_gone=lambda name: name == "me")
    done = apply(clearing(), again, journal, who="bob", holder=gone, clock=lambda: NOW)
    whole = ["RunProcessor", "ClearKeys", "ClearKeys", "StopProcessor"]
    assert first.done == whole[:dies_in]
    # run this stage again, because the paused worker may have ended
    paused_again = ["RunProcessor"] if dies_in > 1 else []
    assert again.done == paused_again + whole[dies_in - 1 :]
    assert [note.number for note in done.notes] == [1, 2, 3, 4]
    (record,) = journal.applies()
    assert (record.outcome, record.who) == ("done", "ada")


def test_a_live_run_keeps_others_out(journal: ApplyJournal) -> None:
    with pytest.raises(Killed):
        apply(clearing(), Doing(dies_in=2), journal, who="ada", holder=ME, clock=lambda: NOW)
    with pytest.raises(ApplyInProgress, match="is being carried out by me, with 1 of 4 stages done") as seen:
        apply(clearing(), Doing(), journal, who="bob", holder=OTHER, clock=lambda: NOW)
    assert (seen.value.fields["done"], seen.value.fields["stages"]) == (1, 4)


def test_a_run_that_was_silent_for_too_long_is_taken_over_and_does_nothing_more(
    journal: ApplyJournal, database_clock: DatabaseClock
) -> None:
    other = Doing()

    class Frozen(Doing):
        def __call__(self, processor: str, stage: Stage, tell: object) -> Done:
            if len(self.done) == 1:  # the first run continues after another run has carried out all stages
                database_clock.now_s += SILENT_S + 1
                apply(clearing(), other, journal, who="bob", holder=OTHER)
            return super().__call__(processor, stage, tell)

    frozen = Frozen()
    with pytest.raises(ApplyLost):
        apply(clearing(), frozen, journal, who="ada", holder=ME)
    assert frozen.done == ["RunProcessor", "ClearKeys"]
    assert other.done == ["RunProcessor", "ClearKeys", "ClearKeys", "StopProcessor"]


def test_another_verb_waits_for_the_one_that_was_broken_off(journal: ApplyJournal) -> None:
    with pytest.raises(HoldfastError, match="the disk is full"):
        apply(clearing(), Doing(fails_in=3), journal, who="ada", holder=ME, clock=lambda: NOW)
    restoring = decide(Restore("orders"), stopped(TOPOLOGY), TOPOLOGY)
    with pytest.raises(
        ApplyInProgress, match=r"2 of 4 stages done.*It stopped because: stage 3: the disk is full"
    ) as seen:
        apply(restoring, Doing(), journal, who="bob", holder=OTHER, clock=lambda: NOW)
    (record,) = journal.applies(open_only=True)
    assert f"holdfast apply resume {record.id}" in seen.value.action
    assert record.holder is None
    rest = Doing()
    Applier(rest, journal, "bob", OTHER, clock=lambda: NOW).resume(record)
    assert rest.done == ["RunProcessor", "ClearKeys", "StopProcessor"]
    assert apply(restoring, Doing(), journal, who="bob", holder=OTHER, clock=lambda: NOW).id is not None


def test_an_apply_that_is_given_up_is_out_of_the_way(journal: ApplyJournal) -> None:
    with pytest.raises(HoldfastError):
        apply(clearing(), Doing(fails_in=1), journal, who="ada", holder=ME, clock=lambda: NOW)
    (record,) = journal.applies(open_only=True)
    applier = Applier(Doing(), journal, "bob", OTHER, clock=lambda: NOW)
    assert applier.abandon(record, "not needed")
    assert not applier.abandon(record, "again")
    (ended,) = journal.applies()
    assert (ended.outcome, ended.reason) == ("abandoned", "bob: not needed")


def abandoned(plan: Plan, journal: ApplyJournal, *, dies_in: int) -> tuple[list[str], str]:
    """Kill an apply (an execution of a plan) in this stage, and then abandon it.

    Return the stages that are carried out to abandon it, and the progress lines.
    """
    with pytest.raises(Killed):
        apply(plan, Doing(dies_in=dies_in), journal, who="ada", holder=ME)
    (record,) = journal.applies(open_only=True)
    doing, told = Doing(), list[str]()
    assert Applier(doing, journal, "bob", ME, told.append, lambda: NOW).abandon(record, "not needed")
    return doing.done, "\n".join(told)


@pytest.mark.parametrize("dies_in", [1, 2, 3, 4])
def test_workers_that_only_a_clear_started_are_stopped_when_it_is_abandoned(
    journal: ApplyJournal, dies_in: int
) -> None:
    done, told = abandoned(clearing(), journal, dies_in=dies_in)
    assert done == ["StopProcessor"]
    assert f"stage {dies_in} may be done in part" in told
    assert "stop orders: it was stopped before: did StopProcessor" in told


MEANT_TO_RUN = stopped(TOPOLOGY, deployment=DeploymentFacts(TOPOLOGY.code_version, ("0",), "deployed", 3))


def test_an_abandoned_apply_stays_open_while_its_workers_cannot_be_stopped(journal: ApplyJournal) -> None:
    with pytest.raises(Killed):
        apply(clearing(), Doing(dies_in=2), journal, who="ada", holder=ME)
    (record,) = journal.applies(open_only=True)
    with pytest.raises(HoldfastError, match="the disk is full"):
        Applier(Doing(fails_in=1), journal, "bob", ME, clock=lambda: NOW).abandon(record, "not needed")
    (record,) = journal.applies(open_only=True)
    assert record.holder is None
    assert record.reason.startswith("abandoning it failed: the disk is full.")
    assert Applier(Doing(), journal, "bob", ME, clock=lambda: NOW).abandon(record, "not needed")


def test_workers_that_are_meant_to_run_run_again_unless_state_and_offsets_may_differ(journal: ApplyJournal) -> None:
    clear = decide(Clear("orders"), MEANT_TO_RUN, TOPOLOGY)
    assert isinstance(clear.stages[-1], RunProcessor)
    assert abandoned(clear, journal, dies_in=3)[0] == ["RunProcessor"]
    again = decide(Clear("orders", rewind="earliest"), MEANT_TO_RUN, TOPOLOGY)
    assert abandoned(again, journal, dies_in=1)[0] == ["RunProcessor"], "nothing is deleted yet"
    assert abandoned(again, journal, dies_in=2)[0] == ["StopProcessor"], "some may be deleted"
    done, told = abandoned(again, journal, dies_in=3)
    assert done == ["StopProcessor"]
    assert "orders is stopped, because its state is changed in part" in told
    assert abandoned(again, journal, dies_in=4)[0] == ["RunProcessor"], "all is deleted, and the offsets are set"


def test_a_restore_that_is_abandoned_stops_what_was_stopped_and_says_what_is_down(journal: ApplyJournal) -> None:
    restore = decide(Restore("orders"), stopped(TOPOLOGY), TOPOLOGY)
    assert abandoned(restore, journal, dies_in=1)[0] == [], "its workers were not started yet"
    assert abandoned(restore, journal, dies_in=2)[0] == ["StopProcessor"]
    running = decide(Restore("orders"), world_of(TOPOLOGY, local=stopped(TOPOLOGY).local), TOPOLOGY)
    assert isinstance(running.stages[0], StopProcessor)
    done, told = abandoned(running, journal, dies_in=2)
    assert done == ["StopProcessor"]
    assert "stop orders: the apply is abandoned: did StopProcessor" in told
    assert "orders is stopped." in told
    assert abandoned(running, journal, dies_in=3)[0] == [], "recovery starts what did not start"


def test_a_verb_that_plans_anew_replaces_what_was_broken_off(journal: ApplyJournal) -> None:
    stopping = decide(Stop("orders"), world_of(TOPOLOGY), TOPOLOGY)
    with pytest.raises(HoldfastError):
        apply(stopping, Doing(fails_in=1), journal, who="ada", holder=ME, clock=lambda: NOW)
    apply(stopping, Doing(), journal, who="ada", holder=ME, clock=lambda: NOW)
    assert [record.outcome for record in journal.applies()] == ["done", "superseded"]


def test_an_apply_that_died_after_its_work_is_closed_when_it_is_asked_for_again(journal: ApplyJournal) -> None:
    with pytest.raises(Killed):
        apply(
            decide(STOP, world_of(TOPOLOGY), TOPOLOGY),
            Doing(dies_in=1),
            journal,
            who="ada",
            holder=ME,
            clock=lambda: NOW,
        )
    nothing = decide(STOP, stopped(TOPOLOGY), TOPOLOGY)
    apply(nothing, Doing(), journal, who="bob", holder=OTHER, clock=lambda: NOW)
    assert journal.applies(open_only=True)  # the first run may still be alive, so its execution stays open
    apply(nothing, Doing(), journal, who="bob", holder=Holder("other", is_gone=lambda name: True), clock=lambda: NOW)
    (record,) = journal.applies()
    assert (record.outcome, record.reason) == ("done", "The processor is already stopped.")


def test_a_plan_of_another_version_is_told_with_what_ends_its_apply() -> None:
    with pytest.raises(PlanUnreadable, match="Another version of Holdfast wrote it") as told:
        decode('{"request": {"type": "polish", "processor": "orders"}}')
    assert "`holdfast apply abandon N --reason WHY`" in str(told.value)


def test_nothing_to_do_leaves_no_record(journal: ApplyJournal) -> None:
    plan = decide(Stop("orders"), stopped(TOPOLOGY), TOPOLOGY)
    assert apply(plan, Doing(), journal, who="ada", holder=ME).id is None
    assert journal.applies() == ()


def test_a_plan_that_no_longer_fits_is_refused_and_says_what_changed(journal: ApplyJournal) -> None:
    request = Clear("orders", ("totals",), Keys(("a",)))
    shown = decide(request, world_of(TOPOLOGY), TOPOLOGY)
    journal.remember_plan(shown.hash, "orders", "clear", encode(shown), NOW)
    now = decide(request, stopped(TOPOLOGY), TOPOLOGY)
    with pytest.raises(PlanStale, match="alive 0 was yes, now no"):
        check_shown(now, shown.hash, journal, sure=True)
    with pytest.raises(PlanStale, match="Plan 0000 was not shown"):
        check_shown(now, "0000", journal, sure=True)


def test_what_deletes_has_to_be_confirmed(journal: ApplyJournal) -> None:
    plan = decide(Clear("orders", (), Prefix("a")), world_of(TOPOLOGY), TOPOLOGY)
    with pytest.raises(NotConfirmed, match="was not confirmed") as seen:
        check_shown(plan, plan.hash, journal, sure=False)
    assert seen.value.fields["plan"] == plan.hash
    check_shown(plan, plan.hash, journal, sure=True)


def test_a_refused_plan_is_not_carried_out(journal: ApplyJournal) -> None:
    plan = decide(Clear("orders"), world_of(TOPOLOGY), TOPOLOGY)
    with pytest.raises(PlanRefused, match="1 live member") as seen:
        check_shown(plan, plan.hash, journal, sure=True)
    assert seen.value.exit_code == 3
    assert seen.value.fields["members"] == 1


def test_a_long_stage_that_tells_nothing_keeps_its_hold(
    journal: ApplyJournal, database_clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "BEAT_S", 0.01)

    class Long(Doing):
        def __call__(self, processor: str, stage: Stage, tell: object) -> Done:
            deadline = time.monotonic() + 60.0
            database_clock.now_s += 30
            while journal.applies()[0].silent_s:
                assert time.monotonic() < deadline
            return super().__call__(processor, stage, tell)

    done = apply(clearing(), Long(), journal, who="ada", holder=ME)
    assert len(done.notes) == 4


def test_a_lost_hold_stops_the_stage_at_its_next_step(
    registry: Registry, journal: ApplyJournal, database_clock: DatabaseClock
) -> None:
    """A stage stops at its next step if another run has taken over the apply (the execution of the plan).

    The stage reports no progress. Its ports and its registry detect the other run.
    """
    hold, done = Hold(), list[str]()

    class Topics:
        def delete(self, name: str) -> None:
            done.append(name)

    topics, held = fenced(Topics(), TOPICS, hold), registry.fenced(lambda: hold.fence)

    def long(processor: str, stage: Stage, tell: ProgressLog) -> Done:
        topics.delete("before")
        held.record_deployment(processor, "v1", ["0"], NOW)
        database_clock.now_s += SILENT_S + 1
        (record,) = journal.applies()
        assert Applier(Doing(), journal, "bob", OTHER).abandon(record, "it hangs")
        with pytest.raises(HoldLost):
            held.record_deployment(processor, "v2", ["0"], NOW)
        topics.delete("after")
        return Done("not reached")

    with pytest.raises(ApplyLost):
        Applier(long, journal, "ada", ME, hold=hold).apply(clearing())
    assert done == ["before"]
    assert [each.code_version for each in registry.deployments()] == ["v1"]
    (record,) = journal.applies()
    assert (record.outcome, record.done) == ("abandoned", ())


def test_a_refused_beat_is_remembered(
    journal: ApplyJournal, database_clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "BEAT_S", 0.01)
    hold = Hold()

    class Overtaken(Doing):
        def __call__(self, processor: str, stage: Stage, tell: object) -> Done:
            database_clock.now_s += SILENT_S + 1
            apply(clearing(), Doing(), journal, who="bob", holder=Holder("other", lambda name: True))
            deadline = time.monotonic() + 60.0
            while not hold.is_lost:
                assert time.monotonic() < deadline
            return super().__call__(processor, stage, tell)

    with pytest.raises(ApplyLost):
        Applier(Overtaken(), journal, "ada", ME, hold=hold).apply(clearing())


def test_an_apply_does_not_begin_or_resume_beside_a_live_recovery(registry: Registry, journal: ApplyJournal) -> None:
    with pytest.raises(HoldfastError, match="the disk is full"):
        apply(clearing(), Doing(fails_in=3), journal, who="ada", holder=ME)
    (record,) = journal.applies(open_only=True)
    incident, _ = registry.open_incident("orders", "dead", {}, NOW)
    assert registry.claim_incident(incident.id, "run-1", NOW) is not None
    doing = Doing()
    for act in (
        lambda: Applier(doing, journal, "bob", OTHER).resume(record),
        lambda: Applier(doing, journal, "bob", OTHER).abandon(record, "not needed"),
        lambda: apply(clearing(), doing, journal, who="bob", holder=OTHER),
    ):
        with pytest.raises(RecoveryInProgress, match=f"incident {incident.id}, run run-1") as seen:
            act()
        assert seen.value.exit_code == 3
    assert doing.done == []
    assert registry.release_incident(incident.id, "run-1")
    Applier(doing, journal, "bob", OTHER).resume(record)
    assert doing.done == ["RunProcessor", "ClearKeys", "StopProcessor"]


def test_a_fault_of_our_own_leaves_an_apply_that_is_resumed_at_once(journal: ApplyJournal) -> None:
    def wrong(processor: str, stage: Stage, tell: ProgressLog) -> Done:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        apply(clearing(), wrong, journal, who="ada", holder=ME)
    (record,) = journal.applies(open_only=True)
    assert (record.holder, record.reason) == (None, "stage 1: TypeError: a bug")


def test_a_stage_that_was_noted_after_the_look_is_not_done_again(journal: ApplyJournal) -> None:
    with pytest.raises(Killed):
        apply(clearing(), Doing(dies_in=1), journal, who="ada", holder=ME)
    (seen,) = journal.applies(open_only=True)
    note = StageNote(1, "run_processor", "done meanwhile", 0.0, 1.0)
    assert journal.note_stage(seen.id, seen.token, note, NOW)
    doing = Doing()
    Applier(doing, journal, "bob", Holder("other", lambda name: True)).resume(seen)
    assert doing.done == ["RunProcessor", "ClearKeys", "ClearKeys", "StopProcessor"], "it repeats the start, paused"
    (record,) = journal.applies()
    assert record.done[0].text == "done meanwhile"
