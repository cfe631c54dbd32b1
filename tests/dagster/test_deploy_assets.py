"""A processor is deployed by materialising its asset.

The run makes a plan, names the undo command in its metadata, and keeps a release (a copy of the code).
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.world import open_registry
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from tests.dagster.test_recovery_end_to_end import wait_for
from tests.parts.operated import DEFINITION


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    return unique("deployed")


@pytest.fixture
def module(group: str) -> str:
    return f"definition_{group.replace('-', '_')}"


@pytest.fixture
def settings(
    broker: str, group: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
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


def deploy(settings: Settings, group: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Materialise the processor's asset, as a newly loaded code server would."""
    job = build_definitions(settings).resolve_implicit_global_asset_job_def()
    selection = [keys.processor_key(group)]
    return job.execute_in_process(instance=instance, asset_selection=selection, raise_on_error=False)


def write(folder: Path, module: str, text: str) -> None:
    (folder / f"{module}.py").write_text(text)
    sys.modules.pop(module, None)


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    (event,) = [event for event in result.all_node_events if event.is_step_failure]
    data = event.step_failure_data
    assert data.user_failure_data is not None
    return data.user_failure_data.description or ""


def test_materialising_deploys_by_plan_and_a_refused_plan_changes_nothing(
    settings: Settings, group: str, module: str, tmp_path: Path
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first = deploy(settings, group, instance)
        assert first.success
        assert {each.check_name: each.passed for each in first.get_asset_check_evaluations()} == dict.fromkeys(
            (
                "healthy",
                "all_partitions_assigned",
                "erased_keys_stay_gone",
                "keys_partitioned_alike",
                "messages_arrive",
                "proven",
                "registered",
                "working",
            ),
            True,
        )
        (materialized,) = [event.materialization for event in first.get_asset_materialization_events()]
        metadata = materialized.metadata
        assert "wait until it processes every input partition" in str(metadata["explanation"].value)
        assert len(str(metadata["plan"].value)) == 12
        assert "lag and restore by task" in str(metadata["picture"].value)
        status = ProcessorClient(group, "0", settings.paths).status()
        assert status is not None

        again = deploy(settings, group, instance)
        assert again.success
        same = ProcessorClient(group, "0", settings.paths).status()
        assert same is not None
        assert same.pid == status.pid

        write(tmp_path, module, DEFINITION.format(group=group).replace('store="counts"', 'store="totals"'))
        refused = deploy(settings, group, instance)
        assert not refused.success
        assert "its state would be left behind" in failure_of(refused)
        same = ProcessorClient(group, "0", settings.paths).status()
        assert same is not None
        assert same.pid == status.pid


def test_a_failed_version_is_rolled_back_and_recovery_brings_back_what_is_deployed(
    settings: Settings, group: str, module: str, tmp_path: Path
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert deploy(settings, group, instance).success
        client = ProcessorClient(group, "0", settings.paths)
        before = client.status()
        assert before is not None
        broken = DEFINITION.format(group=group).replace('state.get("n", 0) + 1', '1 + state.get("n", 0)')
        write(tmp_path, module, broken + "\nimport sys\nif '--release' in sys.argv:\n    sys.exit('no licence')\n")
        failed = deploy(settings, group, instance)
        assert not failed.success
        assert f"Version {before.code_version} was started again" in failure_of(failed)
        assert "no licence" in failure_of(failed)
        (told,) = failed.get_asset_check_evaluations()
        assert (told.check_name, told.passed) == ("healthy", False)
        assert "no licence" in str(told.description), "the check says it in the same words"

        # The former version runs from its release (copied code). The project's files hold the failing version, then
        # invalid Python.
        definitions = build_definitions(settings)
        write(tmp_path, module, "this is no Python\n")
        back = client.status()
        assert back is not None
        assert (back.phase, back.code_version) == ("running", before.code_version)
        os.kill(back.pid, signal.SIGKILL)
        sensor = definitions.resolve_sensor_def("processor_recovery")

        def tick() -> list[dg.RunRequest]:
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions
            ) as context:
                return list(sensor.evaluate_tick(context).run_requests or [])

        request = wait_for(lambda: next(iter(tick()), None))
        job = definitions.resolve_job_def("recover_processor")
        assert job.execute_in_process(instance=instance, run_config=request.run_config).success
        after = client.status()
        assert after is not None
        assert (after.phase, after.code_version) == ("running", before.code_version)
        registry = open_registry(settings)
        assert [each.outcome for each in registry.incidents(processor=group)] == ["resolved"]
        registry.close()
