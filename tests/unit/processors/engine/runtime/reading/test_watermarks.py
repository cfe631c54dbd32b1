"""Watermarks in a repartition topic. The tasks that write to the topic also write its watermarks.

A task that reads the topic derives its stream time from them.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import msgspec
import pytest

from holdfast import Application
from holdfast.dataframe.windows import Count
from holdfast.infra.kafka.records import TopicFacts
from holdfast.processors.engine.runtime.reading.grouped_stream_time import InHand, Upstream
from holdfast.processors.engine.runtime.reading.watermark_writer import Grouping, WatermarkWriter, groupings_of
from holdfast.processors.engine.runtime.reading.watermarks import REPEAT_S, Watermark
from holdfast.processors.engine.state.time.stream_time import NO_TIME, StreamTime
from tests.unit.processors.engine.runtime.reading.test_grouped_order import IDLE, word


def facts(app: Application, partitions: int) -> dict[str, TopicFacts]:
    return {name: TopicFacts(name, "id", partitions, 1, {}) for name in [spec.name for spec in app.topology().inputs]}


def test_a_task_does_not_wait_for_its_own_work() -> None:
    app = Application("in-memory", consumer_group="p", loglevel=None)
    flights = app.dataframe(app.topic("flights"))
    by_carrier = flights.group_by("carrier")
    flights.join_table(by_carrier.to_table("carriers"), on_merge="keep-left").to_topic(app.topic("out"))
    assert [each.ordered for each in groupings_of(app.topology(), facts(app, 3)).values()] == [False]


def test_a_join_of_two_groups_is_in_order_and_a_count_behind_one_is_not() -> None:
    app = Application("in-memory", consumer_group="p", loglevel=None)
    flights, weather = (app.dataframe(app.topic(name)).group_by("airport", name) for name in ("flights", "weather"))
    flights.join_asof(weather).to_topic(app.topic("out"))
    app.dataframe(app.topic("planes")).group_by("maker").aggregate(n=Count()).to_topic(app.topic("makers"))
    made = groupings_of(app.topology(), facts(app, 2))
    assert {name: each.ordered for name, each in made.items()} == {
        "p-flights-repartition": True,
        "p-weather-repartition": True,
        "p-maker-repartition": False,
    }
    assert made["p-maker-repartition"].tasks == {"planes-0", "planes-1"}


MAKERS, ALONE = "p-maker-repartition", frozenset({"planes-0"})


def upstream_of(told_before: dict[str, tuple[int, bool]], partitions: int = 2) -> Upstream:
    """Return what a task that reads the topic ``MAKERS`` knows about the tasks that write to this topic."""
    app = Application("in-memory", consumer_group="p", loglevel=None)
    app.dataframe(app.topic("planes")).group_by("maker").tumbling_window(1_000).count().final().to_topic(app.topic("o"))
    stream = StreamTime()
    stream.look(10_000)
    made = Upstream(stream, groupings_of(app.topology(), facts(app, partitions)))
    stream.set(0, (), {f"{MAKERS}/{task}": told for task, told in told_before.items()})
    made.begin()
    return made


def watermark(task: str, time_ms: int, idle_ms: int | None = None) -> bytes:
    return msgspec.json.encode(word(task, time_ms, idle_ms))


def test_a_task_that_is_gone_holds_no_time() -> None:
    upstream = upstream_of({"planes-0": (90, False), "planes-1": (10, False)}, partitions=1)
    upstream.take(MAKERS, 5, watermark("planes-1", 20), 0.0)  # the watermark is from a task that no longer exists
    assert upstream.time_ms() == 90
    assert upstream.quiet() is None


@pytest.mark.parametrize(("tasks", "told_again"), [(1, True), (12, True), (100, False)])
def test_a_commit_tells_its_time_however_soon_it_comes_but_for_wide_topics(tasks: int, told_again: bool) -> None:
    names = frozenset(f"planes-{number}" for number in range(tasks))
    writer = WatermarkWriter("planes-0", {MAKERS: Grouping(tasks, names)})
    assert writer.tell(40, 7.0) == watermark("planes-0", 40)
    writer.committed()
    assert (writer.tell(50, 7.0) == watermark("planes-0", 50)) is told_again
    assert writer.tell(60, 12.0) == watermark("planes-0", 60)


def test_a_time_that_went_back_is_not_written_again() -> None:
    writer = WatermarkWriter("planes-0", {MAKERS: Grouping(1, ALONE)})
    for time_ms, written in ((40, 40), (30, None), (40, None), (50, 50)):
        expected = None if written is None else watermark("planes-0", written)
        assert writer.tell(time_ms, 7.0) == expected
        writer.committed()


@pytest.mark.parametrize("ended", [False, True])
def test_what_was_told_before_a_restart_holds_until_it_is_told_again(ended: bool) -> None:
    upstream = upstream_of({"planes-0": (40, ended), "planes-1": (40, ended)})
    for offset, idle_ms in enumerate(IDLE):
        upstream.take(MAKERS, offset, watermark("planes-1", 60, idle_ms), 100.0)
        assert upstream.time_ms() == 40
    assert upstream.quiet() is None
    upstream.take(MAKERS, 8, watermark("planes-0", 90), 100.0)
    assert upstream.time_ms() == 60
    upstream.begin()  # simulate an abort, after which uncommitted records are read again
    assert upstream.time_ms() == 60


def test_a_source_that_went_before_an_older_message_does_not_tell_the_time_yet() -> None:
    upstream = upstream_of({})
    for offset, task in enumerate(("planes-0", "planes-1")):
        upstream.take(MAKERS, offset, watermark(task, 90), 0.0)
    upstream.reads_by(in_hand := InHand(all_ms=50))
    upstream._stream.advance(70)
    assert upstream.limit_ms() == 90
    in_hand.ahead_ms = 70
    assert upstream.limit_ms() == 50
    upstream._stream.let_go_to(50)
    upstream._stream.advance(80)
    upstream.begin()  # as after a restart: the engine does not know in which order the committed messages were read
    assert in_hand.order_ms == 50
    in_hand.all_ms = 80
    assert upstream.limit_ms() == 90
    assert in_hand.order_ms > 80


def test_silence_lets_time_go_to_what_was_there_before_it() -> None:
    upstream = upstream_of({})
    upstream.take(MAKERS, 0, watermark("planes-1", 60), 0.0)
    for offset, idle_ms in enumerate(IDLE, start=1):
        upstream.take(MAKERS, offset, watermark("planes-0", NO_TIME, idle_ms), 0.0)
    assert upstream.time_ms() == 60
    upstream.take(MAKERS, 9, watermark("planes-1", 80), 0.0)
    assert upstream.time_ms() == 60


def test_a_message_of_another_input_counts_when_the_silent_have_let_it_go() -> None:
    upstream = upstream_of({})
    words = [watermark(task, 40, idle_ms) for idle_ms in IDLE for task in ("planes-0", "planes-1")]
    for offset, value in enumerate(words):
        upstream.take(MAKERS, offset, value, 0.0)
    assert upstream.limit_ms() == 40
    upstream._stream.advance(70)  # simulate the wait, in which stream time moves forward
    upstream.mark(MAKERS, len(words))
    upstream.look({MAKERS: len(words)})
    later = [watermark(task, 40, 9_000 + idle_ms) for idle_ms in IDLE for task in ("planes-0", "planes-1")]
    for offset, value in enumerate(later, start=len(words)):
        upstream.take(MAKERS, offset, value, 0.0)
    assert upstream.limit_ms() == 70


def test_an_end_that_an_older_version_told_lets_nothing_go() -> None:
    upstream = upstream_of({}, partitions=1)
    for offset, now in enumerate((0.0, 100.0, 10_000.0)):
        upstream.take(MAKERS, offset, b'{"task":"planes-0","time_ms":40,"ended":true}', now)
        upstream._stream.advance(70)
        upstream.mark(MAKERS, offset)
        upstream.look({MAKERS: offset})
        assert upstream.limit_ms() == 40


def test_a_silent_task_speaks_again_and_again_and_one_with_input_does_not() -> None:
    writer, asked = (
        WatermarkWriter("planes-0", {MAKERS: Grouping(1, ALONE)}),
        list[float](),
    )

    def turns(first: float, work: int, *, at_end: bool = True) -> list[Watermark]:
        """The watermarks that the writer makes during one second."""
        told = []

        def ask(now: float) -> float | None:
            asked.append(now)
            return now if at_end else None

        for now in (first + number / 10 for number in range(10)):
            writer.look(40, now, (work,), partial(ask, now))
            if (value := writer.tell(40, now)) is not None:
                told.append(msgspec.json.decode(value, type=Watermark))
                writer.committed()
        return told

    first, *again = turns(0.0, work=1)
    assert first == Watermark("planes-0", 40, False)
    assert len(again) >= 2
    assert all(each.ended and each.stretch == 1 for each in again)
    assert [each.idle_ms for each in again] == sorted({each.idle_ms for each in again})
    broken, *others = turns(1.0, work=2)
    assert broken == Watermark("planes-0", 40, False)
    assert {each.stretch for each in others} == {2}
    assert turns(2.0, work=2, at_end=False) == []
    assert min(asked) >= REPEAT_S  # while a task gets messages, it requests no end offsets


def test_a_task_that_is_silent_for_long_speaks_more_rarely() -> None:
    writer, told = (
        WatermarkWriter("planes-0", {MAKERS: Grouping(1, ALONE)}),
        list[int](),
    )
    for turn in range(300):
        now = turn * REPEAT_S
        writer.look(40, now, (1,), partial(float, now))
        if writer.tell(40, now) is not None:
            told.append(turn)
            writer.committed()
    apart = [after - before for before, after in pairwise(told)]
    assert apart == sorted(apart)
    assert (apart[0], apart[-1]) == (1, 2)
