"""Range reads: return the state keys of a message key between two bounds, in order, including uncommitted writes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from heapq import merge
from itertools import islice, takewhile
from operator import itemgetter
from typing import Protocol

from holdfast.processors.engine.changelog.format import PREFIX_BYTES

#: If more keys than this were added since the last read, the list of keys is sorted again. Otherwise, each new key is
#: inserted into the sorted list.
SORTED_FROM = 16


class Ranged(Protocol):
    """The methods of a store that range reads need; ``StoreState`` implements them."""

    def uncommitted(
        self, message_key: bytes, first: bytes, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields the uncommitted writes of one message key, sorted by state key.

        The range begins with ``first`` and ends before ``end``. The iterator is lazy: unread entries cost nothing.
        """

    def stored(self, message_key: bytes, first: bytes) -> Generator[tuple[bytes, bytes]]:
        """Yields state keys of one message key, from ``first`` upward, with their committed values, in key order."""

    def stored_back(self, message_key: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
        """Yields the state keys of one message key before ``end``, with their committed values, in reverse order.

        If ``end`` is None, begins with the last state key.
        """


def behind(prefix: bytes) -> bytes:
    """Returns the smallest bytes that sort after all bytes with this prefix; empty for a prefix of 0xff bytes only."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b""


class WrittenKeys:
    """Index that finds the uncommitted writes of one message key without a scan of all writes.

    The uncommitted writes are in one dict. Until the commit, new keys are added at its end, and a failed message
    removes only the last keys. A read therefore looks only at keys that were added since the last read.
    """

    __slots__ = ("_by_prefix", "_seen")

    def __init__(self) -> None:
        #: Maps each message key to two lists of changelog keys: the sorted keys (with duplicates), and the keys added
        #: since the last read.
        self._by_prefix: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
        self._seen = 0

    def between(
        self, written: dict[bytes, bytes | None], prefix: bytes, first: bytes, end: bytes, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields the writes of one message key from changelog key ``first`` to before ``end``, sorted by key.

        The cost is proportional to the keys added since the last call plus the keys that the caller reads. It does not
        depend on the number of other writes of the message key.
        """
        by_prefix, as_number = self._by_prefix, int.from_bytes
        for key in islice(reversed(written), len(written) - self._seen):
            # The code of ``prefix_of`` is repeated inline here, because this loop runs for every write of a commit.
            before = key[: PREFIX_BYTES + as_number(key[1:PREFIX_BYTES])]
            held = by_prefix.get(before)
            if held is None:
                by_prefix[before] = [], [key]
            else:
                held[1].append(key)
        self._seen = len(written)
        known = by_prefix.get(prefix)
        if known is None:
            return
        ordered, new = known
        if len(new) > SORTED_FROM:
            ordered += new
            ordered.sort()
        else:
            for key in new:
                insort(ordered, key)
        new.clear()
        at, last = bisect_left(ordered, first), bisect_left(ordered, end)
        former = None
        for number in range(last - 1, at - 1, -1) if reverse else range(at, last):
            key = ordered[number]
            if key != former and key in written:
                yield key, written[key]
            former = key

    def cut(self, length: int) -> None:
        """Forgets keys that were removed from the end of the dict of uncommitted writes.

        ``length`` is the dict's length now.
        """
        self._seen = min(self._seen, length)
        if not length:
            self._by_prefix = {}


def merge_writes(
    few: Sequence[tuple[bytes, bytes | None]], ordered: Iterator[tuple[bytes, bytes | None]], *, reverse: bool
) -> Iterator[tuple[bytes, bytes | None]]:
    """Merges the unsorted writes ``few`` into the sorted iterator ``ordered``. The result is sorted."""
    if not few:
        return ordered
    by_key = itemgetter(0)
    return merge(sorted(few, key=by_key, reverse=reverse), ordered, key=by_key, reverse=reverse)


def state_keys_between(
    state: Ranged, message_key: bytes, after: str, before: str, limit: int
) -> list[tuple[str, bytes]]:
    """Returns state keys of one message key with their stored values, in key order.

    Args:
        state: The store.
        message_key: The message key.
        after: The lower bound of the state keys, exclusive.
        before: The upper bound of the state keys, exclusive.
        limit: The maximum number of keys to return.
    """
    first, end = after.encode() + b"\x00", before.encode()
    with closing(_ascending(state, message_key, first, end)) as found:
        return [(key.decode(), raw) for key, raw in islice(found, limit)]


def state_keys(
    state: Ranged, message_key: bytes, first: bytes, end: bytes | None, *, reverse: bool
) -> Generator[tuple[bytes, bytes]]:
    """Yields the state keys of one message key from ``first`` up to before ``end``, with their stored values.

    ``end`` is None for no upper bound. The caller must close the iterator, because it may hold an open iterator of the
    database.
    """
    return (_descending if reverse else _ascending)(state, message_key, first, end)


def _ascending(state: Ranged, message_key: bytes, first: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
    writes = state.uncommitted(message_key, first, end)
    write = next(writes, None)
    with closing(state.stored(message_key, first)) as stored:
        # ``heapq.merge`` would take three times as long, and every commit uses this loop to read indexes by time.
        for key, raw in stored:
            if end is not None and key >= end:
                break
            while write is not None and write[0] < key:
                yield from _written(write)
                write = next(writes, None)
            if write is not None and write[0] == key:
                yield from _written(write)
                write = next(writes, None)
            else:
                yield key, raw
    while write is not None:
        yield from _written(write)
        write = next(writes, None)


def _written(write: tuple[bytes, bytes | None]) -> Iterator[tuple[bytes, bytes]]:
    """Yields a write as a key and a value. Yields nothing if the write is a delete."""
    key, raw = write
    if raw is not None:
        yield key, raw


def _descending(state: Ranged, message_key: bytes, first: bytes, end: bytes | None) -> Generator[tuple[bytes, bytes]]:
    writes = state.uncommitted(message_key, first, end, reverse=True)
    with closing(state.stored_back(message_key, end)) as stored:
        # The merge yields entries in descending order of key and rank. An uncommitted write (rank 1) thus precedes the
        # stored value (rank 0) of its key.
        merged = merge(_ranked(writes, 1), _ranked(stored, 0), reverse=True)
        yield from _newest(merged, lambda key: key >= first)


def _newest(
    merged: Iterable[tuple[bytes, int, bytes | None]], inside: Callable[[bytes], bool]
) -> Generator[tuple[bytes, bytes]]:
    """Yields one entry for each key: the uncommitted write if it exists, otherwise the stored value.

    A key with an uncommitted delete is left out.
    """
    former: bytes | None = None
    for key, _, raw in takewhile(lambda item: inside(item[0]), merged):
        if key != former and raw is not None:
            yield key, raw
        former = key


def _ranked(items: Iterable[tuple[bytes, bytes | None]], rank: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    return ((key, rank, raw) for key, raw in items)
