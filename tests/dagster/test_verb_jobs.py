"""Jobs that change state.

By default they only dry-run; they need the shown hash as confirmation, and explain a refusal.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.assets.checks.compaction import COMPACTION
from holdfast.infra.settings import load_settings
from holdfast.orchestration.definitions import build_definitions
from holdfast.processors.lifecycle.plans.certificates import decode
from holdfast.processors.lifecycle.plans.requests import Stop
from tests.parts.operated import Operated


@pytest.fixture
def definitions(operated: Operated) -> dg.Definitions:
    return build_definitions(load_settings())


def launch(definitions: dg.Definitions, job: str, op: str, user: str = "", **config: Any) -> dg.ExecuteInProcessResult:
    with dg.DagsterInstance.ephemeral() as instance:
        return launch_on(instance, definitions, job, op, user, **config)


def launch_on(
    instance: dg.DagsterInstance, definitions: dg.Definitions, job: str, op: str, user: str = "", **config: Any
) -> dg.ExecuteInProcessResult:
    """Run a job. ``user`` is the person whom the webserver has authenticated."""
    run_config = {"ops": {op: {"config": config}}}
    return definitions.resolve_job_def(job).execute_in_process(
        run_config=run_config, instance=instance, raise_on_error=False, tags={"user": user} if user else None
    )


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata of the run's only step."""
    (step,) = (event for event in result.all_node_events if event.event_type_value == "STEP_OUTPUT")
    return {name: value.value for name, value in step.event_specific_data.metadata.items()}  # type: ignore[union-attr]


def test_a_clear_is_shown_first_and_done_when_its_hash_is_confirmed(
    operated: Operated, definitions: dg.Definitions
) -> None:
    operated.bring_up()
    operated.feed(keys=5, each=2)
    operated.processed(10)
    config = {"processor": operated.group, "stores": ["counts"], "keys": ["key-1"]}

    shown = launch(definitions, "clear_state", "clear_one", **config)
    assert shown.success
    facts = told(shown)
    assert (facts["changes"], facts["destructive"], facts["dry_run"], facts["keys"]) == (True, True, True, 1)
    assert "delete key 'key-1' of counts" in facts["explanation"]
    assert f"confirm: {facts['plan']}" in facts["explanation"]
    assert operated.logged()["key-1"] == 2

    unconfirmed = launch(definitions, "clear_state", "clear_one", **config, dry_run=False)
    assert not unconfirmed.success
    assert operated.logged()["key-1"] == 2

    done = launch(definitions, "clear_state", "clear_one", "anna", **config, dry_run=False, confirm=facts["plan"])
    assert done.success
    assert operated.logged() == {f"key-{number}": 2 for number in (0, 2, 3, 4)}
    (observation,) = (e for e in done.all_events if e.event_type_value == "ASSET_OBSERVATION")
    assert "1 key deleted" in str(observation.event_specific_data)
    (record,) = (each for each in operated.verbs.applies(operated.group) if each.verb == "clear")
    assert record.who == f"anna, dagster run {done.run_id}"


@pytest.mark.thorough
def test_a_refused_plan_fails_the_run_with_its_words(operated: Operated, definitions: dg.Definitions) -> None:
    operated.bring_up()
    result = launch(definitions, "clear_state", "clear_one", processor=operated.group, everything=True, dry_run=False)
    assert not result.success
    (failure,) = (event for event in result.all_node_events if event.event_type_value == "STEP_FAILURE")
    assert "live member" in str(failure.event_specific_data)
    assert "holdfast apply stop" in str(failure.event_specific_data)


@pytest.mark.thorough
def test_a_restore_and_a_stop_are_runs_too(operated: Operated, definitions: dg.Definitions) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=2)
    operated.processed(6)
    assert launch(definitions, "restore_state", "restore_one", processor=operated.group, dry_run=False).success
    assert operated.client.count("counts", all=True)["keys"] == 3
    assert launch(definitions, "compact_stores", "compact_one", processor=operated.group, dry_run=False).success
    assert launch(definitions, "adopt_processor", "adopt_one", processor=operated.group, dry_run=False).success
    assert launch(definitions, "stop_processor", "stop_one", processor=operated.group, dry_run=False).success
    assert operated.client.status() is None
    assert not operated.verbs.plan(Stop(operated.group)).changes


def test_keys_that_are_named_in_no_way_are_an_error_with_words(operated: Operated, definitions: dg.Definitions) -> None:
    result = launch(definitions, "clear_state", "clear_one", processor=operated.group)
    assert not result.success
    (failure,) = (event for event in result.all_node_events if event.event_type_value == "STEP_FAILURE")
    assert "given in 0 ways" in str(failure.event_specific_data)


@pytest.mark.thorough
def test_after_a_change_the_changelogs_are_looked_at(operated: Operated, definitions: dg.Definitions) -> None:
    operated.bring_up()
    operated.topics.alter(operated.changelog, {"cleanup.policy": "delete"})
    key = dg.AssetCheckKey(keys.changelog_key(operated.group, "counts"), COMPACTION)
    with dg.DagsterInstance.ephemeral() as instance:

        def latest() -> Any:
            return instance.event_log_storage.get_latest_asset_check_execution_by_key([key]).get(key)

        shown = launch_on(instance, definitions, "compact_stores", "compact_one", processor=operated.group)
        assert shown.success
        assert latest() is None
        done = launch_on(
            instance, definitions, "compact_stores", "compact_one", processor=operated.group, dry_run=False
        )
        assert done.success
        evaluation = latest().event.dagster_event.event_specific_data
    assert not evaluation.passed
    assert "cleanup.policy is delete, expected compact" in evaluation.description
    assert evaluation.metadata["after_run"].value == done.run_id


@pytest.mark.thorough
def test_a_key_is_erased_by_its_job_when_the_shown_hash_is_confirmed(
    operated: Operated, definitions: dg.Definitions
) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=2)
    operated.processed(6)
    config = {"processor": operated.group, "key": "key-1"}
    facts = told(launch(definitions, "erase_key", "erase_one", **config))
    assert (facts["changes"], facts["destructive"], facts["dry_run"]) == (True, True, True)
    assert "key-1" not in facts["explanation"]
    unconfirmed = launch(definitions, "erase_key", "erase_one", **config, dry_run=False)
    assert not unconfirmed.success
    assert launch(definitions, "erase_key", "erase_one", **config, dry_run=False, confirm=facts["plan"]).success
    assert set(operated.logged()) == {"key-0", "key-2"}
    (record,) = operated.verbs.registry.erasures.of(operated.group)
    assert decode(record.document).proven
