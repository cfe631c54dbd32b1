"""The worker's clock is set back by an hour: nothing closes, fires or ends twice or too early, and nothing is lost."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster
from tests.window_apps import T, build, send

HOUR_S = 3_600


@pytest.fixture
def cluster() -> InMemoryCluster:
    made = InMemoryCluster()
    made.create_topic("in")
    return made


def now_ms(cluster: InMemoryCluster) -> int:
    """The time of the worker's clock, in milliseconds after ``T``."""
    return int(cluster.clock.time() * 1000) - T


def results(cluster: InMemoryCluster) -> list[tuple[bytes | None, int, Any]]:
    made = [(record.key, json.loads(record.value or b"")) for _, record in cluster.read("out")]
    return [(key, each["start"] - T, each["value"]) for key, each in made]


@pytest.mark.parametrize("closing", ["partition", "key"])
def test_a_window_closes_once_and_messages_of_now_count_when_the_clock_is_there_again(
    cluster: InMemoryCluster, closing: Any
) -> None:
    app = build(lambda frame: frame.tumbling_window(10_000, name="w").count().final(closing))
    now = now_ms(cluster) // 10_000 * 10_000
    for at in (now - 20_000, now - 10_000):
        send(cluster, at)
    cluster.run(app)
    assert results(cluster) == [(b"k", now - 20_000, 1)]
    cluster.clock.skew_s -= HOUR_S
    # one is late, one is in the open window, and one is ahead of the clock, so that it does not move the time
    for at in (now - 20_000, now - 9_000, now + 1):
        send(cluster, at)
    cluster.run(app)
    assert results(cluster) == [(b"k", now - 20_000, 1)]
    cluster.clock.skew_s += HOUR_S
    cluster.advance(20)
    send(cluster, now + 10_000)
    cluster.run(app)
    assert results(cluster)[1:] == [(b"k", now - 10_000, 2), (b"k", now, 1)]


def test_a_silent_window_waits_for_the_clock_and_closes_once(cluster: InMemoryCluster) -> None:
    app = build(
        lambda frame: (
            frame.tumbling_window(10_000, name="w").count().final("partition", close_when_idle=timedelta(seconds=5))
        )
    )
    now = now_ms(cluster)
    send(cluster, now)
    # set the clock back while the worker runs
    cluster.clock.call_later(3, lambda: setattr(cluster.clock, "skew_s", -float(HOUR_S)))
    cluster.run(app, quiet_s=120)
    assert results(cluster) == []
    cluster.run(app, quiet_s=HOUR_S + 60)
    assert results(cluster) == [(b"k", now // 10_000 * 10_000, 1)]


class Reminder:
    """Sets a timer on the worker's clock for each message."""

    def on_message(self, value: Any, context: Any) -> None:
        context.set_timer(f"t{value}", at=timedelta(seconds=value), clock="processing")

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit({"start": time, "value": name})


def test_timers_of_a_running_worker_wait_for_the_clock_and_fire_once_in_their_order(cluster: InMemoryCluster) -> None:
    app = build(lambda frame: frame.process(Reminder, store="s"))
    begin = now_ms(cluster)
    for seconds in (5, 60, 120):
        send(cluster, begin, seconds)
    cluster.clock.call_later(30, lambda: setattr(cluster.clock, "skew_s", -float(HOUR_S)))
    # This message comes in the repeated hour, so its timer is due before the timers that already wait.
    cluster.clock.call_later(40, lambda: send(cluster, now_ms(cluster), 7))
    cluster.run(app, quiet_s=200)
    assert [name for *_, name in results(cluster)] == ["t5", "t7"]
    cluster.run(app, quiet_s=HOUR_S)
    assert [name for *_, name in results(cluster)] == ["t5", "t7", "t60", "t120"]


def test_a_value_with_a_ttl_ends_once_and_stays_ended(cluster: InMemoryCluster) -> None:
    def first(value: Any, state: Any) -> bool:
        seen = state.exists("seen")
        state.set("seen", 1) if not seen else None
        return not seen

    def made() -> Application:
        app = Application("in-memory", consumer_group="g", auto_offset_reset="earliest", loglevel=None)
        store = app.store("s", ttl=timedelta(seconds=60))
        app.dataframe(app.topic("in")).filter(first, stateful=True, store=store).to_topic(app.topic("out"))
        return app

    now = now_ms(cluster)
    for at in (now - 100_000, now - 30_000):  # the first value has ended, and the second one is set
        send(cluster, at)
    cluster.run(made())
    cluster.clock.skew_s -= HOUR_S
    # neither an older event time nor the clock makes the first value readable again
    for at in (now - 100_000, now - 20_000):
        send(cluster, at)
    cluster.run(made())
    assert [record.timestamp_ms - T - now for _, record in cluster.read("out")] == [-100_000, -30_000]
    cluster.clock.skew_s += HOUR_S
    cluster.advance(60)
    send(cluster, now + 40_000)
    cluster.run(made())
    assert [record.timestamp_ms - T - now for _, record in cluster.read("out")][2:] == [40_000]
