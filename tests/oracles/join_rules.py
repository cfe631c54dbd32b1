"""Joins the messages of one partition in plain Python, by the rules of ``docs/joins.md`` alone.

The oracle shares no code with the engine, and keeps all messages in lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Message(NamedTuple):
    """A message of one side. ``left`` tells whether the message belongs to the left side."""

    left: bool
    key: bytes
    time_ms: int
    value: Any


#: A joined row: event time, key, left value, right value. None stands for the value of a side without a match.
Row = tuple[int, bytes, Any, Any]


def in_order(left: Sequence[Message], right: Sequence[Message], *, left_first: bool) -> list[Message]:
    """Return the messages of both inputs in the order in which a task reads them.

    Of the next messages of both inputs, the task reads the one with the smaller time.
    """
    inputs = [list(left), list(right)] if left_first else [list(right), list(left)]
    found = []
    while any(inputs):
        heads = [(each[0].time_ms, rank) for rank, each in enumerate(inputs) if each]
        found.append(inputs[min(heads)[1]].pop(0))
    return found


@dataclass(slots=True)
class _Kept:
    time_ms: int
    value: Any
    end_ms: int
    matched: bool = False


class AsOfJoin(NamedTuple):
    """An as-of join. Durations are in milliseconds."""

    how: str
    grace: int
    tolerance: int | None

    def rows(self, messages: Iterable[Message]) -> list[Row]:
        """The rows, in the order of the left messages."""
        rights: dict[bytes, dict[int, Any]] = {}
        rows: list[Row] = []
        now = -1
        for message in messages:
            key, time_ms = message.key, message.time_ms
            now = max(now, time_ms)
            known = rights.setdefault(key, {})
            if known and self.tolerance is not None and max(known) + self.tolerance + self.grace < now:
                known.clear()  # the key's newest right message has expired, so all older ones have expired, too
            if not message.left:
                is_newest = time_ms >= max(known, default=0)
                if not (is_newest and self.tolerance is not None and time_ms + self.tolerance + self.grace < now):
                    known[time_ms] = message.value
                continue
            at = max((each for each in known if each <= time_ms), default=None)
            next_at = min((each for each in known if each > time_ms), default=None)
            if next_at is not None and (not self.grace or next_at + self.grace <= now):
                at = None
            if (
                at is not None
                and self.tolerance is not None
                and self.tolerance < max(time_ms - at, now - self.grace - at)
            ):
                at = None
            if at is not None:
                rows.append((time_ms, key, message.value, known[at]))
            elif self.how == "left":
                rows.append((time_ms, key, message.value, None))
        return rows


def _replace(kept: list[_Kept], made: _Kept) -> None:
    kept[:] = [each for each in kept if each.time_ms != made.time_ms]
    kept.append(made)


@dataclass(slots=True)
class IntervalJoin:
    """An interval join. Durations are in milliseconds.

    ``kept`` holds, by side and key, the expected content of the store at the end.
    """

    how: str
    backward: int
    forward: int
    grace: int
    kept: dict[tuple[bool, bytes], list[_Kept]] = field(default_factory=dict)
    now: int = -1

    def rows(self, messages: Iterable[Message]) -> list[Row]:
        """The rows, in no particular order."""
        rows: list[Row] = []
        for message in messages:
            self._end(rows)
            before, behind = (self.backward, self.forward) if message.left else (self.forward, self.backward)
            own = _Kept(message.time_ms, message.value, message.time_ms + behind + self.grace + 1)
            for other in self.kept.get((not message.left, message.key), []):
                if -behind <= message.time_ms - other.time_ms <= before:
                    own.matched = other.matched = True
                    rows.append(_row(message, max(message.time_ms, other.time_ms), own.value, other.value))
            self.kept.setdefault((message.left, message.key), []).append(own)
            self.now = max(self.now, message.time_ms)
        self._end(rows)
        return rows

    def _end(self, rows: list[Row]) -> None:
        """Remove messages that are no longer kept at this stream time.

        In an outer join, a removed message without a match becomes a row.
        """
        for (left, key), kept in self.kept.items():
            for each in [each for each in kept if each.end_ms <= self.now]:
                kept.remove(each)
                if not each.matched and self.how in (("left" if left else "right"), "outer"):
                    rows.append(_row(Message(left, key, each.time_ms, None), each.time_ms, each.value, None))


def _row(message: Message, time_ms: int, own: Any, other: Any) -> Row:
    return (time_ms, message.key, own, other) if message.left else (time_ms, message.key, other, own)


def table_rows(messages: Iterable[Message], how: str) -> list[Row]:
    """The rows of a join of left messages with a table of the right messages. A right value of None deletes its row."""
    rows: list[Row] = []
    table: dict[bytes, Any] = {}
    for message in messages:
        if message.left and (message.key in table or how == "left"):
            rows.append((message.time_ms, message.key, message.value, table.get(message.key)))
        elif not message.left and message.value is None:
            table.pop(message.key, None)
        elif not message.left:
            table[message.key] = message.value
    return rows


@dataclass(slots=True)
class TablesJoin:
    """A join of two tables. One table is made of the left messages, the other of the right messages.

    ``rows`` is the result: by key, the left and the right value.
    """

    how: str
    is_row: Callable[[Any, Any], bool]
    rows: dict[bytes, tuple[Any, Any]] = field(default_factory=dict)

    def changes(self, messages: Iterable[Message]) -> Iterator[tuple[Message, tuple[Any, Any] | None, bool]]:
        """Yields each message, with the row of its key in the result after the message, None if there is no row.

        The third part tells whether the result had a row of this key before the message, or has one after it.
        """
        tables: tuple[dict[bytes, Any], dict[bytes, Any]] = ({}, {})
        for message in messages:
            table = tables[0 if message.left else 1]
            table.pop(message.key, None)
            if message.value is not None:
                table[message.key] = message.value
            has = [message.key in each for each in tables]
            wanted = all(has) if self.how == "inner" else has[0] if self.how == "left" else any(has)
            left, right = (each.get(message.key) for each in tables)
            before = self.rows.pop(message.key, None)
            if wanted and self.is_row(left, right):
                self.rows[message.key] = left, right
            after = self.rows.get(message.key)
            yield message, after, before is not None or after is not None


@dataclass(slots=True)
class HistoryJoin:
    """A join of left messages with a table of the right messages that keeps a history.

    ``retention`` is in milliseconds. ``newest`` holds, by key, the row or deletion with the latest time. ``changes``
    are the right messages that were the newest of their key when they arrived.
    """

    how: str
    retention: int
    newest: dict[bytes, _Kept] = field(default_factory=dict)
    changes: list[Message] = field(default_factory=list)

    def rows(self, messages: Iterable[Message]) -> list[Row]:
        """The rows, in the order of the left messages."""
        past: dict[bytes, list[_Kept]] = {}
        rows: list[Row] = []
        now = -1
        for message in messages:
            key, time_ms = message.key, message.time_ms
            now = max(now, time_ms)
            older = past.setdefault(key, [])
            older[:] = [each for each in older if each.end_ms > now]
            top = self.newest.get(key)
            if top is not None and top.end_ms <= now:
                del self.newest[key]
                top = None
            if message.left:
                known = [each for each in (*older, *([top] if top else [])) if each.time_ms <= time_ms]
                found = max(known, key=lambda each: each.time_ms, default=None)
                has_row = found is not None and found.value is not None
                if has_row or self.how == "left":
                    rows.append((time_ms, key, message.value, found.value if found is not None else None))
            elif top is None or time_ms >= top.time_ms:
                if top is not None and time_ms > top.time_ms:
                    _replace(older, _Kept(top.time_ms, top.value, time_ms + self.retention))
                end = 2**62 if message.value is not None else time_ms + self.retention
                self.newest[key] = _Kept(time_ms, message.value, end)
                self.changes.append(message)
            else:
                behind = min(each.time_ms for each in (*older, top) if each.time_ms > time_ms)
                _replace(older, _Kept(time_ms, message.value, behind + self.retention))
        return rows
