"""Stream timers of several steps of a task fire in the order of time, whatever step set them, and despite commits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from holdfast.processors.engine.state.time.stream_time import StreamTime

#: The event time of the first message in milliseconds.
T = 1_690_000_000_000


class Twice:
    """Sets two timers with each message. Emits a result when a timer fires."""

    def __init__(self, *delays_ms: int) -> None:
        self._delays_ms = delays_ms

    def on_message(self, value: Any, context: Any) -> None:
        for delay in self._delays_ms:
            context.set_timer(str(delay), at=timedelta(milliseconds=delay))

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit(int(name))


@pytest.mark.parametrize("declared", [((100, 300), (200, 400)), ((200, 400), (100, 300))], ids=["first", "last"])
def test_timers_of_two_branches_fire_by_time(declared: tuple[tuple[int, int], ...]) -> None:
    cluster = InMemoryCluster()
    cluster.create_topic("in", 1)
    app = Application(consumer_group="g", auto_offset_reset="earliest")
    frame, out = app.dataframe(app.topic("in")), app.topic("out")
    for number, delays in enumerate(declared):
        frame.process(lambda delays=delays: Twice(*delays), store=f"s{number}").to_topic(out)
    for at, key in ((0, b"k"), (1_000, b"z")):
        cluster.produce("in", b"0", key, timestamp_ms=T + at)
    cluster.run(app)
    assert [int(record.value) for _, record in cluster.read("out")] == [100, 200, 300, 400]


def test_a_timer_that_is_set_for_the_past_goes_back_to_no_time() -> None:
    """Within one run of timers, the time that decides about closed windows never decreases.

    Otherwise a commit between two timers would decide whether a window is still open for the later timer.
    """
    stream = StreamTime()
    stream.look(T + 100_000)
    stream.advance(T + 13_300)
    stream.settled_ms = stream.time_ms
    stream.advance(T + 19_300)
    ends = []
    for timer_ms in (13_600, 14_801, 14_000, 15_000):
        stream.begin_call(T + timer_ms)
        ends.append(stream.ends_ms - T)
    assert ends == [13_600, 14_801, 14_801, 15_000]
    stream.begin_call(None)
    assert stream.ends_ms == T + 19_300
