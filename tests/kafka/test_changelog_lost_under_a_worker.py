"""A worker stops when its changelog is deleted, or deleted and recreated, while it runs."""

from __future__ import annotations

import json

import pytest

from holdfast.infra.kafka.records import TopicSpec
from holdfast.processors.engine.changelog.names import changelog_topic


def last_words(one):
    return json.loads(json.dumps(one.client.last_failure().error))


@pytest.fixture
def running(worker, stream, waiting):
    one = worker().start().wait_running()
    stream.feed_numbers(100)
    one.waiting(lambda: one.client.status().records["processed"] == 100, "the first records")
    one.waiting(lambda: one.client.status().commits["count"] > 0, "a commit")
    return one


@pytest.mark.thorough
def test_one_that_was_made_anew_is_not_gone_on_with(running, stream):
    name = changelog_topic(stream.group, "counts")
    before = stream.topics.describe([name])[name]
    stream.topics.delete(name)
    running.waiting(lambda: name not in stream.topics.describe([name]), "the changelog to be gone")
    stream.topics.create(TopicSpec(name, before.partitions, 1, {"cleanup.policy": "compact"}))
    assert running.wait() != 0
    said = last_words(running)
    assert said["cause"] == "changelog-recreated", said
    assert said["fields"]["store"] == "counts"
    assert said["fields"]["expected"] == before.topic_id


@pytest.mark.thorough
def test_one_that_is_gone_is_not_taken_for_a_broker_that_is_away(running, stream):
    stream.topics.delete(changelog_topic(stream.group, "counts"))
    stream.feed_numbers(100)
    assert running.wait() != 0
    said = last_words(running)
    assert said["cause"] == "changelog-missing", said
    assert said["fields"]["store"] == "counts"
