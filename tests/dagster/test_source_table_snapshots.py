"""A store that is restored from its source topic also gets a typed and audited warehouse table.

The table is made from the store's checkpoints.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer

from holdfast.assets import keys
from holdfast.assets.times import current_key
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.waiting import wait_until
from holdfast.infra.warehouse.catalog import read_table
from holdfast.orchestration.verbs import open_verbs
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from tests.dagster.test_assets_state import PATIENCE_S, group, settings
from tests.dagster.test_snapshot_assets import PARTITIONS, Control

__all__ = ["group", "settings"]

DEFINITION = """
from dataclasses import dataclass
from holdfast import Application


@dataclass
class Price:
    amount: int


application = Application(
    consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2, dead_letter_topic="{group}-dead"
)
application.table(application.topic("{group}-prices"), "counts", model=Price, changelog="source")
"""
BOTH = (0, 1)


@pytest.fixture
def control(one_jvm: None, settings: Settings, group: str, broker: str, tmp_path: Path) -> Iterator[Control]:
    module = next(iter(settings.processors)).partition(":")[0]
    sys.modules.pop(module, None)
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    Topics(broker).create(TopicSpec(f"{group}-prices", len(BOTH), 1, {"cleanup.policy": "compact"}))
    Topics(broker).create(TopicSpec(f"{group}-dead", 1, 1))
    with dg.DagsterInstance.ephemeral() as instance:
        made = Control(settings, group, instance)
        assert made.run(keys.processor_key(group)).success
        yield made


def send(broker: str, topic: str, **rows: bytes | None) -> None:
    """Send a record of each key to both partitions."""
    producer = Producer({"bootstrap.servers": broker})
    for partition in BOTH:
        for key, row in rows.items():
            producer.produce(topic, row, f"{key}-{partition}".encode(), partition)
    assert producer.flush(30) == 0


@pytest.mark.thorough
def test_the_table_in_the_warehouse_has_the_rows_of_the_topic(
    control: Control, settings: Settings, group: str, broker: str
) -> None:
    client, topic, key = ProcessorClient(group, "0", settings.paths), f"{group}-prices", current_key(PARTITIONS)

    def processed(count: int) -> bool:
        status = client.status()
        return status is not None and status.records["processed"] >= count

    def published() -> dict[str, int | None]:
        done = control.run(control.state, control.snapshot, partition_key=key)
        assert done.success
        checks = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
        assert {name: checks[name] for name in ("matches_changelog", "matches_state", "copies_equal")} == {
            "matches_changelog": True,
            "matches_state": True,
            "copies_equal": True,
        }
        return {row["message_key"]: row["amount"] for row in read_table(settings.paths, group, "counts").to_pylist()}

    send(broker, topic, a=b'{"amount": 1}', b=b'{"amount": 2}', broken=b"{", odd=b'{"amount": "many"}')
    assert wait_until(lambda: processed(8), PATIENCE_S)
    rows = published()
    assert rows == {f"{name}-{n}": amount for n in BOTH for name, amount in (("a", 1), ("b", 2), ("odd", None))}
    told = control.metadata()
    assert (told["source"], told["snapshot_records"], told["snapshot_quarantined"]) == ("checkpoint", 0, 2)

    send(broker, topic, a=None, b=b'{"amount": 3}', c=b'{"amount": 4}')
    assert wait_until(lambda: processed(14), PATIENCE_S)
    rows = published()
    assert rows == {f"{name}-{n}": amount for n in BOTH for name, amount in (("b", 3), ("c", 4), ("odd", None))}
    told = control.metadata()
    assert (told["source"], told["snapshot_records"]) == ("checkpoint", 0)
    assert "only a checkpoint has all rows" in str(told["why"])
    changes = read_table(settings.paths, group, "counts_history").to_pylist()
    assert sorted(each["op"] for each in changes if each["message_key"] == "a-0") == ["base", "base_delete"]

    # The processor has processed more records meanwhile. The audit compares table and topic at the table's offsets.
    send(broker, topic, b=None)
    assert wait_until(lambda: processed(16), PATIENCE_S)
    with open_verbs(settings) as verbs:
        (audit,) = verbs.audit(group, (), warehouse=True)
    assert audit.differences == ()
    assert {side.value for moment in audit.earlier for side in moment.wholes} >= {"changelog", "warehouse"}
