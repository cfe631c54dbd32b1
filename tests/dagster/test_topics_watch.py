"""The sensor that watches topics, with a real broker, Holdfast registry, supervisor, processor and Dagster."""

from collections.abc import Iterator

import dagster as dg
import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast.assets import keys
from holdfast.orchestration.definitions import build_definitions
from holdfast.orchestration.sensors.topics import topics_watch
from holdfast.processors.lifecycle.health.topics import HELD_S, decode_memory, encode_memory
from holdfast.processors.lifecycle.plans.requests import Backfill, Compact, Deploy, Provision, Reposition, Stop
from tests.kafka.hanging import leave_hanging, unverified
from tests.parts.operated import Operated

#: Reads a check's result: the text of a failed check, or an empty text for a passed check.
Told = dict[str, str]


class Watch:
    """Runs consecutive ticks of the sensor that watches topics, and stores their events as the daemon does."""

    def __init__(self, operated: Operated, instance: dg.DagsterInstance) -> None:
        self.definitions = build_definitions(operated.settings)
        self.sensor = self.definitions.resolve_sensor_def("topics_watched")
        self.instance = instance
        self.cursor: str | None = None
        self.said = ""

    def tick(self) -> Told:
        with dg.build_sensor_context(
            instance=self.instance,
            resources=self.definitions.resources,
            definitions=self.definitions,
            cursor=self.cursor,
        ) as context:
            result = self.sensor.evaluate_tick(context)
        self.cursor, self.said = result.cursor, result.skip_message or ""
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return {each.check_name: "" if each.passed else (each.description or "") for each in result.asset_events}

    def let_pass(self, seconds: float) -> None:
        """Change the cursor, as if the last tick had run this many seconds earlier."""
        memory = decode_memory(self.cursor)
        topics = {
            name: msgspec.structs.replace(
                known, held={number: (at, since - seconds) for number, (at, since) in known.held.items()}
            )
            for name, known in memory.topics.items()
        }
        self.cursor = encode_memory(msgspec.structs.replace(memory, topics=topics))

    def stored(self, key: dg.AssetKey, check: str) -> bool | None:
        """Return the newest result of a check in the event log."""
        wanted = dg.AssetCheckKey(key, check)
        found = self.instance.event_log_storage.get_latest_asset_check_execution_by_key([wanted]).get(wanted)
        event = None if found is None or found.event is None else found.event.dagster_event
        return None if event is None else event.asset_check_evaluation_data.passed


@pytest.fixture
def watch(operated: Operated) -> Iterator[Watch]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Watch(operated, instance)


@pytest.fixture
def admin(operated: Operated) -> AdminClient:
    return AdminClient({"bootstrap.servers": operated.topics.bootstrap})


def feed(operated: Operated, records: int) -> None:
    operated.feed(keys=records, each=1)


@pytest.mark.thorough
def test_a_changelog_that_was_altered_lost_and_made_again_is_told_until_it_is_mended(
    operated: Operated, watch: Watch
) -> None:
    assert watch.tick() == {}, "nothing is deployed yet"
    operated.bring_up()
    feed(operated, 50)
    operated.processed(50)
    assert set(watch.tick().items()) == {
        (name, "")
        for name in (
            *("config_matches_spec", "no_hanging_transaction", "offsets_within_log", "partition_count"),
            "registered",
            "topic_exists",
        )
    }
    assert watch.tick() == {}, "nothing changed"
    key = keys.changelog_key(operated.group, "counts")

    operated.topics.alter(operated.changelog, {"cleanup.policy": "delete"})
    said = watch.tick()["config_matches_spec"]
    assert "cleanup.policy is delete, expected compact" in said
    assert watch.stored(key, "config_matches_spec") is False
    assert f"holdfast apply provision {operated.group}" in said
    operated.do(Provision(operated.group))
    assert watch.tick() == {"config_matches_spec": ""}
    assert watch.stored(key, "config_matches_spec") is True

    operated.do(Stop(operated.group))
    operated.topics.delete(operated.changelog)
    assert "is missing" in watch.tick()["config_matches_spec"]
    operated.do(Provision(operated.group))
    assert "was deleted and created again" in watch.tick()["config_matches_spec"]
    assert watch.tick() == {}
    operated.do(Backfill(operated.group, "counts", "local"))
    assert watch.tick() == {"config_matches_spec": ""}
    operated.do(Deploy(operated.group))
    assert watch.tick() == {}
    assert operated.logged() == {f"key-{number}": 1 for number in range(50)}


def test_a_transaction_that_hangs_is_told_and_mended_by_the_action_that_it_names(
    operated: Operated, watch: Watch
) -> None:
    operated.bring_up()
    feed(operated, 10)
    operated.processed(10)
    watch.tick()
    with unverified(operated.topics.bootstrap):
        leave_hanging(operated.topics.bootstrap, operated.changelog, 0, producer_id=987_654, age_s=3600)
    assert watch.tick() == {}, "it may be a worker's"
    watch.let_pass(HELD_S)
    said = watch.tick()["no_hanging_transaction"]
    assert "A transaction hangs" in said
    assert "producer 987654" in said
    assert f"holdfast apply compact {operated.group}" in said
    operated.do(Compact(operated.group))
    assert watch.tick() == {"no_hanging_transaction": ""}

    # A run has evaluated the check, and the fault was repaired before the next tick. A drill found this case.
    key = keys.changelog_key(operated.group, "counts")
    red = dg.AssetCheckEvaluation(asset_key=key, check_name="no_hanging_transaction", passed=False)
    watch.instance.report_runless_asset_event(red)
    assert watch.stored(key, "no_hanging_transaction") is False
    assert watch.tick() == {"no_hanging_transaction": ""}
    assert watch.stored(key, "no_hanging_transaction") is True
    assert watch.tick() == {}


def test_input_that_is_gone_unread_and_partitions_that_were_added_are_told(
    operated: Operated, watch: Watch, admin: AdminClient
) -> None:
    operated.bring_up()
    feed(operated, 20)
    operated.processed(20)
    operated.do(Stop(operated.group))
    watch.tick()
    feed(operated, 20)
    source = f"{operated.group}-in"
    for future in admin.delete_records([TopicPartition(source, 0, -1)]).values():
        future.result(30)
    said = watch.tick()
    assert set(said) == {"offsets_within_log"}
    assert f"{source}[0] begins at offset" in said["offsets_within_log"]
    assert "records were deleted before they were read" in said["offsets_within_log"]
    assert f"holdfast apply reposition {operated.group}" in said["offsets_within_log"]
    operated.do(Reposition(operated.group))
    assert watch.tick() == {"offsets_within_log": ""}

    for future in admin.create_partitions([NewPartitions(source, 4)]).values():
        future.result(30)
    operated.wait_for(lambda: operated.topics.describe([source])[source].partitions == 4, "4 partitions")
    said = watch.tick()
    assert set(said) == {"partition_count"}
    assert "has 4 partitions, the state of store counts" in said["partition_count"]
    key = keys.topic_key(source)
    assert watch.stored(key, "partition_count") is False
    assert watch.stored(key, "offsets_within_log") is True


@pytest.mark.thorough
def test_a_broker_that_is_away_is_no_news(operated: Operated, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    operated.bring_up()
    watch.tick()
    before = watch.cursor
    monkeypatch.setattr("holdfast.orchestration.sensors.topics.REQUEST_S", 1.0)
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert watch.tick() == {}
    assert "The topics could not be read" in watch.said
    assert watch.cursor == before


@pytest.mark.thorough
def test_the_checks_can_be_run_on_demand(operated: Operated, watch: Watch) -> None:
    operated.bring_up()
    graph = watch.definitions.resolve_asset_graph()
    wanted = [
        key
        for key in graph.asset_check_keys
        if key.name in {"no_hanging_transaction", "offsets_within_log", "partition_count"}
    ]
    assert len(wanted) == 3
    with unverified(operated.topics.bootstrap):
        leave_hanging(operated.topics.bootstrap, operated.changelog, 1, producer_id=123_456, age_s=3600)
    job = dg.define_asset_job("some_checks", selection=dg.AssetSelection.checks(*wanted))
    merged = dg.Definitions.merge(watch.definitions, dg.Definitions(jobs=[job]))
    run = merged.resolve_job_def("some_checks").execute_in_process(instance=watch.instance)
    found = {each.check_name: each.passed for each in run.get_asset_check_evaluations()}
    assert found == {"no_hanging_transaction": False, "offsets_within_log": True, "partition_count": True}
    operated.do(Compact(operated.group))


def test_the_sensor_asks_for_no_run_and_is_on_by_default() -> None:
    sensor = topics_watch([])
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert sensor.minimum_interval_seconds == 15
    assert sensor.targets == []
