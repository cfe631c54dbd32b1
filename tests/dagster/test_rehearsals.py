"""Restores are rehearsed with a real broker, worker and Dagster instance, by a Dagster run and by the command."""

import fcntl
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.assets.checks.compaction import COMPACTION, compaction_results
from holdfast.assets.checks.rehearsals import RESTORE_REHEARSED
from holdfast.orchestration import cli
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.resources import ClusterResource, LifecycleResource
from holdfast.orchestration.world import open_registry
from holdfast.processors.lifecycle.plans.requests import Stop
from tests.auditing import plant_in_changelog
from tests.parts.operated import Operated

KEYS = 200


@pytest.fixture
def counting(operated: Operated) -> Operated:
    operated.bring_up()
    operated.feed(keys=KEYS, each=3)
    operated.processed(3 * KEYS)
    return operated


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


def run(counting: Operated, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    job = build_definitions(counting.settings).resolve_job_def("rehearse_restore")
    return job.execute_in_process(
        instance=instance, run_config={"ops": {"rehearse_one": {"config": config}}}, raise_on_error=False
    )


def told(counting: Operated, instance: dg.DagsterInstance) -> Any:
    wanted = dg.AssetCheckKey(keys.state_key(counting.group, "counts"), RESTORE_REHEARSED)
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([wanted]).get(wanted)
    assert found is not None
    assert found.event is not None
    assert found.event.dagster_event is not None
    return found.event.dagster_event.asset_check_evaluation_data


def scratch_of(counting: Operated) -> list[str]:
    root = counting.settings.paths.rehearsals
    return [path.name for path in root.iterdir() if path.is_dir()] if root.is_dir() else []


def test_a_rehearsed_restore_is_what_its_owner_has_while_the_owner_works_on(
    counting: Operated, instance: dg.DagsterInstance
) -> None:
    over = threading.Event()

    def go_on() -> None:
        while not over.is_set():
            counting.feed(keys=KEYS, each=1)

    feeding = threading.Thread(target=go_on)
    feeding.start()
    try:
        assert run(counting, instance, day="2026-03-01").success
    finally:
        over.set()
        feeding.join()
    said = told(counting, instance)
    assert said.passed, said.description
    figures = {name: value.value for name, value in said.metadata.items()}
    assert figures["restored_fingerprint"] == figures["owner_fingerprint"]
    assert figures["recovery_seconds"] > 0
    assert figures["recovery_records"] > 0
    state = keys.state_key(counting.group, "counts")
    records = instance.fetch_observations(state, limit=1).records
    assert records[0].asset_observation is not None
    assert records[0].asset_observation.metadata["recovery_seconds"].value == figures["recovery_seconds"]
    assert scratch_of(counting) == []


@pytest.mark.thorough
def test_a_run_that_makes_the_asset_restores_nothing_and_tells_the_last_rehearsal(
    counting: Operated, instance: dg.DagsterInstance
) -> None:
    state = keys.state_key(counting.group, "counts")
    definitions = build_definitions(counting.settings)

    def materialise() -> None:
        job = definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(instance=instance, asset_selection=[state]).success

    def rehearsals() -> int:
        with closing(open_registry(counting.settings)) as registry:
            return sum(each.verb == "rehearse" for each in registry.actions(100))

    materialise()
    said = told(counting, instance)
    assert said.passed
    assert "No restore" in said.description
    assert rehearsals() == 0
    assert run(counting, instance, day="2026-03-01").success
    materialise()
    said = told(counting, instance)
    assert said.passed
    assert "The last rehearsal restored partition" in said.description
    assert rehearsals() == 1


@pytest.mark.thorough
def test_a_changelog_that_would_give_other_state_fails_the_rehearsal(
    counting: Operated, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    plant_in_changelog(counting, {"a stranger's": 5}, {"a stranger's": 0})
    counting.feed(keys=KEYS, each=1)
    counting.processed(4 * KEYS)
    assert not run(counting, instance, processor=counting.group, partition=0).success
    said = told(counting, instance)
    assert not said.passed
    assert "counts differ from the owner's state" in said.description
    capsys.readouterr()
    assert cli.main(["rehearse", counting.group, "--partition", "0", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["equal"] is False


@pytest.mark.thorough
def test_the_measured_rate_is_what_checks_reckon_with(
    counting: Operated, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.processors.lifecycle.health.rehearsal.RECORDS_FEW", 1)
    capsys.readouterr()
    assert cli.main(["rehearse", counting.group, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"]
    lifecycle = LifecycleResource()
    definition = counting.verbs.definition(counting.group)
    (result,) = compaction_results(
        counting.group, definition.topology.changelogs, ClusterResource(), lifecycle, warn=print
    )
    lifecycle.close()
    assert result.name == COMPACTION
    rate = result.metadata["restore_records_per_s"]
    assert rate == pytest.approx(found["records"] / found["seconds"], rel=0.01)


@pytest.mark.thorough
def test_what_cannot_be_rehearsed_says_why(
    counting: Operated, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["rehearse", "nobody"]) == 64
    assert cli.main(["rehearse", counting.group, "--partition", "99"]) == 64
    assert "No worker with a changelog runs for" in capsys.readouterr().err

    root = counting.settings.paths.rehearsals
    root.mkdir(parents=True)
    (root / f"{counting.group}-{counting.group}-in-0").mkdir()  # create the folder that a killed rehearsal leaves
    with (root / f"{counting.group}-{counting.group}-in-0.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert cli.main(["rehearse", counting.group, "--partition", "0"]) != 0
        assert "is being rehearsed already" in capsys.readouterr().err
    assert cli.main(["rehearse", counting.group, "--partition", "0"]) == 0
    assert scratch_of(counting) == []

    counting.do(Stop(counting.group))
    assert run(counting, instance).success, "nothing to rehearse is no failure of a schedule"
    assert cli.main(["rehearse"]) == 64
