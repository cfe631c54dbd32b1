"""An output or dead-letter topic is deleted while its worker runs: the worker's error names the topic."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def running(worker, stream, waiting):
    one = worker().start().wait_running()
    stream.feed_numbers(100)
    one.waiting(lambda: one.client.status().commits["count"] > 0, "a commit")
    return one


@pytest.mark.thorough
def test_a_worker_whose_output_topic_is_deleted_names_it(running, stream):
    stream.topics.delete(stream.sink)
    stream.feed_numbers(100)
    assert running.wait() != 0
    said = json.loads(json.dumps(running.client.last_failure().error))
    assert (said["cause"], said["fields"]["topic"]) == ("output-missing", stream.sink), said
