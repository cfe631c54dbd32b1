"""The inspector reads sizes on disk and open transactions from a real broker."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.errors import BrokerUnreachable
from holdfast.infra.kafka.inspection.hanging_transactions import MAX_TIMEOUT_S, SLACK_S, OpenTransaction, state_of
from holdfast.infra.kafka.inspection.inspection import Inspector
from holdfast.infra.kafka.records import Partition, TopicSpec
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics
from tests.kafka.hanging import leave_hanging, unverified
from tests.mechanics.tiers import variants


@pytest.fixture
def topic(broker: str, unique: Callable[[str], str]) -> str:
    name = unique("inspected")
    Topics(broker).create(TopicSpec(name, 3, 1, {"cleanup.policy": "compact"}))
    return name


@pytest.fixture
def inspector(broker: str) -> Iterator[Inspector]:
    with Inspector(broker) as found:
        yield found


def open_transaction(bootstrap: str, topic: str, partition: int, transactional_id: str = "") -> Producer:
    name = transactional_id or f"{topic}-writer"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1", b"a", partition=partition)
    assert producer.flush(30) == 0
    return producer


def test_a_partition_has_the_size_of_its_largest_copy(
    broker: str, topic: str, inspector: Inspector, waiting: Callable[..., Any]
) -> None:
    empty = {0: 0, 1: 0, 2: 0}
    waiting(lambda: inspector.sizes(topic, [0, 1, 2]) == empty, "folders for all partitions")
    producer = Producer({"bootstrap.servers": broker})
    for number in range(100):
        producer.produce(topic, bytes(1000), b"%d" % number, partition=1)
    assert producer.flush(30) == 0
    sizes = inspector.sizes(topic, [0, 1, 2])
    assert 100_000 < sizes[1] < 120_000
    assert (sizes[0], sizes[2]) == (0, 0)
    assert inspector.sizes(topic, [1]).keys() == {1}


def test_an_open_transaction_is_told_with_its_owner_and_ends_with_it(
    broker: str, topic: str, inspector: Inspector
) -> None:
    assert inspector.open_transactions(topic, range(3)) == ()
    producer = open_transaction(broker, topic, 1)
    (found,) = inspector.open_transactions(topic, range(3))
    assert (found.partition, found.start_offset) == (Partition(topic, 1), 0)
    assert (found.transactional_id, found.state, found.timeout_s) == (f"{topic}-writer", "Ongoing", 60.0)
    assert state_of(found) == "open"
    assert "since offset 0" in found.sentence
    assert f"of {topic}-writer" in found.sentence
    producer.abort_transaction(30)
    Topics(broker).settled_end_offsets(topic)  # the markers arrive a moment after the broker's answer
    assert inspector.open_transactions(topic, range(3)) == ()
    assert not inspector.abort(found), "it is over"


def test_one_that_no_coordinator_knows_hangs_and_is_aborted_alone(
    broker: str, topic: str, inspector: Inspector
) -> None:
    producer = open_transaction(broker, topic, 0)
    with unverified(broker):
        leave_hanging(broker, topic, 1, producer_id=777_001, age_s=MAX_TIMEOUT_S + SLACK_S + 30)
        leave_hanging(broker, topic, 2, producer_id=777_002, age_s=5)
    found = {each.partition.number: each for each in inspector.open_transactions(topic, range(3))}
    told = {number: state_of(each) for number, each in found.items()}
    assert told == {0: "open", 1: "hanging", 2: "unexplained"}
    hanging = found[1]
    assert (hanging.producer_id, hanging.start_offset, hanging.transactional_id) == (777_001, 0, None)
    assert hanging.open_for_s > MAX_TIMEOUT_S

    topics = Topics(broker)
    assert topics.end_offsets(topic, committed=True)[1] == 0
    another = dataclasses.replace(hanging, producer_epoch=1)
    assert not inspector.abort(another), "only the one that was named"
    assert inspector.abort(hanging)
    assert topics.settled_end_offsets(topic, 30, upto={1: 2})[1] == 2, "one record, one mark"
    assert [each.partition.number for each in inspector.open_transactions(topic, range(3))] == [0, 2]
    assert inspector.abort(found[2])
    producer.abort_transaction(30)


@pytest.mark.parametrize("commit", variants([True, False], tested=1))
def test_a_marker_that_its_coordinator_left_out_is_written(
    broker: str, topic: str, inspector: Inspector, commit: bool
) -> None:
    own = f"{topic}-writer"
    assert inspector.producer_state(own) is None
    producer = open_transaction(broker, topic, 1)
    opened = inspector.producer_state(own)
    assert opened is not None
    assert opened.state == "open"
    producer.commit_transaction(30)
    topics, places = Topics(broker), [Partition(topic, 0), Partition(topic, 1)]
    assert topics.settled_end_offsets(topic)[1] == 2
    known = inspector.producer_state(own)
    assert known == dataclasses.replace(opened, state="committed")
    assert not inspector.open_of(known.producer_id, places)
    # a partition with a marker of this producer refuses a later marker from a coordinator with a lower epoch
    with unverified(broker):
        leave_hanging(broker, topic, 1, producer_id=known.producer_id, age_s=1, epoch=known.epoch, sequence=1)
    assert inspector.open_of(known.producer_id, places) == {Partition(topic, 1)}
    assert not inspector.open_of(known.producer_id + 1, places)
    inspector.end(Partition(topic, 1), known.producer_id, commit=commit)
    assert topics.settled_end_offsets(topic)[1] == 4
    found = [record.value for record in read_range(broker, topic, 1, 0, 4)]
    assert found == ([b"1", b"write"] if commit else [b"1"])
    inspector.end(Partition(topic, 1), known.producer_id, commit=not commit)
    assert topics.end_offsets(topic, committed=False)[1] == 4, "nothing was open, so nothing was written"


def test_what_its_coordinator_ended_and_left_open_is_found_with_its_owner(
    broker: str, topic: str, inspector: Inspector
) -> None:
    places = [Partition(topic, number) for number in range(3)]
    live = open_transaction(broker, topic, 0, f"{topic}-live")
    producer = open_transaction(broker, topic, 1)
    assert inspector.left_open(places) == (), "both are open by their coordinators"
    producer.commit_transaction(30)
    topics = Topics(broker)
    assert topics.settled_end_offsets(topic, 30, upto={1: 2})[1] == 2
    known = inspector.producer_state(f"{topic}-writer")
    assert known is not None
    with unverified(broker):
        leave_hanging(broker, topic, 1, producer_id=known.producer_id, age_s=1, epoch=known.epoch, sequence=1)
    (left,) = inspector.left_open(places)
    assert (left.partition, left.transactional_id, left.committed) == (places[1], f"{topic}-writer", True)
    assert not inspector.end_left(dataclasses.replace(left, start_offset=0)), "only the one that was seen"
    assert inspector.end_left(left)
    assert [record.value for record in read_range(broker, topic, 1, 0, 4)] == [b"1", b"write"]
    assert not inspector.end_left(left)
    live.abort_transaction(30)


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["holdfast-", "other-"])
def test_what_a_worker_committed_before_it_was_gone_for_good_is_committed(
    broker: str, topic: str, inspector: Inspector, prefix: str
) -> None:
    producer = open_transaction(broker, topic, 1, f"{prefix}{topic}")
    producer.commit_transaction(30)
    topics = Topics(broker)
    assert topics.settled_end_offsets(topic)[1] == 2
    known = inspector.producer_state(f"{prefix}{topic}")
    assert known is not None
    with unverified(broker):
        age_s = MAX_TIMEOUT_S + SLACK_S + 30
        leave_hanging(broker, topic, 1, producer_id=known.producer_id, age_s=age_s, epoch=known.epoch, sequence=1)
    (hanging,) = inspector.open_transactions(topic, [1])
    assert state_of(hanging) == "hanging"
    assert inspector.abort(hanging)
    assert topics.settled_end_offsets(topic)[1] == 4
    found = [record.value for record in read_range(broker, topic, 1, 0, 4)]
    assert found == ([b"1", b"write"] if prefix == "holdfast-" else [b"1"])


def test_the_brokers_tell_how_long_a_transaction_may_be(inspector: Inspector) -> None:
    assert inspector.max_timeout_s() == 900.0


def test_nobody_answering_is_told_in_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BrokerUnreachable, match=address):
            Inspector(address, timeout_s=1.0)


@pytest.mark.parametrize(
    ("name", "since_write_s", "meaning"),
    [("orders", 10_000, "open"), (None, 959, "unexplained"), (None, 961, "hanging"), (None, -5, "unexplained")],
)
def test_only_what_outlived_every_timeout_hangs(name: str | None, since_write_s: float, meaning: str) -> None:
    place = Partition("t", 0)
    assert state_of(OpenTransaction(place, 1, 0, 5, since_write_s, transactional_id=name)) == meaning
