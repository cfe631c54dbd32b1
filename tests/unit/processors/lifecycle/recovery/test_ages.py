"""The clock was six hours ahead and is correct again. Recovery must not wait for recorded times in the future."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast.infra.database.records import Deployment, Incident
from holdfast.infra.deploy.program_files import ProgramState, ProgramStatus
from holdfast.infra.system.process import running_for_s
from holdfast.infra.webhook import Answer as SentAnswer
from holdfast.processors.lifecycle.recovery.ages import AHEAD_S, age_s
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, recover
from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Starting, Stuck, admits_incident, diagnose, flaps
from holdfast.processors.lifecycle.recovery.incidents import notice
from holdfast.processors.lifecycle.recovery.lagging import LAG_RECORDS, LAG_S, Lag, next_lag
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.messages.webhook_messages import (
    Notification,
    Outbox,
    deliver,
    of_failed_run,
)
from holdfast.processors.lifecycle.recovery.working_check import Answer, is_due
from tests.unit.processors.lifecycle.in_memory import NAME, NOW, Installation, open_installation

LIMITS = Limits()
AHEAD = timedelta(hours=6)
LATER = NOW + AHEAD
WANTED = Deployment(NAME, "v1", ("0",), "deployed", 1, NOW - timedelta(hours=1))
SICK = {"0": "It has no process."}


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    made = open_installation(tmp_path)
    yield made
    made.registry.close()


def incident(opened_at: datetime, outcome: str = "failed") -> Incident:
    closed = opened_at + timedelta(seconds=5)
    return Incident(1, NAME, "dead", SICK, opened_at, None, None, 1, closed, outcome, "", ())  # type: ignore[arg-type]


def test_the_age_of_what_lies_ahead_is_no_small_one() -> None:
    assert age_s(NOW - timedelta(seconds=7), NOW) == 7.0
    assert age_s(NOW + timedelta(seconds=AHEAD_S), NOW) == 0.0, "clocks of two machines differ"
    assert age_s(LATER, NOW) > 1e9
    assert age_s(None, NOW) == 0.0


def test_a_failure_is_recovered_though_the_last_incident_failed_in_six_hours(installed: Installation) -> None:
    installed.pass_time(AHEAD.total_seconds())
    installed.worker().kill()
    installed.worker().restarts = False
    seen = notice(NAME, installed.world, LIMITS)
    assert seen.incident is not None
    policy = RecoveryPolicy(limits=LIMITS, pause_s=0.0)
    assert (
        recover(seen.incident.id, installed.rollout, installed.world, run_id="run", policy=policy).outcome == "failed"
    )
    assert notice(NAME, installed.world, LIMITS).incident is None, "it has just failed"
    installed.pass_time(-AHEAD.total_seconds())
    installed.worker().restarts = True
    seen = notice(NAME, installed.world, LIMITS)
    assert seen.opened
    assert seen.incident is not None
    result = recover(seen.incident.id, installed.rollout, installed.world, run_id="run", policy=policy)
    assert result.outcome == "resolved"


def test_an_incident_that_asked_a_person_in_six_hours_hides_no_other() -> None:
    asked = replace(incident(LATER), remedy="ask", asks=SICK)
    assert admits_incident([asked], WANTED, NOW, LIMITS, sick=SICK)


def test_incidents_that_lie_ahead_are_no_crash_loop() -> None:
    five = [incident(LATER - timedelta(seconds=number), "resolved") for number in range(5)]
    assert not flaps(five, WANTED, NOW, LIMITS)
    assert admits_incident(five, WANTED, NOW, LIMITS, sick=SICK)


def test_a_deployment_that_lies_ahead_hides_no_crash_loop() -> None:
    """A deployment whose recorded time is in the future must not hide a crash loop.

    Otherwise every incident of the next six hours would count as older than the deployment.
    """
    five = [incident(NOW - timedelta(seconds=10 + number), "resolved") for number in range(5)]
    deployed = replace(WANTED, updated_at=LATER)
    assert flaps(five, deployed, NOW, LIMITS)
    assert not admits_incident([incident(NOW - timedelta(seconds=20))], deployed, NOW, LIMITS, sick=SICK)


def program(state: ProgramState, since: datetime, pid: int | None = None) -> ProgramStatus:
    return ProgramStatus("orders-0", state, pid, None, since, started_at=since)


def test_a_program_that_was_stopped_in_six_hours_is_dead_now() -> None:
    assert diagnose(program("STOPPED", LATER), None, WANTED, NOW, LIMITS) == Dead(None, None)


def test_a_rollout_that_began_in_six_hours_is_under_way() -> None:
    deploying = replace(WANTED, desired="deploying", updated_at=LATER)
    assert diagnose(None, None, deploying, NOW, LIMITS) == Starting("being deployed")


def test_a_process_whose_start_lies_ahead_has_its_age_from_the_kernel(installed: Installation) -> None:
    """The age of a process whose start is in the future comes from the kernel.

    The test's own process takes the role of a worker that never answers.
    """
    installed.worker().pid = os.getpid()
    installed.worker().silent = True
    installed.worker().started_at = LATER
    running_s = running_for_s(os.getpid())
    assert running_s is not None
    for start_s, expected in ((running_s + 3600, Starting), (running_s / 2, Stuck)):
        seen = notice(NAME, installed.world, Limits(start_s=start_s))
        assert isinstance(seen.worst, expected), seen.worst


def test_a_last_answer_that_lies_ahead_is_forgotten(installed: Installation) -> None:
    installed.worker().silent = True
    installed.pass_time(600)
    seen = notice(NAME, installed.world, LIMITS, answered_at={"0": LATER})
    assert isinstance(seen.worst, Stuck)
    assert seen.answered_at["0"] == installed.now


def test_an_answer_and_a_lag_of_six_hours_later_are_told_again(installed: Installation) -> None:
    answer = Answer(True, "healthy", "It works.")
    assert is_due(answer, (answer.short, LATER.timestamp()), NOW.timestamp())
    status = installed.answer("0").status()
    (task,) = status.tasks
    behind = replace(task.inputs["placed"], lag=LAG_RECORDS)
    waits = replace(status, tasks=(replace(task, inputs={"placed": behind}),))
    found = next_lag(Lag(LAG_RECORDS, LATER.timestamp()), [waits], NOW)
    assert found is not None
    assert found.since == NOW.timestamp()
    kept = next_lag(Lag(LAG_RECORDS, NOW.timestamp() - LAG_S), [waits], NOW)
    assert kept is not None
    assert kept.since == NOW.timestamp() - LAG_S


def test_the_webhook_is_tried_though_its_next_try_is_in_six_hours() -> None:
    message = of_failed_run("1", "snapshots", "no", NOW, processor=None)

    def send(message: Notification) -> SentAnswer:
        return SentAnswer(200, "it answered 200")

    for wait, accepted in ((timedelta(minutes=30), 0), (AHEAD, 1)):
        outbox = Outbox(not_before=NOW + wait)
        sending = deliver(outbox, [message], send, lambda: NOW, keep=lambda outbox: None)
        assert len(sending.accepted) == accepted
