"""The verifier of the fault tests finds each kind of error: a lost message, a repeated output, wrong state."""

import pytest
from confluent_kafka import Producer

from holdfast.processors.engine.changelog.format import encode_value, key_prefix
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.rocksdb import RocksDatabases
from tests.kafka.faults.dying_worker import count_and_name
from tests.kafka.faults.verification import verify, verify_at_least_once
from tests.mechanics.tiers import variants

#: The key under which the store keeps the count of message key k1.
PLACE = key_prefix(b"k1") + b"n"


def send(stream, topic, value, key, partition):
    producer = Producer({"bootstrap.servers": stream.bootstrap, "partitioner": "murmur2_random"})
    producer.produce(topic, value, key, partition)
    assert producer.flush(30) == 0


def lose_a_message(stream):
    stream.feed([(b"k1", b"1")])


def repeat_an_output(stream):
    send(stream, stream.sink, b"10", b"k1", -1)


def change_the_changelog(stream):
    send(stream, changelog_topic(stream.group, "counts"), encode_value(11, 0), PLACE, 1)


def change_the_database(stream, count=9):
    for folder in (stream.state_dir / stream.group / "0").glob("*-[0-9]"):
        database = RocksDatabases().open(folder)
        database.write([(store_prefix("counts") + PLACE, encode_value(count, 0))])
        database.close()


def lose_an_output(stream):
    """Change changelog and database as if one more message had been counted, but send no output for it."""
    lose_a_message(stream)
    change_the_changelog(stream)
    change_the_database(stream, 11)


@pytest.mark.parametrize(
    "wrong", variants([lose_a_message, repeat_an_output, change_the_changelog, change_the_database])
)
def test_the_verifier_finds(stream, wrong):
    stream.feed_numbers(100)
    stream.application(slot="0").run(count=100, timeout=60)
    verify(stream, stream.state_dir)
    wrong(stream)
    with pytest.raises(AssertionError):
        verify(stream, stream.state_dir)


@pytest.mark.parametrize("wrong", variants([lose_an_output, lose_a_message, change_the_changelog, change_the_database]))
def test_the_verifier_of_at_least_once_finds(stream, wrong):
    stream.feed_numbers(100)
    stream.options["processing_guarantee"] = "at-least-once"
    stream.application(count_and_name, slot="0").run(count=100, timeout=60)
    verify_at_least_once(stream, stream.state_dir, repeated_max=0)
    wrong(stream)
    with pytest.raises(AssertionError, match="never lost" if wrong is lose_an_output else None):
        verify_at_least_once(stream, stream.state_dir, repeated_max=10)
