"""Group membership: where reading starts, cooperative rebalances, and commits of a consumer that is not a member."""

import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from holdfast import Application
from holdfast.infra.kafka.clients.consumer import GroupConsumer
from holdfast.infra.kafka.errors import MembershipLost
from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import load_settings
from holdfast.processors.application.application import ApplicationInvalid
from holdfast.processors.testing import InlineProcess, InMemoryCluster

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 6000}


def test_where_reading_began_is_pinned_before_the_first_message(stream, waiting):
    """The start of reading is committed before the first message.

    With "latest", a message that arrives while a processor is down is not skipped, even if it is the processor's first
    message.
    """
    stream.feed_numbers(100)
    app = stream.application(auto_offset_reset="latest")
    running = threading.Thread(target=app.run)
    running.start()
    start = {
        Partition(stream.source, number): end
        for number, end in stream.topics.end_offsets(stream.source, committed=False).items()
    }
    waiting(lambda: stream.topics.committed_offsets(stream.group) == start, "the start to be pinned")
    app.stop()
    running.join(60)
    assert not running.is_alive()
    stream.feed_numbers(50)
    stream.application(auto_offset_reset="latest").run(count=50, timeout=30)
    assert sum(stream.counts().values()) == 50


def test_the_first_messages_of_an_added_partition_are_processed_with_latest(stream, waiting):
    stream.feed_numbers(100)
    app = Application(
        stream.bootstrap,
        consumer_group=stream.group,
        auto_offset_reset="latest",
        commit_interval=0.1,
        consumer_extra_config={"topic.metadata.refresh.interval.ms": 500},
        loglevel=None,
    )
    app.dataframe(app.topic(stream.source)).to_topic(app.topic(stream.sink))
    running = threading.Thread(target=app.run)
    running.start()
    waiting(lambda: len(stream.topics.committed_offsets(stream.group)) == 2, "the start to be pinned")
    admin = AdminClient({"bootstrap.servers": stream.bootstrap})
    for made in admin.create_partitions([NewPartitions(stream.source, 3)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": stream.bootstrap})
    for number in range(20):  # this message is sent before the worker knows of the added partition
        producer.produce(stream.source, b"%d" % number, b"k", partition=2)
    assert producer.flush(30) == 0
    waiting(lambda: stream.topics.committed_offsets(stream.group).get(Partition(stream.source, 2)) == 20, "all of it")
    app.stop()
    running.join(60)
    assert sorted(int(record.value) for record in stream.read(stream.sink)) == list(range(20))


@pytest.mark.thorough
def test_partitions_move_cooperatively_without_loss(stream, waiting):
    apps = [stream.application(consumer_extra_config=COOPERATIVE, slot=str(number)) for number in range(2)]
    threads = [threading.Thread(target=app.run) for app in apps]
    try:
        stream.feed_numbers(1000)
        threads[0].start()
        waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == 1000, "the first thousand")
        threads[1].start()
        waiting(lambda: stream.topics.members(stream.group) == 2, "two members")
        stream.feed_numbers(1000)
        waiting(lambda: sum(stream.topics.committed_offsets(stream.group).values()) == 2000, "the second thousand")
    finally:
        for app in apps:
            app.stop()
        for thread in threads:
            thread.join(60)
    expected = {b"k%d" % number: 200 for number in range(10)}
    assert stream.counts() == expected
    stream.outputs_are_exact(expected)


def test_cooperative_rebalances_are_refused_where_inputs_share_a_store(tmp_path):
    app = Application("x", consumer_group="shared", consumer_extra_config=COOPERATIVE, loglevel=None)
    for name in ("left", "right"):
        app.dataframe(app.topic(name)).apply(lambda value, state: value, stateful=True, store="both")
    cluster = InMemoryCluster()
    with pytest.raises(ApplicationInvalid, match="cooperative-sticky assigns them separately"):
        app.run_on(cluster.connect(InlineProcess(cluster.clock)), load_settings(home=tmp_path), count=1)


def test_who_is_no_member_commits_nothing(broker, unique):
    """A consumer that is not a group member commits nothing.

    If a group has no members, Kafka accepts offsets without the group's generation number. So Kafka would not fence a
    former member.
    """
    consumer = GroupConsumer(broker, unique("stranger"))
    try:
        with pytest.raises(MembershipLost):
            consumer.group_metadata()
        with pytest.raises(MembershipLost):
            consumer.commit({Partition("any", 0): 1})
    finally:
        consumer.close()
