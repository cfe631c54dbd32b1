"""A supervisor runs but does not answer. Its silence is reported, and no worker is treated as dead."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.infra.deploy.program_files import SupervisorSilent
from holdfast.processors.lifecycle.deploy.deployment import stop
from holdfast.processors.lifecycle.deploy.observing_all import look_at_all
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, RecoveryResult, recover
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.diagnosis import NotDeployed
from holdfast.processors.lifecycle.recovery.incidents import notice, observe, wait_on, waits_for
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.working_check import judge_working
from tests.unit.processors.lifecycle.in_memory import NAME, NOW, Installation, open_installation

LIMITS = Limits()
ACTION = "End it and start another one: `holdfast down`, then `holdfast up`."


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installation]:
    made = open_installation(tmp_path, slots=2)
    yield made
    made.registry.close()


def told(installed: Installation) -> str:
    answer = judge_working(notice(NAME, installed.world, LIMITS).diagnoses, None, NOW)
    assert answer is not None
    assert (answer.colour, answer.kind, answer.action) == ("red", "supervisor-silent", ACTION)
    return answer.text


def recovered(installed: Installation, incident: int) -> RecoveryResult:
    policy = RecoveryPolicy(limits=LIMITS, pause_s=0.0, ready_s=5.0)
    return recover(incident, installed.rollout, installed.world, run_id="run", policy=policy)


def test_workers_that_answer_are_told_as_working_and_no_incident_is_opened(installed: Installation) -> None:
    installed.hangs = True
    installed.worker("1").kill()
    assert told(installed) == (
        "The supervisor does not answer. Slot 0: The supervisor does not answer, but the worker does: it is running. "
        f"Slot 1: The supervisor does not answer, nor does the worker. What to do: {ACTION}"
    )
    assert installed.registry.open_incidents() == ()
    assert installed.done == []


def test_a_tick_asks_a_silent_supervisor_once(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick of the sensor sends only one request to a silent supervisor.

    Each request takes its full timeout, and a tick has 60 s for all processors.
    """
    installed.hangs = True
    asked = []
    monkeypatch.setattr(Installation, "running", lambda self: asked.append("running") or self._answer())
    deployments = installed.registry.deployments()
    seen = look_at_all(installed.world, deployments)
    for _ in range(3):
        found = observe(NAME, seen, LIMITS)
        assert {each.living is not None for each in found.values()} == {True}
    assert asked == ["running"]


def test_an_open_incident_waits_and_uses_no_attempt(installed: Installation) -> None:
    installed.worker("0").kill()
    seen = notice(NAME, installed.world, LIMITS)
    assert seen.incident is not None
    installed.hangs = True
    result = recovered(installed, seen.incident.id)
    assert (result.outcome, result.attempts, installed.done) == ("waiting", 0, [])
    waiting = installed.registry.incident(seen.incident.id)
    assert waiting is not None
    assert (waiting.kind, waiting.remedy, waiting.action) == ("supervisor-silent", "wait", ACTION)
    assert waiting.timeline[-1].text.endswith("It resumes without an action as soon as the supervisor answers.")
    silent = notice(NAME, installed.world, LIMITS)
    assert waits_for(waiting, silent.diagnoses, Conditions())
    installed.hangs = False
    answering = notice(NAME, installed.world, LIMITS)
    assert waits_for(waiting, answering.diagnoses, Conditions()) == ""
    assert recovered(installed, waiting.id).outcome == "resolved"
    assert installed.done == ["start 0"]


def test_the_sensor_records_once_why_an_incident_waits(installed: Installation) -> None:
    incident, _ = installed.registry.open_incident(NAME, "dead", {}, NOW)
    installed.hangs = True
    gravest = notice(NAME, installed.world, LIMITS).worst
    for _ in range(2):
        now = installed.registry.incident(incident.id)
        assert now is not None
        wait_on(now, gravest, gravest.sentence, installed.world)
    now = installed.registry.incident(incident.id)
    assert now is not None
    assert (now.kind, now.remedy, now.action, len(now.timeline)) == ("supervisor-silent", "wait", ACTION, 1)


def test_a_supervisor_that_falls_silent_in_an_attempt_costs_none(installed: Installation) -> None:
    installed.worker("0").kill()
    seen = notice(NAME, installed.world, LIMITS)
    assert seen.incident is not None

    def falls_silent() -> None:
        installed.hangs = True

    installed.before_start = falls_silent
    result = recovered(installed, seen.incident.id)
    assert (result.outcome, result.attempts, installed.done) == ("waiting", 0, [])
    assert "The supervisor hangs." in result.reason


def test_stop_says_that_it_stopped_nothing_and_records_nothing(installed: Installation) -> None:
    installed.hangs = True
    with pytest.raises(SupervisorSilent, match="holdfast down"):
        stop(NAME, installed.world)
    kept = installed.registry.deployment(NAME)
    assert kept is not None
    assert (kept.desired, kept.generation) == ("deployed", 1)


def test_a_processor_that_was_stopped_on_request_is_not_missed(installed: Installation) -> None:
    stop(NAME, installed.world)
    installed.hangs = True
    assert isinstance(observe(NAME, installed.world, LIMITS)["0"].diagnosis, NotDeployed)


def test_a_worker_that_outlived_its_stop_is_told_in_red_while_the_supervisor_is_silent(installed: Installation) -> None:
    installed.registry.record_stopped(NAME, NOW - timedelta(seconds=LIMITS.stop_s + 1))
    installed.hangs = True
    assert "the worker does: it is running" in told(installed)
    installed.registry.record_stopped(NAME, NOW)
    assert isinstance(observe(NAME, installed.world, LIMITS)["0"].diagnosis, NotDeployed), "it may still end"
