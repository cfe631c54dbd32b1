"""Dagster's runs publish past time partitions: the state of a processor as it was hours ago."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import dagster as dg
import pytest

from holdfast.assets.times import snapshot_partitions
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings, SnapshotSettings
from holdfast.infra.spark.server import start_server, stop_server
from holdfast.infra.warehouse.catalog import read_table
from holdfast.processors.engine.changelog.format import decode_value
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.snapshots.names import time_tag
from tests.dagster import test_assets_state as proved
from tests.dagster.snapshot_columns import described_columns, rows_by_partition, table_columns
from tests.dagster.test_assets_state import feed, group, wait_processed
from tests.dagster.test_snapshot_assets import Control
from tests.oracles.fold import fold_changelog

__all__ = ["group", "settings"]

HOURS = snapshot_partitions(SnapshotSettings(every="hour", since=date(2026, 1, 1)))
HOUR_S = 3600.0
#: Code for the worker process only. It gives records and checkpoints the time that a file contains.
OF_THEN = """
import sys
import time
from pathlib import Path

import confluent_kafka

import holdfast.infra.kafka.clients.producer
import holdfast.processors.engine.serving.local_checkpoints


class Clock:
    monotonic = staticmethod(time.monotonic)

    def time(self):
        return float(Path(r"THEN_FILE").read_text())


class OfThen(confluent_kafka.Producer):
    def produce(self, topic, value=None, key=None, partition=-1, callback=None, on_delivery=None, timestamp=0, **more):
        at = timestamp or int(clock.time() * 1000)
        super().produce(topic, value, key, partition, on_delivery=callback or on_delivery, timestamp=at, **more)


clock = Clock()
if "holdfast.processors" in sys.orig_argv:
    holdfast.infra.kafka.clients.producer.Producer = OfThen
    holdfast.processors.engine.serving.local_checkpoints.time = clock
"""


@pytest.fixture
def then(tmp_path: Path) -> Path:
    return tmp_path / "then"


@pytest.fixture
def settings(
    broker: str, group: str, tmp_path: Path, then: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    then.write_text(str(time.time()))
    with monkeypatch.context() as patch:
        typed = proved.DEFINITION.replace('store="counts"', 'store="counts", model=int')
        patch.setattr(proved, "DEFINITION", OF_THEN.replace("THEN_FILE", str(then)) + typed)
        patch.setenv("HOLDFAST_SNAPSHOTS__EVERY", "hour")
        patch.setenv("HOLDFAST_SNAPSHOTS__SINCE", "2026-01-01")
        patch.setenv("HOLDFAST_SPARK__MASTER", "warm")
        yield from proved.settings.__wrapped__(broker, group, tmp_path, monkeypatch)


def wait_committed(broker: str, changelog: str, count: int) -> None:
    """Wait until all counts are committed. Later commits then have later times."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        end = Topics(broker).end_offsets(changelog, committed=True)[0]
        held = fold_changelog(read_range(broker, changelog, 0, 0, end))
        if sum(int(decode_value(value)) for value in held.values()) == count:
            return
        time.sleep(0.1)
    raise AssertionError(f"{count} messages were not committed")


@dataclass
class Lived:
    """A processor with a known past: the hours that have ended, and the number of messages at the end of each hour."""

    control: Control
    hours: list[str]
    seen: list[int]


@contextmanager
def warm_spark(settings: Settings) -> Iterator[None]:
    """A warm Spark server, so that all runs use one JVM."""
    start_server(settings)
    try:
        yield
    finally:
        stop_server(settings)


@pytest.fixture
def lived(tuned_jvms: None, settings: Settings, group: str, broker: str, then: Path) -> Iterator[Lived]:
    """A processor with checkpoints two hours ago and now, and with records in both past hours and now."""
    with warm_spark(settings), dg.DagsterInstance.ephemeral() as instance:
        control = Control(settings, group, instance)
        for asset in control.first:
            assert control.run(asset).success
        Topics(broker).alter(f"{group}-counts-changelog", {"min.compaction.lag.ms": str(int(12 * HOUR_S * 1000))})
        client = ProcessorClient(group, "0", settings.paths)
        hour = time.time() // HOUR_S * HOUR_S
        fed = 0
        for at, count in ((hour - 1.8 * HOUR_S, 10), (hour - 1.5 * HOUR_S, 20), (hour - 0.5 * HOUR_S, 30), (0, 40)):
            then.write_text(str(at or time.time()))
            fed += count
            feed(broker, f"{group}-in", count)
            wait_processed(client, fed)
            wait_committed(broker, f"{group}-counts-changelog", fed)
            if count == 10:
                assert control.run(control.state).success
                assert control.run(control.snapshot).success
        then.write_text(str(time.time()))
        assert control.run(control.state).success
        moments = [hour - 2 * HOUR_S, hour - HOUR_S]
        yield Lived(control, [HOURS.get_partition_key_for_timestamp(at) for at in moments], [30, 60])


def counted(settings: Settings, group: str, key: str) -> int:
    """The sum of all keys' counts in a tagged version."""
    rows = read_table(settings.paths, group, "counts", tag=time_tag(key))
    return sum(int(each) for each in rows["json"].to_pylist())


@pytest.mark.thorough
def test_hours_that_have_ended_are_made_by_runs_with_partition_keys_and_a_range_is_one_run(
    lived: Lived, settings: Settings, group: str
) -> None:
    control, (first, last) = lived.control, lived.hours
    done = control.run(control.snapshot, partition_key=last)
    assert done.success
    checks = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
    assert checks == {"matches_state": True, "copies_equal": True}
    assert counted(settings, group, last) == lived.seen[1]
    assert last in control.instance.get_materialized_partitions(control.snapshot)
    # the history table did not reach the end of that hour, so the run first published the present state
    assert sum(int(each) for each in read_table(settings.paths, group, "counts")["json"].to_pylist()) == 100

    runs = control.instance.get_runs_count()
    tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    assert control.run(control.snapshot, tags=tags).success
    assert control.instance.get_runs_count() == runs + 1
    assert [counted(settings, group, key) for key in lived.hours] == lived.seen
    assert {first, last} <= control.instance.get_materialized_partitions(control.snapshot)
    told = control.metadata()
    assert [row.data["tag"] for row in told["time_partitions"].records] == [time_tag(first), time_tag(last)]
    assert described_columns(control, told) == table_columns(settings, group)
    assert told["dagster/column_schema"].columns[-1].name == "content", (
        "its model's column, though nothing was published"
    )
    assert rows_by_partition(control, first, last) == [7, 7]
