"""Topics that are recreated or truncated behind a processor's back: it stops with an error and changes nothing."""

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.state.errors import StateIncoherent
from tests.kafka.faults.verification import stored_counts
from tests.mechanics.tiers import variants


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker})


@pytest.fixture
def counted(stream):
    """A stream whose first 100 messages were counted."""
    stream.feed_numbers(100)
    stream.application(slot="0").run(count=100, timeout=60)
    return stream


@pytest.mark.parametrize("cold", variants([pytest.param(True, id="cold"), pytest.param(False, id="warm")]))
def test_a_source_that_was_made_anew_is_refused_though_its_offsets_fit(counted, waiting, cold):
    topics = counted.topics
    topics.delete(counted.source)
    waiting(lambda: not topics.describe([counted.source]), "the source to be gone")
    waiting(lambda: topics.create(TopicSpec(counted.source, counted.partitions, 1)), "the source to be made anew")
    counted.feed_numbers(400)
    if cold:
        counted.delete_local_state()
    with pytest.raises((StateIncoherent, KafkaFailed), match="was recreated|offsets were reset"):
        counted.application(slot="0").run(count=1, timeout=60)
    assert sum(counted.counts().values()) == 100


def test_a_source_that_lost_what_was_not_read_yet_is_refused(counted, admin):
    counted.feed_numbers(100)
    ends = counted.topics.end_offsets(counted.source, committed=False)
    asked = admin.delete_records([TopicPartition(counted.source, number, end) for number, end in ends.items()])
    for future in asked.values():
        future.result(30)
    with pytest.raises(StateIncoherent, match="records are gone"):
        counted.application(slot="0").run(count=1, timeout=60)


def test_a_changelog_that_lost_its_head_is_refused_by_a_cold_store_and_fine_for_a_warm_one(counted, admin):
    changelog = changelog_topic(counted.group, "counts")
    counted.topics.alter(changelog, {"cleanup.policy": "delete"})
    asked = admin.delete_records([TopicPartition(changelog, number, 2) for number in range(counted.partitions)])
    for future in asked.values():
        future.result(30)
    counted.topics.alter(changelog, {"cleanup.policy": "compact"})
    counted.feed_numbers(100)
    counted.application(slot="0").run(count=100, timeout=60)
    assert stored_counts(counted.state_dir) == {b"k%d" % number: 20 for number in range(10)}
    counted.delete_local_state()
    with pytest.raises(StateIncoherent, match="the changelog was truncated"):
        counted.application(slot="0").run(count=1, timeout=60)
