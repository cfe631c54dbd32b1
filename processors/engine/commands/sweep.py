"""Reads the selected entries of a task's stores, in batches that fit a transaction.

Invariants:
    - No iterator of the database is open between two batches, because the task may be revoked there.
    - Each batch begins behind the last one, so that a sweep returns each entry once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from holdfast.processors.engine.changelog.format import HEAD_SIZE, key_prefix
from holdfast.processors.engine.runtime.commands import Selection
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.state.task_store import TaskStore

#: Maximum entries of a batch, and maximum bytes of their values.
ENTRIES_MAX = 10_000
BYTES_MAX = 8 << 20

_LENGTH_AT, _KEY_AT = 1, len(key_prefix(b""))

#: Reads the entries of one store from a changelog key on, in order of keys.
Read = Callable[[bytes], Iterator[tuple[bytes, bytes]]]
Entries = list[tuple[bytes, bytes]]


def message_key_of(key: bytes) -> bytes:
    """Extract the message key from a changelog key."""
    return key[_KEY_AT : _KEY_AT + int.from_bytes(key[_LENGTH_AT:_KEY_AT], "big")]


def matching(read: Read, selection: Selection, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """The selected entries of one store behind the changelog key ``after``, in order of keys."""
    first = after + b"\x00" if after else b""
    if selection.heads is None:
        yield from _by_prefix(read, selection.prefix, first)
        return
    for head in selection.heads:
        if first > head and not first.startswith(head):
            continue  # an earlier batch returned it
        for key, value in read(max(head, first)):
            if not key.startswith(head):
                break
            yield key, value


def _by_prefix(read: Read, prefix: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys are sorted by length first: for each length, seek to the keys with the prefix, which are adjacent."""
    begin: bytes | None = max(first, _head(len(prefix)) + prefix)
    while begin is not None:
        at, begin = begin, None
        for key, value in read(at):
            message_key = message_key_of(key)
            if message_key.startswith(prefix):
                yield key, value
                continue
            length = len(message_key)
            begin = _head(length) + prefix if message_key < prefix else _head(length + 1) + prefix
            break


def _head(length: int) -> bytes:
    return key_prefix(bytes(length))[:_KEY_AT]


@dataclass(slots=True)
class Totals:
    """Message keys, entries, and bytes of values, over all sweeps of a command so far."""

    keys: int = 0
    entries: int = 0
    bytes: int = 0


class Sweep:
    """The selected entries of one running task, counted in ``totals``; ``stores`` of other tasks are ignored."""

    def __init__(self, task: Task, stores: tuple[str, ...], selection: Selection, totals: Totals) -> None:
        assert task.store is not None
        self._store: TaskStore = task.store
        self._left = [name for name in stores if name in task.states]
        self._selection = selection
        self._totals = totals
        self._after = b""
        self._last = b""

    @property
    def done(self) -> bool:
        """Whether all selected entries were returned."""
        return not self._left

    def batch(self) -> dict[str, Entries]:
        """The next entries, by store."""
        found: dict[str, Entries] = {}
        entries = size = 0
        while self._left:
            name = self._left[0]
            for key, value in matching(partial(self._store.items, name), self._selection, self._after):
                if entries == ENTRIES_MAX or (entries and size + len(value) > BYTES_MAX):
                    return found
                found.setdefault(name, []).append((key, value))
                self._note(key, value)
                entries, size = entries + 1, size + len(value)
            del self._left[0]
            self._after = self._last = b""
        return found

    def _note(self, key: bytes, value: bytes) -> None:
        message_key = key[: _KEY_AT + int.from_bytes(key[_LENGTH_AT:_KEY_AT], "big")]
        self._totals.keys += message_key != self._last
        self._after, self._last = key, message_key
        self._totals.entries += 1
        self._totals.bytes += len(value) - HEAD_SIZE
