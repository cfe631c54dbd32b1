"""The sensor and a recovery run recover a killed processor. Broker, supervisor and Holdfast's registry are real."""

import base64
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings, load_settings
from holdfast.infra.waiting import wait_until
from holdfast.orchestration import cli
from holdfast.orchestration.commands.reports.status import describe
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.verbs import open_verbs
from holdfast.orchestration.world import open_registry
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.lifecycle.plans.requests import Deploy, Provision, Stop
from tests.parts.operated import DEFINITION


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    return unique("counting")


@pytest.fixture
def settings(broker: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    module = f"definition_{group.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    monkeypatch.setenv("HOLDFAST_PROCESSORS", f'["{module}:application"]')
    settings = load_settings()
    Topics(broker).create(TopicSpec(f"{group}-in", 2, 1))
    yield settings
    if settings.paths.supervisor.is_dir():
        Supervisord(settings.paths).stop()
    sys.modules.pop(module, None)


def materialize(definitions: dg.Definitions, instance: dg.DagsterInstance, *assets: dg.AssetKey) -> bool:
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance, asset_selection=list(assets)).success


def test_a_killed_processor_comes_back_by_one_incident(settings: Settings, group: str) -> None:
    definitions = build_definitions(settings)
    with dg.DagsterInstance.ephemeral() as instance:
        assert materialize(definitions, instance, keys.changelog_key(group, "counts"))
        assert materialize(definitions, instance, keys.processor_key(group))
        client = ProcessorClient(group, "0", settings.paths)
        before = client.status()
        assert before is not None
        assert before.phase == "running"

        sensor = definitions.resolve_sensor_def("processor_recovery")

        told: list[str] = []

        def tick() -> list[dg.RunRequest]:
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions
            ) as context:
                data = sensor.evaluate_tick(context)
                told.extend(each.description for each in data.asset_events if not each.passed)
                return list(data.run_requests or [])

        assert tick() == []
        assert cli.main(["status", "--json"]) == 0
        os.kill(before.pid, signal.SIGKILL)
        request = wait_for(lambda: next(iter(tick()), None))
        assert request.tags["processor"] == group
        again = tick()
        assert [each.run_key for each in again] == [request.run_key]
        document = describe(settings)
        (reason,) = [each for each in document["reasons"] if each["subject"] == f"processor {group}"]
        assert (document["colour"], reason["colour"], reason["reason"]) == ("red", "red", told[-1])
        assert cli.main(["status"]) == 1
        job = definitions.resolve_job_def("recover_processor")
        assert job.execute_in_process(instance=instance, run_config=request.run_config).success

        after = client.status()
        assert after is not None
        assert (after.phase, after.pid != before.pid) == ("running", True)
        registry = open_registry(settings)
        incidents = registry.incidents(processor=group)
        registry.close()
        assert [incident.outcome for incident in incidents] == ["resolved"]
        assert [note.step for note in incidents[0].timeline] == ["diagnose", "fence", "restart", "verify"]
        assert materialize(definitions, instance, keys.state_key(group, "counts"))


@pytest.mark.thorough
def test_a_changelog_that_is_gone_is_asked_for_and_one_action_mends_it(settings: Settings, group: str) -> None:
    definitions = build_definitions(settings)
    topics = Topics(str(settings.kafka.bootstrap_servers))
    with dg.DagsterInstance.ephemeral() as instance, open_verbs(settings, who="a test") as verbs:
        for request in (Provision(group), Deploy(group)):
            verbs.apply(verbs.plan(request))
        sensor = definitions.resolve_sensor_def("processor_recovery")

        def tick() -> tuple[list[dg.RunRequest], list[Any]]:
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions
            ) as context:
                data = sensor.evaluate_tick(context)
                return list(data.run_requests or []), list(data.asset_events)

        status = ProcessorClient(group, "0", settings.paths).status()
        assert status is not None
        topics.delete(f"{group}-counts-changelog")
        os.kill(status.pid, signal.SIGKILL)
        wanted = wait_for(lambda: next(iter(tick()[0]), None))
        job = definitions.resolve_job_def("recover_processor")
        run = job.execute_in_process(instance=instance, run_config=wanted.run_config, raise_on_error=False)
        assert not run.success
        requests, (told,) = tick()
        assert requests == []
        action = f"holdfast apply backfill {group} --store counts --from local --yes"
        assert told.description.startswith("A changelog is missing. ")
        assert told.description.endswith(f"Recovery stopped. What to do: {action}")
        assert (told.passed, told.metadata["kind"].value) == (False, "changelog-missing")

        assert cli.main(action.split()[1:]) == 0
        assert [each.passed for each in tick()[1]] == [True]
        assert f"{group}-counts-changelog" in topics.describe([f"{group}-counts-changelog"])


@pytest.mark.thorough
def test_a_drifted_changelog_is_told_and_repaired(settings: Settings, group: str) -> None:
    definitions = build_definitions(settings)
    key = keys.changelog_key(group, "counts")
    topics = Topics(str(settings.kafka.bootstrap_servers))
    topics.create(TopicSpec(f"{group}-counts-changelog", 2, 1, {"cleanup.policy": "delete"}))
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("compaction_checks")
        drifted = job.execute_in_process(instance=instance).get_asset_check_evaluations()
        assert [each.passed for each in drifted] == [False]
        assert rows_drawn(drifted[0]) == 1
        (again,) = job.execute_in_process(instance=instance).get_asset_check_evaluations()
        assert rows_drawn(again) == 2
        assert materialize(definitions, instance, key)
        assert (
            topics.describe([f"{group}-counts-changelog"])[f"{group}-counts-changelog"].config["cleanup.policy"]
            == "compact"
        )


@pytest.mark.thorough
def test_a_changelog_of_another_width_is_refused(settings: Settings, group: str) -> None:
    definitions = build_definitions(settings)
    Topics(str(settings.kafka.bootstrap_servers)).create(TopicSpec(f"{group}-counts-changelog", 3, 1))
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=instance, asset_selection=[keys.changelog_key(group, "counts")], raise_on_error=False
        )
        assert not result.success
        checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
        assert checks["partitions_match_source"] is False


@pytest.fixture
def elsewhere(settings: Settings, tmp_path: Path) -> Iterator[Settings]:
    """A second installation on the same broker that runs the same processor."""
    made = load_settings(home=tmp_path / "elsewhere", kafka=settings.kafka, processors=settings.processors)
    yield made
    if made.paths.supervisor.is_dir():
        Supervisord(made.paths).stop()


# Only in thorough runs: recovery waits up to a session timeout for the other installation's worker. Unit tests cover
# the decision.
@pytest.mark.thorough
def test_no_worker_is_started_beside_a_worker_of_another_installation(
    settings: Settings, elsewhere: Settings, group: str
) -> None:
    definitions = build_definitions(settings)
    job = definitions.resolve_job_def("recover_processor")
    config: dict[str, Any] = {"ops": {"recover_one": {"config": {"processor": group}}}}
    client, other = (ProcessorClient(group, "0", each.paths) for each in (settings, elsewhere))
    topics = Topics(str(settings.kafka.bootstrap_servers))
    with (
        dg.DagsterInstance.ephemeral() as instance,
        open_verbs(settings, who="a test") as verbs,
        open_verbs(elsewhere, who="a test") as verbs_there,
    ):
        for request in (Provision(group), Deploy(group)):
            verbs.apply(verbs.plan(request))
        before = client.status()
        assert before is not None
        os.kill(before.pid, signal.SIGKILL)
        assert wait_until(lambda: not topics.group_members(group), 60.0)
        verbs_there.apply(verbs_there.plan(Deploy(group)))
        there = other.status()
        assert there is not None
        (member,) = topics.group_members(group)

        refused = job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)
        assert not refused.success
        (incident,) = verbs.registry.incidents(processor=group)
        assert (incident.kind, incident.remedy, incident.outcome) == ("held-elsewhere", "ask", "failed")
        assert member.client_id in incident.reason
        assert list(topics.group_members(group)) == [member], "the worker there lost its partitions"
        assert client.status() is None

        verbs_there.apply(verbs_there.plan(Stop(group)))
        assert incident.action.endswith(f"holdfast incidents retry {incident.id}")
        assert cli.main(["incidents", "retry", str(incident.id)]) == 0
        config["ops"]["recover_one"]["config"]["incident"] = incident.id
        assert job.execute_in_process(instance=instance, run_config=config).success
        after = client.status()
        assert after is not None
        assert after.phase == "running"


def rows_drawn(evaluation: dg.AssetCheckEvaluation) -> int:
    """Return the number of past checks that the picture in a check's result shows."""
    found = re.search(r"base64,([^)]+)", str(evaluation.metadata["picture"].value))
    assert found is not None
    return base64.b64decode(found[1]).count(b"offsets</text>")


def wait_for(condition: Callable[[], dg.RunRequest | None], timeout_s: float = 30.0) -> dg.RunRequest:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found is not None:
            return found
        time.sleep(0.2)
    raise AssertionError("no run was asked for in time")
