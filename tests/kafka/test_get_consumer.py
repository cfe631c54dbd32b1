"""`app.get_consumer()`, sinks, and `app.run(collect=True)` on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from holdfast import Application
from holdfast.infra.kafka.records import TopicSpec
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.sinks.core.list import ListSink


def test_a_loop_of_ones_own_goes_on_where_it_stopped_and_a_run_returns_its_values(
    broker: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name, topics = unique("orders"), Topics(broker)
    topics.create(TopicSpec(name, 2, 1))
    app = Application(broker, consumer_group=unique("fill"), loglevel=None)
    with app.get_producer() as producer:
        for number in range(40):
            producer.produce(name, json.dumps({"n": number}), f"k{number % 5}")

    group = unique("loop")

    def read(count: int) -> list[int]:
        found = list[int]()
        own = Application(broker, consumer_group=group, auto_offset_reset="earliest", loglevel=None)
        with own.get_consumer() as consumer:
            consumer.subscribe(topics=[name])
            while len(found) < count:
                message = consumer.poll(1.0)
                if message is not None:
                    found.append(json.loads(message.value() or b"")["n"])
                    consumer.store_offsets(message)
        return found

    assert sorted(read(15) + read(25)) == [*range(40)]

    sums = Application(
        broker, consumer_group=unique("sums"), auto_offset_reset="earliest", state_dir=tmp_path, loglevel=None
    )
    sink = ListSink(metadata=True)
    sdf = sums.dataframe(sums.topic(name))
    sdf = sdf[sdf["n"] % 2 == 0]
    sdf.sink(sink)
    version = sums.topology().code_version
    made = sums.run(count=40, timeout=60, collect=True)
    assert sorted(each["n"] for each in made) == [*range(0, 40, 2)]
    assert sorted(each["n"] for each in sink) == [*range(0, 40, 2)]
    assert {each["_topic"] for each in sink} == {name}
    assert sums.topology().code_version == version
    assert sums.run(count=1, timeout=0.5, collect=True, metadata=True) == []
