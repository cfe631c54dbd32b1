"""Headers are passed on with their message. ``headers=`` and ``key=`` of ``to_topic`` replace headers and key."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Application, Count
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.steps.checked_arguments import StepInvalid
from holdfast.processors.testing import InMemoryCluster

SENT: list[Headers] = [[("trace", b"1"), ("trace", b"2")], None, [("empty", None)]]


def results(build: Callable[[Any, Any], Any], sent: list[Headers] = SENT, **options: Any) -> list[tuple[Any, Headers]]:
    app = Application(consumer_group="p", auto_offset_reset="earliest", loglevel=None, **options)
    build(app.dataframe(app.topic("in")), app.topic("out"))
    cluster = InMemoryCluster()
    cluster.create_topic("in")
    for headers in sent:
        cluster.produce("in", b"{}", b"k", headers=headers)
    cluster.run(app)
    return [(record.key, record.headers) for _, record in cluster.read("out")]


def test_headers_travel_with_their_message() -> None:
    assert results(lambda stream, out: stream.to_topic(out)) == [(b"k", headers) for headers in SENT]


def test_headers_travel_through_an_aggregation_by_columns() -> None:
    sent = [headers for _ in range(40) for headers in SENT]
    found = results(lambda stream, out: stream.aggregate(n=Count()).to_topic(out), sent)
    assert [headers for _, headers in found] == sent


def test_each_result_of_an_expansion_has_the_headers() -> None:
    found = results(lambda stream, out: stream.apply(lambda value: [1, 2], expand=True).to_topic(out), SENT[:1])
    assert found == [(b"k", SENT[0]), (b"k", SENT[0])]


@pytest.mark.parametrize(
    ("made", "expected"),
    [({"a": "text", "b": b"bytes"}, [("a", b"text"), ("b", b"bytes")]), ([("a", None)], [("a", None)]), (None, None)],
)
def test_headers_can_be_replaced_or_left_out(made: Any, expected: Headers) -> None:
    assert results(lambda stream, out: stream.to_topic(out, headers=lambda value: made)) == [(b"k", expected)] * 3


def test_a_key_that_is_none_is_no_key() -> None:
    assert [key for key, _ in results(lambda stream, out: stream.to_topic(out, key=lambda value: None))] == [None] * 3


@pytest.mark.parametrize("made", [{"a": 7}, {7: b"a"}, {"\ud800": b"a"}, {"a": "\ud800"}, 7, ["a"]])
def test_headers_that_kafka_does_not_take_fail_their_message(made: Any) -> None:
    with pytest.raises(ProcessingFailed, match=r"in\[0\] offset 0 .*ValueUnwritable"):
        results(lambda stream, out: stream.to_topic(out, headers=lambda value: made))


def test_headers_count_to_the_size_of_an_output() -> None:
    large: list[Headers] = [[("h", b"x" * 999_990)]]
    with pytest.raises(ProcessingFailed, match=r"RecordTooLarge"):
        results(lambda stream, out: stream.to_topic(out), large)


@pytest.mark.parametrize(
    ("made", "expected"),
    [({"a": "text", "b": b"bytes"}, [("a", b"text"), ("b", b"bytes")]), ([("a", None)], [("a", None)]), (None, None)],
)
def test_set_headers_replaces_them_for_all_later_steps(made: Any, expected: Headers) -> None:
    seen: list[Any] = []

    def build(stream: Any, out: Any) -> None:
        stream = stream.set_headers(lambda value, key, timestamp, headers: made)
        stream.update(lambda value, key, timestamp, headers: seen.append(headers), metadata=True).to_topic(out)

    assert results(build) == [(b"k", expected)] * 3
    assert seen == [expected] * 3


def test_set_headers_gets_a_list_of_its_own() -> None:
    def more(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
        headers.append(("more", b"1"))
        return headers

    def build(stream: Any, out: Any) -> None:
        stream.set_headers(more).to_topic(out)
        stream.to_topic(out)

    found = [headers for _, headers in results(build)]
    assert found == [each for headers in SENT for each in ([*(headers or []), ("more", b"1")], headers)]


@pytest.mark.parametrize("made", [{"a": 7}, {7: b"a"}, {"\ud800": b"a"}, 7])
def test_set_headers_that_kafka_does_not_take_fail_their_message(made: Any) -> None:
    def wrong(value: Any, key: Any, timestamp: int, headers: Any) -> Any:
        return made

    with pytest.raises(ProcessingFailed, match=r"offset 0 .*`set_headers` got .* from wrong; expected names"):
        results(lambda stream, out: stream.set_headers(wrong).to_topic(out))


def test_a_function_of_set_headers_is_checked() -> None:
    with pytest.raises(StepInvalid, match="`set_headers` got the function"):
        results(lambda stream, out: stream.set_headers(lambda value: None).to_topic(out))
