"""The check of a changelog's compaction on a real broker: before and after compaction, and with an open transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.infra.kafka.inspection.hanging_transactions import MAX_TIMEOUT_S, SLACK_S
from holdfast.infra.kafka.inspection.inspection import Inspector
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.processors.engine.changelog.config import CHANGELOG_CONFIG
from holdfast.processors.lifecycle.health.compaction import CompactionFacts, judge_compaction
from holdfast.processors.lifecycle.health.compaction_facts import look_closer, read_compaction
from tests.kafka.hanging import leave_hanging, unverified

MONTH_S = 30 * 86_400
RECORDS, KEYS = 3000, 10


@pytest.fixture
def changelog(broker: str, unique: Callable[[str], str]) -> TopicSpec:
    spec = TopicSpec(
        unique("cleaned-changelog"), 1, 1, {**CHANGELOG_CONFIG, "segment.ms": "60000", "segment.bytes": "1048576"}
    )
    Topics(broker).create(spec)
    return spec


def write(bootstrap: str, topic: str, count: int, *, age_s: float) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    moment = int((time.time() - age_s) * 1000)
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % KEYS), partition=0, timestamp=moment + number)
    assert producer.flush(30) == 0


def look(bootstrap: str, topic: str, patience_s: float = 30.0) -> CompactionFacts:
    topics = Topics(bootstrap)
    return look_closer(read_compaction(topics, topic, patience_s=patience_s), topics)


def kinds(expected: TopicSpec, facts: CompactionFacts, **limits: Any) -> list[str]:
    return [problem.kind for problem in judge_compaction(expected, facts, **limits)]


def test_what_the_cleaner_did_not_do_is_seen_and_seen_to_be_done(
    broker: str, changelog: TopicSpec, waiting: Callable[..., Any]
) -> None:
    topic = changelog.name
    assert kinds(changelog, look(broker, topic)) == []
    write(broker, topic, RECORDS, age_s=MONTH_S)

    (part,) = look(broker, topic).partitions
    assert (part.start, part.high_watermark, part.records) == (0, RECORDS, RECORDS)
    assert part.size_bytes is not None
    assert part.size_bytes > 10 * RECORDS
    assert part.oldest_s == pytest.approx(MONTH_S, abs=120)
    assert part.overdue == part.tested - KEYS, "all but the newest of each key"
    assert kinds(changelog, look(broker, topic)) == ["overdue"]

    # A new record closes the old segment. All records in the old segment are older than the maximum compaction lag.
    write(broker, topic, KEYS, age_s=0)
    waiting(lambda: look(broker, topic).partitions[0].overdue == 0, "the cleaner to have run")
    facts = look(broker, topic)
    assert kinds(changelog, facts) == []
    assert facts.partitions[0].span == RECORDS + KEYS, "offsets tell nothing of it"
    assert facts.records == 2 * KEYS
    assert facts.partitions[0].size_bytes is not None
    assert facts.partitions[0].size_bytes < part.size_bytes / 5
    assert facts.partitions[0].young == KEYS
    assert facts.unknown == ()


def test_a_hanging_transaction_is_told_from_one_that_is_open_and_ends_by_its_name(
    broker: str, changelog: TopicSpec
) -> None:
    topic = changelog.name
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{topic}-writer", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1", b"a", partition=0)
    assert producer.flush(30) == 0
    (problem,) = judge_compaction(changelog, look(broker, topic, 0.5), patience_s=0.5)
    assert problem.kind == "open"
    assert f"of {topic}-writer since offset 0" in problem.sentence
    producer.abort_transaction(30)
    Topics(broker).settled_end_offsets(topic)

    with unverified(broker):
        leave_hanging(broker, topic, 0, producer_id=777_003, age_s=MAX_TIMEOUT_S + SLACK_S + 60)
    facts = look(broker, topic, 0.5)
    (problem,) = judge_compaction(changelog, facts, patience_s=0.5)
    assert problem.kind == "hanging"
    assert "no coordinator knows it" in problem.sentence
    assert f"abort --topic {topic} --partition 0 --start-offset 2" in problem.command
    (hanging,) = facts.partitions[0].open
    with Inspector(broker) as inspector:
        assert inspector.abort(hanging)
    assert kinds(changelog, look(broker, topic, 0.5), patience_s=0.5) == []
