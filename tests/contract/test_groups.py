"""Consumer groups: assignment, rebalance callbacks, the offset where reading starts, and which commits succeed."""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.errors import KafkaFailed, MembershipLost, TransactionAborted
from holdfast.infra.kafka.records import NotedOffset, Partition
from tests.contract.bench import Bench, Reader, send

IDLE_POLLS = 20


def test_what_is_assigned_is_paused_until_it_is_sought_and_resumed(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    send(bench.producer(), place, [b"0", b"1", b"2"])
    reader = bench.joined(bench.name("group"), place.topic)
    assert reader.told == [("assign", (place,))]
    assert [reader.poll() for _ in range(IDLE_POLLS)] == [[]] * IDLE_POLLS
    reader.flow_from(place, 1)
    bench.wait_for(lambda: reader.poll() and len(reader.read) == 2, "the records")
    assert [(where, record.offset) for where, record in reader.read] == [(place, 1), (place, 2)]


def test_a_member_reads_committed_records_only(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer, foreign = bench.producer(bench.name("id")), bench.producer(bench.name("id"))
    for value, end in ((b"aborted", producer.abort), (b"committed", producer.commit)):
        producer.begin()
        send(producer, place, [value])
        end()
    bench.wait_settled(place.topic, {0: 4})
    foreign.begin()
    send(foreign, place, [b"open"])
    reader = bench.joined(bench.name("group"), place.topic)
    reader.flow_from(place, 0)
    bench.wait_for(lambda: reader.poll() or reader.read, "the committed record")
    assert [reader.poll() for _ in range(IDLE_POLLS)] == [[]] * IDLE_POLLS
    assert [(record.value, record.offset) for _, record in reader.read] == [(b"committed", 2)]
    assert reader.member.high_watermark(place) == 5
    foreign.commit()
    bench.wait_for(lambda: reader.poll() or len(reader.read) == 2, "the foreign record")
    assert reader.values == [b"committed", b"open"]


def test_a_partition_is_ended_behind_markers_and_not_before_an_open_transaction(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer, foreign = bench.producer(bench.name("id")), bench.producer(bench.name("id"))
    reader = bench.joined(bench.name("group"), place.topic)
    assert not reader.member.is_ended(place)
    reader.flow_from(place, 0)
    bench.wait_for(lambda: reader.poll() or reader.member.is_ended(place), "the end of an empty partition")
    producer.begin()
    send(producer, place, [b"committed"])
    producer.commit()
    bench.wait_settled(place.topic, {0: 2})
    bench.wait_for(lambda: reader.poll() or reader.read, "the record")
    assert reader.member.without_records(place, 0) is None
    bench.wait_for(lambda: reader.poll() or reader.member.is_ended(place), "the end behind the marker")
    assert reader.member.without_records(place, 0) is None
    assert reader.member.without_records(place, 1) == 2
    foreign.begin()
    send(foreign, place, [b"open"])
    bench.wait_for(lambda: reader.poll() or not reader.member.is_ended(place), "the open transaction")
    assert [reader.poll() for _ in range(IDLE_POLLS)] == [[]] * IDLE_POLLS
    assert not reader.member.is_ended(place)
    assert reader.member.without_records(place, 1) == 2
    foreign.abort()
    bench.wait_for(lambda: reader.poll() or reader.member.is_ended(place), "the end behind the aborted record")
    assert reader.member.without_records(place, 1) == 4
    assert reader.values == [b"committed"]
    reader.member.pause([place])
    reader.poll()
    reader.member.resume([place])
    bench.wait_for(lambda: reader.poll() or reader.member.is_ended(place), "the end after a pause")
    reader.member.seek(place, 0)
    bench.wait_for(lambda: reader.poll() or reader.values == [b"committed"] * 2, "the record again")
    bench.wait_for(lambda: reader.poll() or reader.member.is_ended(place), "the end after a seek")


def test_the_end_of_the_last_fetch_stays_over_a_pause_and_counts_no_more(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    place, other = Partition(topic, 0), Partition(topic, 1)
    producer = bench.producer()
    send(producer, place, [b"0"])
    reader = bench.joined(bench.name("group"), topic, partitions=2)
    reader.flow_from(place, 0)
    reader.flow_from(other, 0)
    bench.wait_for(lambda: reader.poll() or reader.member.is_ended(place), "the end")
    reader.member.pause([place])
    assert not reader.member.is_ended(place)
    # Poll for so long that the broker has answered all fetch requests that were sent before the pause.
    assert [reader.poll() for _ in range(IDLE_POLLS)] == [[]] * IDLE_POLLS
    send(producer, place, [b"1"])
    send(producer, other, [b"2"])
    bench.wait_for(lambda: reader.poll() and len(reader.read) == 2, "the record of the other partition")
    assert reader.member.high_watermark(place) == 1
    assert not reader.member.is_ended(place)
    reader.member.resume([place])
    assert not reader.member.is_ended(place)

    def is_read() -> bool:
        reader.poll()
        return reader.member.is_ended(place)

    bench.wait_for(is_read, "the end behind the record")
    assert reader.values == [b"0", b"2", b"1"]
    for offset in (2, 1, 0):
        reader.member.seek(place, offset)
        assert not reader.member.is_ended(place)
        bench.wait_for(is_read, f"the end after a seek to {offset}")


def test_no_more_records_than_asked_for(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    send(bench.producer(), place, [b"%d" % number for number in range(10)])
    reader = bench.joined(bench.name("group"), place.topic)
    reader.flow_from(place, 0)
    sizes: list[int] = []
    offsets: list[int] = []

    def all_read() -> bool:
        for batch in reader.member.poll(3, 0.05):
            sizes.append(len(batch.offsets))
            offsets.extend(batch.offsets)
        return len(offsets) == 10

    bench.wait_for(all_read, "all records")
    assert offsets == list(range(10))
    assert max(sizes) <= 3


def test_a_paused_partition_keeps_its_place(bench: Bench) -> None:
    topic = bench.topic(partitions=2)
    first, second = Partition(topic, 0), Partition(topic, 1)
    producer = bench.producer()
    send(producer, first, [b"first 0"])
    reader = bench.joined(bench.name("group"), topic, partitions=2)
    for place in (first, second):
        reader.flow_from(place, 0)
    bench.wait_for(lambda: reader.poll() and reader.read, "the first record")
    reader.member.pause([first])
    send(producer, first, [b"first 1"])
    send(producer, second, [b"second 0"])
    bench.wait_for(lambda: reader.poll() and b"second 0" in reader.values, "the other partition's record")
    assert [reader.poll() for _ in range(IDLE_POLLS)] == [[]] * IDLE_POLLS
    assert reader.values == [b"first 0", b"second 0"]
    reader.member.resume([first])
    bench.wait_for(lambda: reader.poll() and len(reader.read) == 3, "the record behind the pause")
    assert reader.values[-1] == b"first 1"


def test_seeking_back_reads_again(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    send(bench.producer(), place, [b"0", b"1"])
    reader = bench.joined(bench.name("group"), place.topic)
    reader.flow_from(place, 0)
    bench.wait_for(lambda: reader.poll() and len(reader.read) == 2, "the records")
    reader.member.seek(place, 1)
    bench.wait_for(lambda: reader.poll() and len(reader.read) == 3, "the record again")
    assert reader.values == [b"0", b"1", b"1"]


@pytest.mark.parametrize("offset", [3, 1000])
def test_a_place_beyond_the_log_is_refused_never_reset(bench: Bench, offset: int) -> None:
    place = Partition(bench.topic(), 0)
    send(bench.producer(), place, [b"0", b"1"])
    reader = bench.joined(bench.name("group"), place.topic)
    reader.flow_from(place, offset)
    with pytest.raises(KafkaFailed):
        bench.wait_for(reader.poll, "the refusal")
    assert reader.read == []


def test_the_end_of_the_log_is_a_place(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer()
    send(producer, place, [b"0"])
    reader = bench.joined(bench.name("group"), place.topic)
    reader.flow_from(place, 1)
    assert [reader.poll() for _ in range(IDLE_POLLS)] == [[]] * IDLE_POLLS
    send(producer, place, [b"1"])
    bench.wait_for(lambda: reader.poll() and reader.read, "the new record")
    assert reader.values == [b"1"]


def test_there_is_no_generation_before_the_first_join(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    reader = bench.reader(bench.name("group"))
    with pytest.raises(MembershipLost):
        reader.member.group_metadata()
    reader.subscribe(place.topic)
    with pytest.raises(MembershipLost):
        reader.member.group_metadata()
    with pytest.raises(MembershipLost):
        reader.member.commit({place: 1})
    bench.wait_for(lambda: reader.poll() or reader.owned, "the first assignment")
    reader.member.group_metadata()
    assert reader.member.committed([place]) == {place: None}


def shared(bench: Bench, first: Reader, second: Reader, partitions: int) -> None:
    """Poll both members until each owns half of the partitions."""

    def done() -> bool:
        first.poll()
        second.poll()
        sizes = {len(first.owned), len(second.owned)}
        return sizes == {partitions // 2} and not first.owned & second.owned

    bench.wait_for(done, "both members to have their share")


def test_a_second_member_takes_over_what_the_first_has_let_go(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    both = (Partition(topic, 0), Partition(topic, 1))
    first = bench.joined(group, topic, partitions=2)
    second = bench.reader(group).subscribe(topic)
    shared(bench, first, second, 2)
    assert first.told[:2] == [("assign", both), ("revoke", both)]
    assert [what for what, _ in first.told] == ["assign", "revoke", "assign"]
    assert [what for what, _ in second.told] == ["assign"]
    assert sorted(first.told[2][1] + second.told[0][1]) == sorted(both)


def test_what_comes_back_is_paused_again(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    producer = bench.producer()
    first = bench.joined(group, topic, partitions=2)
    for place in first.owned:
        first.flow_from(place, 0)
    second = bench.reader(group).subscribe(topic)
    shared(bench, first, second, 2)
    kept = next(iter(first.owned))
    send(producer, kept, [b"1"])
    assert [first.poll() for _ in range(IDLE_POLLS)] == [[]] * IDLE_POLLS
    first.flow_from(kept, 0)
    bench.wait_for(lambda: first.poll() and first.read, "the record")


def test_a_member_that_leaves_gives_its_partitions_to_the_other(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    first = bench.joined(group, topic, partitions=2)
    second = bench.reader(group).subscribe(topic)
    shared(bench, first, second, 2)
    last = tuple(first.owned)
    first.member.close()
    assert first.told[-1] == ("revoke", last)
    bench.wait_for(lambda: second.poll() or len(second.owned) == 2, "the second member to own all")
    assert second.times("lost") == 0


def test_offsets_are_committed_outside_of_transactions(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    places = [Partition(topic, 0), Partition(topic, 1)]
    reader = bench.joined(group, topic, partitions=2)
    reader.member.commit({places[0]: 5})
    assert reader.member.committed(places) == {places[0]: 5, places[1]: None}
    reader.member.commit({places[0]: 4})
    reader.member.close()
    assert bench.joined(group, topic, partitions=2).member.committed(places) == {places[0]: 4, places[1]: None}


def test_the_committed_offsets_of_a_group_are_told(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    reader = bench.joined(group, topic, partitions=2)
    assert bench.cluster.topics().committed_offsets(group) == {}
    reader.member.commit({Partition(topic, 1): 3})
    assert bench.cluster.topics().committed_offsets(group) == {Partition(topic, 1): 3}


def test_offsets_of_a_transaction_count_once_it_is_committed(bench: Bench) -> None:
    place, group = Partition(bench.topic(), 0), bench.name("group")
    reader, producer = bench.joined(group, place.topic), bench.producer(bench.name("id"))
    for value, offset in ((b"1", 10), (b"2", 11)):
        producer.begin()
        send(producer, place, [value])
        producer.send_offsets({place: offset}, reader.member.group_metadata())
        producer.commit()
        assert reader.member.committed([place]) == {place: offset}


def test_a_note_stays_beside_an_offset_until_the_next_commit(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    place, other = Partition(topic, 0), Partition(topic, 1)
    reader, producer = bench.joined(group, topic, partitions=2), bench.producer(bench.name("id"))

    def notes() -> list[str | None]:
        found = reader.member.committed([place, other])
        return [getattr(offset, "note", None) for offset in (found[place], found[other])]

    for sent, seen in (
        ({place: NotedOffset(3, '{"time":"ä"}'), other: 4}, ['{"time":"ä"}', None]),
        ({place: NotedOffset(3, "x" * 2_000)}, ["x" * 2_000, None]),
        ({place: 3}, [None, None]),
    ):
        producer.begin()
        producer.send_offsets(sent, reader.member.group_metadata())
        producer.commit()
        assert reader.member.committed([place, other]) == {place: 3, other: 4}
        assert notes() == seen
    assert bench.cluster.topics().committed_offsets(group) == {place: 3, other: 4}


def test_offsets_of_an_aborted_transaction_never_count(bench: Bench) -> None:
    place, group = Partition(bench.topic(), 0), bench.name("group")
    reader, producer = bench.joined(group, place.topic), bench.producer(bench.name("id"))
    producer.begin()
    producer.send_offsets({place: 3}, reader.member.group_metadata())
    producer.commit()
    producer.begin()
    send(producer, place, [b"1"])
    producer.send_offsets({place: 10}, reader.member.group_metadata())
    producer.abort()
    assert reader.member.committed([place]) == {place: 3}


def test_offsets_are_not_told_while_their_transaction_is_open(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    place, other = Partition(topic, 0), Partition(topic, 1)
    reader, producer = bench.joined(group, topic, partitions=2), bench.producer(bench.name("id"))
    reader.member.commit({place: 3, other: 4})
    producer.begin()
    producer.send_offsets({place: 10}, reader.member.group_metadata())
    assert reader.member.committed([other]) == {other: 4}
    with pytest.raises(KafkaFailed):
        reader.member.committed([place])
    producer.commit()
    assert reader.member.committed([place]) == {place: 10}


def test_a_fenced_producers_offsets_never_count(bench: Bench) -> None:
    place, group, name = Partition(bench.topic(), 0), bench.name("group"), bench.name("id")
    reader, producer = bench.joined(group, place.topic), bench.producer(name)
    producer.begin()
    producer.send_offsets({place: 10}, reader.member.group_metadata())
    bench.producer(name)
    assert reader.member.committed([place]) == {place: None}


def test_offsets_of_an_earlier_generation_abort_the_transaction(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    place = Partition(topic, 0)
    first, producer = bench.joined(group, topic, partitions=2), bench.producer(bench.name("id"))
    stale = first.member.group_metadata()
    second = bench.reader(group).subscribe(topic)
    shared(bench, first, second, 2)
    producer.begin()
    send(producer, place, [b"never"])
    with pytest.raises(TransactionAborted):
        producer.send_offsets({place: 1}, stale)
    producer.abort()
    producer.begin()
    send(producer, place, [b"1"])
    producer.send_offsets({place: 1}, first.member.group_metadata())
    producer.commit()
    assert first.member.committed([place]) == {place: 1}
    bench.wait_settled(topic, {0: 4, 1: 0})
    assert [record.value for record in bench.replay(place)[0]] == [b"1"]


def test_offsets_of_a_member_that_left_abort_the_transaction(bench: Bench) -> None:
    topic, group = bench.topic(partitions=2), bench.name("group")
    place = Partition(topic, 0)
    first, producer = bench.joined(group, topic, partitions=2), bench.producer(bench.name("id"))
    gone = first.member.group_metadata()
    first.member.close()
    second = bench.joined(group, topic, partitions=2)
    producer.begin()
    with pytest.raises(TransactionAborted):
        producer.send_offsets({place: 1}, gone)
    producer.abort()
    assert second.member.committed([place]) == {place: None}
