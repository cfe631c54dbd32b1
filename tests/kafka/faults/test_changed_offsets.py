"""A worker refuses to start on group offsets that somebody changed, and touches nothing until they are restored."""

import re

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.processors.engine.state.errors import StateIncoherent
from tests.kafka.faults.verification import finish, verify
from tests.mechanics.tiers import variants


@pytest.fixture
def offsets(broker, stream):
    """Count 100 messages and feed 100 more.

    Returns a function that sets the group's offsets, or deletes them for None.
    """
    admin = AdminClient({"bootstrap.servers": broker})
    stream.feed_numbers(100)
    stream.application(slot="0").run(count=100, timeout=60)
    stream.feed_numbers(100)

    def change(by_partition):
        if by_partition is None:
            answers = admin.delete_consumer_groups([stream.group])
        else:
            places = [TopicPartition(stream.source, number, offset) for number, offset in by_partition.items()]
            answers = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(stream.group, places)])
        for answer in answers.values():
            answer.result(30)

    return change


OFFSETS = "offsets? of"
CHANGES = {
    "all back to the start": (lambda held: dict.fromkeys(held, 0), "the offsets were reset", OFFSETS),
    "one a little back": (lambda held: {1: held[1] - 1}, "the offsets were reset", OFFSETS),
    "one a little on": (lambda held: {0: held[0] + 1}, "its changelog lost records", "--store counts --from topic"),
    "expired": (lambda held: None, "committed offset is none", OFFSETS),
}


@pytest.mark.parametrize("cold", variants([pytest.param(False, id="warm"), pytest.param(True, id="cold")]))
@pytest.mark.parametrize("change", variants(CHANGES))
def test_changed_offsets_are_refused_until_they_are_set_right(stream, offsets, waiting, change, cold):
    held = {place.number: offset for place, offset in stream.topics.committed_offsets(stream.group).items()}
    changed, said, action = CHANGES[change]
    offsets(changed(held))
    if cold:
        stream.delete_local_state()
    with pytest.raises(StateIncoherent, match=said) as refused:
        stream.application(slot="0").run(count=1, timeout=60)
    assert sum(stream.counts().values()) == 100
    assert refused.value.exit_code == 64
    assert re.search(action, refused.value.action)
    offsets(held)
    finish(stream, waiting, slot="0")
    verify(stream, stream.state_dir)
