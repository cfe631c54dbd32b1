"""A worker's process runs but does not answer. This is detected without memory of earlier checks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.deploy.deployment import deploy
from holdfast.processors.lifecycle.recovery.diagnosis import Diagnosis, Starting, Stuck
from holdfast.processors.lifecycle.recovery.incidents import observe
from holdfast.processors.lifecycle.recovery.limits import Limits

pytestmark = pytest.mark.slow


@pytest.fixture
def frozen(stage: Any) -> Any:
    """The process of worker 0 runs and is then frozen, including its HTTP server."""
    deploy(stage.rollout, stage.world, timeout_s=30)
    os.kill(stage.pid("0"), signal.SIGSTOP)
    yield stage
    stage.supervisor.kill_program("fleet-0")


def look(stage: Any, limits: Limits) -> Diagnosis:
    class Impatient(ProcessorClient):
        def status(self, timeout_s: float = 0.2) -> ProcessorStatus | None:
            return super().status(timeout_s)

    world = replace(stage.world, statuses=lambda processor, slot: Impatient(processor, slot, stage.world.paths))
    return observe("fleet", world, limits)["0"].diagnosis


def beat(stage: Any, seconds_ago: float) -> None:
    moment = time.time() - seconds_ago
    os.utime(stage.world.paths.endpoint("fleet", "0"), (moment, moment))


def test_one_question_without_an_answer_is_not_stuck(frozen: Any) -> None:
    beat(frozen, 0)
    found = look(frozen, Limits(stuck_after_s=600, start_s=0))
    assert isinstance(found, Starting)
    assert "not answering for" in found.sentence


def test_a_silence_that_lasted_is_stuck(frozen: Any, eventually: Callable[[Callable[[], bool]], None]) -> None:
    beat(frozen, 0)
    eventually(lambda: isinstance(look(frozen, Limits(stuck_after_s=1, start_s=600)), Stuck))


def test_a_sign_of_life_of_the_process_before_counts_for_nothing(frozen: Any) -> None:
    beat(frozen, 3600)
    assert isinstance(look(frozen, Limits(stuck_after_s=600, start_s=600)), Starting)


def test_a_process_that_never_came_so_far_has_its_time_to_start(frozen: Any) -> None:
    frozen.world.paths.endpoint("fleet", "0").unlink()
    assert ProcessorClient("fleet", "0", frozen.world.paths).last_heartbeat(frozen.pid("0")) is None
    assert isinstance(look(frozen, Limits(stuck_after_s=600, start_s=600)), Starting)
    assert isinstance(look(frozen, Limits(stuck_after_s=600, start_s=0)), Stuck)


def test_a_sign_of_life_is_of_one_process(frozen: Any) -> None:
    client = ProcessorClient("fleet", "0", frozen.world.paths)
    assert client.last_heartbeat(frozen.pid("0")) is not None
    assert client.last_heartbeat(frozen.pid("1")) is None
    assert client.last_heartbeat(None) is None
