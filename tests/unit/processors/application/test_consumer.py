"""`app.get_consumer`: a plain consumer outside of streams, on the in-memory cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, InlineProcess, InMemoryCluster
from holdfast.kafka import ConnectionConfig
from holdfast.processors.application.connection import ConnectionInvalid
from holdfast.processors.application.consumer import ConsumerInvalid


def application(**given: Any) -> Application:
    return Application("in-memory", consumer_group="reading", auto_offset_reset="earliest", **given)


def read(cluster: InMemoryCluster, count: int, *, stores: bool = True, commits: bool = True) -> list[int]:
    app, found = application(), list[int]()
    topic = app.topic("in")
    connected = cluster.connect(InlineProcess(cluster.clock))
    with app.get_consumer_on(connected, auto_commit_enable=commits) as consumer:
        consumer.subscribe(topics=["in"])
        for _ in range(30):
            message = consumer.poll(0.1)
            if message is None or len(found) == count:
                continue
            assert message.error() is None
            assert message.timestamp()[1] > 0
            found.append(topic.deserialize(message).value["n"])
            if stores:
                consumer.store_offsets(message=message)
        assert len(consumer.assignment()) == 2
    return sorted(found)


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in", 2)
    for number in range(12):
        made.produce("in", json.dumps({"n": number}).encode(), b"k%d" % (number % 4))
    return made


def test_a_group_goes_on_behind_the_messages_that_were_marked(cluster: InMemoryCluster) -> None:
    first = read(cluster, 5)
    assert sorted(first + read(cluster, 100)) == [*range(12)]
    assert read(cluster, 100) == []


def test_without_marks_or_commits_messages_come_again(cluster: InMemoryCluster) -> None:
    assert read(cluster, 100, stores=False) == read(cluster, 100, commits=False) == read(cluster, 100) == [*range(12)]


def test_a_consumer_of_a_processor_is_refused() -> None:
    app = application()
    consumer = app.get_consumer()
    app.dataframe(app.topic("in"))
    with pytest.raises(ConsumerInvalid, match="has streams, whose positions are the offsets of its group") as told:
        consumer.subscribe(["in"])
    assert "another application" in told.value.action


def test_wrong_calls_are_refused(cluster: InMemoryCluster) -> None:
    connected = cluster.connect(InlineProcess(cluster.clock))
    with application().get_consumer_on(connected) as consumer:
        with pytest.raises(ConsumerInvalid, match="expected a list of names"):
            consumer.subscribe("in")
        with pytest.raises(ConsumerInvalid, match="not subscribed"):
            consumer.poll(0.1)
        consumer.subscribe(["in"])
        with pytest.raises(ConsumerInvalid, match="subscribed already"):
            consumer.subscribe(["in"])
    with pytest.raises(ConsumerInvalid, match="closed"):
        consumer.poll(0.1)


def test_a_connection_is_the_settings_of_all_clients_and_hides_secrets() -> None:
    named = ConnectionConfig(
        bootstrap_servers="a:1", security_protocol="sasl_ssl", sasl_mechanisms="PLAIN", sasl_password="secret-word"
    )
    same = ConnectionConfig.from_librdkafka_dict(
        {"bootstrap.servers": "a:1", "sasl.mechanism": "PLAIN", "linger.ms": 5}, ignore_extras=True
    )
    assert named.client_config == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.password": "secret-word",
    }
    assert same.as_librdkafka_dict() == {"bootstrap.servers": "a:1", "sasl.mechanism": "PLAIN"}
    assert "secret-word" not in repr(named)
    app = Application(named, consumer_group="g", loglevel=None)
    assert app.broker_address == "a:1"
    with pytest.raises(ConnectionInvalid, match="`linger_ms` is no setting of a connection"):
        ConnectionConfig("a:1", linger_ms=5)
    with pytest.raises(ConnectionInvalid, match="`bootstrap.servers` of a connection is None"):
        ConnectionConfig.from_librdkafka_dict({})
