"""Joins and groups of Holdfast and Kafka Streams give the same results for the same messages.

Messages are out of order and late, drawn from a seed. ``docs/joins-compared.md`` lists the differences. Some tests show
these differences. In all other tests, both engines have equal results. Kafka Streams runs in its own test driver and
Holdfast on the in-memory cluster, so a test takes seconds. ``test_joins_on_a_broker.py`` runs both on a real broker.
The tests need the Kafka Streams program and the jars of ``make bench``.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Application, InMemoryCluster, VirtualClock
from tests.bench.compared_joins import (
    BEGIN,
    FOREIGN,
    GROUPS,
    HOUR,
    MIXED,
    NUMBERS,
    OUT_OF_ORDER,
    ROWS,
    SECOND,
    STREAMS,
    TABLES,
    VALUES,
    WITH_HISTORY,
    WITH_TABLE,
    Kind,
    Message,
    Order,
    Row,
    Rows,
    Side,
    are_equal_tables,
    counted,
    encoded,
    groups_of,
    hours,
    in_turns,
    in_windows,
    last_rows,
    newest,
    one_by_one,
    raw,
    rows_of,
    sides,
    text,
    told,
    topic_of,
)
from tests.bench.peers import Contender

pytestmark = pytest.mark.thorough

#: Timeout of a run, in seconds. A longer run counts as stuck.
PATIENCE_S = 240.0

#: A function that runs both engines. Its argument sets the order in which Kafka Streams reads several partitions.
Compare = Callable[..., tuple[dict[str, Rows], dict[str, Rows]]]


@pytest.fixture
def compare(kafka_streams: Contender, tmp_path: Path) -> Compare:
    """Run both engines on the same messages. Returns the results of Holdfast, then those of Kafka Streams."""

    def run(left: Side, right: Side, kinds: Sequence[Kind], order: Order = one_by_one) -> tuple[Any, Any]:
        named = {topic_of("out", kind, len(kinds)): kind for kind in kinds}
        found: list[Any] = [ours(left, right, named), theirs(order(left, right), named)]
        made, others = ({kind.label: each.get(topic, {}) for topic, kind in named.items()} for each in found)
        return made, others

    def ours(left: Side, right: Side, kinds: Mapping[str, Kind]) -> dict[str, Rows]:
        cluster = InMemoryCluster(clock=VirtualClock(time.time()))
        for topic, side in (("in", left), ("in-right", right)):
            cluster.create_topic(topic, partitions=len(side))
            for number, messages in enumerate(side):
                for key, at, value in messages:
                    cluster.produce(topic, raw(value), encoded(key), timestamp_ms=at, partition=number)
        app = Application(
            "in-memory", consumer_group="p", auto_offset_reset="earliest", dead_letter_topic="dead", loglevel=None
        )
        frames = app.dataframe(app.topic("in")), app.dataframe(app.topic("in-right"))
        for topic, kind in kinds.items():
            kind.ours(*frames).to_topic(app.topic(topic))
        cluster.run(app)
        return {topic: rows_of(record for _, record in cluster.read(topic)) for topic in kinds}

    def theirs(messages: Sequence[tuple[str, Message]], kinds: Mapping[str, Kind]) -> dict[str, Rows]:
        asked = ",".join(kind.told() for kind in kinds.values())
        lines = [
            text({"topic": topic, "key": at.key, "value": told(at.value), "time": at.time}) for topic, at in messages
        ]
        command = [*kafka_streams.command[:-1], "Driver", asked, str(tmp_path / "driver")]
        done = subprocess.run(
            command, input="\n".join(lines), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        found: dict[str, Any] = {}
        for made in map(json.loads, done.stdout.splitlines()):
            row = Row(made["time"], made["value"])
            found.setdefault(made["topic"], {}).setdefault(made["key"], []).append(row)
        return found

    return run


@pytest.mark.parametrize(("partitions", "keys"), [(1, 5), (1, 1)])
def test_streams_are_joined_to_equal_rows(compare: Compare, partitions: int, keys: int) -> None:
    ours, theirs = compare(*sides(partitions, keys, MIXED, VALUES, VALUES), STREAMS)
    for kind in STREAMS:
        assert counted(ours[kind.label]) == counted(theirs[kind.label]), kind
    rows = {kind.how: counted(ours[kind.label]).total() for kind in STREAMS}
    assert 100 < rows["inner"] < rows["left"] < rows["outer"]


@pytest.mark.parametrize(("partitions", "keys"), [(1, 5), (1, 1)])
def test_a_stream_and_a_table_are_joined_to_equal_rows_in_their_order(
    compare: Compare, partitions: int, keys: int
) -> None:
    kinds = [*WITH_TABLE, *WITH_HISTORY]
    ours, theirs = compare(*sides(partitions, keys, OUT_OF_ORDER, VALUES, [*VALUES, None, None]), kinds)
    for kind in kinds:
        assert ours[kind.label] == theirs[kind.label], kind
    # For some messages, the table's row at the message's time is not the row that was read last before the message.
    assert ours["table-left"] != ours["history-left"]
    assert counted(ours["table-inner"]).total() < counted(ours["table-left"]).total()


@pytest.mark.parametrize(("partitions", "keys"), [(1, 5), (1, 1)])
def test_two_tables_are_joined_to_equal_rows_and_changes(compare: Compare, partitions: int, keys: int) -> None:
    given = sides(partitions, keys, OUT_OF_ORDER, [*VALUES, None, None], [*VALUES, None, None])
    ours, theirs = compare(*given, TABLES)
    for kind in TABLES:
        assert last_rows(ours[kind.label]) == last_rows(theirs[kind.label]), kind
        assert are_equal_tables(ours[kind.label], theirs[kind.label]), kind


def test_two_tables_are_joined_by_a_key_inside_the_row_to_equal_rows(compare: Compare) -> None:
    """Rows refer to keys of the other table. Some of these keys have no row, or their row is deleted."""
    keys = [f"key-0-{number}" for number in range(4)]
    given = sides(1, 3, OUT_OF_ORDER, [*keys, None], [*VALUES, None])
    ours, theirs = compare(*given, FOREIGN)
    for kind in FOREIGN:
        rows = last_rows(ours[kind.label])
        assert rows == last_rows(theirs[kind.label]), kind
        assert rows


@pytest.mark.parametrize(("partitions", "keys"), [(1, 5), (3, 5)])
def test_rows_of_a_table_are_grouped_equally(compare: Compare, partitions: int, keys: int) -> None:
    """A changed row is subtracted from its group and added again. A deleted row is only subtracted.

    So both engines end with the same groups. Both also change a group in the same order if its rows are in one
    partition.
    """
    left, _ = sides(partitions, keys, OUT_OF_ORDER, NUMBERS, VALUES)
    left = [[each for each in side if each.value != "end"] for side in left]
    ours, theirs = compare(left, [[] for _ in left], ROWS)
    for kind in ROWS:
        made, others = groups_of(ours[kind.label], theirs[kind.label], kind.how)
        ends = [{key: of[-1] for key, of in each.items() if of[-1] is not None} for each in (made, others)]
        assert ends[0] == ends[1], kind
        if partitions == 1:
            assert made == others, kind
        assert min(map(len, made.values())) > 10


def test_groups_count_equally(compare: Compare) -> None:
    """Compares plain counts, and counts in windows without late messages."""
    left, _ = sides(3, 5, OUT_OF_ORDER, VALUES, VALUES)
    ours, theirs = compare(left, [[] for _ in left], GROUPS)
    assert newest(ours["group-count"], lambda made: made["count"]) == newest(theirs["group-count"])
    assert sum(newest(theirs["group-count"]).values()) == sum(map(len, left))
    made, others = in_windows(ours["group-windows"], theirs["group-windows"])
    assert made == others
    assert sum(made.values()) == sum(map(len, left))


def test_no_message_is_late_behind_a_group_because_another_partition_was_read_further(compare: Compare) -> None:
    """One of two partitions is one hour behind, and both are read in turns."""
    windows = Kind("group", "windows", 60 * SECOND, 0, 10 * SECOND)
    ours, theirs = compare([hours(0), hours(1)], [[], []], [windows], in_turns)
    made, others = in_windows(ours[windows.label], theirs[windows.label])
    assert sum(made.values()) == 7_200
    # In Kafka Streams, the first message of the later hour makes the rest of the other partition late.
    assert sum(others.values()) == 3_601
    assert {place: made[place] for place in others if place[1] >= BEGIN + HOUR}.items() <= others.items()


def of(*messages: tuple[str | None, float, Any]) -> Side:
    return [[Message(key, BEGIN + round(seconds * SECOND), value) for key, seconds, value in messages]]


def test_a_message_that_is_later_than_the_grace_and_one_without_a_value(compare: Compare) -> None:
    """alice's right message is late: when it is read, stream time is 38 s after its left message.

    Holdfast keeps the left message for 20 s, Kafka Streams for 40 s. So only Kafka Streams joins them.
    In Holdfast, None is a valid value of a stream. Kafka Streams drops a message without a value.
    """
    left = of(("alice", 0, 1), ("bob", 38, 2), ("carol", 40, None), ("carol", 41, 3), ("end", 7_200, 4))
    right = of(("bob", 38.001, 5), ("alice", 5, 6), ("carol", 42, 7), ("end", 7_200.001, 8))
    ours, theirs = (each["stream-inner"] for each in compare(left, right, STREAMS[:1]))
    assert "alice" not in ours
    assert theirs["alice"] == [Row(BEGIN + 5 * SECOND, "[1,6]")]
    assert ours["bob"] == theirs["bob"]
    assert [row.value for row in ours["carol"]] == ["[null,7]", "[3,7]"]
    assert [row.value for row in theirs["carol"]] == ["[3,7]"]


def test_messages_without_a_key(compare: Compare) -> None:
    """In a left join, Kafka Streams keeps a left message without a key. Holdfast makes the message a dead letter."""
    left, right = of((None, 1, 1), ("alice", 2, 2)), of((None, 1.001, 3), ("alice", 1.002, 4))
    ours, theirs = compare(left, right, WITH_TABLE)
    for kind in WITH_TABLE:
        assert ours[kind.label]["alice"] == theirs[kind.label]["alice"]
        assert None not in ours[kind.label]
    assert theirs["table-left"][None] == [Row(BEGIN + SECOND, "[1,null]")]
    assert None not in theirs["table-inner"]
