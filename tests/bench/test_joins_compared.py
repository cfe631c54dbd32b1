"""Joins and groups of Holdfast and of Kafka Streams over the same messages: the same results.

Messages are out of order and late by a seed. ``docs/joins-compared.md`` has the differences; some tests show them, and
the other tests show that there are no more. Kafka Streams runs in its own test driver, Holdfast on the cluster in
memory, so a test takes seconds. The compiled program and its jars are those of ``make bench``.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import Application, Count, InMemoryCluster, VirtualClock
from tests.bench.peers import Contender

pytestmark = pytest.mark.thorough

SECOND = 1_000
HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND
#: The first event time, a whole number of windows since 1970, and long ago.
BEGIN = 1_735_689_600_000
#: A run that lasts longer is taken for stuck, in seconds.
PATIENCE_S = 240.0
#: Falsy values are values like others.
VALUES: list[Any] = [0, "", False, {}, [], 1, "x", {"a": 2}]


class Message(NamedTuple):
    """A message of one partition; the value None is a record without a value, which deletes a row."""

    key: str | None
    time: int
    value: Any


class Row(NamedTuple):
    """A result, without its key: event time, and the value as text; None deletes."""

    time: int
    value: str | None


#: The results of each key in their order.
Rows = Mapping[str | None, list[Row]]
#: The messages of each partition.
Side = Sequence[Sequence[Message]]


@dataclass(frozen=True)
class Kind:
    """A join or a group as both declare it; milliseconds."""

    name: str
    how: str
    first: int = 0
    second: int = 0
    grace: int = 0

    @property
    def label(self) -> str:
        return f"{self.name}-{self.how}"

    def theirs(self) -> str:
        return f"{self.name}:{self.how}:{self.first}:{self.second}:{self.grace}"

    def ours(self, left: Any, right: Any) -> Any:
        how: Any = self.how
        match self.name:
            case "stream":
                return left.join_interval(right, how, both, self.grace, self.label, self.first, self.second)
            case "table":
                return left.join_table(right.to_table(self.label), how, both)
            case "history":
                return left.join_table(right.to_table(self.label, history_retention=self.first), how, both)
            case "tables":
                sides = left.to_table(f"{self.label}-left"), right.to_table(f"{self.label}-right")
                return sides[0].join(sides[1], how, both, self.label).to_stream()
            case "foreign":
                sides = left.to_table(f"{self.label}-left"), right.to_table(f"{self.label}-right")
                return sides[0].join(sides[1], how, both, self.label, on=lambda row: row).to_stream()
        grouped = left.group_by(text, name=f"value-{how}")
        if how == "count":
            return grouped.aggregate(count=Count())
        return grouped.tumbling_window(self.first, self.grace, self.label).agg(count=Count()).current("partition")


def both(left: Any, right: Any) -> list[Any]:
    return [left, right]


def text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


#: What runs both; the order of messages of several partitions in Kafka Streams is an argument.
Compare = Callable[..., tuple[dict[str, Rows], dict[str, Rows]]]


@pytest.fixture
def compare(kafka_streams: Contender, tmp_path: Path) -> Compare:
    """Runs both over the same messages; returns the results of Holdfast, then those of Kafka Streams."""

    def run(left: Side, right: Side, kinds: Sequence[Kind], order: Order = one_by_one) -> tuple[Any, Any]:
        named = {"out" if len(kinds) == 1 else f"out-{kind.label}": kind for kind in kinds}
        found = ours(left, right, named), theirs(order(left, right), named)
        return tuple({kind.label: each.get(topic, {}) for topic, kind in named.items()} for each in found)

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
        asked = ",".join(kind.theirs() for kind in kinds.values())
        lines = [
            text({"topic": topic, "key": at.key, "value": told(at.value), "time": at.time}) for topic, at in messages
        ]
        command = [*kafka_streams.command[:-1], "Driver", asked, str(tmp_path / "driver")]
        done = subprocess.run(
            command, input="\n".join(lines), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        found: dict[str, dict[str | None, list[Row]]] = {}
        for made in map(json.loads, done.stdout.splitlines()):
            row = Row(made["time"], made["value"])
            found.setdefault(made["topic"], {}).setdefault(made["key"], []).append(row)
        return found

    return run


def told(value: Any) -> str | None:
    return None if value is None else text(value)


def raw(value: Any) -> bytes | None:
    return None if value is None else text(value).encode()


def encoded(key: str | None) -> bytes | None:
    return None if key is None else key.encode()


def rows_of(records: Iterable[Any]) -> Rows:
    found: dict[str | None, list[Row]] = {}
    for record in records:
        key = None if record.key is None else record.key.decode()
        value = None if record.value is None else record.value.decode()
        found.setdefault(key, []).append(Row(record.timestamp_ms, value))
    return found


#: Puts the messages of all partitions and both sides in the order in which Kafka Streams reads them.
Order = Callable[[Side, Side], list[tuple[str, Message]]]


def one_by_one(left: Side, right: Side) -> list[tuple[str, Message]]:
    """Partition by partition; in each, the head with the smallest time is next, as both read."""
    found = []
    for of in zip(left, right, strict=True):
        heads = [deque(("in", each) for each in of[0]), deque(("in-right", each) for each in of[1])]
        while any(heads):
            found.append(min((side for side in heads if side), key=lambda side: side[0][1].time).popleft())
    return found


def in_turns(left: Side, right: Side) -> list[tuple[str, Message]]:
    """A message of each partition of the left side in turn."""
    return [("in", each) for messages in zip(*left, strict=True) for each in messages]


def drawn(partition: int, keys: int, lates: Sequence[int], values: Sequence[Any], seed: int) -> list[Message]:
    """Messages of one side of one partition, each as old as the time of the side less one of ``lates``.

    Sides have no time in common: which of two equal times comes first is not a matter of joins.
    """
    random_ = random.Random(keys * 100 + partition * 10 + seed)
    made: list[Message] = []
    now = BEGIN + seed
    for _ in range(500):
        now += 10 * random_.choice([1, 50, 200, 400, random_.randrange(1_000)])
        key, at = f"key-{partition}-{random_.randrange(keys)}", now - random_.choice(lates)
        made.append(Message(key, at, random_.choice(values)))
    # The last messages move the time of both sides on, and match.
    return [*made, *(Message(f"end-{partition}", BEGIN + HOUR * each + seed, "end") for each in (2, 4))]


def sides(partitions: int, keys: int, lates: Sequence[int], left: Sequence[Any], right: Sequence[Any]) -> list[Side]:
    numbers = range(partitions)
    return [[drawn(number, keys, lates, of, seed) for number in numbers] for seed, of in ((1, left), (2, right))]


#: In order; out of order, as far as the grace allows; later than all that is kept.
MIXED = [0, 0, 0, 0, 10, 5 * SECOND, 10 * SECOND, 300 * SECOND]
OUT_OF_ORDER = [0, 0, 0, 10, 5 * SECOND, 20 * SECOND]
STREAMS = [Kind("stream", how, 20 * SECOND, 10 * SECOND, 10 * SECOND) for how in ("inner", "left", "outer")]
WITH_TABLE = [Kind("table", "inner"), Kind("table", "left")]
WITH_HISTORY = [Kind("history", how, HOUR) for how in ("inner", "left")]
FOREIGN = [Kind("foreign", how) for how in ("inner", "left")]
TABLES = [Kind("tables", how) for how in ("inner", "left", "outer")]


def counted(rows: Rows) -> Counter[tuple[str | None, Row]]:
    return Counter((key, row) for key, of in rows.items() for row in of)


def values(rows: Rows) -> dict[str | None, list[str | None]]:
    """The values of each key in their order, without times."""
    return {key: [row.value for row in of] for key, of in rows.items()}


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
    # Some messages have another row by the table's history than by the order of reading.
    assert ours["table-left"] != ours["history-left"]
    assert counted(ours["table-inner"]).total() < counted(ours["table-left"]).total()


@pytest.mark.parametrize(("partitions", "keys"), [(1, 5), (1, 1)])
def test_two_tables_are_joined_to_equal_rows_and_changes(compare: Compare, partitions: int, keys: int) -> None:
    given = sides(partitions, keys, OUT_OF_ORDER, [*VALUES, None, None], [*VALUES, None, None])
    ours, theirs = compare(*given, TABLES)
    for kind in TABLES:
        last = [{key: of[-1] for key, of in values(each[kind.label]).items()} for each in (ours, theirs)]
        assert last[0] == last[1], kind
        changes = {key: without_repeated_deletions(of) for key, of in values(theirs[kind.label]).items()}
        assert values(ours[kind.label]) == {key: of for key, of in changes.items() if of}, kind


def test_two_tables_are_joined_by_a_key_inside_the_row_to_equal_rows(compare: Compare) -> None:
    """Rows refer to keys of the other side, some of which have no row, or lose it."""
    keys = [f"key-0-{number}" for number in range(4)]
    given = sides(1, 3, OUT_OF_ORDER, [*keys, None], [*VALUES, None])
    ours, theirs = compare(*given, FOREIGN)
    for kind in FOREIGN:
        last = [{key: of[-1] for key, of in values(each[kind.label]).items()} for each in (ours, theirs)]
        rows = [{key: value for key, value in each.items() if value is not None} for each in last]
        assert rows[0] == rows[1], kind
        assert rows[0]


def without_repeated_deletions(changes: Sequence[str | None]) -> list[str | None]:
    """Kafka Streams also deletes a row that is not there, if one side is; Holdfast sends nothing then."""
    return [each for before, each in pairwise((None, *changes)) if before is not None or each is not None]


def newest(rows: Rows, part: Callable[[Any], Any] = lambda made: made) -> dict[Any, Any]:
    return {key: part(json.loads(of[-1].value or "null")) for key, of in rows.items()}


def windows_of(rows: Rows, part: Callable[[Any], tuple[int, int]]) -> dict[tuple[str | None, int], int]:
    """The last count of each window."""
    made = ((key, part(json.loads(row.value or ""))) for key, of in rows.items() for row in of)
    return {(key, start): count for key, (start, count) in made}


def in_windows(ours: Rows, theirs: Rows) -> tuple[dict[Any, int], dict[Any, int]]:
    return windows_of(ours, lambda made: (made["start"], made["count"])), windows_of(theirs, tuple)


def test_groups_count_equally(compare: Compare) -> None:
    """Counts, and counts in windows of which no message is late."""
    left, _ = sides(3, 5, OUT_OF_ORDER, VALUES, VALUES)
    ours, theirs = compare(left, [[] for _ in left], [Kind("group", "count"), Kind("group", "windows", HOUR, 0, DAY)])
    assert newest(ours["group-count"], lambda made: made["count"]) == newest(theirs["group-count"])
    assert sum(newest(theirs["group-count"]).values()) == sum(map(len, left))
    made, others = in_windows(ours["group-windows"], theirs["group-windows"])
    assert made == others
    assert sum(made.values()) == sum(map(len, left))


def hours(first: int) -> list[Message]:
    """An hour of messages, one each second."""
    return [Message("any", BEGIN + first * HOUR + at * SECOND, at % 5) for at in range(3_600)]


def test_no_message_is_late_behind_a_group_because_another_partition_was_read_further(compare: Compare) -> None:
    """One of two partitions is an hour behind, and both are read in turns."""
    windows = Kind("group", "windows", 60 * SECOND, 0, 10 * SECOND)
    ours, theirs = compare([hours(0), hours(1)], [[], []], [windows], in_turns)
    made, others = in_windows(ours[windows.label], theirs[windows.label])
    assert sum(made.values()) == 7_200
    # The first message of the later hour makes all of the other partition late but the one before it.
    assert sum(others.values()) == 3_601
    assert {place: made[place] for place in others if place[1] >= BEGIN + HOUR}.items() <= others.items()


def of(*messages: tuple[str | None, float, Any]) -> Side:
    return [[Message(key, BEGIN + round(seconds * SECOND), value) for key, seconds, value in messages]]


def test_a_message_that_is_later_than_the_grace_and_one_without_a_value(compare: Compare) -> None:
    """The message of alice is 33 s late. The left one ended at 20 s in Holdfast; Kafka Streams keeps it for 40 s.

    None is a value of a stream in Holdfast; Kafka Streams drops such a message.
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
    """Kafka Streams joins a left message without a key with nothing; ours go to the dead-letter topic."""
    left, right = of((None, 1, 1), ("alice", 2, 2)), of((None, 1.001, 3), ("alice", 1.002, 4))
    ours, theirs = compare(left, right, WITH_TABLE)
    for kind in WITH_TABLE:
        assert ours[kind.label]["alice"] == theirs[kind.label]["alice"]
        assert None not in ours[kind.label]
    assert theirs["table-left"][None] == [Row(BEGIN + SECOND, "[1,null]")]
    assert None not in theirs["table-inner"]
