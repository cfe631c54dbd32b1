"""Joins and groups of the bench: the engine's declarations, the expected results in plain Python, and their hash.

Left and right messages alternate, one millisecond apart, with the same keys. A joined value is ``[left, right]``. The
interval is about as long as the time between two right messages of a key. A group counts messages by their merchant.
``rows`` counts the rows of a table by their merchant: the newest message of each key is a row.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from holdfast import Count, State
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from tests.bench.measured import RunWrong
from tests.bench.stream import FIRST_TIMESTAMP_MS, Message, messages

Joined = Literal["", "table", "interval", "asof", "group", "rows"]
#: The kinds with a repartition topic. They read a single topic.
GROUPED: tuple[Joined, ...] = ("group", "rows")
#: The length of the interval in milliseconds. The grace is as long, because Quix Streams refuses a shorter one.
BACK_MS = 20_000
#: The grace of as-of joins, in milliseconds.
GRACE_MS = 5_000
RIGHT = "-right"
_PAIR = struct.Struct("<qq")


class _Left(msgspec.Struct):
    ts: int


class _Right(msgspec.Struct):
    item: int


class _Counted(msgspec.Struct):
    count: int


_decode_pair = msgspec.json.Decoder(tuple[_Left, _Right]).decode
_decode_count = msgspec.json.Decoder(_Counted | int).decode


def told(kind: Joined) -> str:
    """The join in the form of a contender's arguments."""
    return {
        "": "",
        "table": "table:inner:0:0:0",
        "interval": f"stream:inner:{BACK_MS}:0:{BACK_MS}",
        "asof": f"asof:inner:0:0:{GRACE_MS}",
        "group": "group:count:0:0:0",
        "rows": "rows:merchant:0:0:0",
    }[kind]


def is_grouped(asked: str) -> bool:
    """Whether the contender's argument is one of the kinds in ``GROUPED``."""
    return asked in [told(kind) for kind in GROUPED]


def is_left(message: Message, kind: Joined) -> bool:
    """Whether a message belongs to the left topic. Groups have only a left topic."""
    return kind in GROUPED or message.number % 2 == 1


def body_of(message: Message, kind: Joined) -> bytes:
    """The value of a message, by the side to which it belongs."""
    if is_left(message, kind):
        return message.body(FIRST_TIMESTAMP_MS + message.number)
    return b'{"price":%b,"item":%d}' % (message.amount.encode(), message.number)


def rows(topic: str, count: int, keys: int, kind: Joined) -> Iterator[tuple[str, int, bytes, bytes, Any]]:
    """The records that fill the input topics."""
    for message in messages(count, keys):
        side = topic if is_left(message, kind) else topic + RIGHT
        yield side, message.partition, message.key, body_of(message, kind), None


def both(left: Any, right: Any) -> list[Any]:
    """Make one joined value from a left and a right value."""
    return [left, right]


def count_one(value: Any, state: State) -> int:
    """Return the next count of a group."""
    seen: int = state.get("count", 0) + 1
    state.set("count", seen)
    return seen


def by_function(grouped: StreamingDataFrame) -> StreamingDataFrame:
    """Count the messages of a group with a Python function."""
    return grouped.apply(count_one, stateful=True)


def by_column(grouped: StreamingDataFrame) -> StreamingDataFrame:
    """Count the messages of a group with the built-in aggregation."""
    return grouped.aggregate(count=Count())


def joined(
    left: StreamingDataFrame,
    right: StreamingDataFrame | None,
    asked: str,
    counted: Callable[[StreamingDataFrame], StreamingDataFrame] = by_function,
) -> StreamingDataFrame:
    """Declare the join or group with the engine; ``counted`` counts the messages of a group."""
    kind, _, back, _, grace = asked.split(":")
    if kind == "rows":
        return left.to_table("payments").group_by("merchant").aggregate(count=Count(), name="merchants").to_stream()
    if right is None:
        return counted(left.group_by("merchant"))
    if kind == "table":
        return left.join_table(right.to_table("prices"), on_merge=both)
    if kind == "asof":
        return left.join_asof(right, on_merge=both, grace_ms=int(grace))
    return left.join_interval(right, on_merge=both, grace_ms=int(grace), backward_ms=int(back))


def expected(count: int, keys: int, kind: Joined) -> tuple[int, str]:
    """The expected number of outputs, and their hash, computed in plain Python."""
    if kind == "group":
        merchants = Counter(msgspec.json.decode(body_of(each, kind))["merchant"] for each in messages(count, keys))
        return count, _hash(f"{name}:{many}".encode() for name, many in merchants.items())
    if kind == "rows":
        return _expected_of_rows(count, keys)
    rights: dict[int, list[int]] = defaultdict(list)
    found: list[bytes] = []
    for message in messages(count, keys):
        before = rights[message.user]
        if not is_left(message, kind):
            before.append(message.number)
            continue
        if kind == "interval":
            before[:] = [each for each in before if each >= message.number - BACK_MS]
        matches = before if kind == "interval" else before[-1:]
        found += [_PAIR.pack(FIRST_TIMESTAMP_MS + message.number, each) for each in matches]
    return len(found), _hash(found)


def _expected_of_rows(count: int, keys: int) -> tuple[int, str]:
    """The result of ``expected`` for groups of rows. A new row changes one group, a row that moves changes two."""
    merchants, changes = dict[int, str](), 0
    for message in messages(count, keys):
        present = str(msgspec.json.decode(body_of(message, "rows"))["merchant"])
        former = merchants.get(message.user)
        changes += 0 if former == present else 1 if former is None else 2
        merchants[message.user] = present
    return changes, _hash(f"{name}:{many}".encode() for name, many in Counter(merchants.values()).items())


def calls_of_streams(count: int, keys: int, kind: Joined) -> int:
    """How often the program of Kafka Streams calls its function ``seen``.

    It calls the function once for each message and, with a repartition topic, once for each record in that topic. A
    changed row has two records there: one takes the row out of its former group, one adds it to the new group.
    """
    if kind != "rows":
        return count * (2 if kind == "group" else 1)
    return 3 * count - len({message.user for message in messages(count, keys)})


def _hash(made: Any) -> str:
    digest = hashlib.sha256()
    for each in sorted(made):
        digest.update(each)
    return digest.hexdigest()


class Sent:
    """Collects the outputs of a run, record by record."""

    def __init__(self, kind: Joined) -> None:
        self._kind = kind
        self.pairs: list[bytes] = []
        self.counts: dict[bytes, int] = {}
        self.changes = 0
        self.appended_ms: list[int] = []

    def add(self, key: bytes, value: bytes, appended_ms: int) -> None:
        """Add the next record of a partition.

        Raises:
            RunWrong: The record is not a valid result.
        """
        self.appended_ms.append(appended_ms)
        try:
            if self._kind in GROUPED:
                made = _decode_count(value) if value else 0
                many = made if isinstance(made, int) else made.count
                self.changes += self.counts.get(key, 0) != many
                self.counts[key] = many
            else:
                left, right = _decode_pair(value)
                self.pairs.append(_PAIR.pack(left.ts, right.item))
        except msgspec.DecodeError as failure:
            raise RunWrong(f"{value[:100]!r} is no result of a join: {failure}") from failure

    def result(self) -> tuple[int, str]:
        """The number of outputs and their hash, in the form of ``expected``."""
        if self._kind not in GROUPED:
            return len(self.appended_ms), _hash(self.pairs)
        # Kafka Streams also sends a count that stays the same, and 0 for a group without rows.
        many = self.changes if self._kind == "rows" else len(self.appended_ms)
        return many, _hash(b"%b:%d" % each for each in self.counts.items() if each[1])
