"""Outer rows of interval joins, which timers send, in the windows behind the join."""

from __future__ import annotations

import json

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
    """The message that makes it due may come hours later: the row's window and grace are over by then."""
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
