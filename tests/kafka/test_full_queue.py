"""A producer sends more records than the client library's queue holds. Each record is sent once, in order."""

from confluent_kafka import Consumer, TopicPartition

from holdfast.infra.kafka.clients.producer import EngineProducer
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics


def test_records_beyond_the_queue_wait_for_room(broker, unique):
    topic = unique("full")
    Topics(broker).create(TopicSpec(topic, 1, 1))
    producer = EngineProducer(broker, None, config={"queue.buffering.max.messages": 100})
    values = [b"%d" % number for number in range(2_500)]
    producer.produce_all(topic, values, [b"k"] * len(values), timestamps=list(range(1, len(values) + 1)))
    producer.flush(120.0)
    producer.close()
    consumer = Consumer({"bootstrap.servers": broker, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while len(found) < len(values):
        found += [(message.value(), message.timestamp()[1]) for message in consumer.consume(1_000, 1.0)]
    consumer.close()
    assert found == list(zip(values, range(1, len(values) + 1), strict=True))
