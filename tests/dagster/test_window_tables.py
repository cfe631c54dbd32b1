"""Windows are stored like other state: store, changelog and warehouse table are equal in each partition."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer

from holdfast.assets.state import MATCHES_CHANGELOG
from holdfast.assets.times import current_key
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.waiting import wait_until
from holdfast.infra.warehouse.catalog import read_table
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from tests.dagster.test_assets_state import PATIENCE_S, group, settings
from tests.dagster.test_snapshot_assets import PARTITIONS, Control

__all__ = ["group", "settings"]

DEFINITION = """
from holdfast import Application

application = Application(consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2)
minutes = application.dataframe(application.topic("{group}-orders")).tumbling_window(60_000, name="counts", retention=0)
minutes.count().final(closing_strategy="partition").to_topic(application.topic("{group}-minutes"))
"""
MINUTE_MS = 60_000
BOTH = (0, 1)


@pytest.fixture
def control(one_jvm: None, settings: Settings, group: str, broker: str, tmp_path: Path) -> Iterator[Control]:
    module = next(iter(settings.processors)).partition(":")[0]
    sys.modules.pop(module, None)
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    Topics(broker).create(TopicSpec(f"{group}-orders", len(BOTH), 1))
    with dg.DagsterInstance.ephemeral() as instance:
        made = Control(settings, group, instance)
        for asset in made.first:
            assert made.run(asset).success
        yield made


def order(broker: str, topic: str, time_ms: int, *keys: str) -> None:
    """Send one message of each key to both partitions."""
    producer = Producer({"bootstrap.servers": broker})
    for partition in BOTH:
        for key in keys:
            producer.produce(topic, b"1", f"{key}-{partition}".encode(), partition, timestamp=time_ms)
    assert producer.flush(30) == 0


def published(control: Control, settings: Settings, group: str) -> Counter[str]:
    """Materialise state and table, and assert that their checks pass.

    Returns the number of the table's rows of each kind.
    """
    done = control.run(control.state, control.snapshot, partition_key=current_key(PARTITIONS))
    assert done.success
    checks = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
    assert {name: checks[name] for name in (MATCHES_CHANGELOG, "matches_state", "copies_equal")} == {
        MATCHES_CHANGELOG: True,
        "matches_state": True,
        "copies_equal": True,
    }
    rows = read_table(settings.paths, group, "counts").to_pylist()
    for row in rows:
        times = [row["window_start"], row["window_end"]]
        kind, *parts = row["state_key"].split("/")
        assert times == ([moment(int(part)) for part in parts] if kind == "w" else [None, None]), row["state_key"]
        assert row["value_"] == (1 if kind == "w" else None)
    return Counter(row["state_key"].partition("/")[0] for row in rows)


def moment(time_ms: int) -> datetime:
    """A time in milliseconds since the epoch, as a datetime with a time zone."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)


@pytest.mark.thorough
def test_the_table_of_a_window_store_follows_what_opens_and_what_leaves(
    control: Control, settings: Settings, group: str, broker: str
) -> None:
    client, source = ProcessorClient(group, "0", settings.paths), f"{group}-orders"
    start = int(time.time() * 1000) // MINUTE_MS * MINUTE_MS - 10 * MINUTE_MS
    topics = Topics(broker)

    def sent() -> int:
        ends = topics.end_offsets(f"{group}-minutes", committed=True)
        return sum(ends.values())

    def processed(count: int) -> bool:
        status = client.status()
        return status is not None and status.records["processed"] >= count

    order(broker, source, start, "a", "b", "c")
    assert wait_until(lambda: processed(6), PATIENCE_S)
    # Besides the windows, the table has one index entry (by time) for each window, and one stream time for each
    # partition.
    assert published(control, settings, group) == {"w": 6, "due": 6, "clock": 2}
    event = control.instance.get_latest_materialization_event(control.state)
    assert event is not None
    assert event.asset_materialization is not None
    page = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert (page["lag_records"], page["stream_time"]) == (0, start / 1000)

    order(broker, source, start + MINUTE_MS, "a")
    assert wait_until(lambda: sent() >= 6, PATIENCE_S), "the first minute was not closed"
    # without retention, a window is deleted by the commit that closes it, or by the next commit
    assert published(control, settings, group) == {"w": 2, "due": 2, "clock": 2}
    assert control.metadata()["source"] == "incremental"
