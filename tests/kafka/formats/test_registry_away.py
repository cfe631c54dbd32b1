"""A schema registry is unreachable, refuses requests or lacks a schema. No message is lost.

A fault of the registry stops the worker or makes it wait. It never makes a message a dead letter.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema
from confluent_kafka.serialization import SerializationContext

from holdfast import (
    Application,
    AvroDeserializer,
    AvroSerializer,
    ProcessingFailed,
    SchemaRegistryClientConfig,
    SchemaRegistrySerializationConfig,
)
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION, EXIT_BROKER_UNAVAILABLE
from holdfast.processors.engine.runtime.phases import Phase
from tests.kafka.conftest import wait_for
from tests.kafka.formats.conftest import Shop
from tests.kafka.formats.test_avro import NOT_AN_ORDER, ORDER, ORDER_2, copy, read_by_them, theirs
from tests.mechanics.tiers import variants
from tests.parts.certificates import Certificates
from tests.parts.schema_registry import Front, SchemaRegistryServer

ORDERS = [{"id": number, "price": 1.0, "note": None} for number in range(5)]


def at(front: Front, **further: Any) -> SchemaRegistryClientConfig:
    return SchemaRegistryClientConfig(url=front.url, **further)


def formats(config: SchemaRegistryClientConfig) -> tuple[Any, Any]:
    writer = AvroSerializer(ORDER, schema_registry_client_config=config)
    return AvroDeserializer(schema_registry_client_config=config), writer


def sent(shop: Shop) -> list[Any]:
    return [read_by_them(shop, each.value) for each in shop.records("out")]


@pytest.fixture
def running(shop: Shop) -> Iterator[Callable[..., Any]]:
    """A function that starts the copying application on a thread; the fixture stops all of them."""
    threads: list[tuple[Any, threading.Thread]] = []

    def run(config: SchemaRegistryClientConfig, **options: Any) -> tuple[Application, list[BaseException]]:
        app = shop.application(**options)
        reader, writer = formats(config)
        source = app.topic(shop.topic("in"), value_deserializer=reader)
        app.dataframe(source).to_topic(app.topic(shop.topic("out"), value_serializer=writer))
        failures: list[BaseException] = []

        def work() -> None:
            try:
                app.run()
            except BaseException as failure:
                failures.append(failure)

        threads.append((app, threading.Thread(target=work)))
        threads[-1][1].start()
        return app, failures

    yield run
    for app, thread in threads:
        app.stop()
        thread.join(60)


@pytest.mark.parametrize("status", variants([None, 503]))
def test_a_worker_waits_for_a_registry_that_is_away_at_its_start(
    shop: Shop, front: Front, running: Callable[..., Any], status: int | None
) -> None:
    if status is None:
        front.close()
    front.status = status
    shop.send(*(theirs(shop, each) for each in ORDERS))
    app, failures = running(at(front))
    wait_for(lambda: app._worker is not None and app._worker.phase is Phase.WAITING, "the worker to wait")
    assert shop.records("out") == []
    front.status = None
    if status is None:
        front.open()
    wait_for(lambda: len(shop.records("out")) == len(ORDERS), "all messages")
    assert (sent(shop), shop.records("dead"), failures) == (ORDERS, [], [])


@pytest.mark.thorough
def test_known_schemas_are_read_while_the_registry_is_away_and_new_ones_wait(
    shop: Shop, front: Front, running: Callable[..., Any]
) -> None:
    first, newer = theirs(shop, ORDERS[0]), theirs(shop, {**ORDERS[1], "paid": True}, ORDER_2)
    shop.send(first)
    app, failures = running(at(front))
    wait_for(lambda: len(shop.records("out")) == 1, "the first message")
    front.close()
    shop.send(first)
    wait_for(lambda: len(shop.records("out")) == 2, "the message with the known schema")
    shop.send(newer, first)
    wait_for(lambda: app._worker is not None and app._worker.phase is Phase.WAITING, "the worker to wait")
    assert shop.records("dead") == []
    front.open()
    wait_for(lambda: len(shop.records("out")) == 4, "all messages")
    assert [each["id"] for each in sent(shop)] == [0, 0, 1, 0]
    assert (shop.records("dead"), failures) == ([], [])


@pytest.mark.thorough
def test_a_worker_that_waited_long_enough_stops_and_the_next_start_resumes(shop: Shop, front: Front) -> None:
    shop.send(*(theirs(shop, each) for each in ORDERS))
    front.close()
    with pytest.raises(ProcessingFailed) as failed:
        copy(shop, 5, *formats(at(front)), broker_availability_timeout=1.0)
    assert "did not answer for 1 s" in failed.value.message
    assert (failed.value.cause, failed.value.exit_code) == ("schema-registry-away", EXIT_BROKER_UNAVAILABLE)
    assert (shop.records("out"), shop.records("dead")) == ([], [])
    front.open()
    copy(shop, 5, *formats(at(front)))
    assert (sent(shop), shop.records("dead")) == (ORDERS, [])


def test_a_registry_that_is_away_when_a_result_is_written_loses_nothing(shop: Shop, front: Front) -> None:
    shop.send(*(theirs(shop, each) for each in ORDERS))
    front.close()
    reader = AvroDeserializer(schema_registry_client_config=SchemaRegistryClientConfig(url=shop.registry.url))

    def count(*formats: Any, **options: Any) -> None:
        app = shop.application(**options)
        source = app.topic(shop.topic("in"), value_deserializer=formats[0])
        frame = app.dataframe(source).apply(counted, stateful=True, store="n")
        frame.to_topic(app.topic(shop.topic("out"), value_serializer=formats[1]))
        app.run(count=5, timeout=60)

    def counted(value: Any, state: Any) -> Any:
        state.set("n", state.get("n", 0) + 1)
        return {**value, "id": state.get("n")}

    with pytest.raises(ProcessingFailed, match="did not answer"):
        count(reader, formats(at(front))[1], broker_availability_timeout=1.0)
    front.open()
    count(reader, formats(at(front))[1])
    assert [each["id"] for each in sent(shop)] == [1, 2, 3, 4, 5]


@pytest.mark.thorough
def test_a_worker_that_waits_for_a_registry_stops_when_it_is_told_to(shop: Shop, tmp_path: Path, front: Front) -> None:
    shop.send(theirs(shop, ORDERS[0]))
    front.close()
    app = shop.application()
    reader, writer = formats(at(front))
    source = app.topic(shop.topic("in"), value_deserializer=reader)
    app.dataframe(source).to_topic(app.topic(shop.topic("out"), value_serializer=writer))
    timer = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    app.run(timeout=60)
    timer.join()
    assert (shop.records("out"), shop.records("dead")) == ([], [])


def test_what_the_registry_does_not_know_goes_to_the_dead_letters_as_it_came(shop: Shop) -> None:
    good = theirs(shop, ORDERS[0])
    number = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "n", "type": "number"}
    other = shop.client.register_schema(shop.topic("json"), Schema(json.dumps(number), "JSON"))
    bad = [
        # this message refers to a schema id that is not registered
        b"\x00" + (2_000_000).to_bytes(4, "big") + good[5:],
        b"\x00\xff\xff\xff\xff" + good[5:],  # this message refers to a negative schema id, which no registry uses
        b"\x01" + bytes(16) + good[5:],  # this message refers to a schema GUID that is not registered
        b"\x07" + good[1:],  # this message begins with an unknown magic byte
        b"\x00" + other.to_bytes(4, "big") + good[5:],  # this message refers to a schema of another format
        good[:-3],
        b"",
        b"{}",
    ]
    shop.send(*bad[:4], good, *bad[4:])
    copy(shop, 9)
    assert len(shop.records("out")) == 1
    assert [each.value for each in shop.records("dead")] == bad
    reasons = shop.errors()
    assert "no such schema" in reasons[0]
    assert "no schema can have the id 4294967295" in reasons[1]
    assert "Invalid magic byte" in reasons[3]
    assert "of format JSON, expected AVRO" in reasons[4]


@pytest.mark.thorough
def test_without_a_dead_letter_topic_an_unknown_schema_stops_the_worker_in_front_of_the_message(shop: Shop) -> None:
    good = theirs(shop, ORDERS[0])
    shop.send(good, b"\x00" + (2_000_000).to_bytes(4, "big") + good[5:], good)
    with pytest.raises(ProcessingFailed, match="no such schema"):
        copy(shop, 3, dead_letter_topic=None)
    assert len(shop.records("out")) == 1
    copy(shop, 2)
    assert (len(shop.records("out")), len(shop.records("dead"))) == (2, 1)


def test_a_schema_that_is_not_compatible_stops_the_worker_and_blames_no_message(shop: Shop) -> None:
    subject = f"{shop.topic('out')}-value"
    shop.client.register_schema(subject, Schema(json.dumps(ORDER), "AVRO"))
    shop.client.set_compatibility(subject, "BACKWARD")
    shop.send(theirs(shop, {"total": "1"}, NOT_AN_ORDER))
    writer = AvroSerializer(NOT_AN_ORDER, schema_registry_client_config=SchemaRegistryClientConfig())
    with pytest.raises(ProcessingFailed, match="409") as failed:
        copy(shop, 1, writer=writer)
    assert (failed.value.exit_code, failed.value.cause) == (EXIT_BAD_CONFIGURATION, "bad-configuration")
    assert "compatible" in failed.value.action
    assert (shop.records("out"), shop.records("dead")) == ([], [])


@pytest.mark.thorough
def test_a_message_whose_schema_was_deleted_is_a_dead_letter_and_the_next_one_is_read(shop: Shop) -> None:
    subject = f"{shop.topic('gone')}-value"
    gone = {**ORDER, "namespace": shop.group.replace("-", "_")}
    made = AvroSerializer(gone, schema_registry_client_config=SchemaRegistryClientConfig(url=shop.registry.url))
    deleted = made(ORDERS[0], SerializationContext(shop.topic("gone"), "value"))
    shop.client.delete_subject(subject)
    shop.client.delete_subject(subject, permanent=True)
    shop.send(deleted, theirs(shop, ORDERS[1]))
    copy(shop, 2)
    assert (sent(shop), [each.value for each in shop.records("dead")]) == ([ORDERS[1]], [deleted])
    assert "no such schema" in shop.errors()[0]


@pytest.mark.thorough
def test_a_subject_with_another_format_stops_the_worker_and_blames_no_message(shop: Shop) -> None:
    number = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "n", "type": "number"}
    shop.client.register_schema(f"{shop.topic('out')}-value", Schema(json.dumps(number), "JSON"))
    shop.send(theirs(shop, ORDERS[0]))
    latest = SchemaRegistrySerializationConfig(auto_register_schemas=False, use_latest_version=True)
    writer = AvroSerializer(
        ORDER,
        schema_registry_client_config=SchemaRegistryClientConfig(),
        schema_registry_serialization_config=latest,
    )
    with pytest.raises(ProcessingFailed, match="is of format JSON, expected AVRO") as failed:
        copy(shop, 1, writer=writer)
    assert failed.value.exit_code == EXIT_BAD_CONFIGURATION
    assert (shop.records("out"), shop.records("dead")) == ([], [])


@pytest.mark.thorough
def test_a_schema_that_is_not_registered_stops_the_worker_where_it_may_not_register(shop: Shop) -> None:
    shop.send(theirs(shop, ORDERS[0]))
    writing = SchemaRegistrySerializationConfig(auto_register_schemas=False)
    writer = AvroSerializer(
        ORDER,
        schema_registry_client_config=SchemaRegistryClientConfig(),
        schema_registry_serialization_config=writing,
    )
    with pytest.raises(ProcessingFailed, match="is not registered"):
        copy(shop, 1, writer=writer)
    assert shop.records("dead") == []


@pytest.mark.thorough
def test_a_url_that_is_no_registry_is_told_as_that(shop: Shop) -> None:
    shop.send(theirs(shop, ORDERS[0]))
    wrong = SchemaRegistryClientConfig(url=shop.registry.url.replace("ccompat/v7", "nothing"))
    with pytest.raises(ProcessingFailed, match="404") as failed:
        copy(shop, 1, *formats(wrong))
    assert "Check the URL" in failed.value.action
    assert shop.records("dead") == []


PASSWORD, TOKEN = "open sesame: now", "a-token-of-some-length"
BASIC = "Basic " + base64.b64encode(f"worker:{PASSWORD}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "settings"),
    variants(
        [
            pytest.param(BASIC, {"USER": "worker", "PASSWORD": PASSWORD}, id="basic"),
            pytest.param(f"Bearer {TOKEN}", {"TOKEN": TOKEN}, id="bearer"),
        ]
    ),
)
def test_a_registry_behind_tls_that_asks_who_it_is(
    shop: Shop,
    schema_registry: SchemaRegistryServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    authorization: str,
    settings: dict[str, str],
) -> None:
    certificates = Certificates(tmp_path / "certificates")
    guarded = Front(schema_registry.port, authorization=authorization, certificates=certificates).open()
    try:
        shop.send(*(theirs(shop, each) for each in ORDERS))
        monkeypatch.setenv("HOLDFAST_SCHEMA_REGISTRY__URL", guarded.url)
        with pytest.raises(ProcessingFailed, match="is not trusted") as failed:
            copy(shop, 5)
        assert "CA_LOCATION" in failed.value.action
        monkeypatch.setenv("HOLDFAST_SCHEMA_REGISTRY__CA_LOCATION", str(certificates.ca))
        with pytest.raises(ProcessingFailed, match="401") as failed:
            copy(shop, 5)
        assert failed.value.exit_code == EXIT_BAD_CONFIGURATION
        for name, value in settings.items():
            monkeypatch.setenv(f"HOLDFAST_SCHEMA_REGISTRY__{name}", value)
        copy(shop, 5)
    finally:
        guarded.close()
    assert (sent(shop), shop.records("dead")) == (ORDERS, [])
