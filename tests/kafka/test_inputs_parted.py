"""A store has two input topics.

If a group member reads only one of them, its worker stops before it counts a message.
"""

import threading

import pytest

from holdfast.infra.kafka.clients.consumer import GroupConsumer
from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import load_settings
from holdfast.processors.application.application import Application
from holdfast.processors.engine.state.errors import InputsParted


def test_a_member_that_reads_one_of_two_inputs_stops_the_worker_before_it_counts(
    broker, unique, stream_class, waiting, tmp_path
):
    first = stream_class(broker, unique("first"), tmp_path / "state", partitions=2)
    second = stream_class(broker, unique("second"), tmp_path / "state", partitions=2)
    for stream in (first, second):
        stream.create_source()
        stream.feed([(b"k%d" % number, b"1") for number in range(20)])
    group = unique("parted")
    owned = set()
    other = GroupConsumer(broker, group)
    ended = threading.Event()

    def read_one_topic():
        other.subscribe([first.source], owned.update, owned.difference_update, owned.difference_update)
        while not ended.is_set():
            other.poll(1, 0.05)

    reading = threading.Thread(target=read_one_topic)
    reading.start()
    try:
        waiting(lambda: len(owned) == 2, "the other member's assignment")
        app = Application(broker, consumer_group=group, auto_offset_reset="earliest", loglevel=None)
        app.state_dir = tmp_path / "state"
        for stream in (first, second):
            app.dataframe(app.topic(stream.source)).update(lambda value, state: None, stateful=True, store="totals")
        settings = load_settings()
        with pytest.raises(InputsParted, match=f"gave this worker {second.source}") as stopped:
            app.run_on(app.cluster(settings), settings)
        assert first.source in stopped.value.message
        assert f"Stop all members of group {group}" in stopped.value.action
    finally:
        ended.set()
        reading.join()
        other.close()
    look = GroupConsumer(broker, group)
    try:
        committed = look.committed([Partition(second.source, number) for number in range(2)])
    finally:
        look.close()
    assert set(committed.values()) == {None}
