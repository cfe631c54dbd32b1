"""Interval joins send rows without a match by timers. These rows count in windows behind the join."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, Count, InMemoryCluster


def outer_rows_in_windows(*, grouped: bool) -> Application:
    app = Application("localhost:9092", consumer_group="p", auto_offset_reset="earliest")
    left, right = app.dataframe(app.topic("left")), app.dataframe(app.topic("right"))
    if grouped:
        left, right = left.group_by("k", "l", partitions=1), right.group_by("k", "r", partitions=1)
    rows = left.join_interval(right, "outer", lambda mine, its: {}, 6_000, "near", 5_000, 2_000)
    rows.tumbling_window(10_000, 30_000).agg(n=Count()).final("partition").to_topic(app.topic("out"))
    return app


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("cuts", [(), (3,), (1, 2, 3, 4, 5, 6)])
def test_a_row_that_a_timer_sends_counts_in_the_window_that_was_open_at_the_timers_time(
    grouped: bool, cuts: tuple[int, ...]
) -> None:
    """An unmatched row that a timer sends counts in the window of the time for which the timer was set.

    The timer may fire hours later, when the next message makes it due. By then, the window and its grace are over.
    """
    cluster = InMemoryCluster()
    for topic in ("left", "right"):
        cluster.create_topic(topic, partitions=1)
    begin = int(cluster.clock.time() * 1000) // 10_000 * 10_000 - 10 * 3_600_000
    for number, after_s in enumerate([0, 10, 20, 30, 40, 3_600, 7_200]):
        if number in cuts:
            cluster.run(outer_rows_in_windows(grouped=grouped))
        cluster.produce("left", b'{"k": "x"}', b"x", timestamp_ms=begin + after_s * 1000)
    cluster.run(outer_rows_in_windows(grouped=grouped))
    found = [json.loads(record.value or b"") for _, record in cluster.read("out")]
    assert [((each["start"] - begin) // 1000, each["n"]) for each in found] == [
        (start_s, 1) for start_s in (0, 10, 20, 30, 40, 3_600)
    ]


class Later:
    """Emits a row 100 ms after each message."""

    def on_message(self, value: Any, context: Any) -> None:
        context.set_timer("later", at=timedelta(milliseconds=100))

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit("timer")


@pytest.mark.parametrize("how", ["inner", "outer"])
@pytest.mark.parametrize("others", [(1_000,), (120, 1_000), (300, 1_000), (301, 1_000)])
def test_a_row_of_a_timer_matches_what_was_there_at_the_timers_time(how: Any, others: tuple[int, ...]) -> None:
    """A row that a timer sends matches a message that had not expired at the time for which the timer was set.

    The match expires 300 ms after its message, including the grace. Another key's message makes the timer due. The time
    of this message does not matter.
    """
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    begin = int(cluster.clock.time() * 1000) - 600_000
    cluster.produce("in", b'"message"', b"x", timestamp_ms=begin)
    for after_ms in others:
        cluster.produce("in", b'"other"', b"y", timestamp_ms=begin + after_ms)
    app = Application("localhost:9092", consumer_group="p", auto_offset_reset="earliest")
    frame = app.dataframe(app.topic("in"))
    rows = frame.process(Later).join_interval(frame, how, lambda left, right: [left, right], 100, "near", 200)
    rows.to_topic(app.topic("out"))
    cluster.run(app)
    found = [(json.loads(record.value or b""), record.timestamp_ms) for _, record in cluster.read("out")]
    of_message = [(row, at - begin) for row, at in found if row[1] == "message"]
    assert of_message == [(["timer", "message"], 100)]
