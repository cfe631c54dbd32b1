"""A broker is killed while it ends transactions. After its restart, each transaction is complete or absent."""

from __future__ import annotations

import os
import re
import signal
import threading
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

#: Many partitions make the end of a transaction take longer.
PARTITIONS = 60
TOPIC = "whole-or-not"


def begin(bootstrap: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "one", "linger.ms": 0})
    producer.init_transactions(60)
    return producer


def commit_until_it_dies(producer: Producer, first: threading.Event) -> None:
    with suppress(KafkaException):
        while True:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"x", partition=partition)
            producer.commit_transaction(4)
            first.set()


def ends(consumer: Consumer) -> list[int]:
    return [
        consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=30)[1] for number in range(PARTITIONS)
    ]


@pytest.mark.thorough
def test_every_transaction_is_whole_after_the_broker_was_killed_in_the_middle(own_broker, waiting):
    address = own_broker.address
    admin = AdminClient({"bootstrap.servers": address.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
    first = threading.Event()
    work = threading.Thread(target=commit_until_it_dies, args=(begin(address.bootstrap), first))
    work.start()
    assert first.wait(120)
    os.kill(address.pid, signal.SIGKILL)
    work.join(120)
    waiting(lambda: own_broker.running() is None, "the broker to be gone")
    assert own_broker.start().bootstrap == address.bootstrap
    # a new producer with the same id makes the broker finish or abort the open transaction
    begin(address.bootstrap)
    committed, everything = (
        Consumer({"bootstrap.servers": address.bootstrap, "group.id": level, "isolation.level": level})
        for level in ("read_committed", "read_uncommitted")
    )
    waiting(lambda: ends(committed) == ends(everything), "no transaction to be open any more")
    assert len(counted(committed, ends(committed))) == 1, "a transaction took effect in a part of its partitions"
    committed.close()
    everything.close()
    loaded = re.findall(r"Loading transaction metadata from (\S+) at epoch (\d+)", own_broker.log.read_text())
    assert loaded
    assert len(loaded) == len(set(loaded)), "the broker went on with partitions whose leader it was before it died"


def counted(consumer: Consumer, until: list[int]) -> set[int]:
    """Count the committed records of each partition, and return the different counts as a set.

    Each transaction writes to all partitions, so one count means that each transaction is complete or absent
    everywhere.
    """
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    counts = dict.fromkeys(range(PARTITIONS), 0)
    while any(place.offset < until[place.partition] for place in consumer.position(consumer.assignment())):
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            counts[message.partition()] += 1
    return set(counts.values())
