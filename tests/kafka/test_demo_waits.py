"""On a real broker, the demo waits until a processor with a repartition topic has no lag, or for new records."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast import Application, Count
from holdfast.infra.kafka.clients.feeder import Feeder
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.demo.lag import lag_of
from holdfast.orchestration.demo.verification import sent
from holdfast.processors.application.registration import ProcessorDefinition

MESSAGES = 20


@pytest.mark.thorough
def test_a_repartition_topic_that_is_read_has_no_lag_though_its_end_is_further(
    broker: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    group = unique("demo-lag")
    source = f"{group}-in"
    app = Application(broker, consumer_group=group, auto_offset_reset="earliest", state_dir=tmp_path, loglevel=None)
    app.dataframe(app.topic(source)).group_by("to").aggregate(n=Count()).to_topic(app.topic(f"{group}-out"))
    definition = ProcessorDefinition(group, app, app.topology(), "", (), "test:app")
    topics = Topics(broker)
    topics.create(TopicSpec(source, 1))
    with Feeder(broker) as feeder:
        for number in range(MESSAGES):
            feeder.send(source, b"key", json.dumps({"to": str(number % 3)}).encode(), 1_690_000_000_000 + number)
    assert lag_of(topics, [definition]) == MESSAGES
    worker = threading.Thread(target=app.run)
    worker.start()
    try:
        assert wait_until(lambda: lag_of(topics, [definition]) == 0, 90.0, every_s=0.5)
    finally:
        app.stop()
        worker.join(60.0)
    (grouped,) = app.topology().repartitions
    # After a while, the worker commits past the last markers of its own topic. The markers of this last transaction
    # have higher offsets than the committed ones.
    writer = Producer({"bootstrap.servers": broker, "transactional.id": unique("left")})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(grouped.topic, b"{}", b"key")
    writer.flush(30)
    writer.abort_transaction(30)
    committed = sum(offset for place, offset in topics.committed_offsets(group).items() if place.topic == grouped.topic)
    assert sum(topics.settled_end_offsets(grouped.topic).values()) > committed > 0
    assert lag_of(topics, [definition]) == 0
    # the engine's watermark records do not count as messages, because the engine never stops sending them
    for key, lag in ((None, 0), (b"key", 1)):
        writer.begin_transaction()
        writer.produce(grouped.topic, b"{}", key)
        writer.commit_transaction(30)
        assert lag_of(topics, [definition]) == lag


def test_records_that_come_while_they_are_awaited_are_read_once_each(broker: str, unique: Callable[[str], str]) -> None:
    topic, topics = unique("demo-sent"), Topics(broker)
    topics.create(TopicSpec(topic, 2))
    keys = [f"k{number}".encode() for number in range(MESSAGES)]

    def send(some: list[bytes]) -> None:
        with Feeder(broker) as feeder:
            for key in some:
                feeder.send(topic, key, b"{}", 1_690_000_000_000)

    send(keys[:15])
    looked = threading.Event()

    class Looked(Topics):
        """A topic client for a topic that is too short at the first read.

        The missing records arrive before the second read.
        """

        def settled_end_offsets(self, topic: str, *args: float, **options: object) -> dict[int, int]:
            ends = super().settled_end_offsets(topic)
            if looked.is_set() and sum(ends.values()) == 15:
                send(keys[15:])
            looked.set()
            return ends

    found = sent(Looked(broker), topic, MESSAGES)
    assert sorted(record.key or b"" for record in found) == sorted(keys)
