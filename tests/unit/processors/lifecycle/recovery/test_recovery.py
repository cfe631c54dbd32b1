"""Recovery with a real supervisor, a real registry (Holdfast's database) and a small real program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.kafka.errors import BrokerUnreachable
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy.deployment import deploy, stop
from holdfast.processors.lifecycle.plans.plan import Plan, Ready, encode
from holdfast.processors.lifecycle.plans.requests import Clear, Compact
from holdfast.processors.lifecycle.plans.stages import StopProcessor
from holdfast.processors.lifecycle.recovery.attempt import IncidentUnknown, RecoveryPolicy, recover
from holdfast.processors.lifecycle.recovery.conditions import Conditions, no_room
from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Diagnosis, Healthy, Starting, Stuck, worst
from holdfast.processors.lifecycle.recovery.incidents import notice, observe, waits_for
from holdfast.processors.lifecycle.recovery.limits import Limits
from tests.mechanics.tiers import variants

pytestmark = pytest.mark.slow

POLICY = RecoveryPolicy(limits=Limits(stuck_after_s=1.5), ready_s=30, pause_s=0.1)
Wait = Callable[[Callable[[], bool]], None]


def diagnoses(stage: Any) -> dict[str, Diagnosis]:
    return {slot: seen.diagnosis for slot, seen in observe("fleet", stage.world, POLICY.limits).items()}


def file_incident(stage: Any) -> int:
    incident, _ = stage.registry.open_incident("fleet", "dead", {}, datetime.now(UTC))
    identity: int = incident.id
    return identity


def steps(stage: Any, incident_id: int) -> list[str]:
    return [note.step for note in stage.registry.incident(incident_id).timeline]


def test_a_killed_instance_is_brought_back_and_the_other_is_left_alone(stage: Any, eventually: Wait) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    killed, other = stage.pid("0"), stage.pid("1")
    os.kill(killed, signal.SIGKILL)
    dead = Dead(exit_status=None, signal="SIGKILL")
    eventually(lambda: diagnoses(stage)["0"] == dead)
    incident_id = file_incident(stage)

    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)

    assert (result.outcome, result.attempts) == ("resolved", 1)
    assert "Slot 0: Its process was killed by SIGKILL." in result.reason
    assert stage.pid("0") != killed
    assert stage.pid("1") == other
    assert set(diagnoses(stage).values()) == {Healthy("running")}

    incident = stage.registry.incident(incident_id)
    assert (incident.outcome, incident.claimed_by, incident.attempts) == ("resolved", "run-1", 1)
    assert steps(stage, incident_id) == ["diagnose", "fence", "restart", "verify"]
    assert all(note.seconds is not None for note in incident.timeline)
    assert incident.timeline[-1].text == "2 instance(s) running; all 4 input partitions are processed"

    again = recover(incident_id, stage.rollout, stage.world, run_id="run-2", policy=POLICY)
    assert (again.outcome, again.reason) == ("resolved", result.reason)
    assert len(steps(stage, incident_id)) == 4


def test_a_stuck_instance_is_killed_before_it_is_started_again(stage: Any, eventually: Wait) -> None:
    stage.acts({"stuck": True}, {})
    deploy(stage.rollout, stage.world, timeout_s=30)
    stuck = stage.pid("0")
    eventually(lambda: isinstance(diagnoses(stage)["0"], Stuck))
    incident_id = file_incident(stage)
    assert recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY).outcome == "resolved"
    fence = stage.registry.incident(incident_id).timeline[1]
    assert f"slot 0: process {stuck} was killed" in fence.text


@pytest.mark.thorough
def test_an_instance_that_gave_up_is_replaced(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"phase": "failed", "error": {"type": "E", "message": "no"}}, {})
    stage.supervisor.kill_program("fleet-0")
    stage.supervisor.start_program("fleet-0")
    result = recover(file_incident(stage), stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert result.outcome == "resolved"


@pytest.mark.thorough
def test_it_comes_back_at_the_third_attempt(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"exit": 69}, {"exit": 69}, {})
    os.kill(stage.pid("0"), signal.SIGKILL)
    incident_id = file_incident(stage)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.attempts) == ("resolved", 3)
    assert steps(stage, incident_id) == ["diagnose", "fence", "restart", "verify"] * 3


def test_when_restarts_do_not_help_the_incident_ends_as_failed_with_the_reason(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"exit": 1})
    os.kill(stage.pid("0"), signal.SIGKILL)
    incident_id = file_incident(stage)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.attempts) == ("failed", 3)
    assert result.reason.startswith("attempt 3 of 3 failed: Processor fleet slot 0 ended (exit status 1)")
    assert "giving up" in result.reason
    incident = stage.registry.incident(incident_id)
    assert (incident.outcome, incident.reason) == ("failed", result.reason)
    assert stage.registry.open_incidents() == ()


def test_bad_configuration_is_not_tried_thrice(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"exit": 64})
    os.kill(stage.pid("0"), signal.SIGKILL)
    result = recover(file_incident(stage), stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.attempts) == ("failed", 1)
    assert "a restart cannot repair this" in result.reason
    incident = stage.registry.incidents(1)[0]
    assert (incident.kind, incident.remedy) == ("bad-configuration", "ask")
    assert incident.action.endswith("Then: holdfast apply deploy fleet")


def test_attempts_of_a_run_that_died_are_counted(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"exit": 1})
    os.kill(stage.pid("0"), signal.SIGKILL)
    incident_id = file_incident(stage)
    for _ in range(2):
        stage.registry.begin_attempt(incident_id)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.attempts) == ("failed", 3)
    assert steps(stage, incident_id) == ["diagnose", "fence", "restart", "verify", "ask"]


def test_one_run_works_on_an_incident(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    incident_id = file_incident(stage)
    stage.registry.claim_incident(incident_id, "run-1", datetime.now(UTC))
    other = recover(incident_id, stage.rollout, stage.world, run_id="run-2", policy=POLICY)
    assert other.outcome == "elsewhere"
    assert steps(stage, incident_id) == []

    same = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (same.outcome, same.reason) == ("resolved", "it recovered without an action")
    assert steps(stage, incident_id) == ["diagnose", "verify"]
    with pytest.raises(IncidentUnknown):
        recover(999, stage.rollout, stage.world, run_id="run-1")


def test_what_was_stopped_on_purpose_stays_down(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    incident_id = file_incident(stage)
    stop("fleet", stage.world)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.reason) == ("resolved", "it was stopped on request meanwhile")
    assert {status.state for status in stage.supervisor.programs().values()} == {"STOPPED"}


def test_a_dead_supervisor_is_brought_back_with_all_its_programs(stage: Any, eventually: Wait) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    pid = stage.supervisor.pid()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not stage.supervisor.running())
    assert set(diagnoses(stage).values()) == {Dead(None, None)}
    incident_id = file_incident(stage)
    assert recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY).outcome == "resolved"
    assert "the supervisor was not running and was started" in stage.registry.incident(incident_id).timeline[1].text
    assert stage.supervisor.pid() != pid


@pytest.mark.thorough
def test_a_failure_is_noticed_once_and_only_while_restarts_may_help(stage: Any, eventually: Wait) -> None:
    assert notice("fleet", stage.world, POLICY.limits).observations == {}
    deploy(stage.rollout, stage.world, timeout_s=30)
    well = notice("fleet", stage.world, POLICY.limits)
    assert (well.incident, well.worst) == (None, Healthy("running"))
    assert set(well.answered_at) == {"0", "1"}

    pid = stage.pid("0")
    os.kill(pid, signal.SIGSTOP)
    stage = replace(stage, world=replace(stage.world, statuses=impatient(stage.world)))
    unsure = notice("fleet", stage.world, Limits(stuck_after_s=600), answered_at=well.answered_at)
    assert (unsure.incident, unsure.worst.kind) == (None, "starting")
    assert unsure.answered_at["0"] == well.answered_at["0"]
    assert unsure.answered_at["1"] > well.answered_at["1"]

    def stuck() -> bool:
        return notice("fleet", stage.world, POLICY.limits, answered_at=well.answered_at).opened

    eventually(stuck)
    again = notice("fleet", stage.world, POLICY.limits, answered_at=well.answered_at)
    assert not again.opened
    assert again.incident is not None
    assert (again.incident.kind, again.incident.detail["1"]) == ("stuck", "It is running.")

    stage.registry.close_incident(again.incident.id, "failed", datetime.now(UTC))
    refused = notice("fleet", stage.world, POLICY.limits, answered_at=well.answered_at)
    assert (refused.incident, refused.worst.kind) == (None, "stuck")
    stage.supervisor.kill_program("fleet-0")


@pytest.mark.parametrize(("goes_on", "stops"), variants([(True, True), (True, False), (False, True)]))
def test_recovery_keeps_its_hands_off_while_a_plan_is_applied_and_where_one_has_to_go_on(
    stage: Any, eventually: Wait, goes_on: bool, stops: bool
) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    journal, now = stage.registry.journal, datetime.now(UTC)
    request = Clear("fleet") if goes_on else Compact("fleet")
    stages = (StopProcessor("stop", for_good=False),) if stops else ()
    plan = Plan(request=request, verdict=Ready("."), stages=stages, after_kill="go on" if goes_on else "plan anew")
    about = {"processor": "fleet", "verb": plan.verb, "plan_hash": plan.hash, "plan": encode(plan), "who": "ada"}
    held, _ = journal.begin_apply(**about, holder="run", now=now)
    stage.supervisor.kill_program("fleet-0")
    eventually(lambda: notice("fleet", stage.world, POLICY.limits).worst.needs_recovery)
    assert notice("fleet", stage.world, POLICY.limits).incident is None
    assert journal.let_go_of_apply(held.id, held.token, "the disk is full")
    # A plan without a stop needs running workers, so recovery must start them. Otherwise the plan could not be resumed.
    assert (notice("fleet", stage.world, POLICY.limits).incident is None) == (goes_on and stops)
    (free,) = journal.applies(open_only=True)
    token = journal.claim_apply(held.id, "another run", seen=free.token)
    assert token is not None
    assert journal.end_apply(held.id, token, "abandoned", now)
    assert notice("fleet", stage.world, POLICY.limits).incident is not None


def failing(cause: str, exit_code: int = 1, **fields: Any) -> dict[str, Any]:
    """An act for the program: it ends with this error."""
    error = {"type": "E", "cause": cause, "message": f"{cause} it is.", "action": "Mend it.", "fields": fields}
    return {"exit": exit_code, "phase": "failed", "error": error}


def broken_down(stage: Any, eventually: Wait, *acts: dict[str, Any]) -> int:
    """Deploy the processor, make it fail with the first act, and return the number of its incident."""
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts(*acts)
    stage.supervisor.kill_program("fleet-0")
    stage.supervisor.start_program("fleet-0")
    eventually(lambda: notice("fleet", stage.world, POLICY.limits).worst.needs_recovery)
    seen = notice("fleet", stage.world, POLICY.limits)
    assert seen.incident is not None
    return int(seen.incident.id)


def test_what_no_restart_mends_is_asked_at_once(stage: Any, eventually: Wait) -> None:
    incident_id = broken_down(stage, eventually, failing("changelog-recreated", 64, store="counts"))
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    incident = stage.registry.incident(incident_id)
    assert (result.outcome, result.attempts, incident.kind, incident.remedy) == (
        "failed",
        0,
        "changelog-recreated",
        "ask",
    )
    assert incident.action == "holdfast apply backfill fleet --store counts --from local --yes"
    assert steps(stage, incident_id) == ["diagnose", "ask"]
    # recovery does not ask again for the same fault, however much time passes
    later = replace(stage.world, clock=lambda: datetime.now(UTC) + timedelta(days=1))
    assert notice("fleet", later, POLICY.limits).incident is None
    assert stage.registry.retry_incident(incident_id, datetime.now(UTC))
    stage.acts({})
    again = recover(incident_id, stage.rollout, stage.world, run_id="run-2", policy=POLICY)
    assert (again.outcome, again.attempts) == ("resolved", 1)


def test_a_poison_message_gets_one_restart_and_then_a_person(stage: Any, eventually: Wait) -> None:
    incident_id = broken_down(stage, eventually, failing("poison-message", topic="flights", partition=0, offset=7))
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.attempts) == ("failed", 1)
    assert steps(stage, incident_id) == ["diagnose", "fence", "restart", "verify", "diagnose", "ask"]
    assert "set dead_letter_topic" in stage.registry.incident(incident_id).action


@pytest.mark.thorough
def test_a_poison_message_that_passed_is_no_matter(stage: Any, eventually: Wait) -> None:
    incident_id = broken_down(stage, eventually, failing("poison-message"), {})
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.attempts) == ("resolved", 1)


@pytest.mark.parametrize("named", variants(["the task", "the slot"]))
def test_damaged_state_is_set_aside_and_never_deleted(stage: Any, eventually: Wait, named: str) -> None:
    slot = stage.world.paths.state / "fleet" / "0"
    task = slot / "flights-0"
    task.mkdir(parents=True)
    (task / "CURRENT").write_text("broken")
    path = task if named == "the task" else slot
    incident_id = broken_down(stage, eventually, failing("store-corrupt", 74, path=str(path)), {})
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert result.outcome == "resolved"
    assert steps(stage, incident_id) == ["diagnose", "fence", "set aside", "restart", "verify"]
    assert not task.exists()
    (kept,) = slot.parent.rglob("CURRENT")
    assert (".aside-" in str(kept), kept.read_text()) == (True, "broken")


def test_state_that_nothing_else_has_is_left_where_it_is(stage: Any, eventually: Wait) -> None:
    incident_id = broken_down(stage, eventually, failing("store-corrupt", 74, path="/nowhere"))
    policy = replace(POLICY, restorable=False)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=policy)
    assert (result.outcome, result.attempts) == ("failed", 0)
    assert "no other copy of this state exists" in result.reason


def test_a_folder_of_somebody_else_is_never_set_aside(stage: Any, eventually: Wait, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    incident_id = broken_down(stage, eventually, failing("store-corrupt", 74, path=str(precious)))
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert result.outcome == "failed"
    assert "is not a state folder of slot 0 of" in result.reason
    assert precious.is_dir()


def test_what_passes_is_waited_for_and_uses_no_attempts_up(stage: Any, eventually: Wait) -> None:
    def away() -> None:
        raise BrokerUnreachable("No broker answers.", action="Wait.")

    incident_id = broken_down(stage, eventually, failing("broker-away", 69), {})
    gone = replace(POLICY, conditions=Conditions(away))
    for run in range(5):
        result = recover(incident_id, stage.rollout, stage.world, run_id=f"run-{run}", policy=gone)
        assert (result.outcome, result.attempts) == ("waiting", 0)
    incident = stage.registry.incident(incident_id)
    assert (incident.is_open, incident.claimed_by, incident.kind, incident.remedy) == (
        True,
        None,
        "broker-away",
        "wait",
    )
    assert [note.step for note in incident.timeline].count("wait") == 1
    assert waits_for(incident, diagnoses(stage), Conditions(away)) == "No broker answers."
    assert waits_for(incident, diagnoses(stage), Conditions()) == ""
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-9", policy=POLICY)
    assert (result.outcome, result.attempts) == ("resolved", 1)


@pytest.mark.thorough
def test_a_restore_that_takes_longer_than_an_attempt_is_waited_for(stage: Any, eventually: Wait) -> None:
    incident_id = broken_down(stage, eventually, failing("fenced"), {"restore_s": 3})
    hasty = replace(POLICY, ready_s=0.5)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=hasty)
    incident = stage.registry.incident(incident_id)
    assert (result.outcome, result.attempts, incident.kind, incident.remedy) == ("waiting", 1, "starting", "wait")
    assert waits_for(incident, {"0": Starting("restoring")}, Conditions()) == "It is restoring."
    eventually(lambda: worst(diagnoses(stage)) == Healthy("running"))
    assert waits_for(incident, {"0": Healthy("running")}, Conditions()) == ""
    assert recover(incident_id, stage.rollout, stage.world, run_id="run-2", policy=POLICY).outcome == "resolved"


def test_a_full_disk_is_waited_for_until_there_is_room(stage: Any, eventually: Wait, tmp_path: Path) -> None:
    full = failing("disk-full", 74, path="/dev/full/state")
    incident_id = broken_down(stage, eventually, full, {})
    assert no_room(tmp_path) == ""
    assert list(tmp_path.glob(".room-*")) == []
    assert "can't be written" in no_room(Path("/proc/1/nothing"))
    there = replace(POLICY, conditions=Conditions(state_dir=tmp_path))
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=there)
    assert result.outcome in ("resolved", "waiting")


@pytest.mark.thorough
def test_a_processor_that_flaps_gets_a_last_incident_that_asks(stage: Any, eventually: Wait) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    limits = replace(POLICY.limits, incidents=3)
    for _ in range(3):
        os.kill(stage.pid("0"), signal.SIGKILL)
        eventually(lambda: notice("fleet", stage.world, limits).worst.needs_recovery)
        seen = notice("fleet", stage.world, limits)
        assert seen.incident is not None
        assert seen.incident.is_open
        policy = replace(POLICY, limits=limits)
        assert recover(seen.incident.id, stage.rollout, stage.world, run_id="run", policy=policy).outcome == "resolved"
    os.kill(stage.pid("0"), signal.SIGKILL)
    eventually(lambda: notice("fleet", stage.world, limits).worst.needs_recovery)
    last = stage.registry.incidents(1)[0]
    assert (last.kind, last.outcome, last.remedy) == ("crash-loop", "failed", "ask")
    assert "It crashed 3 times" in last.reason
    assert last.action.endswith(f"holdfast incidents retry {last.id}")
    assert notice("fleet", stage.world, limits).incident is None
    assert len(stage.registry.incidents()) == 4


def impatient(world: Any) -> Any:
    class Impatient(ProcessorClient):
        def status(self, timeout_s: float = 0.2) -> ProcessorStatus | None:
            return super().status(timeout_s)

    return lambda processor, slot: Impatient(processor, slot, world.paths)
