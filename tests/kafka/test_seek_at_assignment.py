"""Reading starts at the offset that the engine sets, even if an offset request of the client library is still open."""

import os
import signal
import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.infra.kafka.clients.consumer import GroupConsumer
from holdfast.infra.kafka.records import Partition

PARTITIONS = 4
SESSION_MS = 30_000


@pytest.mark.thorough
@pytest.mark.parametrize(
    "log_start",
    [pytest.param(150, id="behind deleted records"), pytest.param(0, id="from the first record")],
)
def test_a_seek_right_after_the_assignment_holds_though_the_broker_answers_late(
    own_broker, tmp_path, unique, stream_class, waiting, log_start
):
    """The broker freezes at the assignment. So it answers the client library's offset requests only after the seek."""
    stream = stream_class(own_broker.address.bootstrap, unique("seek"), tmp_path / "state", partitions=PARTITIONS)
    stream.create_source()
    stream.feed([(b"k%d" % number, b"1") for number in range(2_000)])
    places = [Partition(stream.source, number) for number in range(PARTITIONS)]
    if log_start:
        gone = [TopicPartition(stream.source, place.number, log_start) for place in places]
        admin = AdminClient({"bootstrap.servers": own_broker.address.bootstrap})
        for future in admin.delete_records(gone).values():
            future.result(30)
    ends = stream.topics.end_offsets(stream.source, committed=True)
    assigned, seen = [], {place: [] for place in places}

    def freeze(partitions):
        os.kill(own_broker.address.pid, signal.SIGSTOP)
        assigned.extend(partitions)

    def poll():
        for batch in member.poll(500, 0.05):
            seen[batch.partition] += batch.offsets
        return all(offsets and offsets[-1] >= ends[place.number] - 1 for place, offsets in seen.items())

    member = GroupConsumer(own_broker.address.bootstrap, stream.group, config={"session.timeout.ms": SESSION_MS})
    try:
        member.subscribe([stream.source], freeze, lambda _: None, lambda _: None)
        waiting(lambda: member.poll(1, 0.05) or assigned, "the assignment")
        wanted = {place: 200 + 10 * place.number for place in places}
        for place, offset in wanted.items():
            member.seek(place, offset)
        member.resume(places)
        os.kill(own_broker.address.pid, signal.SIGCONT)
        # A late answer can move a partition's position up to half a second after its first records, so poll for longer
        # than that.
        waiting(poll, "every partition to be read to its end")
        fed = {place: ends[place.number] for place in places}
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            stream.feed([(b"k%d" % number, b"1") for number in range(100)])
            poll()
        ends = stream.topics.end_offsets(stream.source, committed=True)
        waiting(poll, "what was fed since to be read")
        assert all(ends[place.number] > end for place, end in fed.items())
        assert seen == {place: list(range(offset, ends[place.number])) for place, offset in wanted.items()}
    finally:
        os.kill(own_broker.address.pid, signal.SIGCONT)
        member.close()
