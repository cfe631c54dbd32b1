"""Recovery over a real supervisor, a real registry and a small real program."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from processors.lifecycle.deployment import deploy, stop
from processors.lifecycle.recovery import (
    Dead,
    Diagnosis,
    Healthy,
    IncidentUnknown,
    Limits,
    RecoveryPolicy,
    Stuck,
    notice,
    observe,
    recover,
)
from processors.serving.client import ProcessorClient
from processors.serving.status import ProcessorStatus

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
    assert incident.timeline[-1].text == "2 instance(s) running, all 4 input partitions are worked on"

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
    assert f"slot 0: process {stuck} was killed and is gone" in fence.text


def test_an_instance_that_gave_up_is_replaced(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"phase": "failed", "error": {"type": "E", "message": "no"}}, {})
    stage.supervisor.kill_program("fleet-0")
    stage.supervisor.start_program("fleet-0")
    result = recover(file_incident(stage), stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert result.outcome == "resolved"


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
    assert "a restart can't mend bad configuration" in result.reason


def test_attempts_of_a_run_that_died_are_counted(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"exit": 1})
    os.kill(stage.pid("0"), signal.SIGKILL)
    incident_id = file_incident(stage)
    for _ in range(2):
        stage.registry.begin_attempt(incident_id)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.attempts) == ("failed", 3)
    assert steps(stage, incident_id) == ["diagnose", "fence", "restart", "verify"]


def test_one_run_works_on_an_incident(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    incident_id = file_incident(stage)
    stage.registry.claim_incident(incident_id, "run-1", datetime.now(UTC))
    other = recover(incident_id, stage.rollout, stage.world, run_id="run-2", policy=POLICY)
    assert other.outcome == "elsewhere"
    assert steps(stage, incident_id) == []

    same = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (same.outcome, same.reason) == ("resolved", "it came back by itself")
    assert steps(stage, incident_id) == ["diagnose", "verify"]
    with pytest.raises(IncidentUnknown):
        recover(999, stage.rollout, stage.world, run_id="run-1")


def test_what_was_stopped_on_purpose_stays_down(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    incident_id = file_incident(stage)
    stop("fleet", stage.world)
    result = recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY)
    assert (result.outcome, result.reason) == ("resolved", "it is not meant to run any more")
    assert {status.state for status in stage.supervisor.programs().values()} == {"STOPPED"}


def test_a_dead_supervisor_is_brought_back_with_all_its_programs(stage: Any, eventually: Wait) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    pid = stage.supervisor.pid()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not stage.supervisor.running())
    assert set(diagnoses(stage).values()) == {Dead(None, None)}
    incident_id = file_incident(stage)
    assert recover(incident_id, stage.rollout, stage.world, run_id="run-1", policy=POLICY).outcome == "resolved"
    assert "the supervisor did not run and was started" in stage.registry.incident(incident_id).timeline[1].text
    assert stage.supervisor.pid() != pid


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


def impatient(world: Any) -> Any:
    class Impatient(ProcessorClient):
        def status(self, timeout_s: float = 0.2) -> ProcessorStatus | None:
            return super().status(timeout_s)

    return lambda processor, slot: Impatient(processor, slot, world.paths)
