"""Transactions: what readers of committed records see, when they see it, and who may end a transaction."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.infra.kafka.errors import KafkaFailed, ProducerFenced
from holdfast.infra.kafka.records import Partition
from tests.contract.bench import PATIENCE_S, Bench, send


def test_records_of_a_plain_producer_are_readable_at_once(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer()
    producer.produce(place.topic, b"v", b"k", timestamp_ms=1_600_000_000_123, headers=[("h", b"1"), ("h", b"2")])
    producer.produce(place.topic, None, b"k")
    producer.flush(PATIENCE_S)
    records, (_, end, position) = bench.read(place, 2), bench.replay(place)
    assert [(record.key, record.value, record.offset) for record in records] == [(b"k", b"v", 0), (b"k", None, 1)]
    assert (records[0].timestamp_ms, records[0].headers) == (1_600_000_000_123, [("h", b"1"), ("h", b"2")])
    assert records[1].timestamp_ms > 1_600_000_000_123
    assert not records[1].headers
    assert (end, position) == (2, 2)


def test_many_records_at_once_keep_their_order_times_and_headers(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer()
    values = [b"%d" % number for number in range(50)]
    producer.produce_all(place.topic, values[:20], [None] * 20, partition=0)
    times = [1_600_000_000_000 + number for number in range(15)]
    producer.produce_all(place.topic, values[20:35], [b"k"] * 15, timestamps=times)
    producer.produce_all(place.topic, values[35:], [b"k"] * 15, timestamps=times, headers={3: [("h", b"1")]})
    producer.produce_all(place.topic, [], [])
    producer.flush(PATIENCE_S)
    records = bench.read(place, 50)
    assert [record.value for record in records] == values
    assert [record.key for record in records] == [None] * 20 + [b"k"] * 30
    assert [record.timestamp_ms for record in records[20:]] == times + times
    assert all(record.timestamp_ms > times[-1] for record in records[:20])
    assert {number: record.headers for number, record in enumerate(records) if record.headers} == {38: [("h", b"1")]}


@pytest.mark.parametrize("part", ["value", "key"])
@pytest.mark.parametrize(
    ("given", "refusal"),
    [(bytearray(b"v"), TypeError), (memoryview(b"v"), TypeError), (7, TypeError), ("\ud800", UnicodeEncodeError)],
)
def test_what_is_no_bytes_is_refused_before_it_is_queued(
    bench: Bench, part: str, given: Any, refusal: type[Exception]
) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer()
    sent = {"value": b"v", "key": b"k", part: given}
    with pytest.raises(refusal):
        producer.produce(place.topic, sent["value"], sent["key"])
    with pytest.raises(refusal):
        producer.produce_all(place.topic, [b"1", sent["value"]], [b"k", sent["key"]])
    producer.flush(PATIENCE_S)
    assert [record.value for record in bench.replay(place)[0]] == [b"1"]


def test_keys_go_where_java_puts_them(bench: Bench) -> None:
    topic = bench.topic(partitions=7)
    producer = bench.producer()
    for key in (b"21", b"foobar", b"abc", b"a-little-bit-long-string", b"\xff\xfe\xfd"):
        producer.produce(topic, key, key)
    producer.flush(PATIENCE_S)
    found = {record.key: number for number in range(7) for record in bench.replay(Partition(topic, number))[0]}
    # Expected partitions: (murmur2 & 0x7fffffff) % 7. The keys are test values of Kafka itself, and one with bytes
    # above 127.
    assert found == {b"21": 3, b"foobar": 0, b"abc": 4, b"a-little-bit-long-string": 1, b"\xff\xfe\xfd": 5}


def test_delivery_is_told_with_offsets_in_order(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    offsets: list[int] = []
    plain, transactional = bench.producer(None), bench.producer(bench.name("id"))
    plain.produce_all(place.topic, [b"v"] * 3, [None] * 3, partition=0)
    plain.flush(PATIENCE_S)
    transactional.begin()
    for _ in range(3):
        transactional.produce(place.topic, b"v", None, partition=0, on_delivered=offsets.append)
    transactional.flush(PATIENCE_S)
    transactional.commit()
    assert offsets == [3, 4, 5]


def test_committed_records_are_readable_and_their_marker_takes_an_offset(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    send(producer, place, [b"1", b"2"])
    assert bench.ends(place.topic) == ({0: 0}, {0: 2})
    assert bench.replay(place) == ([], 0, None)
    producer.commit()
    bench.wait_settled(place.topic, {0: 3})
    records, end, _ = bench.replay(place)
    assert [(record.value, record.offset) for record in records] == [(b"1", 0), (b"2", 1)]
    assert end == 3


def test_aborted_records_are_invisible_and_keep_their_offsets(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    send(producer, place, [b"aborted", b"aborted, too"])
    producer.abort()
    producer.begin()
    send(producer, place, [b"committed"])
    producer.commit()
    bench.wait_settled(place.topic, {0: 5})
    records, end, _ = bench.replay(place)
    assert [(record.value, record.offset) for record in records] == [(b"committed", 3)]
    assert end == 5


def test_a_transaction_without_anything_in_it_can_be_ended(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    producer.commit()
    producer.begin()
    producer.abort()
    producer.begin()
    send(producer, place, [b"1"])
    producer.commit()
    bench.wait_settled(place.topic, {0: 2})


def test_what_is_queued_is_part_of_a_commit(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    producer.produce(place.topic, b"queued", None, partition=0)
    producer.commit()
    bench.wait_settled(place.topic, {0: 2})
    assert [record.value for record in bench.replay(place)[0]] == [b"queued"]


def test_what_is_queued_goes_with_an_abort(bench: Bench) -> None:
    place = Partition(bench.topic(), 0)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    producer.produce(place.topic, b"queued", None, partition=0)
    producer.abort()
    producer.begin()
    send(producer, place, [b"kept"])
    producer.commit()
    bench.wait_for(lambda: bench.replay(place)[0], "the committed record")
    assert [record.value for record in bench.replay(place)[0]] == [b"kept"]


def test_an_open_transaction_holds_back_what_others_wrote_behind_it(bench: Bench) -> None:
    place = Partition(bench.topic(partitions=2), 0)
    elsewhere = Partition(place.topic, 1)
    foreign, plain = bench.producer(bench.name("id")), bench.producer()
    send(plain, place, [b"before"])
    foreign.begin()
    send(foreign, place, [b"foreign"])
    send(plain, place, [b"behind"])
    send(plain, elsewhere, [b"elsewhere"])
    assert bench.ends(place.topic) == ({0: 1, 1: 1}, {0: 3, 1: 1})
    assert [record.value for record in bench.replay(place)[0]] == [b"before"]
    assert [record.value for record in bench.replay(elsewhere)[0]] == [b"elsewhere"]
    foreign.abort()
    bench.wait_settled(place.topic, {0: 4, 1: 1})
    assert [record.value for record in bench.replay(place)[0]] == [b"before", b"behind"]


def test_a_second_producer_with_the_same_id_aborts_the_open_transaction_of_the_first(bench: Bench) -> None:
    place, name = Partition(bench.topic(), 0), bench.name("id")
    first = bench.producer(name)
    first.begin()
    send(first, place, [b"of the first"])
    second = bench.producer(name)
    bench.wait_settled(place.topic, {0: 2})
    second.begin()
    send(second, place, [b"of the second"])
    with pytest.raises(ProducerFenced):
        first.commit()
    second.commit()
    bench.wait_settled(place.topic, {0: 4})
    assert [record.value for record in bench.replay(place)[0]] == [b"of the second"]


def test_a_fenced_producer_writes_nothing_any_more(bench: Bench) -> None:
    place, name = Partition(bench.topic(), 0), bench.name("id")
    first = bench.producer(name)
    first.begin()
    send(first, place, [b"1"])
    first.commit()
    bench.producer(name)
    first.begin()
    with pytest.raises(ProducerFenced):
        send(first, place, [b"late"])
    bench.wait_settled(place.topic, {0: 2})


def test_a_fenced_producer_is_told_so_also_where_it_waits_for_offsets(bench: Bench) -> None:
    place, name = Partition(bench.topic(), 0), bench.name("id")
    first = bench.producer(name)
    bench.producer(name)
    first.begin()
    offsets: list[int] = []
    first.produce(place.topic, b"late", None, partition=0, on_delivered=offsets.append)
    with pytest.raises(ProducerFenced):
        first.flush(PATIENCE_S)
    assert offsets == []


def test_a_fenced_producer_stays_fenced(bench: Bench) -> None:
    place, name = Partition(bench.topic(), 0), bench.name("id")
    first = bench.producer(name)
    first.begin()
    send(first, place, [b"1"])
    bench.producer(name)
    for _ in range(2):
        with pytest.raises(ProducerFenced):
            first.commit()
    with pytest.raises(ProducerFenced):
        first.abort()


def test_a_third_producer_fences_the_second(bench: Bench) -> None:
    place, name = Partition(bench.topic(), 0), bench.name("id")
    bench.producer(name)
    second = bench.producer(name)
    second.begin()
    send(second, place, [b"2"])
    third = bench.producer(name)
    third.begin()
    send(third, place, [b"3"])
    third.commit()
    with pytest.raises(ProducerFenced):
        second.commit()
    bench.wait_settled(place.topic, {0: 4})
    assert [record.value for record in bench.replay(place)[0]] == [b"3"]


def test_one_transaction_covers_many_partitions(bench: Bench) -> None:
    topic = bench.topic(partitions=3)
    producer = bench.producer(bench.name("id"))
    producer.begin()
    for number in range(3):
        send(producer, Partition(topic, number), [b"v"])
    producer.commit()
    bench.wait_settled(topic, {0: 2, 1: 2, 2: 2})
    assert [len(bench.replay(Partition(topic, number))[0]) for number in range(3)] == [1, 1, 1]


def test_a_topic_that_is_not_there_has_no_ends(bench: Bench) -> None:
    with pytest.raises(KafkaFailed):
        bench.cluster.topics().end_offsets(bench.name("absent"), committed=True)
