"""The sensor that keeps assets green after a deploy by a command. Broker, supervisor, worker and database are real."""

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.sensors import grey_assets, kept_green
from holdfast.orchestration.sensors.grey_assets import Memory
from holdfast.orchestration.view.reasons import read_grey
from tests.parts.operated import Operated

LITTLE = Memory(100, 1_792)


def test_after_a_deploy_by_a_command_the_sensors_ask_for_the_rest(
    operated: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    operated.bring_up()
    operated.feed(keys=3, each=2)
    operated.processed(6)
    own = dg.Definitions(assets=[dg.AssetSpec("of_the_project"), dg.AssetSpec(["a", "b", "c", "d"])])
    definitions = dg.Definitions.merge(build_definitions(operated.settings), own)
    state, snapshot = keys.state_key(operated.group, "counts"), keys.snapshot_key(operated.group, "counts")
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(name: str) -> dg.SensorResult:
            sensor = definitions.resolve_sensor_def(name)
            with dg.build_sensor_context(
                instance=instance, resources=definitions.resources, definitions=definitions
            ) as context:
                data = sensor.evaluate_tick(context)
            for event in data.asset_events:
                instance.report_runless_asset_event(event)
            return data

        first = tick("kept_green")
        present = {each.asset_key for each in first.asset_events if isinstance(each, dg.AssetMaterialization)}
        topics = {keys.topic_key(f"{operated.group}-{name}") for name in ("in", "out")}
        assert present == topics | {keys.home_key(), keys.orphans_key()}
        created = [each for each in first.asset_events if isinstance(each, dg.AssetMaterialization)]
        assert not any("records" in each.metadata for each in created), "a page shows the living count, of observations"
        read = {
            each.asset_key: each.metadata["records"].value
            for each in first.asset_events
            if isinstance(each, dg.AssetObservation)
        }
        assert read[keys.topic_key(f"{operated.group}-in")] == 6

        tick("timeline")
        judged = [each for each in tick("kept_green").asset_events if isinstance(each, dg.AssetCheckEvaluation)]
        assert {(each.asset_key.path[0], each.check_name, each.passed) for each in judged} == {
            ("processors", "healthy", True),
            ("processors", "all_partitions_assigned", True),
            ("changelogs", "config_matches_spec", True),
            ("changelogs", "partitions_match_source", True),
        }

        with monkeypatch.context() as small_machine:
            small_machine.setattr(grey_assets, "spark_memory", lambda settings: LITTLE)
            (small,) = tick("kept_green").run_requests or []
        assert list(small.asset_selection or ()) == [state]
        assert read_grey(operated.settings)[snapshot.to_user_string()] == LITTLE.sentence
        (whole,) = tick("kept_green").run_requests or []
        assert set(whole.asset_selection or ()) == {state, snapshot, keys.maintenance_key(operated.group, "counts")}
        assert whole.partition_key
        together = {each.to_user_string() for each in whole.asset_check_keys or ()}
        assert f"{state.to_user_string()}:matches_changelog" in together, "the checks of what it materialises"
        processor = keys.processor_key(operated.group).to_user_string()
        assert f"{processor}:working" in together, "and those that no run has to materialise for"
        assert whole.job_name == "__ASSET_JOB"

        monkeypatch.setattr(kept_green, "OTHERS_WAIT_S", 0.0)
        _, checking = sorted(tick("kept_green").run_requests or [], key=lambda each: not each.asset_selection)
        assert list(checking.asset_selection or ()) == [], "a run that only checks materialises and deploys nothing"
        checks = {each.to_user_string() for each in checking.asset_check_keys or ()}
        assert {"operations/home:has_room", "operations/orphans:all_owned"} <= checks
