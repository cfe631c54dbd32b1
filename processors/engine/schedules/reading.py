"""Reads the entries of a task's store for a range of message keys, including uncommitted writes.

Stored keys sort by the length of the message key first. The keys of a range are therefore consecutive only within one
length. A read jumps from length to length::

    length 1   a  b  c          start b"b", end b"c":   b
    length 2   aa ab ba bb ca                           ba bb
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.format import PREFIX_BYTES, key_prefix, split_key
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.ranges import behind
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.window_keys import OWN_KEY

#: A suffix that sorts after all state keys of a message key, because UTF-8 text never contains this byte.
_BEHIND = b"\xff"


class ScheduleReadRefused(HoldfastError):
    """A function of a schedule asks for a store or a range that can't be read."""


class StoreEntry(NamedTuple):
    """An entry of a store.

    Attributes:
        key: The message key, as stored.
        state_key: The state key.
        value: The value, in the form in which ``state.get`` returns it. For an aggregation, its results by column.
    """

    key: bytes
    state_key: str
    value: Any


class KeyRange(NamedTuple):
    """A range of message keys, from ``start`` (included) to ``end`` (not included).

    If ``end`` is None, the range has no upper bound.
    """

    start: bytes
    end: bytes | None

    @staticmethod
    def of(prefix: Any, start: Any, end: Any) -> KeyRange:
        """Returns the range of keys that begin with ``prefix`` and are between ``start`` and ``end`` (not included).

        An argument of None sets no limit. A text is converted to its UTF-8 bytes.

        Raises:
            ScheduleReadRefused: An argument is neither bytes nor a text.
        """
        head, first, last = _bytes("prefix", prefix), _bytes("start", start), _bytes("end", end)
        ends = [each for each in (behind(head or b"") or None, last) if each is not None]
        return KeyRange(max(head or b"", first or b""), min(ends, default=None))


@dataclass(frozen=True, slots=True)
class ReadableStore:
    """A store that a schedule can read. ``backend`` is the task's database.

    ``shown`` converts stored values to the values that the function gets; None if they need no conversion.
    """

    state: StoreState
    backend: TaskStore
    shown: Callable[[Any], Any] | None = None

    def entries(self, keys: KeyRange, limit: int | None) -> Generator[StoreEntry]:
        """Yields the entries of a range of message keys, at most ``limit``.

        The order is by length of the message key, then by message key and state key. Uncommitted writes from before the
        call are included. The caller must close the generator.
        """
        state = self.state
        writes = state.writes()
        dirty = {key: raw for key, raw in zip(writes.keys, writes.values, strict=True) if _holds(keys, key)}
        with closing(self._stored(keys)) as stored:
            yield from islice(filter(None, (self._entry(*each) for each in _merged(dirty, stored))), limit)

    def _entry(self, full: bytes, raw: bytes) -> StoreEntry | None:
        state, (message_key, name) = self.state, split_key(full)
        former = state.message_key, state.timestamp_ms
        state.point_at(message_key, 0)
        try:
            found = state.entry(name.encode(), raw)
        finally:
            state.point_at(*former)
        if found is None:
            return None
        return StoreEntry(message_key, name, found[1] if self.shown is None else self.shown(found[1]))

    def _stored(self, keys: KeyRange) -> Generator[tuple[bytes, bytes]]:
        at: bytes | None = b""
        while at is not None:
            with closing(_generator(self.backend.items(self.state.name, at))) as found:
                at = None
                for full, raw in found:
                    at = _jump(keys, full)
                    if at is not None:
                        break
                    yield full, raw


def _generator(found: Iterator[tuple[bytes, bytes]]) -> Generator[tuple[bytes, bytes]]:
    yield from found


def _holds(keys: KeyRange, full: bytes) -> bool:
    key = full[PREFIX_BYTES : _key_end(full)]
    return keys.start <= key and (keys.end is None or key < keys.end) and key != OWN_KEY


def _jump(keys: KeyRange, full: bytes) -> bytes | None:
    """Returns the key at which a read continues if an entry is outside of the range; None if the entry is inside."""
    key, length = full[PREFIX_BYTES : _key_end(full)], _key_end(full) - PREFIX_BYTES
    if keys.end is not None and key >= keys.end:
        return full[:1] + (length + 1).to_bytes(PREFIX_BYTES - 1)  # jumps to the message keys that are one byte longer
    if key < keys.start and key != (first := keys.start[:length]):
        return key_prefix(first) if len(first) == length else key_prefix(first + b"\x00" * (length - len(first)))
    return key_prefix(key) + _BEHIND if key < keys.start or key == OWN_KEY else None


def _key_end(full: bytes) -> int:
    return PREFIX_BYTES + int.from_bytes(full[1:PREFIX_BYTES])


def _merged(dirty: dict[bytes, bytes | None], stored: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yields stored entries and uncommitted writes in key order.

    A write replaces or deletes the stored entry of its key.
    """
    waiting = iter(sorted(dirty))
    write = next(waiting, None)
    for full, raw in stored:
        while write is not None and write < full:
            if (new := dirty[write]) is not None:
                yield write, new
            write = next(waiting, None)
        if full not in dirty:
            yield full, raw
    while write is not None:
        if (new := dirty[write]) is not None:
            yield write, new
        write = next(waiting, None)


def _bytes(name: str, given: Any) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise ScheduleReadRefused(
        f"`{name}` of `slot.items` is {given!r} of type {type(given).__name__}, expected bytes or a text.",
        action="Give the bytes of a message key, or their beginning.",
        seen=repr(given)[:80],
    )
