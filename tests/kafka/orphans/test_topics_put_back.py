"""Deleted orphans (topics without an owner) are restored from the archive that was made before their deletion."""

from __future__ import annotations

import csv
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import load_settings
from holdfast.processors.lifecycle.orphans import put_back as putting_back
from holdfast.processors.lifecycle.orphans.put_back import CopyDamaged
from tests.kafka.conftest import Stream
from tests.kafka.orphans.leaving import Left, same
from tests.mechanics.tiers import variants
from tests.parts.operated import Killed


@pytest.mark.thorough
@pytest.mark.parametrize("where", variants(["in the middle", "before it is made", "once it is made", "at the end"]))
def test_putting_back_goes_on_where_it_was_broken_off(left: Left, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    records = left.read()
    left.apply()
    left.now += timedelta(days=8)
    left.apply()

    def killed(*_: Any) -> None:
        raise Killed

    def some(topics: Topics, topic: str, parts: dict[int, Any], size: int) -> None:
        write_records(topics, topic, {0: [record for record, _ in zip(parts[0], range(40), strict=False)]}, size)
        raise Killed

    write_records = putting_back.write_records
    with monkeypatch.context() as patch:
        if where == "before it is made":
            patch.setattr(Topics, "create", killed)
        elif where == "once it is made":
            create = Topics.create
            patch.setattr(Topics, "create", lambda *arguments: (create(*arguments), killed()))
        elif where == "in the middle":
            patch.setattr(putting_back, "write_records", some)
        else:
            patch.setattr(putting_back, "_check_ends", killed)
        with pytest.raises(Killed):
            left.put_back()
    left.put_back()
    assert same(left.read(), records)


def test_a_damaged_archive_is_not_put_back(left: Left) -> None:
    left.apply()
    left.now += timedelta(days=8)
    left.apply()
    file = left.archive.newest()[0]["topic", left.topic].folder / "partition-1.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CopyDamaged, match="nothing was put back"):
        left.put_back()
    assert left.topics.describe([left.topic]) == {}


def test_a_dropped_processor_comes_back_with_its_topic_and_offsets(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State can be rebuilt from the changelog: with the topic and the group's offsets put back, counting continues."""
    monkeypatch.setenv("HOLDFAST_PROCESSORS", "[]")
    monkeypatch.setenv("HOLDFAST_KAFKA__BOOTSTRAP_SERVERS", stream.bootstrap)
    stream.feed_numbers(100)
    stream.application().run(count=100, timeout=30)
    before = stream.counts()
    shutil.rmtree(stream.state_dir)
    settings = load_settings(home=tmp_path / "home")
    settings.home.mkdir()
    # this folder shows the command that a processor with this name existed, so its topics are orphans
    (settings.paths.exports(stream.group)).mkdir(parents=True)
    registry = Registry(settings.registry)
    registry.migrate()
    now = datetime.now(UTC)
    left = Left(stream.group, settings, stream.topics, registry, now)
    try:
        left.apply()
        left.now += timedelta(days=8)
        left.apply()
        assert left.kinds() == []
        assert stream.topics.describe([left.topic]) == {}
        left.put_back()
    finally:
        registry.close()
    offsets = left.archive.newest()[0]["group", stream.group].folder / "offsets.csv"
    with offsets.open(newline="") as file:
        places = [TopicPartition(topic, int(number), int(at)) for topic, number, at in csv.reader(file)]
    assert {Partition(each.topic, each.partition) for each in places} >= {Partition(stream.source, 0)}
    consumer = Consumer({"bootstrap.servers": stream.bootstrap, "group.id": stream.group})
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    assert stream.counts() == before
    stream.feed_numbers(50)
    stream.application().run(count=50, timeout=30)
    stream.outputs_are_exact({b"k%d" % number: 15 for number in range(10)})
