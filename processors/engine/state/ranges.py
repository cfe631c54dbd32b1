"""Reads of a range of state keys, in their order, uncommitted writes included."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from heapq import merge
from itertools import islice, takewhile
from typing import Protocol

from holdfast.processors.engine.changelog.format import PREFIX_BYTES


class Ranged(Protocol):
    """A store as ranges read it: ``StoreState``."""

    def uncommitted(self, message_key: bytes, first: bytes, end: bytes | None) -> dict[bytes, bytes | None]:
        """The uncommitted writes of one message key by state key, from ``first`` up to, and without, ``end``."""

    def stored(self, message_key: bytes, first: bytes) -> Generator[tuple[bytes, bytes]]:
        """State keys of one message key with their committed values, in key order, from the state key ``first``."""

    def stored_back(self, message_key: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
        """``stored`` in reverse key order, from the last state key before ``end``; None for the last of all."""


def behind(prefix: bytes) -> bytes:
    """The least bytes behind all that begin with ``prefix``; empty for a prefix of 0xff only."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


class WrittenKeys:
    """Finds the writes of one message key among those of all, without a look at each of them for each read.

    A dict of writes only grows until the commit, except that a failed message takes its last keys back. So a read looks
    at the keys that are new since the last one.
    """

    __slots__ = ("_by_prefix", "_seen")

    def __init__(self) -> None:
        self._by_prefix: dict[bytes, set[bytes]] = {}
        self._seen = 0

    def of(self, written: dict[bytes, bytes | None], prefix: bytes) -> list[bytes]:
        """The changelog keys in ``written`` of the message key with this prefix."""
        by_prefix, number = self._by_prefix, int.from_bytes
        for key in islice(reversed(written), len(written) - self._seen):
            # ``prefix_of``, written out: each write of a commit comes by.
            before = key[: PREFIX_BYTES + number(key[1:PREFIX_BYTES])]
            held = by_prefix.get(before)
            if held is None:
                by_prefix[before] = {key}
            else:
                held.add(key)
        self._seen = len(written)
        return [key for key in self._by_prefix.get(prefix, ()) if key in written]

    def cut(self, length: int) -> None:
        """The dict lost its last keys: it has ``length`` of them now."""
        self._seen = min(self._seen, length)
        if not length:
            self._by_prefix = {}


def state_keys_between(
    state: Ranged, message_key: bytes, after: str, before: str, limit: int
) -> list[tuple[str, bytes]]:
    """State keys of one message key with their stored values, in key order.

    Args:
        state: The store.
        message_key: The message key.
        after: The first key is greater than this one.
        before: The last key is less than this one.
        limit: The most keys to return.
    """
    first, end = after.encode() + b"\x00", before.encode()
    with closing(_ascending(state, message_key, first, end)) as found:
        return [(key.decode(), raw) for key, raw in islice(found, limit)]


def state_keys(
    state: Ranged, message_key: bytes, first: bytes, end: bytes | None, *, reverse: bool
) -> Generator[tuple[bytes, bytes]]:
    """State keys from ``first`` up to, and without, ``end`` (None for no end), with their stored values.

    Close the iterator: it may hold one of the database.
    """
    return (_descending if reverse else _ascending)(state, message_key, first, end)


def _ascending(state: Ranged, message_key: bytes, first: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
    writes = sorted(state.uncommitted(message_key, first, end).items())
    at, count = 0, len(writes)
    with closing(state.stored(message_key, first)) as stored:
        # ``heapq.merge`` does the same at three times the cost; indexes of times are read so at each commit.
        for key, raw in stored:
            if end is not None and key >= end:
                break
            while at < count and writes[at][0] < key:
                yield from _written(writes[at])
                at += 1
            if at < count and writes[at][0] == key:
                yield from _written(writes[at])
                at += 1
            else:
                yield key, raw
    for write in writes[at:]:
        yield from _written(write)


def _written(write: tuple[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
    """An uncommitted write; nothing for one that deletes."""
    key, raw = write
    if raw is not None:
        yield key, raw


def _descending(state: Ranged, message_key: bytes, first: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
    writes = state.uncommitted(message_key, first, end)
    with closing(state.stored_back(message_key, end)) as stored:
        # In reverse, the higher rank of two equal keys comes first: that of the write.
        merged = merge(_ranked(sorted(writes.items(), reverse=True), 1), _ranked(stored, 0), reverse=True)
        yield from _newest(merged, lambda key: key >= first)


def _newest(
    merged: Iterable[tuple[bytes, int, bytes | None]], inside: Callable[[bytes], bool]
) -> Generator[tuple[bytes, bytes]]:
    """Of equal keys the first, which is the uncommitted write, unless it deletes."""
    former: bytes | None = None
    for key, _, raw in takewhile(lambda item: inside(item[0]), merged):
        if key != former and raw is not None:
            yield key, raw
        former = key


def _ranked(items: Iterable[tuple[bytes, bytes | None]], rank: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    return ((key, rank, raw) for key, raw in items)
