"""A plain producer outside of streams, and the step `print`, on the in-memory cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import Application, InlineProcess, InMemoryCluster
from holdfast.processors.application.clients import MessageInvalid
from holdfast.processors.engine.formats.serialization import ValueUnwritable


def application() -> Application:
    return Application("in-memory", consumer_group="producing", auto_offset_reset="earliest")


def connected(cluster: InMemoryCluster) -> Any:
    return cluster.connect(InlineProcess(cluster.clock))


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("orders", 3)
    return made


def test_a_program_fills_a_topic_that_a_stream_reads(cluster: InMemoryCluster) -> None:
    app = application()
    orders = app.topic("orders", key_serializer="str")
    with app.get_producer_on(connected(cluster)) as producer:
        for number in range(5):
            message = orders.serialize(
                key=f"k{number}", value={"n": number}, headers={"h": "1"}, timestamp_ms=7 + number
            )
            producer.produce(orders.name, message.value, message.key, message.headers, timestamp=message.timestamp)
        producer.produce(topic=orders, key="text", value='{"n":5}')
        assert producer.flush() == 0
    sdf = app.dataframe(orders)
    sdf["double"] = sdf["n"] * 2
    sdf.to_topic(app.topic("out"))
    cluster.create_topic("out")
    cluster.run(app)
    found = [record for _, record in cluster.read("out")]
    assert sorted(json.loads(record.value or b"")["double"] for record in found) == [0, 2, 4, 6, 8, 10]
    timed = {record.key: (record.timestamp_ms, record.headers) for record in found}
    assert timed[b"k3"] == (10, [("h", b"1")])


def test_a_partition_is_taken_as_given(cluster: InMemoryCluster) -> None:
    with application().get_producer_on(connected(cluster)) as producer:
        for number in (2, 0):
            producer.produce("orders", b"{}", partition=number)
        producer.produce("orders", None, b"deleted", partition=1)
    assert [(number, record.value) for number, record in cluster.read("orders")] == [(0, b"{}"), (1, None), (2, b"{}")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": 5}, "`topic` of `produce` is 5 of type int; expected a topic or its name"),
        ({"value": {"n": 1}}, "`value` of `produce` is .* of type dict; expected bytes"),
        ({"key": 5}, "`key` of `produce` is 5 of type int"),
        ({"timestamp": 1.5}, "expected milliseconds since 1970"),
        ({"partition": -1}, "expected a number from 0 on"),
    ],
)
def test_what_is_no_message_is_refused_and_nothing_is_sent(
    cluster: InMemoryCluster, given: dict[str, Any], told: str
) -> None:
    with application().get_producer_on(connected(cluster)) as producer, pytest.raises(MessageInvalid, match=told):
        producer.produce(**{"topic": "orders", "value": b"{}", **given})
    assert cluster.read("orders") == []


def test_headers_that_are_none_are_refused(cluster: InMemoryCluster) -> None:
    with application().get_producer_on(connected(cluster)) as producer, pytest.raises(ValueUnwritable, match="headers"):
        producer.produce("orders", b"{}", headers={"h": 5})


def test_a_closed_producer_says_so(cluster: InMemoryCluster) -> None:
    with application().get_producer_on(connected(cluster)) as producer:
        pass
    with pytest.raises(MessageInvalid, match="a producer that is closed"):
        producer.produce("orders", b"{}")


def test_values_are_printed_with_and_without_their_metadata(
    cluster: InMemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    app = application()
    sdf = app.dataframe(app.topic("orders")).print()
    sdf = sdf.print(pretty=False, metadata=True)
    cluster.produce("orders", b'{"n":1}', b"k", timestamp_ms=7)
    cluster.run(app)
    told = capsys.readouterr().out
    assert "{'value': {'n': 1}}" in told
    assert "{'value': {'n': 1}, 'key': b'k', 'timestamp': 7, 'headers': " in told


def test_a_processor_that_prints_has_the_version_of_former_releases() -> None:
    versions = []
    for declare in (lambda sdf: sdf.print(), lambda sdf: sdf.update(print)):
        app = application()
        declare(app.dataframe(app.topic("orders")))
        versions.append(app.topology().code_version)
    assert versions[0] == versions[1]
