"""Processor and state assets in a real installation are deployed, checkpointed and verified.

A record that another program wrote is found.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from confluent_kafka import Producer

from holdfast.assets import keys
from holdfast.assets.checks.arrivals import MESSAGES_ARRIVE
from holdfast.assets.checks.erased import STAY_GONE
from holdfast.assets.checks.key_places import KEYS_ALIKE
from holdfast.assets.checks.proven import PROVEN
from holdfast.assets.checks.recovery import WORKING
from holdfast.assets.checks.rehearsals import RESTORE_REHEARSED
from holdfast.assets.factory import build_processor
from holdfast.assets.processors import ALL_ASSIGNED, HEALTHY
from holdfast.assets.state import CHECKPOINTS_STORED, MATCHES_CHANGELOG
from holdfast.infra.deploy.supervisord import Supervisord
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings, load_settings
from holdfast.orchestration.resources import build_resources
from holdfast.processors.application.registration import ProcessorDefinition, find_processor
from holdfast.processors.engine.changelog.format import key_prefix
from holdfast.processors.engine.serving.worker_client import ProcessorClient

PATIENCE_S = 60.0
DEFINITION = """
from holdfast import Application

application = Application(consumer_group="{group}", auto_offset_reset="earliest", commit_interval=0.2)

def count(value, state):
    state.set("n", state.get("n", 0) + 1)
    return state.get("n")

application.dataframe(application.topic("{group}-in")).apply(count, stateful=True, store="counts")
"""


@pytest.fixture
def group(unique: Callable[[str], str]) -> str:
    return unique("proved")


@pytest.fixture
def settings(broker: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    module = f"definition_{group.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(DEFINITION.format(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", broker)
    monkeypatch.setenv("HOLDFAST_PROCESSORS", f'["{module}:application"]')
    Topics(broker).create(TopicSpec(f"{group}-in", 1, 1))
    yield load_settings()
    paths = load_settings().paths
    if paths.supervisor.is_dir():
        Supervisord(paths).stop()
    sys.modules.pop(module, None)


def run(definition: ProcessorDefinition, instance: dg.DagsterInstance, *assets: dg.AssetKey) -> dict[str, tuple]:
    definitions = dg.Definitions.merge(build_processor(definition), dg.Definitions(resources=build_resources()))
    job = definitions.resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(instance=instance, asset_selection=list(assets), raise_on_error=False)
    return {each.check_name: (each.passed, each.description) for each in result.get_asset_check_evaluations()}


def feed(broker: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for number in range(count):
        producer.produce(topic, b"1", b"k%d" % (number % 7))
    assert producer.flush(30) == 0


def wait_processed(client: ProcessorClient, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = client.status()
        if status is not None and status.records["processed"] >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"{count} records were not processed within {PATIENCE_S:g} s: {client.status()}")


def test_state_is_proved_and_a_foreign_record_is_found(settings: Settings, group: str, broker: str) -> None:
    definition = find_processor(settings, group)
    client = ProcessorClient(group, "0", settings.paths)
    state = keys.state_key(group, "counts")
    with dg.DagsterInstance.ephemeral() as instance:
        run(definition, instance, keys.changelog_key(group, "counts"))
        deployed = run(definition, instance, keys.processor_key(group))
        assert {name: passed for name, (passed, _) in deployed.items()} == dict.fromkeys(
            (HEALTHY, ALL_ASSIGNED, STAY_GONE, KEYS_ALIKE, MESSAGES_ARRIVE, PROVEN, WORKING), True
        )

        feed(broker, f"{group}-in", 100)
        wait_processed(client, 100)
        checks = run(definition, instance, state)
        rehearsed, told = checks.pop(RESTORE_REHEARSED)
        assert rehearsed, "that none was rehearsed yet is no fault"
        assert f"holdfast rehearse {group}" in told
        assert checks[MATCHES_CHANGELOG] == (True, "All copies are equal; keys: 7, partitions: 1.")
        passed, stored = checks[CHECKPOINTS_STORED]
        assert passed, stored
        assert stored.startswith("Stored checkpoints: ")
        event = instance.get_latest_materialization_event(state)
        assert event is not None
        metadata = event.asset_materialization.metadata
        assert metadata["live_keys"].value == 7
        assert metadata["lag_records"].value == 0
        assert metadata["key_skew"].value >= 1.0
        assert str(metadata["picture"].value).startswith("**counts**: 7 keys in")

        foreign = Producer({"bootstrap.servers": broker})
        foreign.produce(f"{group}-counts-changelog", b"\x01\x01" + bytes(8) + b"0", key_prefix(b"foreign") + b"n")
        assert foreign.flush(30) == 0
        Topics(broker).settled_end_offsets(f"{group}-counts-changelog")
        passed, warned = run(definition, instance, state)[MATCHES_CHANGELOG]
        assert passed, "the owner has not come to it yet, and holds what it should"
        assert "partition 0: 1 records of" in warned
        assert "are not the worker's" in warned
        feed(broker, f"{group}-in", 100)
        wait_processed(client, 200)
        definitions = dg.Definitions.merge(build_processor(definition), dg.Definitions(resources=build_resources()))
        job = definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(instance=instance, asset_selection=[state], raise_on_error=False)
    (found,) = (each for each in result.get_asset_check_evaluations() if each.check_name == MATCHES_CHANGELOG)
    assert not found.passed
    said = found.description or ""
    assert "the store is 7 keys" in said
    assert "changelog is 8 keys" in said
    assert f"holdfast apply restore {group} --partition 0 --from changelog" in said
    assert "data:image/svg+xml;base64," in str(found.metadata["heat_map"].value)
    assert "1 of 256 buckets have keys that differ" in str(found.metadata["heat_map"].value)
    (record,) = found.metadata["differing_keys"].value.records  # type: ignore[union-attr]
    assert (record.data["key"], record.data["store"], record.data["changelog"]) == ("foreign", "absent", "0")
    assert found.metadata["keys_differing"].value == 1
    assert "1. 1 key of partition 0" in str(found.metadata["repair_plan"].value)
