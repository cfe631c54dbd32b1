"""A wrong argument of `Application` is refused before anything runs. The error shows the value and what is expected."""

import pytest

from holdfast import Application
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.errors import ClientSettingsInvalid
from holdfast.processors.application.application import ApplicationInvalid
from holdfast.processors.engine.changelog.names import IllegalName


@pytest.mark.parametrize(
    "wrong",
    [
        {"commit_interval": -1.0},
        {"commit_interval": float("nan")},
        {"commit_interval_min": -0.1},
        {"commit_interval_min": 2.0},
        {"commit_interval_min": 0.5, "commit_interval": 0.2},
        {"commit_every": -5},
        {"broker_availability_timeout": -0.1},
        {"processing_guarantee": "exactly-twice"},
        {"commit_interval": 11.0},
        {"commit_interval": "1"},
        {"commit_interval": True},
        {"commit_every": 1.5},
        {"commit_every": "10"},
        {"broker_availability_timeout": "1"},
        {"standby_replicas": 1.5},
        {"standby_replicas": "1"},
        {"standby_replicas": 1, "state_backend": "memory"},
        {"standby_replicas": 1, "use_changelog_topics": False},
        {"use_changelog_topics": "no"},
        {"auto_create_topics": 1},
        {"loglevel": "LOUD"},
        {"slot": 1},
        {"dead_letter_topic": 1},
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(wrong):
    with pytest.raises(ApplicationInvalid, match=next(iter(wrong))) as refused:
        Application(consumer_group="p", **wrong)
    assert refused.value.exit_code == 64


@pytest.mark.parametrize("slot", ["", "..", ".", "a/b", "/tmp", "a b"])
def test_a_slot_that_is_no_name_of_a_folder_is_refused(slot):
    with pytest.raises(IllegalName, match="slot") as refused:
        Application(consumer_group="p", slot=slot)
    assert refused.value.exit_code == 64
    with pytest.raises(IllegalName, match="slot"):
        Application(consumer_group="p").with_run_overrides(slot=slot, auto_create_topics=False)


@pytest.mark.parametrize("topic", ["", "a b"])
def test_a_dead_letter_topic_that_kafka_can_not_have_is_refused(topic):
    with pytest.raises(IllegalName, match="dead letter topic"):
        Application(consumer_group="p", dead_letter_topic=topic)


def test_a_consumer_group_that_is_no_text_is_refused():
    with pytest.raises(ApplicationInvalid, match="consumer_group is 1"):
        Application(consumer_group=1)


def test_memory_of_any_size_gives_client_settings_that_the_library_takes():
    KafkaCluster("localhost:1", fetched_bytes=1 << 40, queued_bytes=1 << 40)


@pytest.mark.parametrize("topic", ["in", "out", "p-counts-changelog"])
def test_dead_letters_must_not_come_back_or_pass_for_results(topic):
    app = Application(consumer_group="p", dead_letter_topic=topic)
    frame = app.dataframe(app.topic("in"))
    frame.apply(lambda value, state: value, stateful=True, store="counts").to_topic(app.topic("out"))
    with pytest.raises(ApplicationInvalid, match=f"dead_letter_topic is {topic}"):
        app.topology()


@pytest.mark.parametrize(
    ("where", "settings", "says"),
    [
        ("client_config", {"security.protocl": "ssl"}, "HOLDFAST_KAFKA__CLIENT_CONFIG.*security.protocl"),
        ("client_config", {"ssl.ca.location": "/no/file", "security.protocol": "ssl"}, "ssl.ca.location"),
        ("consumer_config", {"isolation.level": "read_uncommitted"}, "consumer_extra_config.*committed records only"),
        ("consumer_config", {"enable.auto.commit": True}, "enable.auto.commit to True"),
        ("consumer_config", {"session.timeout.ms": "soon"}, "session.timeout.ms"),
        ("producer_config", {"transactional.id": "mine"}, "producer_extra_config.*transactional.id"),
        ("producer_config", {"acks": 1}, "acks to 1"),
        ("producer_config", {"linger": 5}, '"linger"'),
    ],
)
def test_client_settings_that_cannot_be_used_are_named_before_anything_runs(where, settings, says):
    with pytest.raises(ClientSettingsInvalid, match=says) as refused:
        KafkaCluster("localhost:1", **{where: settings})
    assert refused.value.exit_code == 64


@pytest.mark.parametrize(
    ("where", "name", "value", "why"),
    [
        ("producer_config", "retries", 0, "each record must arrive once"),
        ("producer_config", "message.send.max.retries", "0", "each record must arrive once"),
        ("producer_config", "request.required.acks", 1, "all in-sync replicas"),
        ("producer_config", "acks", 0, "all in-sync replicas"),
        ("producer_config", "partitioner", "consistent_random", "where Java's clients"),
        ("producer_config", "partitioner", "fnv1a", "where Java's clients"),
        ("producer_config", "max.in.flight", 6, "at most 5"),
        ("producer_config", "max.in.flight.requests.per.connection", 100, "at most 5"),
        ("producer_config", "queuing.strategy", "lifo", "in order"),
        ("producer_config", "enable.idempotence", "f", "each record must arrive once"),
        ("producer_config", "delivery.report.only.error", True, "offset of each changelog record"),
        ("producer_config", "metadata.broker.list", "other:9092", "broker_address"),
        ("producer_config", "on_delivery", print, "callback"),
        ("client_config", "metadata.broker.list", "other:9092", "broker_address"),
        ("client_config", "request.required.acks", "1", "all in-sync replicas"),
        ("consumer_config", "auto.commit.enable", "true", "together with state"),
        ("consumer_config", "auto.commit.interval.ms", 100, "commit_interval"),
        ("consumer_config", "offset.store.method", "file", "together with state"),
        ("consumer_config", "auto.offset.reset", "beginning", "auto_offset_reset"),
        ("consumer_config", "enable.partition.eof", False, "where a partition ends"),
        ("consumer_config", "group.protocol", "consumer", "classic"),
        ("consumer_config", "error_cb", print, "callback"),
    ],
)
def test_settings_that_contradict_the_engine_are_refused_under_every_name(where, name, value, why):
    with pytest.raises(ClientSettingsInvalid, match=why) as refused:
        KafkaCluster("localhost:1", **{where: {name: value, "client.id": "team"}})
    assert f" set {name} to {value!r}" in refused.value.message
    assert refused.value.action == f"Remove `{name}`."
    # without the refused setting, as the action recommends, the cluster opens
    KafkaCluster("localhost:1", **{where: {"client.id": "team"}})


def test_settings_that_say_what_holds_anyway_are_taken():
    KafkaCluster(
        "localhost:1",
        client_config={"client.id": "team"},
        consumer_config={"isolation.level": "read_committed", "enable.auto.commit": False, "fetch.min.bytes": 10},
        producer_config={
            "acks": "all",
            "request.required.acks": -1,
            "enable.idempotence": True,
            "linger.ms": 50,
            "retries": 2_147_483_647,
            "max.in.flight": 5,
            "partitioner": "murmur2_random",
        },
    )


def test_a_secret_is_not_in_the_refusal():
    with pytest.raises(HoldfastError) as refused:
        KafkaCluster("localhost:1", client_config={"sasl.password": "hunter2", "sasl.usr": "me"})
    assert "hunter2" not in str(refused.value.as_dict())


@pytest.mark.parametrize("strategy", ["roundrobin", "range,roundrobin", "cooperative-sticky"])
def test_a_strategy_that_parts_the_inputs_of_a_store_is_refused_before_the_start(strategy):
    def build(*topics):
        app = Application("in-memory", consumer_group="p", consumer_extra_config={STRATEGY: strategy}, loglevel=None)
        for topic in topics:
            app.dataframe(app.topic(topic)).update(lambda value, state: None, stateful=True, store="shared")
        return app.topology()

    with pytest.raises(ApplicationInvalid, match=f"a and b share a store.*{strategy}.*expected range"):
        build("a", "b")
    assert build("a").inputs[0].name == "a"


STRATEGY = "partition.assignment.strategy"
