"""Topics: their description, creation and id."""

from __future__ import annotations

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition, TopicSpec
from tests.contract.bench import Bench, send


def test_a_topic_is_created_once(bench: Bench) -> None:
    name, topics = bench.name("contract"), bench.cluster.topics()
    assert topics.create(TopicSpec(name, 2, 1))
    assert not topics.create(TopicSpec(name, 3, 1))
    bench.wait_for(lambda: name in topics.describe([name]), "the topic's facts")
    facts = topics.describe([name])[name]
    assert (facts.name, facts.partitions, facts.replication) == (name, 2, 1)


def test_a_topic_that_is_not_there_has_no_facts(bench: Bench) -> None:
    name, absent = bench.topic(), bench.name("absent")
    assert bench.cluster.topics().describe([name, absent]).keys() == {name}
    assert bench.cluster.topics().describe([absent]) == {}


def test_config_is_set_at_creation_and_altered_entry_by_entry(bench: Bench) -> None:
    name = bench.topic(**{"cleanup.policy": "compact", "retention.ms": "7000"})
    topics = bench.cluster.topics()
    topics.alter(name, {"retention.ms": "9000"})

    def config() -> tuple[str | None, str | None]:
        found = topics.describe([name])[name].config
        return found.get("cleanup.policy"), found.get("retention.ms")

    bench.wait_for(lambda: config() == ("compact", "9000"), "the altered config")


def test_a_topic_that_is_made_again_is_another_one(bench: Bench) -> None:
    name, topics = bench.topic(), bench.cluster.topics()
    send(bench.producer(), Partition(name, 0), [b"gone with it"])
    former = topics.describe([name])[name].topic_id
    bench.delete_topic(name)
    bench.wait_for(lambda: name not in topics.describe([name]), "the topic to be gone")

    def created() -> bool:
        try:
            return topics.create(TopicSpec(name, 1, 1))
        except KafkaFailed:  # the broker has not finished the topic's deletion yet
            return False

    bench.wait_for(created, "the topic to be made again")
    bench.wait_for(lambda: name in topics.describe([name]), "the new topic's facts")
    assert topics.describe([name])[name].topic_id != former
    bench.wait_settled(name, {0: 0})
    assert topics.start_offsets(name) == {0: 0}


def test_a_group_has_no_offsets_of_a_topic_that_was_deleted(bench: Bench) -> None:
    name, group, topics = bench.topic(), bench.name("group"), bench.cluster.topics()
    place = Partition(name, 0)
    reader = bench.joined(group, name)
    reader.member.commit({place: 0})
    reader.member.close()
    bench.delete_topic(name)
    bench.wait_for(lambda: name not in topics.describe([name]), "the topic to be gone")
    asking = bench.reader(group)

    def nothing() -> bool:
        try:
            return asking.member.committed([place]) == {place: None}
        except KafkaFailed:  # the partition no longer exists, so its committed offset is gone, too
            return True

    bench.wait_for(nothing, "the offset to be gone")


def test_brokers_answer(bench: Bench) -> None:
    assert bench.cluster.topics().ping() == 1
