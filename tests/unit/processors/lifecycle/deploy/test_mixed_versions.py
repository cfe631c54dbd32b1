"""Workers of two code versions run after an interrupted rollout.

Each report shows both versions. The command that it names leaves only one version.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.assets.processors import judge_rollout
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.commands.reports.processor_rows import describe_processor
from holdfast.processors.lifecycle.deploy import deployment
from holdfast.processors.lifecycle.deploy.deployment import DeploymentResult, deploy
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now, what_is_left

pytestmark = pytest.mark.slow
LIMITS = Limits()


@pytest.fixture
def mixed(stage: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A rollout of v2 that Ctrl-C interrupted after the first of two workers."""
    stage.acts({"version": "v1"}, {"version": "v2"})
    deploy(stage.rollout, stage.world, timeout_s=30)

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deployment, "wait_ready", interrupt)
        with pytest.raises(KeyboardInterrupt):
            deploy(stage.version("v2"), stage.world, timeout_s=30)
    return stage


def test_each_worker_tells_its_own_version_and_the_other_one_is_red(mixed: Any) -> None:
    now = processor_now("fleet", mixed.world, LIMITS, patience_s=10.0)
    assert (now.answer.colour, now.answer.action) == ("red", "holdfast apply deploy fleet")
    assert "Slot 1: It runs version v1, but version v2 is deployed." in now.answer.text
    assert "Slot 0" not in now.answer.text

    rows, reasons = describe_processor(mixed.registry.deployment("fleet"), mixed.world, LIMITS)
    assert [(row["slot"], row["code_version"], row["deployed_version"]) for row in rows] == [
        ("0", "v2", "v2"),
        ("1", "v1", "v2"),
    ]
    assert all(row["pid"] and row["started_at"] > 0 and row["uptime_s"] >= 0 for row in rows)
    assert [(each.colour, each.action) for each in reasons] == [("red", "holdfast apply deploy fleet")]


def test_an_apply_that_is_abandoned_says_which_versions_it_leaves(mixed: Any) -> None:
    lines = what_is_left("fleet", mixed.world, LIMITS)
    assert lines[0] == "workers of fleet differ: slot 0 runs version v2, slot 1 runs version v1"
    assert lines[1].endswith("What to do: holdfast apply deploy fleet")

    assert deploy(mixed.version("v2"), mixed.world, timeout_s=30).started == ("1",)
    assert what_is_left("fleet", mixed.world, LIMITS) == ()


def test_a_worker_that_is_down_hides_no_other_version(mixed: Any) -> None:
    os.kill(mixed.world.deployer.programs()["fleet-0"].pid, signal.SIGKILL)
    assert wait_until(lambda: not mixed.world.deployer.programs()["fleet-0"].alive, 30.0)
    down, other = what_is_left("fleet", mixed.world, LIMITS)
    assert "killed by SIGKILL" in down
    assert other.startswith("Slot 1: It runs version v1, but version v2 is deployed.")
    assert other.endswith("What to do: holdfast apply deploy fleet")


def test_the_check_that_every_instance_runs_this_version_compares_them(mixed: Any) -> None:
    now = processor_now("fleet", mixed.world, LIMITS, patience_s=10.0)
    statuses = {slot: each.status for slot, each in now.observations.items() if each.status is not None}
    healthy, _ = judge_rollout(mixed.version("v2"), DeploymentResult("fleet", "v2", (), statuses, 0.0))
    assert not healthy.passed
    assert "of another version: slot 1 (v1)" in healthy.sentence
    same = {slot: replace(each, code_version="v2") for slot, each in statuses.items()}
    healthy, _ = judge_rollout(mixed.version("v2"), DeploymentResult("fleet", "v2", (), same, 0.0))
    assert healthy.passed


def test_another_release_of_the_deployed_version_is_red(stage: Any) -> None:
    """Two releases (copies of code) with one code version are deployed in turn. A worker of the first release is red.

    Both have the same version, so the workers' own statuses do not show the difference.
    """
    stage.acts({"version": "v1"})
    deploy(stage.rollout, stage.world, timeout_s=30)
    book, now = stage.registry.releases, datetime.now(UTC)
    book.record("fleet", "v1-first", code_version="v1", target="a:b", folder=None, shape={}, now=now)
    assert processor_now("fleet", stage.world, LIMITS, patience_s=10.0).answer.passed
    folder = str(stage.world.paths.releases("fleet") / "v1-second")
    book.record("fleet", "v1-second", code_version="v1", target="a:b", folder=folder, shape={}, now=now)
    book.works("fleet", "v1-second", now)
    answer = processor_now("fleet", stage.world, LIMITS, patience_s=10.0).answer
    assert (answer.colour, answer.kind, answer.action) == ("red", "other-version", "holdfast apply deploy fleet")
    assert "Slot 0: It runs another release of version v1 than v1-second, which is deployed." in answer.text
