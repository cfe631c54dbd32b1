"""Deployments with a real supervisor and a small real program."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.infra.deploy.program_files import ProgramStatus
from holdfast.processors.lifecycle.deploy.deployment import DeploymentFailed, Progress, deploy, stop, what_is_missing
from holdfast.processors.lifecycle.deploy.keep_or_replace import step_for
from tests.mechanics.tiers import variants

pytestmark = pytest.mark.slow


def test_a_processor_comes_up_in_all_its_slots(stage: Any) -> None:
    stage.acts({"restore_s": 0.5})
    seen: list[Progress] = []
    result = deploy(stage.rollout, stage.world, who="ada", timeout_s=30, progress=seen.append)
    assert result.started == ("0", "1")
    assert set(result.statuses) == {"0", "1"}
    assert not seen[0].ready
    assert seen[0].missing == (("flights", 0), ("flights", 1), ("flights", 2), ("flights", 3))
    assert seen[-1].ready
    assert seen[-1].sentence.startswith("fleet (0: running, 1: running) after")

    desired = stage.registry.deployment("fleet")
    assert (desired.desired, desired.code_version, desired.slots) == ("deployed", "v1", ("0", "1"))
    (action,) = stage.registry.actions(10)
    assert (action.verb, action.subject, action.who, action.outcome) == ("deploy", "fleet", "ada", "done")
    assert action.plan == "run version v1 in slots 0, 1"


def test_again_touches_nothing_and_a_new_version_replaces_all(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    pids = [stage.pid("0"), stage.pid("1")]
    assert deploy(stage.rollout, stage.world, timeout_s=30).started == ()
    assert [stage.pid("0"), stage.pid("1")] == pids

    os.kill(pids[0], signal.SIGKILL)
    assert deploy(stage.rollout, stage.world, timeout_s=30).started == ("0",)
    assert stage.pid("1") == pids[1]

    stage.acts({"version": "v2"})
    assert deploy(stage.version("v2"), stage.world, timeout_s=30).started == ("0", "1")
    assert stage.pid("1") != pids[1]


@pytest.mark.parametrize("together", variants([True, False]))
def test_versions_with_other_tasks_never_run_beside_each_other(
    stage: Any, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    former = {stage.pid("0"), stage.pid("1")}
    beside: list[bool] = []
    start = stage.supervisor.start_program

    def look_and_start(name: str) -> None:
        beside.append(any(each.alive and each.pid in former for each in stage.supervisor.programs().values()))
        start(name)

    monkeypatch.setattr(stage.supervisor, "start_program", look_and_start)
    stage.acts({"version": "v2"})
    rollout = replace(stage.version("v2"), together=together)
    assert deploy(rollout, stage.world, timeout_s=30).started == ("0", "1")
    assert beside == ([False, False] if together else [True, False])
    # As after a deploy that was killed between stop and start: no worker is left to stop, so deploy only starts it.
    os.kill(stage.pid("0"), signal.SIGKILL)
    assert deploy(rollout, stage.world, timeout_s=30).started == ("0",)


@pytest.mark.thorough
def test_a_worker_that_leaves_does_not_run_beside_a_version_with_other_tasks(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    beside: list[str] = []
    start = stage.supervisor.start_program

    def look_and_start(name: str) -> None:
        beside.extend(other for other, each in stage.supervisor.programs().items() if each.alive)
        start(name)

    monkeypatch.setattr(stage.supervisor, "start_program", look_and_start)
    stage.acts({"version": "v2", "partitions": {"0": [0, 1, 2, 3]}})
    fewer = replace(stage.version("v2"), together=True, slots=("0",))
    assert deploy(fewer, stage.world, timeout_s=30).started == ("0",)
    assert beside == []
    assert set(stage.supervisor.programs()) == {"fleet-0"}


def test_slots_that_are_no_longer_wanted_are_removed(stage: Any) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    fewer = replace(stage.rollout, slots=("0",), inputs={"flights": 2})
    assert deploy(fewer, stage.world, timeout_s=30).started == ()
    assert set(stage.supervisor.programs()) == {"fleet-0"}
    assert stage.registry.deployment("fleet").slots == ("0",)


def test_a_program_that_ends_fails_the_deployment_with_its_last_lines(stage: Any) -> None:
    stage.acts({"exit": 64})
    with pytest.raises(DeploymentFailed, match=r"slot [01] ended \(exit status 64\)") as failed:
        deploy(stage.rollout, stage.world, timeout_s=30)
    slot = failed.value.fields["slot"]  # the error names the slot (a worker's place) whose failure was seen first
    assert failed.value.fields["exit_status"] == 64
    assert failed.value.fields["log"] == (f"start 0 of slot {slot}", "giving up")
    assert "giving up" in str(failed.value)
    assert stage.registry.deployment("fleet").desired == "deployed"
    assert stage.registry.actions(1)[0].outcome.startswith(f"failed: Processor fleet slot {slot} ended")


def test_a_processor_that_gives_up_fails_the_deployment_with_its_own_words(stage: Any) -> None:
    error = {"type": "TopicMissing", "message": "Topic flights is missing.", "action": "Create topic flights."}
    stage.acts({"phase": "failed", "error": error})
    with pytest.raises(DeploymentFailed, match=r"Topic flights is missing") as failed:
        deploy(stage.rollout, stage.world, timeout_s=30)
    assert failed.value.action == "Create topic flights."
    assert failed.value.fields["error"] == error


@pytest.mark.thorough
def test_the_last_words_of_a_process_are_told_and_older_ones_are_not(stage: Any, eventually: Any) -> None:
    error = {"type": "StateLost", "message": "Changelog was truncated.", "action": "Restore it."}
    stage.acts({"exit": 1, "error": error})
    with pytest.raises(DeploymentFailed, match=r"exit status 1.*Changelog was truncated") as failed:
        deploy(stage.rollout, stage.world, timeout_s=30)
    assert failed.value.action == "Restore it."

    ended = time.time()
    eventually(lambda: time.time() > ended + 2)  # supervisord reports times in whole seconds
    stage.acts({"exit": 1})
    with pytest.raises(DeploymentFailed) as silent:
        deploy(stage.rollout, stage.world, timeout_s=30)
    assert silent.value.fields["error"] is None


def test_what_is_not_ready_in_time_is_named(stage: Any) -> None:
    stage.acts({"partitions": {"0": [0], "1": [2, 3]}})
    with pytest.raises(DeploymentFailed, match=r"not processed: flights\[1\] after"):
        deploy(stage.rollout, stage.world, timeout_s=2)


@pytest.mark.thorough
def test_a_processor_that_waits_for_a_moment_when_it_was_watched_long_enough_is_waited_for(stage: Any) -> None:
    phases = ["running"] * 3 + ["waiting"] * 20 + ["running"]
    stage.acts({"phases": phases, "lag": 5, "partitions": {"0": [0, 1], "1": [2, 3]}})
    done = deploy(stage.rollout, stage.world, timeout_s=60, settle_s=1.0)
    assert {status.phase for status in done.statuses.values()} == {"running"}


def test_a_process_of_another_version_fails_the_deployment(stage: Any) -> None:
    with pytest.raises(DeploymentFailed, match="runs version v1, expected v2"):
        deploy(stage.version("v2"), stage.world, timeout_s=30)


def test_stop_is_remembered(stage: Any) -> None:
    assert stop("fleet", stage.world) == ()
    deploy(stage.rollout, stage.world, timeout_s=30)
    assert stop("fleet", stage.world, who="ada") == ("0", "1")
    assert {status.state for status in stage.supervisor.programs().values()} == {"STOPPED"}
    assert stage.registry.deployment("fleet").desired == "stopped"
    assert [action.verb for action in stage.registry.actions(10)] == ["stop", "deploy"]
    stage.supervisor.stop()
    assert stop("fleet", stage.world) == ()


def test_the_step_of_one_instance(make_status: Any) -> None:
    since = datetime(2026, 3, 1, tzinfo=UTC)
    up = ProgramStatus("fleet-0", "RUNNING", 7, None, since)
    down = ProgramStatus("fleet-0", "EXITED", None, 1, since)
    assert step_for(None, None, "v1") == "start"
    assert step_for(down, None, "v1") == "start"
    assert step_for(up, make_status(), "v1") == "keep"
    assert step_for(up, make_status(phase="restoring"), "v1") == "keep"
    assert step_for(up, make_status(), "v2") == "replace"
    assert step_for(up, make_status(phase="failed"), "v1") == "replace"
    assert step_for(up, make_status(paused=True), "v1") == "replace"
    assert step_for(up, make_status(paused=True), "v1", paused=True) == "keep"
    assert step_for(up, make_status(pid=8), "v1") == "replace"
    assert step_for(up, None, "v1") == "replace"


def test_a_partition_counts_once_its_task_runs(make_status: Any, make_task: Any) -> None:
    statuses = {"0": make_status(tasks=(make_task(0), make_task(1, phase="restoring"))), "1": None}
    assert what_is_missing({"flights": 3}, statuses) == (("flights", 1), ("flights", 2))
    assert what_is_missing({}, {}) == ()


def test_a_version_whose_messages_go_to_dead_letters_fails_its_watch(stage: Any) -> None:
    stage.acts({"records": {"processed": 40, "dead_lettered": 1}})
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"version": "v2", "records": {"processed": 30, "dead_lettered": 30}})
    with pytest.raises(DeploymentFailed, match="put 60 of its first 60 messages into dead letters") as failed:
        deploy(stage.version("v2"), stage.world, timeout_s=30, settle_s=5.0)
    assert "`holdfast apply deploy fleet`" in str(failed.value.action)


@pytest.mark.thorough
def test_dead_letters_that_the_former_version_wrote_too_do_not_fail_a_watch(stage: Any) -> None:
    bad = {"records": {"processed": 30, "dead_lettered": 20}}
    stage.acts(bad)
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"version": "v2", **bad})
    assert deploy(stage.version("v2"), stage.world, timeout_s=30, settle_s=5.0).started == ("0", "1")
