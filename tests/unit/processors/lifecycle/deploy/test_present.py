"""Workers that run although the deployment record does not name them. Supervisor and programs are real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.processors.lifecycle.deploy import deployment
from holdfast.processors.lifecycle.deploy.deployment import deploy, stop
from holdfast.processors.lifecycle.deploy.observing_all import look_at_all
from holdfast.processors.lifecycle.deploy.present import slots_at_work, slots_beyond
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, recover
from holdfast.processors.lifecycle.recovery.diagnosis import Differs
from holdfast.processors.lifecycle.recovery.incidents import observe
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now

pytestmark = pytest.mark.slow


@pytest.fixture
def left(stage: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A change from two workers to one that Ctrl-C interrupted before the second worker was stopped."""
    deploy(stage.rollout, stage.world, timeout_s=30)
    fewer = replace(stage.rollout, slots=("0",), inputs={"flights": 2})
    with _interrupted(monkeypatch), pytest.raises(KeyboardInterrupt):
        deploy(fewer, stage.world, timeout_s=30)
    assert stage.registry.deployment("fleet").slots == ("0",)
    return stage


@contextmanager
def _interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deployment, "remove_others", interrupt)
        yield


def test_a_worker_that_an_interrupted_change_left_is_asked_and_told(left: Any) -> None:
    assert slots_beyond("fleet", ("0",), left.world) == ("1",)
    assert slots_at_work("fleet", left.world) == ("0", "1")
    for world in (left.world, look_at_all(left.world, left.registry.deployments())):
        now = processor_now("fleet", world, Limits(), patience_s=5.0)
        assert set(now.observations) == {"0", "1"}
        assert now.observations["1"].living is not None
        assert (now.answer.colour, now.answer.action) == ("red", "holdfast apply scale fleet 1")


def test_stop_ends_every_worker_that_runs(left: Any) -> None:
    assert set(stop("fleet", left.world)) == {"0", "1"}
    assert not any(each.alive for each in left.supervisor.programs().values())
    assert slots_at_work("fleet", left.world) == ("0",)


def test_a_worker_that_a_stop_left_is_told(left: Any) -> None:
    left.registry.record_stopped("fleet", datetime.now(UTC))
    limits = Limits(stop_s=0.0)
    found = observe("fleet", left.world, limits)["1"].diagnosis
    assert isinstance(found, Differs)
    assert (found.kind, found.action) == ("unwanted-worker", "holdfast apply stop fleet")
    assert processor_now("fleet", left.world, limits).answer.colour == "red"


def test_recovery_removes_it_before_it_waits_for_all_partitions(left: Any) -> None:
    left.supervisor.kill_program("fleet-0")
    incident, _ = left.registry.open_incident("fleet", "dead", {}, datetime.now(UTC))
    rollout = replace(left.rollout, slots=("0",), inputs={"flights": 2})
    result = recover(incident.id, rollout, left.world, run_id="run-1", policy=RecoveryPolicy(ready_s=30))
    assert result.outcome == "resolved", result.reason
    assert set(left.supervisor.programs()) == {"fleet-0"}
    (note,) = [each for each in left.registry.incident(incident.id).timeline if each.step == "remove"]
    assert note.text == "slot 1 is not recorded: stopped and removed"
