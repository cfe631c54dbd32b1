"""Tests of message headers whose name is not valid UTF-8, on a real broker.

Such headers come from other clients (here kafka-python).
"""

from __future__ import annotations

import pytest
from kafka import KafkaProducer

from holdfast import Application
from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.reader import read_range, read_range_for_proof
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed


class NotText(str):
    """A string that kafka-python encodes as the bytes of an invalid UTF-8 name."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"na\xefve"


def built(broker: str, group: str, folder, **options) -> Application:
    app = Application(
        broker,
        consumer_group=group,
        state_dir=folder,
        auto_offset_reset="earliest",
        commit_interval=0.1,
        loglevel=None,
        **options,
    )
    app.dataframe(app.topic(f"{group}-in")).to_topic(app.topic(f"{group}-out"))
    return app


def test_it_stops_the_worker_by_name_and_its_dead_letter_goes_without_headers(broker, unique, tmp_path):
    group, topics = unique("unreadable"), Topics(broker)
    source, dead = f"{group}-in", f"{group}-dead"
    topics.create(TopicSpec(source, 1, 1))
    producer = KafkaProducer(bootstrap_servers=broker)
    for number in range(5):
        name = NotText("x") if number in (1, 3) else "trace"
        producer.send(source, b"%d" % number, b"k", headers=[(name, b"1")], partition=0)
    producer.close()

    with pytest.raises(ProcessingFailed, match=r"offset 1 raised HeadersUnreadable: .*codec can't decode"):
        built(broker, group, tmp_path).run(count=5, timeout=60)
    assert topics.committed_offsets(group)[source, 0] == 1

    built(broker, group, tmp_path, dead_letter_topic=dead).run(count=4, timeout=60)

    def read(topic):
        end = topics.settled_end_offsets(topic, 30)[0]
        return list(read_range(broker, topic, 0, 0, end))

    assert [(each.value, each.headers) for each in read(f"{group}-out")] == [
        (value, [("trace", b"1")]) for value in (b"0", b"2", b"4")
    ]
    letters = read(dead)
    assert [(letter.key, letter.value) for letter in letters] == [(b"k", b"1"), (b"k", b"3")]
    for letter in letters:
        said = dict(letter.headers)
        assert (said["holdfast.error.type"], said["holdfast.left_out"]) == (b"HeadersUnreadable", b"headers")
    with pytest.raises(HeadersUnreadable, match=r"\[0\] offset 1 can't be read"):
        read(source)
    without = read_range_for_proof(broker, source, 0, 0, 5)
    assert [each.headers is None for each in without] == [False, True, False, True, False]
