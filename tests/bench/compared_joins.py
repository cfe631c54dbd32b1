"""Declares joins and groups for the comparison with Kafka Streams, and draws the messages that both engines process.

Messages are out of order and late, drawn from a seed. As a program, this module runs Holdfast's side as a contender:
``python -m tests.bench.compared_joins bootstrap=... joins=stream:inner:20000:10000:10000,table:left:0:0:0``.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers_from
from itertools import islice, pairwise
from typing import Any, NamedTuple

from holdfast import Application, Count, Sum
from holdfast.infra.kafka.topics.partitioners import MURMUR2, PARTITIONERS
from tests.bench.contenders import Work
from tests.bench.joins import RIGHT, both

SECOND = 1_000
HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND
#: The first event time: in the past, and a multiple of the window size since the epoch.
BEGIN = 1_735_689_600_000
#: Falsy values. The engines must treat them like all other values.
VALUES: list[Any] = [0, "", False, {}, [], 1, "x", {"a": 2}]


class Message(NamedTuple):
    """A message of one partition. The value None is a Kafka tombstone, which deletes a table row."""

    key: str | None
    time: int
    value: Any


class Row(NamedTuple):
    """A result without its key: the event time, and the value as text. The value None is a deletion."""

    time: int
    value: str | None


#: The results of each key, in order.
Rows = Mapping[str | None, list[Row]]
#: The messages of each partition on one side of a join.
Side = Sequence[Sequence[Message]]


@dataclass(frozen=True)
class Kind:
    """A join or a group that both engines declare; times are in milliseconds."""

    name: str
    how: str
    first: int = 0
    second: int = 0
    grace: int = 0

    @property
    def label(self) -> str:
        return f"{self.name}-{self.how}"

    def told(self) -> str:
        """The kind in the form that ``kafka_streams/Joins.java`` parses."""
        return f"{self.name}:{self.how}:{self.first}:{self.second}:{self.grace}"

    def ours(self, left: Any, right: Any) -> Any:
        """Declare this join or group with Holdfast."""
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
                return sides[0].join(sides[1], how, both, self.label, on=reference).to_stream()
            case "rows":
                table = left.to_table(f"{self.label}-left")
                if how == "filter":
                    table = table.filter(is_even, f"{self.label}-even").map(tenfold, f"{self.label}-tenfold")
                # Use the same columns as Kafka Streams' program. A group is sent each time that one of its columns
                # changes, so another column would cause more outputs.
                columns: dict[str, Any] = {"n": Count()} if how == "count" else {"n": Count(), "total": Sum()}
                by = table.group_by(remainder, name=f"remainder-{how}")
                return by.aggregate(columns, name=self.label).to_stream()
        grouped = left.group_by(text, name=f"value-{how}")
        if how == "count":
            return grouped.aggregate(count=Count())
        return grouped.tumbling_window(self.first, self.grace, self.label).agg(count=Count()).current("partition")


def kinds_of(told: str) -> list[Kind]:
    """The kinds in a comma-separated list of texts from ``Kind.told``."""
    parts = [each.split(":") for each in told.split(",")]
    return [Kind(name, how, *map(int, times)) for name, how, *times in parts]


def topic_of(output: str, kind: Kind, many: int) -> str:
    """The output topic of a kind. ``many`` is the number of kinds in the run."""
    return output if many == 1 else f"{output}-{kind.label}"


def text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def told(value: Any) -> str | None:
    return None if value is None else text(value)


def raw(value: Any) -> bytes | None:
    return None if value is None else text(value).encode()


def encoded(key: str | None) -> bytes | None:
    return None if key is None else key.encode()


def reference(row: Any) -> str:
    """Return the key of the other table to which a row refers: the row itself if it is a text, otherwise its JSON."""
    return row if isinstance(row, str) else text(row)


def remainder(row: int) -> int:
    """The group key of a row: its remainder modulo 3 if it is a number."""
    return row % 3


def is_even(row: int) -> bool:
    return row % 2 == 0


def tenfold(row: int) -> int:
    return 10 * row


def rows_of(records: Iterable[Any]) -> dict[str | None, list[Row]]:
    """Return the results of each key, in the order of the records in their partition."""
    found: dict[str | None, list[Row]] = {}
    for record in records:
        key = None if record.key is None else record.key.decode()
        value = None if record.value is None else record.value.decode()
        found.setdefault(key, []).append(Row(record.timestamp_ms, value))
    return found


#: A function that merges the partitions of both sides into the order in which Kafka Streams reads their messages.
Order = Callable[[Side, Side], list[tuple[str, Message]]]


def one_by_one(left: Side, right: Side) -> list[tuple[str, Message]]:
    """Return the messages partition by partition.

    Within a partition, the message with the earlier time comes first, as both engines read.
    """
    found = []
    for of in zip(left, right, strict=True):
        heads = [deque(("in", each) for each in of[0]), deque(("in-right", each) for each in of[1])]
        while any(heads):
            found.append(min((side for side in heads if side), key=lambda side: side[0][1].time).popleft())
    return found


def in_turns(left: Side, right: Side) -> list[tuple[str, Message]]:
    """Return one message of each partition of the left side in turn."""
    return [("in", each) for messages in zip(*left, strict=True) for each in messages]


def keys_of(partition: int, partitions: int) -> Iterator[str]:
    """Keys that Kafka's hash assigns to this partition."""
    names = (f"key-{partition}-{number}" for number in numbers_from())
    return (name for name in names if PARTITIONERS[MURMUR2](name.encode(), partitions) == partition)


def drawn(names: Sequence[str], lates: Sequence[int], values: Sequence[Any], seed: tuple[int, int]) -> list[Message]:
    """Draw the messages of one side of one partition. Each is late by one of ``lates``, relative to the side's time.

    The two sides have no equal times, because the order of equal times is not part of a join. The last one of
    ``names`` is the key of the last messages, which advance the time of both sides, and match.
    """
    *keys, last = names
    partition, side = seed
    random_ = random.Random(len(keys) * 100 + partition * 10 + side)
    made: list[Message] = []
    now = BEGIN + side
    for _ in range(500):
        now += 10 * random_.choice([1, 50, 200, 400, random_.randrange(1_000)])
        key, at = keys[random_.randrange(len(keys))], now - random_.choice(lates)
        made.append(Message(key, at, random_.choice(values)))
    return [*made, *(Message(last, BEGIN + HOUR * each + side, "end") for each in (2, 4))]


def sides(partitions: int, keys: int, lates: Sequence[int], left: Sequence[Any], right: Sequence[Any]) -> list[Side]:
    """The messages of both sides, with this number of keys in each partition."""
    names = [list(islice(keys_of(at, partitions), keys + 1)) for at in range(partitions)]
    return [
        [drawn(names[at], lates, of, (at, side)) for at in range(partitions)] for side, of in ((1, left), (2, right))
    ]


#: Delays: in order, out of order within the grace, and later than everything that is kept.
MIXED = [0, 0, 0, 0, 10, 5 * SECOND, 10 * SECOND, 300 * SECOND]
OUT_OF_ORDER = [0, 0, 0, 10, 5 * SECOND, 20 * SECOND]
STREAMS = [Kind("stream", how, 20 * SECOND, 10 * SECOND, 10 * SECOND) for how in ("inner", "left", "outer")]
WITH_TABLE = [Kind("table", "inner"), Kind("table", "left")]
WITH_HISTORY = [Kind("history", how, HOUR) for how in ("inner", "left")]
FOREIGN = [Kind("foreign", how) for how in ("inner", "left")]
TABLES = [Kind("tables", how) for how in ("inner", "left", "outer")]
ROWS = [Kind("rows", how) for how in ("count", "total", "filter")]
#: Values of a table's rows: numbers, and None, which deletes the row.
NUMBERS: list[Any] = [*range(-3, 8), None, None]
GROUPS = [Kind("group", "count"), Kind("group", "windows", HOUR, 0, DAY)]


def counted(rows: Rows) -> Counter[tuple[str | None, Row]]:
    return Counter((key, row) for key, of in rows.items() for row in of)


def values(rows: Rows) -> dict[str | None, list[str | None]]:
    """The values of each key in order, without times."""
    return {key: [row.value for row in of] for key, of in rows.items()}


def last_rows(rows: Rows) -> dict[str | None, str]:
    """Return the final rows of a table, computed from its changes."""
    newest_ = {key: of[-1].value for key, of in rows.items()}
    return {key: value for key, value in newest_.items() if value is not None}


def groups_of(ours: Rows, theirs: Rows, how: str) -> list[dict[str | None, list[str | None]]]:
    """The changes of each group of rows, in the form of Kafka Streams' program.

    Kafka Streams keeps a group without rows, with a count of 0, and resends a group that stays the same.
    """

    def shown(value: str | None) -> str | None:
        row = json.loads(value or "null")
        return row and (str(row["n"]) if how == "count" else f"{row['n']},{row['total']}")

    mine = {key: list(map(shown, of)) for key, of in values(ours).items()}
    others = {key: [each if each not in ("0", "0,0") else None for each in of] for key, of in values(theirs).items()}
    return [
        mine,
        {key: [each for before, each in pairwise((None, *of)) if each != before] for key, of in others.items()},
    ]


def without_repeated_deletions(changes: Sequence[str | None]) -> list[str | None]:
    """Drop repeated deletions. Kafka Streams also sends a deletion for a row that is missing, if one side exists.

    Holdfast sends nothing in this case.
    """
    return [each for before, each in pairwise((None, *changes)) if before is not None or each is not None]


def are_equal_tables(ours: Rows, theirs: Rows) -> bool:
    """Whether two joined tables have the same changes of each key, in the same order."""
    changes = {key: without_repeated_deletions(of) for key, of in values(theirs).items()}
    return values(ours) == {key: of for key, of in changes.items() if of}


def newest(rows: Rows, part: Callable[[Any], Any] = lambda made: made) -> dict[Any, Any]:
    return {key: part(json.loads(of[-1].value or "null")) for key, of in rows.items()}


def windows_of(rows: Rows, part: Callable[[Any], tuple[int, int]]) -> dict[tuple[str | None, int], int]:
    """The last count of each window."""
    made = ((key, part(json.loads(row.value or ""))) for key, of in rows.items() for row in of)
    return {(key, start): count for key, (start, count) in made}


def in_windows(ours: Rows, theirs: Rows) -> tuple[dict[Any, int], dict[Any, int]]:
    return windows_of(ours, lambda made: (made["start"], made["count"])), windows_of(theirs, tuple)


def hours(first: int) -> list[Message]:
    """One hour of messages with one message per second, for one partition."""
    return [Message("any", BEGIN + first * HOUR + at * SECOND, at % 5) for at in range(3_600)]


def application_of(work: Work) -> Application:
    """Holdfast's application. It filters out messages without a value, which Kafka Streams drops in a stream."""
    application = Application(
        work.bootstrap,
        consumer_group=work.group,
        auto_offset_reset="earliest",
        commit_interval=work.commit_s,
        state_dir=work.state_dir,
        loglevel=None,
        consumer_extra_config={"session.timeout.ms": work.session_ms} if work.session_ms else None,
    )
    kinds = kinds_of(work.joins)
    left = application.dataframe(application.topic(work.source))
    is_read = any(kind.name != "group" for kind in kinds)
    right = application.dataframe(application.topic(work.source + RIGHT)) if is_read else None
    for kind in kinds:
        frames = [left, right]
        if kind.name not in ("tables", "foreign", "rows"):
            frames[0] = left.filter(is_there)
        if kind.name == "stream" and right is not None:
            frames[1] = right.filter(is_there)
        kind.ours(*frames).to_topic(application.topic(topic_of(work.output, kind, len(kinds))))
    return application


def is_there(value: Any) -> bool:
    return value is not None


if __name__ == "__main__":
    application_of(Work.parse(sys.argv[1:])).run()
