"""Partitions that are started one after the other all deliver records.

Starting one partition must not pause and resume others, because that would interrupt their fetches.
"""

import pytest

from holdfast.infra.kafka.clients.consumer import GroupConsumer
from holdfast.infra.kafka.records import Partition
from tests.mechanics.tiers import variants

STARTS = {"assign", "incremental_assign"}
OVERTAKES = {"pause", "resume"}


class Recorded:
    """Wraps the client library's consumer and records its calls with their partitions and results."""

    def __init__(self, consumer):
        self._consumer = consumer
        self.calls = []

    def __getattr__(self, name):
        real = getattr(self._consumer, name)
        if name not in STARTS | OVERTAKES:
            return real

        def call(places):
            self.calls.append((name, {(place.topic, place.partition) for place in places}))
            return real(places)

        return call

    def consume(self, *arguments):
        messages = self._consumer.consume(*arguments)
        came = {(message.topic(), message.partition()) for message in messages if message.error() is None}
        self.calls.append(("records", came))
        return messages


@pytest.mark.parametrize("strategy", variants(["range", "cooperative-sticky"]))
def test_a_partition_is_neither_paused_nor_resumed_between_its_start_and_its_first_record(
    broker, unique, stream_class, waiting, tmp_path, strategy
):
    stream = stream_class(broker, unique("begin"), tmp_path / "state", partitions=3)
    stream.create_source()
    stream.feed([(b"k%d" % number, b"1") for number in range(300)])
    places = [Partition(stream.source, number) for number in range(3)]
    assigned, seen = [], dict.fromkeys(places, 0)

    def poll():
        for batch in member.poll(500, 0.05):
            seen[batch.partition] += len(batch.offsets)
        return sum(seen.values()) == 300

    member = GroupConsumer(broker, stream.group, config={"partition.assignment.strategy": strategy})
    recorded = member._consumer = Recorded(member._consumer)
    try:
        member.subscribe([stream.source], assigned.extend, lambda _: None, lambda _: None)
        waiting(lambda: member.poll(1, 0.05) or len(assigned) == 3, "the assignment")
        for place in places:
            member.seek(place, 0)
            member.resume([place])
        waiting(poll, "all records of all partitions")
        member.pause(places)
        member.resume(places)
    finally:
        member.close()
    starting = set()
    for name, of in recorded.calls:
        if name in STARTS:
            starting |= of
        elif name in OVERTAKES:
            assert not starting & of, recorded.calls
        else:
            starting -= of
    assert {name for name, of in recorded.calls if of} >= {"pause", "resume", "records"}
