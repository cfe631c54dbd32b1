"""Reads the selected entries of a task's stores, in batches that fit into a transaction.

    selected message keys ──► their records ──► the store's internal records about these keys (indexes by time)

A record about several windows of a key is changed instead of deleted, if only some of these windows are selected.

Invariants:
    - No RocksDB iterator is open between two batches, because the task may be revoked and closed between them.
    - Each batch begins after the last key of the previous batch, so that each entry is returned once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from holdfast.processors.engine.changelog.format import HEAD_SIZE, key_prefix, prefix_of
from holdfast.processors.engine.runtime.owner_commands.commands import Selection
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.message_keys import Read, beginning_with, message_key_of
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.time.time_records import (
    CLOCKS_OF_STORES,
    OWN,
    Look,
    Part,
    is_entry_in,
    is_own,
    opened_in,
    owner_of,
    part_in,
)

#: Maximum number of entries of a batch, and maximum bytes of their values.
ENTRIES_MAX = 10_000
BYTES_MAX = 8 << 20
#: Maximum number of records that one batch reads, whether they are selected or not.
LOOKS_MAX = 50_000

Entries = list[tuple[bytes, bytes]]


def matching(read: Read, selection: Selection, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of one store with a selected message key, in key order, after the changelog key ``after``."""
    return _beginning(read, selection, after + b"\x00" if after else b"")


def _beginning(read: Read, selection: Selection, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    if selection.heads is None:
        yield from beginning_with(read, selection.prefix, first)
        return
    for head in selection.heads:
        if first > head and not first.startswith(head):
            continue  # an earlier batch has already returned the entries of this message key
        for key, value in read(max(head, first)):
            if not key.startswith(head):
                break
            yield key, value


class Seen(NamedTuple):
    """A record that was read for the selection.

    ``part`` says whether the record, or a part of its value, is selected. If only a part is selected, ``part`` also has
    the value that remains after that part is removed.
    """

    key: bytes
    stored: bytes
    part: Part


def of_keys(read: Read, selection: Selection, after: bytes, *, timed: bool, sessions: bool) -> Iterator[Seen]:
    """Yields the records of the selected message keys, beginning after the changelog key ``after``.

    ``timed`` says whether the store keeps stream time. ``sessions`` says whether its windows are session windows.
    """
    span = selection.span
    if span is None:
        for key, stored in matching(read, selection, after):
            own = timed and not selection.everything and is_own(key)
            yield Seen(key, stored, Part(selected=not own))
        return
    head, others = b"", set[int]()
    # The read starts at the first record of the message key, because earlier records of a key decide which part of a
    # record is selected.
    for key, stored in _beginning(read, selection, prefix_of(after) if after else b""):
        if not head or not key.startswith(head):
            head, others = prefix_of(key), set()
        state = key[len(head) :].decode()
        opened = opened_in(state, stored, span)
        if opened is not None:
            others.add(opened)
        if key > after:
            own = is_own(key)
            yield Seen(key, stored, Part(False) if own else part_in(span, state, stored, others, sessions=sessions))


def own_of_keys(read: Read, selection: Selection, after: bytes, look: Look, *, sessions: bool) -> Iterator[Seen]:
    """Yields the store's internal records (such as indexes by time) after the changelog key ``after``.

    A record is selected if it is the index entry of a selected message key or window.
    """
    for key, stored in read(max(after + b"\x00", OWN)):
        if not key.startswith(OWN):
            return
        state = key[len(OWN) :].decode()
        owner, span = owner_of(state), selection.span
        selected = owner is not None and selection.has(owner)
        if selected and span is not None:
            selected = is_entry_in(span, state, look, sessions=sessions)
        yield Seen(key, stored, Part(selected))


@dataclass(slots=True)
class Totals:
    """Totals of a command so far: the numbers of message keys and entries, and the bytes of values."""

    keys: int = 0
    entries: int = 0
    bytes: int = 0


class Sweep:
    """Reads the selected entries of one running task, and counts them in ``totals``.

    Stores that this task does not have are ignored. If ``with_clocks`` is True, records of stream time are also
    selected, because the command that puts an export back needs them.
    """

    def __init__(
        self,
        task: Task,
        stores: tuple[str, ...],
        selection: Selection,
        totals: Totals,
        *,
        with_clocks: bool = False,
    ) -> None:
        assert task.store is not None
        self._store: TaskStore = task.store
        self._time = task.time
        self._left = [(name, own) for name in stores if name in task.states for own in self._passes(name, selection)]
        self._selection = selection
        self._with_clocks = with_clocks
        self._totals = totals
        self._after = b""
        self._last = b""
        #: The new values of those entries of the last batch that are changed instead of deleted, by store and changelog
        #: key.
        self.rest: dict[tuple[str, bytes], bytes] = {}

    @property
    def done(self) -> bool:
        """Whether all selected entries were returned."""
        return not self._left

    def batch(self) -> dict[str, Entries]:
        """Returns the next selected entries by store.

        The result may be empty before ``done``, because one call reads a limited number of records.
        """
        found: dict[str, Entries] = {}
        self.rest = {}
        entries = size = looks = 0
        while self._left:
            name, own = self._left[0]
            for seen in self._seen(name, own=own):
                if looks == LOOKS_MAX:
                    return found
                if self._is_selected(seen, own=own):
                    if entries == ENTRIES_MAX or (entries and size + len(seen.stored) > BYTES_MAX):
                        return found
                    found.setdefault(name, []).append((seen.key, seen.stored))
                    if seen.part.left is not None:
                        self.rest[name, seen.key] = seen.part.left
                    self._note(seen, own=own)
                    entries, size = entries + 1, size + len(seen.stored)
                self._after, looks = seen.key, looks + 1
            del self._left[0]
            self._after = self._last = b""
        return found

    def _passes(self, store: str, selection: Selection) -> tuple[bool, ...]:
        """Returns the kinds of records to read, in order: False for users' records, True for internal records.

        Internal records are read only if the store keeps stream time and not everything is selected.
        """
        timed = self._time is not None and store in self._time.clock_keys
        return (False, True) if timed and not selection.everything else (False,)

    def _seen(self, store: str, *, own: bool) -> Iterator[Seen]:
        time, read = self._time, partial(self._store.items, store)
        windows = None if time is None else time.windows.get(store)
        sessions = windows is not None and windows.spec.kind == "session"
        if own:
            look = partial(self._look, store)
            return own_of_keys(read, self._selection, self._after, look, sessions=sessions)
        timed = time is not None and store in time.clock_keys
        return of_keys(read, self._selection, self._after, timed=timed, sessions=sessions)

    def _look(self, store: str, message_key: bytes, state_key: str) -> bytes | None:
        return self._store.get(store_prefix(store) + key_prefix(message_key) + state_key.encode())

    def _is_selected(self, seen: Seen, *, own: bool) -> bool:
        clock = own and self._with_clocks and seen.key[len(OWN) :].decode() in CLOCKS_OF_STORES
        return seen.part.selected or clock

    def _note(self, seen: Seen, *, own: bool) -> None:
        message_key = message_key_of(seen.key)
        self._totals.keys += message_key != self._last and not own
        self._last = message_key
        self._totals.entries += 1
        self._totals.bytes += len(seen.stored) - HEAD_SIZE
