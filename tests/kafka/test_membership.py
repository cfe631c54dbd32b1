"""Being a member: where reading begins, cooperative rebalances, and commits of who is no member any more."""

import threading

import pytest

from holdfast import Application
from holdfast.infra.kafka.consumer import GroupConsumer
from holdfast.infra.kafka.errors import MembershipLost
from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import load_settings
from holdfast.processors.application import ApplicationInvalid
from holdfast.processors.testing import InlineProcess, InMemoryCluster

COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 6000}


def test_where_reading_began_is_pinned_before_the_first_message(stream, waiting):
    """With "latest", what comes while a processor is down must not be skipped: not even before its first message."""
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
    """Kafka takes offsets without a generation while the group is empty: nothing would fence a forgotten member."""
    consumer = GroupConsumer(broker, unique("stranger"))
    try:
        with pytest.raises(MembershipLost):
            consumer.group_metadata()
        with pytest.raises(MembershipLost):
            consumer.commit({Partition("any", 0): 1})
    finally:
        consumer.close()
