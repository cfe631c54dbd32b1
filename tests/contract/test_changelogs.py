"""Replays of changelogs: where the end of a changelog is, and which position the replayer reports."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from tests.contract.bench import Bench, send


def test_the_end_is_the_last_stable_offset_never_the_high_watermark(bench: Bench) -> None:
    place = Partition(bench.topic(**{"cleanup.policy": "compact"}), 0)
    own, foreign = bench.producer(bench.name("id")), bench.producer(bench.name("id"))
    own.begin()
    own.produce(place.topic, b"1", b"a", partition=0)
    own.flush(60)
    own.commit()
    bench.wait_settled(place.topic, {0: 2})
    foreign.begin()
    foreign.produce(place.topic, b"2", b"a", partition=0)
    foreign.flush(60)
    assert bench.ends(place.topic) == ({0: 2}, {0: 3})
    records, end, position = bench.replay(place)
    assert [record.value for record in records] == [b"1"]
    assert (end, position) == (2, 2)
    foreign.commit()
    bench.wait_settled(place.topic, {0: 4})
    records, end, position = bench.replay(place)
    assert [record.value for record in records] == [b"1", b"2"]
    assert (end, position) == (4, 4)


def test_the_position_after_commit_markers_counts_them(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    for number in range(3):
        producer.begin()
        send(producer, place, [b"%d" % number])
        producer.commit()
    bench.wait_settled(place.topic, {0: 6})
    assert bench.replay(place)[1:] == (6, 6)


def test_a_replay_begins_anywhere_up_to_the_end(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    send(producer, place, [b"0", b"1"])
    producer.commit()
    bench.wait_settled(place.topic, {0: 3})
    assert [[record.offset for record in bench.replay(place, start)[0]] for start in range(4)] == [[0, 1], [1], [], []]
    assert [bench.replay(place, start)[1] for start in range(4)] == [3, 3, 3, 3]


def test_a_partition_that_was_dropped_is_read_again_when_it_is_assigned_again(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    send(producer, place, [b"0", b"1"])
    producer.commit()
    bench.wait_settled(place.topic, {0: 3})
    replayer = bench.replayer()

    def read(seen: list[int]) -> bool:
        seen.extend(offset for batch in replayer.poll(10, 0.1)[0] for offset in batch.offsets)
        return len(seen) >= 2

    for _ in range(2):
        offsets: list[int] = []
        replayer.assign({place: 0})
        bench.wait_for(partial(read, offsets), "both records")
        assert offsets == [0, 1]
        replayer.drop([place])
        assert replayer.poll(10, 0.1)[0] == []


def test_an_assignment_has_no_position_of_the_one_before(bench: Bench) -> None:
    """A new assignment starts without a position. With the former position, a restore would skip records."""
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    send(producer, place, [b"0", b"1", b"2"])
    producer.commit()
    bench.wait_settled(place.topic, {0: 4})
    replayer = bench.replayer()

    def read(seen: list[int]) -> bool:
        seen.extend(offset for batch in replayer.poll(10, 0.0)[0] for offset in batch.offsets)
        return replayer.positions([place]).get(place, 0) >= 3

    # Repeat the test, because the former position is reported only until the client library has ended the former fetch.
    for _ in range(20):
        offsets: list[int] = []
        replayer.assign({place: 0})
        assert replayer.positions([place]) == {}
        bench.wait_for(partial(read, offsets), "the position behind the last record")
        assert offsets == [0, 1, 2]


def test_an_empty_changelog_has_its_end_at_its_start(bench: Bench) -> None:
    records, end, position = bench.replay(Partition(bench.topic(), 0))
    assert (records, end, position) == ([], 0, None)


def test_a_changelog_of_aborted_records_only_has_an_end(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    send(producer, place, [b"0", b"1"])
    producer.abort()
    bench.wait_settled(place.topic, {0: 3})
    records, end, _ = bench.replay(place)
    assert (records, end) == ([], 3)


def test_what_is_written_after_the_end_was_met_is_read_on(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    replayer = bench.replayer()
    replayer.assign({place: 0})
    bench.wait_for(lambda: place in replayer.poll(100, 0.05)[1], "the end of nothing")
    producer.begin()
    send(producer, place, [b"0"])
    producer.commit()
    values: list[bytes | None] = []
    ends: list[int] = []

    def at_the_new_end() -> bool:
        batches, met = replayer.poll(100, 0.05)
        values.extend(value for batch in batches for value in batch.values)
        ends.extend(met.values())
        return bool(ends) and ends[-1] == 2

    bench.wait_for(at_the_new_end, "the new end")
    assert values == [b"0"]


def test_a_new_assignment_replaces_the_former(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    first, second = Partition(topic, 0), Partition(topic, 1)
    producer = bench.producer()
    replayer = bench.replayer()
    replayer.assign({first: 0})
    bench.wait_for(lambda: first in replayer.poll(100, 0.05)[1], "the first end")
    replayer.assign({second: 0})
    bench.wait_for(lambda: second in replayer.poll(100, 0.05)[1], "the second end")
    send(producer, first, [b"first"])
    send(producer, second, [b"second"])
    values: list[bytes | None] = []

    def read() -> bool:
        values.extend(value for batch in replayer.poll(100, 0.05)[0] for value in batch.values)
        return b"second" in values

    bench.wait_for(read, "the record of the second")
    assert values == [b"second"]


def test_a_position_beyond_the_changelog_is_refused(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    send(bench.producer(), place, [b"0"])
    with pytest.raises(KafkaFailed):
        bench.replay(place, 5)
