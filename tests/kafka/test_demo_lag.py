"""The lag that the demo waits for, of a processor with a repartition topic, on a real broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast import Application, Count
from holdfast.infra.kafka.feeder import Feeder
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.waiting import wait_until
from holdfast.orchestration.demo.lag import lag_of
from holdfast.processors.registration import ProcessorDefinition

MESSAGES = 20


def test_a_repartition_topic_that_is_read_has_no_lag_though_its_end_is_behind_a_marker(
    broker: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    group = unique("demo-lag")
    source = f"{group}-in"
    app = Application(broker, consumer_group=group, auto_offset_reset="earliest", state_dir=tmp_path, loglevel=None)
    app.dataframe(app.topic(source)).group_by("to").aggregate(n=Count()).to_topic(app.topic(f"{group}-out"))
    definition = ProcessorDefinition(group, app, app.topology(), "", (), "test:app")
    topics = Topics(broker)
    topics.create(TopicSpec(source, 1))
    with Feeder(broker) as feeder:
        for number in range(MESSAGES):
            feeder.send(source, b"key", json.dumps({"to": str(number % 3)}).encode(), 1_690_000_000_000 + number)
    assert lag_of(topics, [definition]) == MESSAGES
    worker = threading.Thread(target=app.run)
    worker.start()
    try:
        assert wait_until(lambda: lag_of(topics, [definition]) == 0, 90.0, every_s=0.5)
    finally:
        app.stop()
        worker.join(60.0)
    (grouped,) = app.topology().repartitions
    committed = sum(offset for place, offset in topics.committed_offsets(group).items() if place.topic == grouped.topic)
    assert sum(topics.end_offsets(grouped.topic, committed=True).values()) > committed > 0
    assert lag_of(topics, [definition]) == 0
