"""A deployment replaces workers one by one. A failed deployment restores the former number of workers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.assets.rollouts import deployed_rollout, settings_of
from holdfast.infra.deploy.program_files import asked_for
from holdfast.infra.system.process import environment_of
from holdfast.orchestration.commands.reports.processor_rows import describe_processor
from holdfast.processors.lifecycle.deploy import deployment
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.deploy.deployment import deploy
from holdfast.processors.lifecycle.deploy.present import pids_at_work
from holdfast.processors.lifecycle.deploy.rollout import Rollout
from holdfast.processors.lifecycle.deploy.running import DeployedProcessors, RollbackFailed, RolledBack
from holdfast.processors.lifecycle.plans.facts.shape import Shape, as_document
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Ready
from holdfast.processors.lifecycle.plans.requests import Deploy, Request, Scale
from holdfast.processors.lifecycle.plans.stages import RunProcessor
from holdfast.processors.lifecycle.recovery.attempt import RecoveryPolicy, recover
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now
from holdfast.processors.lifecycle.verbs.table import decide
from tests.mechanics.tiers import variants
from tests.unit.processors.lifecycle.verbs.releases.test_scale_plans import TOPOLOGY, in_workers, run_of

ONE = {"0": [0, 1, 2, 3], "1": []}


class NoTopics:
    """A topic client that knows no topics."""

    def describe(self, names: object) -> dict[str, Any]:
        return {}


@pytest.mark.slow
def test_another_release_of_one_version_rolls_worker_by_worker(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deploy(stage.rollout, stage.world, timeout_s=30)
    stage.acts({"restore_s": 0.3})
    seen: dict[str, str] = {}
    apply = stage.supervisor.apply

    def look_and_apply(spec: Any) -> bool:
        other = stage.world.statuses("fleet", "0").status()
        seen[spec.name] = "gone" if other is None else other.phase
        return bool(apply(spec))

    monkeypatch.setattr(stage.supervisor, "apply", look_and_apply)
    later = replace(stage.rollout, release=Path("/another/release"))
    assert deploy(later, stage.world, timeout_s=30).started == ("0", "1")
    assert seen["fleet-1"] == "running", "the second worker is stopped when the first one runs again"
    assert deploy(later, stage.world, timeout_s=30).started == (), "it already runs"


def runner_of(stage: Any, was: Rollout, failing: Rollout) -> DeployedProcessors:
    """A runner that knows two releases (copies of code): the workers of `good` start, the workers of `bad` do not."""
    book, now = stage.registry.releases, datetime.now(UTC)
    for name, each in (("good", was), ("bad", failing)):
        book.record("fleet", name, code_version=each.code_version, target="a:b", folder=None, shape={}, now=now)

    def rollout(processor: str, release: str | None) -> Rollout:
        slots = stage.registry.deployment("fleet").slots  # the recorded slots (one for each worker), as in production
        return replace(failing if release == "bad" else was, slots=slots)

    return DeployedProcessors(stage.world, rollout, "ada", lambda name: None, NoTopics())  # type: ignore[arg-type, return-value]


@pytest.mark.slow
@pytest.mark.parametrize("version", variants(["v2", "v1"]), ids=["another version", "more workers of the same"])
def test_a_failed_deployment_restores_the_number_of_workers(stage: Any, version: str) -> None:
    stage.acts({"version": "v1", "partitions": ONE})
    one = replace(stage.rollout, slots=("0",))
    deploy(one, stage.world, timeout_s=30)
    ends = {"exit": 64, "version": version, "partitions": ONE}
    good = {"version": "v1", "partitions": ONE}
    if version == "v2":  # each worker ends at its first start; then the rollback starts the former version
        stage.acts(ends, good)
    else:  # only the added worker ends
        stage.acts(ends)
    same = version == "v1"
    back_to = None if same else "good"
    release = "good" if same else "bad"
    run = RunProcessor("-", version, 5.0, release_id=release, back_to=back_to, slots=("0", "1"), back_slots=("0",))
    with pytest.raises(RolledBack, match="works on every partition in 1 worker"):
        runner_of(stage, one, replace(one, code_version="v2")).run("fleet", run, print)
    assert stage.registry.deployment("fleet").slots == ("0",)
    assert set(stage.supervisor.programs()) == {"fleet-0"}

    without = RunProcessor("-", version, 5.0, release_id="bad", slots=("0",), back_slots=("0",))
    if version == "v2":
        stage.acts(ends)
        with pytest.raises(RollbackFailed, match="no former version that could be started again"):
            runner_of(stage, one, replace(one, code_version="v2")).run("fleet", without, print)


@pytest.mark.parametrize("request_", [Deploy("orders"), Scale("orders", 4)], ids=["deploy", "scale"])
def test_the_plan_has_the_workers_of_before(request_: Request) -> None:
    run = run_of(decide(request_, in_workers(2, workers=4), TOPOLOGY))
    assert (run.slots, run.back_slots) == (("0", "1", "2", "3"), ("0", "1"))


@pytest.mark.slow
def test_a_failed_change_of_workers_goes_back_and_touches_no_other_worker(stage: Any) -> None:
    stage.acts({"version": "v1", "partitions": ONE})
    one = replace(stage.rollout, slots=("0",))
    deploy(one, stage.world, timeout_s=30)
    pid = stage.supervisor.programs()["fleet-0"].pid
    stage.acts({"exit": 64, "version": "v1", "partitions": ONE})
    scaled = RunProcessor("-", "v1", 5.0, release_id="good", slots=("0", "1"), back_slots=("0",), rescale=True)
    with pytest.raises(RolledBack, match="works on every partition in 1 worker"):
        runner_of(stage, one, one).run("fleet", scaled, print)
    assert stage.registry.deployment("fleet").slots == ("0",)
    programs = stage.supervisor.programs()
    assert (set(programs), programs["fleet-0"].pid) == ({"fleet-0"}, pid)


def environment_in(stage: Any, slot: str) -> dict[str, str]:
    """The environment variables of a slot's program (a worker), as the supervisor would start it."""
    return asked_for(stage.world.paths.supervisor / "programs")[f"fleet-{slot}"][1]


@pytest.mark.thorough
@pytest.mark.slow
def test_what_is_started_later_has_the_settings_of_the_deployment(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that recovery or scale start later keep the settings of the deployment.

    The process that runs recovery or scale may have other settings.
    """
    stage.acts({"version": "v1", "partitions": ONE})
    place = dict(stage.rollout.environment)
    deployed = {**place, "HOLDFAST_MEMORY_MAX_MB": "512", "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": "here:1"}
    deployed["HOLDFAST_SERVING__TOKEN"] = "a-secret-of-then"
    elsewhere = {**place, "HOLDFAST_MEMORY_MAX_MB": "2048", "HOLDFAST_STANDBY_REPLICAS": "2"}
    elsewhere["HOLDFAST_SERVING__TOKEN"] = "a-secret-of-now"
    book, now = stage.registry.releases, datetime.now(UTC)
    book.record("fleet", "r1", code_version="v1", target="a:b", folder=None, shape={}, now=now)
    present = deployed

    def rollout(processor: str, release: str | None) -> Rollout:
        machine: Any = SimpleNamespace(world=stage.world, environment=lambda: present)
        known = stage.registry.deployment(processor)
        slots = ("0",) if known is None else known.slots
        return replace(stage.rollout, slots=slots, environment=settings_of(processor, release or "r1", machine))

    code: Any = lambda name: None  # noqa: E731
    topics: Any = NoTopics()
    runner = DeployedProcessors(stage.world, rollout, "ada", code, topics, present=lambda: present)
    runner.run("fleet", RunProcessor("-", "v1", 30.0, release_id="r1", fresh_settings=True), print)
    assert environment_in(stage, "0").items() >= {"HOLDFAST_MEMORY_MAX_MB": "512"}.items()
    text = (stage.world.paths.releases("fleet") / ".settings" / "r1.json").read_text()
    assert "a-secret-of-then" not in text, "a secret is recorded by reference"

    present = elsewhere
    scaled = RunProcessor("-", "v1", 30.0, release_id="r1", slots=("0", "1"), rescale=True)
    runner.run("fleet", scaled, print)
    new = environment_in(stage, "1")
    assert (new["HOLDFAST_MEMORY_MAX_MB"], new["HOLDFAST_KAFKA__BOOTSTRAP_SERVERS"]) == ("512", "here:1")
    assert "HOLDFAST_STANDBY_REPLICAS" not in new
    assert new["HOLDFAST_SERVING__TOKEN"] == "a-secret-of-now", "whoever starts it has the secret"
    assert DeployedSettings(stage.world.paths).changed("fleet", "r1", present) == (
        "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS was here:1, now unset",
        "HOLDFAST_MEMORY_MAX_MB was 512, now 2048",
        "HOLDFAST_SERVING__TOKEN was a secret, now another secret",
        "HOLDFAST_STANDBY_REPLICAS was unset, now 2",
    )
    beside = processor_now("fleet", stage.world, Limits(), patience_s=10.0).answer
    assert "Slot 1: It runs with other settings" in beside.text, "a changed secret is noticed"
    assert "HOLDFAST_SERVING__TOKEN was another secret, deployed is a secret" not in beside.text
    assert "a-secret-of-now" not in beside.text

    # a deploy uses the present settings, and restores the former settings if it fails
    stage.acts({"exit": 64}, {"version": "v1", "partitions": ONE})
    again = RunProcessor("-", "v1", 30.0, release_id="r1", slots=("0", "1"), fresh_settings=True)
    with pytest.raises(RolledBack):
        runner.run("fleet", again, print)
    assert environment_in(stage, "0")["HOLDFAST_MEMORY_MAX_MB"] == "512"
    assert DeployedSettings(stage.world.paths).changed("fleet", "r1", deployed) == ()
    # An interrupted deploy has recorded the new settings after its first worker, but the second worker still has the
    # old ones.
    stage.acts({"version": "v1", "partitions": ONE})

    with monkeypatch.context() as patch:
        patch.setattr(deployment, "wait_ready", interrupt)
        with pytest.raises(KeyboardInterrupt):
            runner.run("fleet", again, print)
    book_of = DeployedSettings(stage.world.paths)
    assert book_of.changed("fleet", "r1", present) == ()
    assert "HOLDFAST_MEMORY_MAX_MB was 512, now 2048" in book_of.changed("fleet", "r1", present, {"0": None, "1": None})
    now_seen = processor_now("fleet", stage.world, Limits(), patience_s=10.0)
    assert (now_seen.answer.kind, now_seen.answer.colour) == ("other-settings", "red")
    assert now_seen.answer.action == "holdfast apply deploy fleet"
    assert "Slot 1: " in now_seen.answer.text
    assert "HOLDFAST_MEMORY_MAX_MB was 512, deployed is 2048" in now_seen.answer.text
    rows, _ = describe_processor(stage.registry.deployment("fleet"), stage.world, Limits())
    assert [row["settings"]["HOLDFAST_MEMORY_MAX_MB"] for row in rows] == ["2048", "512"]
    assert rows[0]["settings"]["HOLDFAST_SERVING__TOKEN"] is None

    runner.run("fleet", again, print)
    assert environment_in(stage, "1")["HOLDFAST_MEMORY_MAX_MB"] == "2048"
    assert processor_now("fleet", stage.world, Limits(), patience_s=10.0).answer.colour == "green"


@pytest.mark.slow
def test_a_worker_has_the_settings_that_its_process_was_started_with(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deploy was killed after it wrote the supervisor's files, and before a process was started with them.

    Holdfast must report the settings of the process that still runs, not those in the files.
    """
    stage.acts({"version": "v1", "partitions": ONE})
    was, now = (settings_with(stage, HOLDFAST_MEMORY_MAX_MB=size) for size in ("512", "2048"))
    one = replace(stage.rollout, slots=("0",), environment=was)
    deploy(one, stage.world, timeout_s=30)
    book = recorded(stage, was)
    assert processor_now("fleet", stage.world, Limits(), patience_s=10.0).answer.colour == "green"

    later = replace(one, environment=now)
    book.record("fleet", "r1", now)
    with monkeypatch.context() as patch:
        patch.setattr(type(stage.supervisor), "_reread", interrupt)
        with pytest.raises(KeyboardInterrupt):
            stage.supervisor.apply(later.program("0", stage.world))
    assert not stage.supervisor.differs(later.program("0", stage.world)), "the files tell nothing"
    seen = processor_now("fleet", stage.world, Limits(), patience_s=10.0).answer
    assert (seen.kind, seen.colour, seen.action) == ("other-settings", "red", "holdfast apply deploy fleet")
    assert "HOLDFAST_MEMORY_MAX_MB was 512, deployed is 2048" in seen.text
    (row,), _ = describe_processor(stage.registry.deployment("fleet"), stage.world, Limits())
    assert row["settings"]["HOLDFAST_MEMORY_MAX_MB"] == "512"
    workers = pids_at_work("fleet", stage.world)
    assert workers == {"0": stage.pid("0")}
    assert book.changed("fleet", "r1", now, workers) == ("HOLDFAST_MEMORY_MAX_MB was 512, now 2048",)

    assert deploy(later, stage.world, timeout_s=30).started == ("0",), "the named action replaces it"
    assert processor_now("fleet", stage.world, Limits(), patience_s=10.0).answer.colour == "green"
    assert deploy(later, stage.world, timeout_s=30).started == ()


@pytest.mark.slow
def test_recovery_starts_a_worker_with_the_settings_of_the_deployment(stage: Any) -> None:
    """Recovery starts a worker with the recorded memory limit and standbys, not with those of the recovering daemon.

    Secrets are not recorded, so the worker gets the daemon's secret.
    """
    stage.acts({"version": "v1", "partitions": ONE})
    token = "HOLDFAST_SERVING__TOKEN"
    deployed = settings_with(stage, HOLDFAST_MEMORY_MAX_MB="512", **{token: "a-secret-of-then"})
    daemon = settings_with(stage, HOLDFAST_MEMORY_MAX_MB="2048", HOLDFAST_STANDBY_REPLICAS="2")
    daemon[token] = "a-secret-of-now"
    deploy(replace(stage.rollout, slots=("0",), environment=deployed), stage.world, timeout_s=30)
    recorded(stage, deployed)
    stage.supervisor.kill_program("fleet-0")
    # Delete the supervisor's file of the program. It also contains the settings, and recovery must not need it.
    stage.supervisor.remove("fleet-0")
    incident, _ = stage.registry.open_incident("fleet", "dead", {}, datetime.now(UTC))
    machine: Any = SimpleNamespace(
        world=stage.world, environment=lambda: daemon, project=stage.rollout.project, paths=stage.world.paths
    )
    topics: Any = NoTopics()
    rollout = deployed_rollout("fleet", undefined, topics, machine)
    result = recover(incident.id, rollout, stage.world, run_id="run", policy=RecoveryPolicy(ready_s=30.0))
    assert result.outcome == "resolved", result.reason
    own = environment_of(stage.pid("0"))
    assert own is not None
    assert (own["HOLDFAST_MEMORY_MAX_MB"], own[token]) == ("512", "a-secret-of-now")
    assert "HOLDFAST_STANDBY_REPLICAS" not in own


def settings_with(stage: Any, **values: str) -> dict[str, str]:
    """The environment of a worker: that of the test's deployment, with these settings added."""
    return {**stage.rollout.environment, **values}


def recorded(stage: Any, environment: dict[str, str]) -> DeployedSettings:
    """Record release `r1` of the deployed version with this environment. Returns the record of deployed settings."""
    shape = as_document(Shape("v1", {}, (), ()))
    about = {"code_version": "v1", "target": "a:b", "folder": None, "shape": shape, "now": datetime.now(UTC)}
    stage.registry.releases.record("fleet", "r1", **about)
    book = DeployedSettings(stage.world.paths)
    book.record("fleet", "r1", environment)
    return book


def undefined(processor: str) -> Any:
    raise AssertionError("the release is recorded, so that nobody needs the definition")


def interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_a_changed_setting_is_planned_and_not_taken_for_what_already_runs() -> None:
    assert isinstance(decide(Deploy("orders"), in_workers(2), TOPOLOGY).verdict, NothingToDo)
    plan = decide(Deploy("orders"), in_workers(2, settings=("HOLDFAST_MEMORY_MAX_MB was 512, now 2048",)), TOPOLOGY)
    assert isinstance(plan.verdict, Ready)
    assert "setting HOLDFAST_MEMORY_MAX_MB was 512, now 2048" in plan.findings
    assert run_of(plan).fresh_settings
    assert not run_of(decide(Scale("orders", 3), in_workers(2), TOPOLOGY)).fresh_settings
