"""Kafka committed or aborted a transaction, but left it open in some partitions.

The worker ends it in these partitions as the transaction's coordinator decided. Other transactions are not changed.
"""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.errors import AccessRefused, BrokerUnreachable, ClientSettingsInvalid, KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.partitioners import offsets_partition
from holdfast.processors.engine.runtime.ownership.fencing import FormerOwners
from holdfast.processors.engine.runtime.ownership.unfinished import OTHERS_END_S, Unfinished
from holdfast.processors.testing import InlineProcess, InMemoryCluster, Network
from holdfast.processors.testing.cluster import ForeignTransaction

OUT, GROUP, OWN = "out", "group", "own"
#: The transactional id of another worker of the same processor, which no longer exists.
GONE = "holdfast-group-0123456789ab-m0"


class Forgetful(Network):
    """A network whose transaction coordinator does not write the markers of transactions to some topics and groups."""

    def __init__(self) -> None:
        super().__init__()
        self.without: set[str] = set()

    def leaves_out(self, place: str) -> bool:
        return place in self.without


class World:
    """A producer that writes to an output with two partitions and to a group's offsets."""

    def __init__(self) -> None:
        self.network = Forgetful()
        self.cluster = InMemoryCluster(network=self.network)
        self.process = InlineProcess(self.cluster.clock)
        self.view = self.cluster.connect(self.process)
        self.cluster.create_topic(OUT, 2)
        self.cluster.create_topic("in", 1)
        self.member = self.view.group_consumer(GROUP, "client")
        self.member.subscribe(["in"], *[lambda partitions: None] * 3)
        while self.member.member_id is None or self.member.poll(1, 1.0):
            pass
        self.producer = self.view.producer(OWN)
        self.producer.init(60.0)
        self.unfinished = Unfinished(self.view, [OUT], GROUP, 60.0)

    def send(self, value: bytes, *, commit: bool, offset: int = 0) -> None:
        self.producer.begin()
        self.producer.produce(OUT, value, b"k", partition=0)
        if offset:
            self.producer.send_offsets({Partition("in", 0): offset}, self.member.group_metadata())
        self.producer.flush(60.0)
        (self.producer.commit if commit else self.producer.abort)()
        self.process.sleep(1.0)

    def published(self) -> list[bytes | None]:
        return [record.value for _, record in self.cluster.read(OUT)]


@pytest.fixture
def world() -> World:
    return World()


def test_without_a_look_the_next_commit_publishes_what_was_aborted(world):
    world.network.without = {OUT}
    world.send(b"aborted", commit=False)
    world.network.without = set()
    world.send(b"next", commit=True)
    assert world.published() == [b"aborted", b"next"], "the defect of Kafka that this is about"


def test_what_is_left_of_an_aborted_transaction_is_aborted(world):
    world.network.without = {OUT}
    world.send(b"aborted", commit=False)
    world.network.without = set()
    world.unfinished.settle(OWN)
    world.send(b"next", commit=True)
    assert world.published() == [b"next"]


def test_what_is_left_of_a_committed_transaction_is_committed(world):
    world.network.without = {OUT}
    world.send(b"committed", commit=True)
    world.network.without = set()
    assert world.published() == []
    world.unfinished.settle(OWN)
    world.send(b"aborted", commit=False)
    assert world.published() == [b"committed"]


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_that_are_left_pending_are_settled_too(world, commit):
    world.network.without = {GROUP}
    world.send(b"x", commit=commit, offset=7)
    world.unfinished.settle(OWN)
    assert world.member.committed([Partition("in", 0)]) == {Partition("in", 0): 7 if commit else None}


@pytest.mark.parametrize("commit", [True, False])
def test_what_a_worker_left_that_is_gone_for_good_is_settled_by_another_one(world, commit):
    world.producer = world.view.producer(GONE)
    world.producer.init(60.0)
    world.network.without = {OUT, GROUP}
    world.send(b"x", commit=commit, offset=7)
    with pytest.raises(BrokerUnreachable):
        world.member.committed([Partition("in", 0)])
    world.unfinished.settle(OWN)
    with pytest.raises(BrokerUnreachable):
        world.member.committed([Partition("in", 0)])
    world.unfinished.settle_for_others()
    assert world.member.committed([Partition("in", 0)]) == {Partition("in", 0): 7 if commit else None}
    assert world.published() == ([b"x"] if commit else [])


@pytest.mark.parametrize("name", ["holdfast-group-eu-0123456789ab-m0", "holdfast-group-load", "theirs"])
def test_what_others_than_this_processors_workers_left_open_stays(world, name):
    world.producer = world.view.producer(name)
    world.producer.init(60.0)
    world.network.without = {OUT}
    world.send(b"x", commit=True)
    world.unfinished.settle_for_others()
    assert world.published() == []


def test_what_another_worker_has_open_now_is_not_touched(world):
    world.producer = world.view.producer(GONE)
    world.producer.init(60.0)
    world.producer.begin()
    world.producer.produce(OUT, b"open", b"k", partition=0)
    world.producer.flush(60.0)
    world.unfinished.settle_for_others()
    world.producer.commit()
    world.process.sleep(1.0)
    assert world.published() == [b"open"]


def test_an_open_transaction_is_left_to_the_init_of_the_next_producer(world):
    world.producer.begin()
    world.producer.produce(OUT, b"open", b"k", partition=0)
    world.producer.flush(60.0)
    world.unfinished.settle(OWN)
    world.producer.commit()
    world.process.sleep(1.0)
    assert world.published() == [b"open"]


def test_a_transaction_of_another_producer_is_not_touched(world):
    other = ForeignTransaction(world.cluster._broker, "other")
    other.send(Partition(OUT, 1), b"k", b"theirs")
    world.send(b"mine", commit=True)
    world.unfinished.settle(OWN)
    other.commit()
    world.process.sleep(1.0)
    assert sorted(world.published()) == [b"mine", b"theirs"]


def test_a_transaction_that_still_ends_is_waited_for(world):
    world.network.marker_delay_s = 2.0
    world.producer.begin()
    world.producer.produce(OUT, b"x", b"k", partition=0)
    world.producer.commit()
    began = world.cluster.clock.monotonic()
    waits: list[None] = []
    world.unfinished.settle(OWN, lambda: waits.append(None))
    assert waits
    assert world.cluster.clock.monotonic() - began >= 1.0
    assert world.published() == [b"x"]


class Refusing:
    """A client without the right to see the producers of a topic."""

    def __enter__(self) -> Refusing:
        return self

    def __exit__(self, *_: object) -> None: ...

    def producer_state(self, transactional_id: str) -> None:
        raise AccessRefused("User:orders may not list the producers of topic out.", action="Add this rule: ...")


def test_without_the_right_to_look_others_transactions_are_waited_for(world, monkeypatch):
    monkeypatch.setattr(world.view, "transactions", lambda timeout_s: Refusing())
    other = ForeignTransaction(world.cluster._broker, "other")
    other.send(Partition(OUT, 1), b"k", b"theirs")
    world.cluster.clock.call_later(3.0, other.commit)
    world.unfinished.settle(OWN)
    assert world.published() == [b"theirs"]


def test_without_the_right_to_look_what_stays_open_stops_the_worker(world, monkeypatch):
    monkeypatch.setattr(world.view, "transactions", lambda timeout_s: Refusing())
    world.network.without = {OUT}
    world.send(b"aborted", commit=False)
    began = world.cluster.clock.monotonic()
    with pytest.raises(AccessRefused, match="may not list the producers of topic out"):
        world.unfinished.settle(OWN)
    assert world.cluster.clock.monotonic() - began >= OTHERS_END_S


def test_brokers_that_are_away_are_waited_for_and_then_told(world):
    world.network.brokers_up = False
    world.cluster.clock.call_later(8.0, lambda: setattr(world.network, "brokers_up", True))
    world.unfinished.settle(OWN)
    world.network.brokers_up = False
    with pytest.raises(BrokerUnreachable):
        Unfinished(world.view, [OUT], GROUP, 8.0).settle(OWN)


def test_a_topic_that_is_not_there_holds_nothing(world):
    Unfinished(world.view, [OUT, "gone"], GROUP, 60.0).settle(OWN)


@pytest.mark.parametrize(
    ("group", "partition"),
    # Kafka stores a group's offsets in this partition: `Utils.abs(group.hashCode()) % 50`, as Java computes it
    [("orders", 31), ("", 0), ("holdfast-é", 19), ("polygenelubricants", 0), ("\N{GRINNING FACE} group", 6)],
)
def test_the_partition_of_a_groups_offsets_is_that_of_kafka(group, partition):
    assert offsets_partition(group, 50) == partition


def test_an_heir_settles_all_topics_of_the_owner_before_its_init_forgets_the_outcome(world):
    world.cluster.create_topic("log", 1)
    world.network.without = {OUT, "log"}
    world.producer.begin()
    world.producer.produce(OUT, b"precious", b"k", partition=0)
    world.producer.produce("log", b"state", b"k", partition=0)
    world.producer.commit()
    world.process.sleep(1.0)
    world.network.without = set()
    heir = FormerOwners(world.view)
    heir.own, heir.unfinished = "heir", Unfinished(world.view, [OUT, "log"], GROUP, 60.0)
    heir.note("in-0", OWN)
    while not heir.fence({"in-0": 0}, {"in-0": ["log"]}):
        world.process.sleep(0.05)
    world.view.producer(OWN).init(60.0)
    world.unfinished.settle(OWN)
    assert world.published() == [b"precious"]
    assert [record.value for _, record in world.cluster.read("log")] == [b"state"]


def test_a_coordinator_that_never_finishes_is_told_in_time(world):
    world.network.marker_delay_s = 1e6
    world.producer.begin()
    world.producer.produce(OUT, b"x", b"k", partition=0)
    world.producer.commit()
    began = world.cluster.clock.monotonic()
    with pytest.raises(BrokerUnreachable, match="does not finish the last transaction of own"):
        Unfinished(world.view, [OUT], GROUP, 20.0).settle(OWN)
    assert 20.0 <= world.cluster.clock.monotonic() - began < 30.0


class Uncarried(Refusing):
    """A client with settings that cannot be translated for kafka-python, the second client library."""

    def producer_state(self, transactional_id: str) -> None:
        raise ClientSettingsInvalid("sasl.mechanisms=OAUTHBEARER has no counterpart.", action="Use kafka-log-dirs.sh.")


def test_settings_that_the_second_library_lacks_stop_a_worker_only_if_something_stays_open(world, monkeypatch):
    monkeypatch.setattr(world.view, "transactions", lambda timeout_s: Uncarried())
    other = ForeignTransaction(world.cluster._broker, "other")
    other.send(Partition(OUT, 1), b"k", b"theirs")
    world.cluster.clock.call_later(3.0, other.commit)
    world.unfinished.settle(OWN)
    world.network.without = {OUT}
    world.send(b"aborted", commit=False)
    with pytest.raises(KafkaFailed, match=r"A transaction stays open on out\[0\]") as stopped:
        world.unfinished.settle(OWN)
    assert "kafka-transactions.sh describe-producers --topic out --partition 0" in stopped.value.action


def test_a_topic_that_may_not_be_described_is_told_with_its_rule(world, monkeypatch):
    def refuse(*of: object, **named: object) -> None:
        raise AccessRefused("User:orders may not describe topic out.", action="Add this rule: ...")

    monkeypatch.setattr("holdfast.processors.engine.runtime.ownership.unfinished.open_transactions", refuse)
    with pytest.raises(AccessRefused, match="may not describe topic out"):
        world.unfinished.settle(OWN)
