"""`app.get_producer()` on a real broker.

When its block ends, all messages are in the topic, and a stream reads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Application
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics


def test_messages_of_a_producer_are_there_and_are_read(
    broker: str, unique: Callable[[str], str], tmp_path: Path, waiting: Callable[..., None]
) -> None:
    name, group, topics = unique("orders"), unique("sums"), Topics(broker)
    for topic in (name, f"{name}-out"):
        topics.create(TopicSpec(topic, 3, 1))
    app = Application(broker, consumer_group=group, auto_offset_reset="earliest", state_dir=tmp_path)
    orders, totals = app.topic(name, key_serializer="str"), app.topic(f"{name}-out")
    with app.get_producer() as producer:
        for number in range(300):
            message = orders.serialize(key=f"k{number % 7}", value={"n": number}, headers={"number": str(number)})
            producer.produce(topic=orders.name, key=message.key, value=message.value, headers=message.headers)
    found = [
        record
        for number, end in topics.end_offsets(name, committed=True).items()
        for record in read_range(broker, name, number, 0, end)
    ]
    assert sorted(orders.deserialize(record).value["n"] for record in found) == [*range(300)]
    assert {record.headers[0][0] for record in found if record.headers} == {"number"}
    sdf = app.dataframe(orders)
    sdf = sdf[sdf["n"] % 2 == 0]
    sdf["double"] = sdf["n"] * 2
    sdf.to_topic(totals)
    app.run(count=300, timeout=60)

    def doubled() -> list[int]:
        return sorted(
            totals.deserialize(record).value["double"]
            for number, end in topics.end_offsets(totals.name, committed=True).items()
            for record in read_range(broker, totals.name, number, 0, end)
            if record.value is not None
        )

    waiting(
        lambda: len(doubled()) >= 150, "the results to be readable: the marker of the last commit may be on its way"
    )
    assert doubled() == [*range(0, 600, 4)]


def test_a_message_that_kafka_refuses_fails_the_block(broker: str, unique: Callable[[str], str]) -> None:
    name, topics = unique("small"), Topics(broker)
    topics.create(TopicSpec(name, 1, 1, {"max.message.bytes": "1000"}))
    app = Application(broker, consumer_group=unique("small"))
    with pytest.raises(KafkaFailed, match=name), app.get_producer() as producer:
        producer.produce(name, os.urandom(10_000))  # random bytes, so that compression can't make the message fit
