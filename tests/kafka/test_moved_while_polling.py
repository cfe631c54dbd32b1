"""A callback moves the position of a partition while a poll is running.

The records that this poll has fetched from the partition are dropped. They are read again from the new position.
"""

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.clients.consumer import GroupConsumer
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.kafka.topics.topics import Topics


class Between:
    """Wraps the consumer and runs a function before its second ``consume``, as a rebalance callback would run."""

    def __init__(self, consumer):
        self._consumer, self.happens = consumer, None

    def __getattr__(self, name):
        return getattr(self._consumer, name)

    def consume(self, count, timeout):
        if count > 1 and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return self._consumer.consume(count, timeout)


@pytest.fixture
def member(broker, unique):
    topic = unique("moved")
    Topics(broker).create(TopicSpec(topic, 2, 1))
    producer = Producer({"bootstrap.servers": broker})
    for number in range(20):
        producer.produce(topic, b"%d" % (number // 2), partition=number % 2)
    assert producer.flush(60) == 0
    made = GroupConsumer(broker, unique("group"), config={"partition.assignment.strategy": "cooperative-sticky"})
    made._consumer = Between(made._consumer)
    yield made, Partition(topic, 0), Partition(topic, 1)
    made.close()


def read(member, waiting, places, many=10):
    found = {place: [] for place in places}

    def whole():
        for batch in member.poll(100, 0.1):
            found.setdefault(batch.partition, []).extend(batch.offsets)
        return all(len(found[place]) >= many for place in places)

    waiting(whole, f"{many} records of {places}")
    return found


def join(member, waiting, places):
    told = []
    member.subscribe([places[0].topic], told.extend, lambda partitions: None, lambda partitions: None)
    waiting(lambda: member.poll(1, 0.1) or len(told) == 2, "the assignment")


def test_a_partition_that_is_sought_back_meanwhile_is_read_again_from_there(member, waiting):
    consumer, first, second = member
    join(consumer, waiting, (first, second))
    consumer.seek(first, 5)
    consumer.resume([first])
    in_hand = []
    consumer._consumer.happens = lambda: (in_hand.append(1), consumer.seek(first, 2))
    offsets = read(consumer, waiting, [first], many=8)[first]
    assert in_hand
    assert offsets == list(range(2, 10)), "as in a rewind: nothing from before it is handed out"


def test_a_partition_that_is_given_back_meanwhile_can_be_taken_again(member, waiting):
    consumer, first, second = member
    join(consumer, waiting, (first, second))
    for place in (first, second):
        consumer.seek(place, 0)
    consumer.resume([first])
    consumer._consumer.happens = lambda: consumer._give_back(consumer._consumer, [first])
    consumer.resume([second])
    before = read(consumer, waiting, [second])
    assert before.get(first, []) == []
    consumer.seek(first, 4)
    consumer.resume([first])
    assert read(consumer, waiting, [first], many=6)[first] == list(range(4, 10))
