"""JSON lines become records. If a line is wrong, nothing is sent, and the error names the number of the line."""

from __future__ import annotations

import pytest

from holdfast.infra.kafka.topics.json_lines import BadLines, JsonRecord, Shape, judge, record_of, records


def test_the_value_is_the_line_and_key_and_time_come_from_its_fields() -> None:
    line = b'{"plane": {"id": 7}, "at": "2013-01-01T05:00:00Z", "from": "EWR", "to": "IAH"}\n'
    assert record_of(line, Shape()) == JsonRecord(None, line.strip(), None)
    assert record_of(line, Shape("plane.id", "at")) == JsonRecord(b"7", line.strip(), 1_357_016_400_000)
    assert record_of(line, Shape("{from}-{to}")).key == b"EWR-IAH"
    assert record_of(b'{"t": 5}', Shape(time="t")).timestamp_ms == 5


@pytest.mark.parametrize("text", ["2013-01-01T05:00:00", "2013-01-01T05:00:00+00:00", "2013-01-01T06:00:00+01:00"])
def test_a_time_without_zone_is_utc(text: str) -> None:
    assert record_of(f'{{"t": "{text}"}}'.encode(), Shape(time="t")).timestamp_ms == 1_357_016_400_000


def test_empty_lines_are_no_records_and_every_other_line_counts() -> None:
    lines = [b'{"id": 1}\n', b"\n", b"  \n", b'{"id": 2}']
    assert judge(lines, Shape("id")) == 2
    assert [each.key for each in records(lines, Shape("id"))] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("line", "shape", "words"),
    [
        (b"{", Shape(), "it is no JSON"),
        (b'"\xff"', Shape(), "it is no JSON"),
        (b'{"a": 1}', Shape("id"), "it has no field `id`"),
        (b'{"a": 1}', Shape("a.b"), "it has no field `a.b`"),
        (b"[1]", Shape("id"), "it has no field `id`"),
        (b'{"id": null}', Shape("id"), "its field `id` is null"),
        (b'{"id": {}}', Shape("{id}-x"), "its field `id` is no single value"),
        (b'{"t": "noon"}', Shape(time="t"), 'its field `t` is "noon"'),
        (b'{"t": true}', Shape(time="t"), "its field `t` is true"),
        (b'{"t": -1}', Shape(time="t"), "its field `t` is -1"),
        (b'{"id": "%s"}' % (b"x" * 60), Shape("id", bytes_max=100), "it has 130 bytes, expected at most 100"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_its_fault(line: bytes, shape: Shape, words: str) -> None:
    good = b'{"id": "ok", "a": {"b": 1}, "t": 1}'
    with pytest.raises(BadLines) as refused:
        judge([good, b"\n", line], shape)
    assert f"1 of 2 lines can't be sent: line 3: {words}" in refused.value.message
    assert "nothing was sent" in refused.value.action
    assert refused.value.fields["line"] == 3


def test_of_many_bad_lines_the_first_are_named_and_all_are_counted() -> None:
    with pytest.raises(BadLines) as refused:
        judge([b"x"] * 9, Shape())
    assert refused.value.message.startswith("9 of 9 lines can't be sent: line 1:")
    assert refused.value.message.endswith("; and 4 more.")
