"""A header name that is not UTF-8 fails only its own message by the failure policy, and only if headers are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, Count
from holdfast.infra.kafka.clients.message_headers import MessageHeaders
from holdfast.infra.kafka.errors import HeadersUnreadable
from holdfast.infra.kafka.records import Headers, Partition
from holdfast.processors.engine.dataframe import generated_loop as fusion
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.testing import InMemoryCluster

#: The second name is not UTF-8: it contains an i with two dots in Latin-1.
BROKEN = [("trace", b"1"), (b"na\xefve", b"2")]
Build = Callable[[Application], None]


async def called(value: int) -> int:
    return value


def through(app: Application) -> None:
    app.dataframe(app.topic("in")).to_topic(app.topic("out"))


def by_columns(app: Application) -> None:
    app.dataframe(app.topic("in")).aggregate(n=Count()).apply(lambda row: row["n"]).to_topic(app.topic("out"))


def behind_calls(app: Application) -> None:
    app.dataframe(app.topic("in")).apply_async(called).to_topic(app.topic("out"))


def of_two_inputs(app: Application) -> None:
    app.dataframe(app.topic("in")).concat(app.dataframe(app.topic("other"))).to_topic(app.topic("out"))


def by_its_own_time(app: Application) -> None:
    topic = app.topic("in", timestamp_extractor=lambda value, headers, time_ms, kind: time_ms)
    other = app.dataframe(app.topic("other"))
    joined = app.dataframe(topic).join_asof(other, how="left", on_merge=lambda left, right: left)
    joined.to_topic(app.topic("out"), headers=lambda value: None)


ALL: list[Build] = [through, by_columns, behind_calls, of_two_inputs, by_its_own_time]


def fed(count: int, broken: set[int]) -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    cluster.create_topic("other")
    for number in range(count):
        headers: Any = BROKEN if number in broken else [("trace", b"%d" % number)]
        cluster.produce("in", b"%d" % number, b"k", headers=headers)
    return cluster


def application(build: Build, **options: Any) -> Application:
    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)
    build(app)
    return app


@pytest.mark.parametrize("build", ALL)
def test_it_stops_the_worker_at_its_place_with_all_before_it_committed(build: Build) -> None:
    cluster = fed(120, {70})
    with pytest.raises(ProcessingFailed, match=r"in\[0\] offset 70 .*HeadersUnreadable: The headers") as stopped:
        cluster.run(application(build))
    assert "names of headers are UTF-8" in stopped.value.action
    assert cluster.committed_offsets("p")[Partition("in", 0)] == 70
    assert len(cluster.read("out")) == 70


@pytest.mark.parametrize("build", ALL)
def test_its_dead_letter_goes_without_headers_and_the_others_go_on(build: Build) -> None:
    cluster = fed(120, {0, 69, 70, 119})
    cluster.run(application(build, dead_letter_topic="dead"))
    letters = [record for _, record in cluster.read("dead")]
    assert [(record.key, record.value) for record in letters] == [(b"k", b"%d" % each) for each in (0, 69, 70, 119)]
    for letter in letters:
        said = dict(letter.headers or [])
        assert said["holdfast.error.type"] == b"HeadersUnreadable"
        assert said["holdfast.left_out"] == b"headers"
        assert not {"trace", "na\xefve"} & set(said)
    assert len(cluster.read("out")) == 116


def test_the_callback_gets_the_message_without_headers() -> None:
    asked: list[tuple[int, Headers, str]] = []

    def skip(error: Exception, message: Any, logger: Any) -> bool:
        asked.append((message.offset, message.headers, type(error).__name__))
        return True

    cluster = fed(3, {1})
    cluster.run(application(through, on_processing_error=skip))
    assert asked == [(1, None, "HeadersUnreadable")]
    assert [record.headers for _, record in cluster.read("out")] == [[("trace", b"0")], [("trace", b"2")]]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_where_no_step_uses_headers_the_message_is_processed(
    plain: bool, awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise SyntaxError

    def without(app: Application) -> None:
        stream = app.dataframe(app.topic("in"))
        (stream.apply_async(called) if awaited else stream).to_topic(app.topic("out"), headers=lambda value: None)

    if plain:
        monkeypatch.setattr(fusion._Writer, "compile", refused)
    cluster = fed(3, {1})
    cluster.run(application(without))
    assert [record.value for _, record in cluster.read("out")] == [b"0", b"1", b"2"]


def test_a_message_that_fails_by_itself_is_put_aside_without_the_headers_that_can_not_be_read() -> None:
    def without(app: Application) -> None:
        frame = app.dataframe(app.topic("in")).apply(lambda value: 1 // (value - 1))
        frame.to_topic(app.topic("out"), headers=lambda value: None)

    cluster = fed(3, {1})
    cluster.run(application(without, dead_letter_topic="dead"))
    ((_, letter),) = cluster.read("dead")
    said = dict(letter.headers or [])
    assert (said["holdfast.error.type"], said["holdfast.left_out"]) == (b"ZeroDivisionError", b"headers")


def test_behind_a_call_a_message_that_fails_is_put_aside_with_its_headers() -> None:
    def without(app: Application) -> None:
        frame = app.dataframe(app.topic("in")).apply_async(called).apply(lambda value: 1 // (value % 2))
        frame.to_topic(app.topic("out"), headers=lambda value: None)

    cluster = fed(3, {2})
    cluster.run(application(without, dead_letter_topic="dead"))
    first, second = (dict(letter.headers or []) for _, letter in cluster.read("dead"))
    assert (first["trace"], first.get("holdfast.left_out")) == (b"0", None)
    assert ("trace" in second, second["holdfast.left_out"]) == (False, b"headers")


def test_an_unreadable_message_is_asked_once() -> None:
    """At the second request, the client library returns a null pointer as the header's name.

    So the engine asks for a message's headers only once.
    """
    asked: list[int] = []

    def once(message: int) -> Headers:
        asked.append(message)
        if message in (12, 14):
            raise SystemError("returned a result with an exception set") from ValueError("no UTF-8")
        return None

    headers = MessageHeaders(Partition("in", 0), [20, 22, 24, 26, 28], [10, 11, 12, 13, 14], once)
    for _ in range(3):
        for part in (slice(0, 5), slice(1, 3), 2, -3):
            with pytest.raises(HeadersUnreadable, match=r"in\[0\] offset 24 can't be read: no UTF-8") as raised:
                headers[part]
            assert raised.value.fields["offset"] == 24
        with pytest.raises(HeadersUnreadable, match="offset 28"):
            headers[3:]
    assert headers[0:2] == [None, None]
    assert (asked.count(12), asked.count(14)) == (1, 1)
