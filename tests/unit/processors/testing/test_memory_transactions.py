"""Transactions of the in-memory cluster under faults: slow producers, delayed requests, unavailable brokers."""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.errors import (
    BrokerUnreachable,
    KafkaFailed,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from holdfast.infra.kafka.records import Partition
from holdfast.processors.testing import Fate, InlineProcess, InMemoryCluster, Network
from holdfast.processors.testing.consumers import InMemoryMember
from holdfast.processors.testing.producer import InMemoryProducer
from holdfast.processors.testing.transactions import TRANSACTION_TIMEOUT_S

PLACE = Partition("out", 0)
INPUT = Partition("in", 0)


class Fates(Network):
    """Decides for the next request of each name whether it is delivered, delayed or lost."""

    def __init__(self) -> None:
        super().__init__()
        self.next: dict[str, Fate] = {}

    def fate(self, process: str, request: str) -> Fate:
        return self.next.pop(request, Fate.OK)


class World:
    """A cluster with an input topic and an output topic."""

    def __init__(self) -> None:
        self.network = Fates()
        self.cluster = InMemoryCluster(network=self.network)
        self.process = InlineProcess(self.cluster.clock)
        self.view = self.cluster.connect(self.process)
        for place in (PLACE, INPUT):
            self.cluster.create_topic(place.topic)

    def producer(self, name: str = "id") -> InMemoryProducer:
        made = self.view.producer(name)
        made.init(60.0)
        return made

    def send(self, producer: InMemoryProducer, value: bytes) -> None:
        producer.produce(PLACE.topic, value, b"k", partition=0)
        producer.flush(60.0)

    def joined(self) -> InMemoryMember:
        member = self.view.group_consumer("group", "client")
        owned: list[Partition] = []
        member.subscribe([INPUT.topic], owned.extend, lambda gone: None, lambda gone: None)
        while not owned:
            member.poll(1, 0.1)
        return member

    def settle(self) -> None:
        self.process.sleep(1.0)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for _, record in self.cluster.read(PLACE.topic)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_transaction_that_is_open_too_long_is_aborted_and_its_producer_fenced(world: World) -> None:
    producer = world.producer()
    producer.begin()
    world.send(producer, b"slow")
    world.process.sleep(TRANSACTION_TIMEOUT_S - 0.1)
    assert world.cluster.last_stable_offset(PLACE) == 0
    world.process.sleep(0.2)
    assert (world.cluster.last_stable_offset(PLACE), world.cluster.log_end(PLACE)) == (2, 2)
    with pytest.raises(ProducerFenced):
        producer.commit()
    assert world.values == []


def test_its_time_begins_with_the_first_record_of_each_transaction(world: World) -> None:
    producer = world.producer()
    for _ in range(3):
        producer.begin()
        world.process.sleep(TRANSACTION_TIMEOUT_S)
        world.send(producer, b"quick")
        world.process.sleep(TRANSACTION_TIMEOUT_S - 1.0)
        producer.commit()
    world.settle()
    assert len(world.values) == 3


def test_a_commit_is_answered_before_its_markers_are_written(world: World) -> None:
    world.network.marker_delay_s = 3.0
    producer, member = world.producer(), world.joined()
    producer.begin()
    world.send(producer, b"1")
    producer.send_offsets({INPUT: 7}, member.group_metadata())
    producer.commit()
    assert (world.values, world.cluster.committed_offsets("group")) == ([], {})
    assert world.cluster.last_stable_offset(PLACE) == 0
    before = world.cluster.clock.monotonic()
    assert member.committed([INPUT]) == {INPUT: 7}
    assert world.cluster.clock.monotonic() > before
    assert world.values == [b"1"]


def test_the_next_transaction_waits_for_the_markers_of_the_last(world: World) -> None:
    world.network.marker_delay_s = 3.0
    producer = world.producer()
    for value in (b"1", b"2"):
        producer.begin()
        world.send(producer, value)
        producer.commit()
    world.process.sleep(3.0)
    assert [(record.value, record.offset) for _, record in world.cluster.read(PLACE.topic)] == [(b"1", 0), (b"2", 2)]


def test_a_new_producer_waits_for_what_the_former_left_to_be_ended(world: World) -> None:
    world.network.marker_delay_s = 3.0
    former = world.producer()
    former.begin()
    world.send(former, b"left open")
    world.producer()
    assert (world.cluster.last_stable_offset(PLACE), world.cluster.log_end(PLACE)) == (2, 2)
    assert world.values == []


def test_a_new_producer_does_not_undo_what_was_decided(world: World) -> None:
    world.network.marker_delay_s = 3.0
    former = world.producer()
    former.begin()
    world.send(former, b"committed")
    former.commit()
    world.producer()
    assert world.values == [b"committed"]


def test_a_commit_that_never_arrives_has_not_happened(world: World) -> None:
    producer = world.producer()
    producer.begin()
    world.send(producer, b"1")
    world.network.next["commit"] = Fate.LOST
    with pytest.raises(OutcomeUnknown):
        producer.commit()
    world.producer()
    assert world.values == []


def test_a_commit_whose_answer_is_lost_has_happened(world: World) -> None:
    producer = world.producer()
    producer.begin()
    world.send(producer, b"1")
    world.network.next["commit"] = Fate.REPLY_LOST
    with pytest.raises(OutcomeUnknown):
        producer.commit()
    world.producer()
    assert world.values == [b"1"]


def test_a_late_commit_of_a_fenced_producer_is_refused(world: World) -> None:
    world.network.delay_s = 40.0
    former = world.producer()
    former.begin()
    world.send(former, b"former")
    world.network.next["commit"] = Fate.DELAYED
    with pytest.raises(OutcomeUnknown):
        former.commit()
    newer = world.producer()
    newer.begin()
    world.send(newer, b"newer")
    world.process.sleep(11.0)
    assert world.cluster.last_stable_offset(PLACE) == 2, "the late request ended the newer transaction"
    newer.commit()
    world.settle()
    assert world.values == [b"newer"]


def test_a_late_commit_with_the_same_epoch_ends_the_newer_transaction(world: World) -> None:
    """A commit request that arrives late commits the transaction that its producer has begun since.

    Kafka's first transaction protocol has this fault. So the engine replaces its producer if the outcome of a commit is
    unknown.
    """
    world.network.delay_s = 31.0
    producer = world.producer()
    producer.begin()
    world.network.next["commit"] = Fate.DELAYED
    with pytest.raises(OutcomeUnknown):
        producer.commit()
    producer.begin()
    world.send(producer, b"newer")
    world.process.sleep(2.0)
    assert world.values == [b"newer"]


def test_a_commit_after_a_late_abort_is_refused_and_never_taken_for_done(world: World) -> None:
    world.network.delay_s = 31.0
    producer = world.producer()
    producer.begin()
    world.network.next["abort"] = Fate.DELAYED
    with pytest.raises(OutcomeUnknown):
        producer.abort()
    producer.begin()
    world.send(producer, b"newer")
    world.process.sleep(2.0)
    with pytest.raises(KafkaFailed, match="INVALID_TXN_STATE"):
        producer.commit()
    world.settle()
    assert world.values == []


def test_without_brokers_a_request_is_waited_for_and_then_unknown(world: World) -> None:
    producer = world.producer()
    producer.begin()
    world.send(producer, b"1")
    waits: list[float] = []
    producer.on_wait = lambda: waits.append(world.cluster.clock.monotonic())
    world.network.brokers_up = False
    with pytest.raises(OutcomeUnknown):
        producer.commit()
    assert waits
    with pytest.raises(OutcomeUnknown):
        world.send(producer, b"2")
    with pytest.raises(BrokerUnreachable):
        world.producer()
    with pytest.raises(BrokerUnreachable):
        world.view.topics(5.0).describe(["out"])


def test_requests_succeed_when_the_brokers_come_back_in_time(world: World) -> None:
    producer = world.producer()
    producer.begin()
    world.network.brokers_up = False
    world.cluster.clock.call_later(5.0, lambda: setattr(world.network, "brokers_up", True))
    world.send(producer, b"1")
    producer.commit()
    world.settle()
    assert world.values == [b"1"]


def test_offsets_that_expired_with_their_transaction_never_count(world: World) -> None:
    producer, member = world.producer(), world.joined()
    producer.begin()
    producer.send_offsets({INPUT: 7}, member.group_metadata())
    assert world.cluster.committed_offsets("group") == {}
    with pytest.raises(BrokerUnreachable):
        member.committed([INPUT])
    world.process.sleep(TRANSACTION_TIMEOUT_S)
    assert member.committed([INPUT]) == {INPUT: None}


def test_a_foreign_transaction_holds_readers_back_until_it_is_ended(world: World) -> None:
    foreign = world.cluster.open_foreign_transaction(PLACE.topic, 0, [(b"k", b"foreign")])
    world.cluster.produce(PLACE.topic, b"behind")
    assert (world.values, world.cluster.last_stable_offset(PLACE), world.cluster.log_end(PLACE)) == ([], 0, 2)
    foreign.commit()
    world.settle()
    assert world.values == [b"foreign", b"behind"]


def test_two_foreign_transactions_are_two(world: World) -> None:
    first = world.cluster.open_foreign_transaction(PLACE.topic, 0, [(b"k", b"first")])
    second = world.cluster.open_foreign_transaction(PLACE.topic, 0, [(b"k", b"second")])
    second.commit()
    world.settle()
    assert world.values == []
    first.abort()
    world.settle()
    assert world.values == [b"second"]


def test_refused_offsets_leave_the_transaction_to_be_aborted(world: World) -> None:
    producer, member = world.producer(), world.joined()
    stale = member.group_metadata()
    member.close()
    producer.begin()
    world.send(producer, b"1")
    with pytest.raises(TransactionAborted):
        producer.send_offsets({INPUT: 7}, stale)
    producer.abort()
    world.settle()
    assert (world.values, world.cluster.committed_offsets("group")) == ([], {})
