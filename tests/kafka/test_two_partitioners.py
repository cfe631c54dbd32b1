"""Two topics are read by one processor.

Java's partitioner wrote one topic, librdkafka's default partitioner the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast import Application
from holdfast.assets.checks.key_places import key_places_result
from holdfast.infra.kafka.errors import TopicUnusable
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.partitioners import CRC32, MURMUR2, placing_of
from holdfast.infra.kafka.topics.reader import read_range
from holdfast.infra.kafka.topics.topics import Topics

KEYS = [f"key-{number}" for number in range(30)]


def merged(left: dict[str, str], right: dict[str, str] | None) -> str | None:
    return None if right is None else right["id"]


def built(broker: str, group: str, folder: Path, *, grouped: bool) -> Application:
    app = Application(
        broker,
        consumer_group=group,
        state_dir=folder,
        auto_offset_reset="earliest",
        commit_interval=0.1,
        loglevel=None,
    )
    right = app.dataframe(app.topic(f"{group}-right"))
    left = app.dataframe(app.topic(f"{group}-left"))
    other = right.group_by("id") if grouped else right
    left.join_interval(other, on_merge=merged, backward_ms=60_000, forward_ms=60_000).to_topic(
        app.topic(f"{group}-out")
    )
    return app


def test_a_mismatch_is_refused_and_checked_and_the_way_out_finds_every_row(
    broker: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    group, topics = unique("placed"), Topics(broker)
    for side, settings in (("left", {"partitioner": "murmur2_random"}), ("right", {})):
        topics.create(TopicSpec(f"{group}-{side}", 3, 1))
        producer = Producer({"bootstrap.servers": broker, **settings})
        for key in KEYS:
            producer.produce(f"{group}-{side}", json.dumps({"id": key}).encode(), key)
        assert producer.flush(30) == 0
    sampled = topics.newest_keys({f"{group}-left": 3, f"{group}-right": 3, f"{group}-no-topic": 3})
    assert {topic: placing_of(keys, 3).by for topic, keys in sampled.items()} == {
        f"{group}-left": MURMUR2,
        f"{group}-right": CRC32,
    }
    assert {key for keys in sampled[f"{group}-right"].values() for key in keys} == {key.encode() for key in KEYS}

    plain = built(broker, group, tmp_path, grouped=False)
    with pytest.raises(TopicUnusable, match=f"of {group}-right where crc32 puts them"):
        plain.run(count=60, timeout=30)
    judged = key_places_result(plain.topology(), topics)
    assert (judged.passed, judged.warns) == (False, False)
    assert '`sdf.group_by("field")`' in judged.action

    mended = built(broker, group, tmp_path, grouped=True)
    mended.run(count=90, timeout=60)
    rows = [
        json.loads(record.value or b"")
        for number, end in topics.settled_end_offsets(f"{group}-out", 30).items()
        for record in read_range(broker, f"{group}-out", number, 0, end)
    ]
    assert sorted(rows) == sorted(KEYS)
    assert key_places_result(mended.topology(), topics).passed
