"""Code versions with other stores (new, dropped, renamed, shared by joined tasks) are deployed while workers die."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress

import pytest

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.plans.apply import PlanRefused, PlanStale
from holdfast.processors.lifecycle.plans.plan import Refused
from tests.kafka.conftest import wait_for
from tests.kafka.deploying.project import COUNTS, HEAD, JOINED, TWO_STORES, Project
from tests.parts.operated import Killed


@pytest.mark.thorough
def test_a_new_store_begins_empty_and_the_old_one_goes_on(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    project.write(HEAD, TWO_STORES)
    plan = project.plan()
    assert any("Store `lengths` is new and begins empty" in each for each in plan.findings)
    assert any("--from topic" in each for each in plan.findings)
    project.deploy()
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})

    # The new store's changelog now exists and has records of this store. So a restart needs no flag to start the store
    # empty, even with an empty disk.
    with project.verbs() as verbs:
        from holdfast.processors.lifecycle.plans.requests import Stop

        verbs.apply(verbs.plan(Stop(project.stream.group)))
        shutil.rmtree(project.settings.paths.state)
    project.deploy()
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 30, b"k1": 30})


@pytest.mark.thorough
def test_a_new_store_is_known_even_before_there_is_input(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    project.write(HEAD, TWO_STORES)
    project.deploy()
    lengths = f"{project.stream.group}-lengths-changelog"
    wait_for(lambda: all(end > 0 for end in project.stream.topics.end_offsets(lengths, committed=True).values()), "it")


@pytest.mark.thorough
def test_a_store_that_goes_is_kept_until_it_is_dropped(project: Project) -> None:
    project.write(HEAD, TWO_STORES)
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    lengths = f"{project.stream.group}-lengths-changelog"
    project.write(HEAD, COUNTS)
    assert any("Store `lengths` is no longer used" in each for each in project.plan().findings)
    project.deploy()
    assert project.stream.topics.describe([lengths])
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})

    # The store is declared again. Its old content lacks the input that was processed while it was not declared.
    project.write(HEAD, TWO_STORES)
    plan = project.plan()
    assert isinstance(plan.verdict, Refused)
    assert "--drop lengths" in plan.verdict.action
    assert project.plan(dropped=("lengths",)).destructive
    project.deploy(dropped=("lengths",))
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 30, b"k1": 30})


@pytest.mark.thorough
def test_a_renamed_store_keeps_its_state(project: Project) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.counted({b"k0": 10, b"k1": 10})
    project.write(HEAD, COUNTS, store="totals")
    with pytest.raises(PlanRefused, match="its state would be left behind") as refused:
        project.deploy()
    assert "renamed_stores={'totals': 'counts'}" in refused.value.action
    project.write(HEAD, COUNTS, store="totals", options="renamed_stores={'totals': 'counts'},")
    project.deploy()
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [1, 2, 3, 4])
def test_a_deployment_that_was_killed_ends_right_when_asked_for_again(project: Project, stage: int) -> None:
    project.stream.feed_numbers(20, keys=2)
    project.deploy()
    project.write(HEAD, TWO_STORES)

    def die(text: str) -> None:
        if text.startswith(f"stage {stage} of 4") or (stage == 4 and text.startswith(project.stream.group)):
            raise Killed

    with pytest.raises(Killed):
        project.deploy(die)
    version = project.deploy()
    assert project.running_version() == version
    project.stream.feed_numbers(20, keys=2)
    project.counted({b"k0": 20, b"k1": 20})


@pytest.mark.thorough
def test_tasks_that_are_joined_and_parted_with_two_workers_that_are_killed_stay_exact(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WORKERS", json.dumps({project.stream.group: 2}))
    clients = [ProcessorClient(project.stream.group, slot, project.settings.paths) for slot in ("0", "1")]

    def die(text: str) -> None:
        """Simulate that the operator and the running workers are killed while new workers start."""
        if not text.startswith(project.stream.group):
            return
        for client in clients:
            status = client.status()
            if status is not None:
                with suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGKILL)
        raise Killed

    rounds = 0

    def as_it_is_now(**request: object) -> str | None:
        """Deploy by a fresh plan.

        Returns None if the plan is outdated, because killed workers restarted while the plan was made.
        """
        try:
            return project.deploy(**request)
        except PlanStale:
            return None

    def change(*parts: str, **request: object) -> None:
        nonlocal rounds
        project.write(HEAD, *parts)
        if rounds:
            assert any("stop every worker" in stage.says for stage in project.plan(**request).stages)
            with pytest.raises(Killed):
                project.deploy(die, **request)
        version = wait_for(lambda: as_it_is_now(**request), "a plan that no worker's start makes outdated")
        rounds += 1
        assert {status.code_version for client in clients if (status := client.status())} == {version}
        project.stream.feed_numbers(20, keys=2)
        project.counted({b"k0": 10 * rounds, b"k1": 10 * rounds})

    project.stream.topics.create(TopicSpec(f"{project.stream.group}-paid", 2, 1))
    change(COUNTS)
    change(JOINED)
    change(COUNTS)
    # The store `both` is dropped now. But both slots (workers' places) still have an old state folder of the tasks that
    # shared this store.
    change(JOINED, dropped=("both",))
