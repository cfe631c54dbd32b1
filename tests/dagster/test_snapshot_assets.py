"""Snapshot assets in a real installation publish the current time partition.

A range of partitions that starts before the recorded history is refused.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from holdfast.assets import keys
from holdfast.assets.factory import build_processor
from holdfast.assets.times import current_key, snapshot_partitions, windows
from holdfast.infra.settings import Settings, SnapshotSettings
from holdfast.infra.warehouse.catalog import read_table
from holdfast.orchestration.resources import build_resources
from holdfast.processors.application.registration import find_processor
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.snapshots.names import time_tag
from tests.dagster.snapshot_columns import described_columns, rows_by_partition, table_columns
from tests.dagster.test_assets_state import feed, group, settings, wait_processed

__all__ = ["group", "settings"]

PARTITIONS = snapshot_partitions(SnapshotSettings(since=date(2026, 1, 1)))


class Control:
    """Runs assets of one processor in a Dagster job."""

    def __init__(self, settings: Settings, group: str, instance: dg.DagsterInstance) -> None:
        definition = find_processor(settings, group)
        assets = build_processor(definition, settings.snapshots.model_copy(update={"since": date(2026, 1, 1)}))
        definitions = dg.Definitions.merge(assets, dg.Definitions(resources=build_resources()))
        self.job, self.instance = definitions.resolve_implicit_global_asset_job_def(), instance
        self.snapshot, self.state = keys.snapshot_key(group, "counts"), keys.state_key(group, "counts")
        self.first = (keys.changelog_key(group, "counts"), keys.processor_key(group))

    def run(self, *assets: dg.AssetKey, **options: object) -> dg.ExecuteInProcessResult:
        return self.job.execute_in_process(
            instance=self.instance, asset_selection=list(assets), raise_on_error=False, **options
        )

    def metadata(self) -> dict[str, object]:
        event = self.instance.get_latest_materialization_event(self.snapshot)
        assert event is not None
        assert event.asset_materialization is not None
        return {name: value.value for name, value in event.asset_materialization.metadata.items()}


@pytest.fixture
def control(one_jvm: None, settings: Settings, group: str) -> Iterator[Control]:
    with dg.DagsterInstance.ephemeral() as instance:
        made = Control(settings, group, instance)
        for asset in made.first:
            assert made.run(asset).success
        yield made


def published(control: Control, settings: Settings, group: str, broker: str) -> str:
    """Publish the current time partition, and check all that Dagster reports about it. Returns the partition key."""
    client = ProcessorClient(group, "0", settings.paths)
    key = current_key(PARTITIONS)
    feed(broker, f"{group}-in", 100)
    wait_processed(client, 100)
    assert control.run(control.state).success
    first = control.run(control.snapshot, partition_key=key)
    assert first.success
    checks = {each.check_name: each.passed for each in first.get_asset_check_evaluations()}
    assert checks == {"matches_state": True, "copies_equal": True}
    told = control.metadata()
    assert (told["source"], told["snapshot_rows"]) == ("checkpoint", 7)
    assert told["lag_offsets"] in (0, 1), "the marker of the last commit may count"
    assert control.instance.get_materialized_partitions(control.snapshot) == {key}
    assert "data:image/svg+xml;base64," in str(told["picture"])
    assert read_table(settings.paths, group, "counts", tag=time_tag(key)).num_rows == 7
    assert described_columns(control, told) == table_columns(settings, group)
    assert rows_by_partition(control, key) == [7]
    return key


def test_the_running_partition_is_published_and_tagged(
    control: Control, settings: Settings, group: str, broker: str
) -> None:
    published(control, settings, group, broker)


@pytest.mark.thorough
def test_later_runs_add_what_is_new_and_a_gap_is_refused(
    control: Control, settings: Settings, group: str, broker: str
) -> None:
    key = published(control, settings, group, broker)
    client, fed = ProcessorClient(group, "0", settings.paths), control.metadata()["snapshot_records"]
    feed(broker, f"{group}-in", 5)
    wait_processed(client, 105)
    assert control.run(control.state, control.snapshot, partition_key=key).success
    told = control.metadata()
    assert (told["source"], told["snapshot_records"], told["history_corrections"]) == ("incremental", 5, 0)
    assert read_table(settings.paths, group, "counts_history").num_rows == fed + 5

    assert control.run(control.snapshot).success, "without a partition, the running one is meant"
    assert control.metadata()["versions_committed"] == 0

    before = current_key(PARTITIONS, datetime.now(UTC) - timedelta(days=1))
    tags = {"dagster/asset_partition_range_start": before, "dagster/asset_partition_range_end": key}
    refused = control.run(control.snapshot, tags=tags)
    assert not refused.success
    (failed,) = [event for event in refused.all_events if event.is_step_failure]
    assert "it reaches back to" in failed.step_failure_data.error.to_string()
    assert time_tag(before) not in str(control.metadata())


def test_windows_are_hours_or_days(unique: Callable[[str], str], tmp_path: Path) -> None:
    hours = snapshot_partitions(SnapshotSettings(every="hour", since=date(2026, 1, 1)))
    moment = datetime(2026, 11, 21, 20, 15, tzinfo=UTC)
    (window,) = windows(hours, [current_key(hours, moment)])
    assert (window.key, window.end) == ("2026-11-21-20:00", datetime(2026, 11, 21, 21, tzinfo=UTC).timestamp())
    assert window.is_current(moment.timestamp())
    assert not window.is_current(window.end)
    assert current_key(PARTITIONS, moment) == "2026-11-21"
