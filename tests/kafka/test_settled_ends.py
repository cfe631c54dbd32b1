"""Tests the wait until all transactions are committed or aborted, so that a topic's end offset is final."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics, TransactionUndecided


@pytest.fixture
def topic(broker: str, unique: Callable[[str], str]) -> str:
    name = unique("settled")
    Topics(broker).create(TopicSpec(name, 2, 1))
    return name


def transaction(bootstrap: str, topic: str, *values: bytes) -> Producer:
    """A producer with an open transaction that has written these values to partition 1."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=1)
    assert producer.flush(30) == 0
    return producer


def test_ends_count_the_markers_of_every_commit(broker: str, topic: str) -> None:
    topics = Topics(broker)
    assert topics.settled_end_offsets(topic) == {0: 0, 1: 0}
    producer = transaction(broker, topic, b"1")
    producer.commit_transaction(30)
    for number in range(2, 12):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=1)
        producer.commit_transaction(30)
        ends = topics.settled_end_offsets(topic)
        assert ends == {0: 0, 1: 2 * number}, "one record and one marker for each"


def test_an_open_transaction_is_named_with_its_partition(broker: str, topic: str) -> None:
    producer = transaction(broker, topic, b"1", b"2")
    with pytest.raises(TransactionUndecided) as held:
        Topics(broker).settled_end_offsets(topic, 0.2)
    assert f"{topic}[1]" in held.value.message
    assert held.value.fields == {"topic": topic, "partition": 1, "seen": 0, "expected": 2}
    producer.abort_transaction(30)
    assert Topics(broker).settled_end_offsets(topic) == {0: 0, 1: 3}


def test_what_is_open_further_on_is_not_waited_for(broker: str, topic: str) -> None:
    producer = transaction(broker, topic, b"1")
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(topic, b"2", partition=1)
    assert producer.flush(30) == 0
    assert Topics(broker).settled_end_offsets(topic, 30, upto={1: 2}) == {0: 0, 1: 2}
    producer.abort_transaction(30)


def test_it_waits_for_the_decision(broker: str, topic: str) -> None:
    producer = transaction(broker, topic, b"1")
    found: dict[int, int] = {}
    waiting = threading.Thread(target=lambda: found.update(Topics(broker).settled_end_offsets(topic, 60)))
    waiting.start()
    producer.commit_transaction(30)
    waiting.join(60)
    assert found == {0: 0, 1: 2}


def test_offsets_of_topics_that_are_all_gone_are_left_out_at_once(
    broker: str, topic: str, unique: Callable[[str], str]
) -> None:
    """Offsets of deleted topics are left out at once.

    The client library reports the same error for deleted topics and for topics without a leader.
    """
    topics, gone = Topics(broker), unique("gone")
    asked = monotonic()
    assert topics.offsets_of_all({gone: 2}, "stable") == {gone: {}}
    assert topics.offsets_of_all({gone: 1, topic: 2}, "end") == {gone: {}, topic: {0: 0, 1: 0}}
    assert monotonic() - asked < topics._timeout_s / 2
