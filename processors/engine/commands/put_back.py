"""Puts the entries of an export back into a store that keeps stream time. The entries are merged by these rules:

    message keys      the export's entries replace the present entries; for windows, the entries of both are kept
    indexes by time   the export's entries are added to the present entries
    stream time       the present stream time is kept; a store without stream time gets that of the export

Invariants:
    - If the store was not written since the export and the clear, all records come back byte for byte.
    - A window that was open in the export is closed and sent once, even if stream time has already passed its end. The
      store has an index of windows by the time at which they are due, and a position in it. All windows up to this
      position are closed. The put-back moves the window's index entry after this position. A window that was closed in
      the export is not sent again.
    - If the store also has the window, the store's record (not the export's) decides whether the window is closed. If a
      put-back is interrupted and repeated, no window is therefore sent twice.
    - An index entry without its record is harmless, because the entry is removed at its due time.
    - Index entries and stream time are written after the records that they refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

from holdfast.processors.engine.changelog.format import (
    decode_value,
    encode_value,
    event_time_ms,
    key_prefix,
    split_key,
)
from holdfast.processors.engine.commands import sweep
from holdfast.processors.engine.commands.content import Difference, Read, of_keys_in
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.time import store_clock
from holdfast.processors.engine.state.time.time_records import CLOCKS_OF_STORES, OWN, Look, is_own, session_of
from holdfast.processors.engine.state.time.window_keys import (
    HELD,
    KEY_TIME,
    SESSION,
    DueEntry,
    due_entry,
    due_key,
    first_due,
    open_key,
    open_window_of,
    session_key,
    window_key,
)
from holdfast.processors.engine.windows import stored as stored_windows

#: A function that merges the two values of an entry. Its arguments are the changelog key, the value in the export, and
#: the present value.
Both = Callable[[bytes, bytes, bytes], bytes]
_CLOCKS = tuple(OWN + state.encode() for state in CLOCKS_OF_STORES)


def put_back(task: Task, store: str, export: TaskStore) -> Generator[None, None, list[Difference]]:
    """Returns ``Difference`` objects. Their batches are the writes that put an export back into ``store``.

    Raises:
        CommandFailed: The windows of the export have another format version, or were closed by another strategy.
    """
    assert task.store is not None
    wanted, held = partial(export.items, store), partial(task.store.items, store)
    time = task.time
    if time is None or store not in time.clock_keys:
        return [Difference(of_keys_in(wanted, held), wanted)]
    windows = time.windows.get(store)
    files, present = _clock(export, store), _clock(task.store, store)
    _check_fit(store, files, None if windows is None else windows.spec.closing)
    whole_keys = windows is None or windows.spec.kind == "sliding"
    look = partial(_look, task.store, store)
    if not whole_keys and windows is not None and present is not None:
        was_closed = None if windows.spec.kind == "session" else (files or present)["closed"]
        yield from _moved(export, store, look, present["closed"], was_closed)
    of_keys, present_of_keys = _without_own(wanted), _without_own(of_keys_in(wanted, held))
    together = (
        of_keys if whole_keys else united(_open_now(of_keys, look), present_of_keys, partial(_both_of_windows, look))
    )
    own, present_own = _only_own(wanted), _only_own(held)
    return [Difference(present_of_keys, together), Difference(present_own, united(own, present_own, _both_of_own))]


def united(first: Read, second: Read, both: Both) -> Read:
    """Reads the entries of two stores in the order of keys.

    If both stores have a key, ``both`` merges the two values.
    """

    def read(begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        one, other = first(begin), second(begin)
        left, right = next(one, None), next(other, None)
        while left is not None or right is not None:
            if right is None or (left is not None and left[0] < right[0]):
                assert left is not None
                yield left
                left = next(one, None)
            elif left is None or right[0] < left[0]:
                yield right
                right = next(other, None)
            else:
                yield left[0], both(left[0], left[1], right[1])
                left, right = next(one, None), next(other, None)

    return read


def _without_own(content: Read) -> Read:
    return lambda begin: (entry for entry in content(begin) if not is_own(entry[0]))


def _only_own(content: Read) -> Read:
    def read(begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in content(max(begin, OWN)):
            if not key.startswith(OWN):
                return
            if is_own(key):
                yield key, stored

    return read


def _open_now(content: Read, look: Look) -> Read:
    """Returns a reader of an export's ``content`` without the windows that are closed in the store.

    A window that the store does not have is read, too.
    """

    def read(begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, stored in content(begin):
            message_key, state = split_key(key)
            window = session_of(state, stored) or open_window_of(state)
            if window is None or look(message_key, window_key(*window)) is None or _is_open(look, message_key, window):
                yield key, stored

    return read


def _is_open(look: Look, message_key: bytes, window: tuple[int, int]) -> bool:
    """Whether a window is still open in the store.

    A window is open if it has a record of its own, or if the record of its message key lists it.
    """
    if look(message_key, open_key(*window)) is not None:
        return True
    known = look(message_key, KEY_TIME)
    return known is not None and list(window) in decode_value(known)["open"]


def _both_of_windows(look: Look, key: bytes, files: bytes, present: bytes) -> bytes:
    """Merges the two values of one entry, for a store with windows.

    A window gets its value in the export. A result that ``suppress`` holds back keeps its value in the store. The
    record of a key's stream time and open windows is combined from both values.
    """
    message_key, state = split_key(key)
    if state == HELD:
        return present
    if state != KEY_TIME:
        return files
    one, other = decode_value(files), decode_value(present)
    kept = [
        each for each in one["open"] if not look(message_key, window_key(*each)) or _is_open(look, message_key, each)
    ]
    opens = {each[1]: each for each in (*other["open"], *kept)}
    made = {**one, "time": max(one["time"], other["time"]), "open": sorted(opens.values())}
    for name, both in (("closed", max), ("more", _both_more)):
        if name in one and name in other:
            made[name] = both(one[name], other[name])
        elif name in other:
            made[name] = other[name]
    if "ahead" in one or "ahead" in other:
        made["ahead"] = sorted({*one.get("ahead", ()), *other.get("ahead", ())})
    if made in (one, other):
        return files if made == one else present
    return encode_value(made, max(event_time_ms(files), event_time_ms(present)))


def _both_more(one: Any, other: Any) -> Any:
    """Merges two values of ``more`` (bounds of a key's open windows that its record does not list) into their union."""
    return min(one, other) if isinstance(one, int) else [min(one[0], other[0]), max(one[1], other[1])]


def _both_of_own(key: bytes, files: bytes, present: bytes) -> bytes:
    """Merges the two values of an internal record: a record of stream time, or for example an index entry.

    A record of stream time keeps its present value, except for the field ``removed``. This field is the index position
    up to which entries were removed. It gets the smaller position of the two values.

    Every other internal record gets the value of the export.
    """
    if key not in _CLOCKS:
        return files
    one, other = decode_value(files), decode_value(present)
    made = {**other, "removed": min(one["removed"], other["removed"])} if "removed" in other else other
    return present if made == other else encode_value(made, event_time_ms(present))


def _look(content: TaskStore, store: str, message_key: bytes, state_key: str) -> bytes | None:
    return content.get(store_prefix(store) + key_prefix(message_key) + state_key.encode())


def _clock(content: TaskStore, store: str) -> dict[str, Any] | None:
    """Returns a store's record of stream time, which also has positions in the store's index by time.

    Returns None if the store has no such record.
    """
    found = (content.get(store_prefix(store) + key) for key in _CLOCKS)
    return next((decode_value(stored) for stored in found if stored is not None), None)


def _check_fit(store: str, clock: dict[str, Any] | None, closing: str | None) -> None:
    if clock is None:
        return
    known = (store_clock if closing is None else stored_windows).CLOCK_VERSIONS
    if clock.get("format") not in known or clock.get("closing") != closing:
        raise CommandFailed(
            f"The export of store {store} has windows of format version {clock.get('format')}, closed by "
            f"{clock.get('closing')}; expected version {known[-1]}, closed by {closing}. Nothing was changed.",
            action="Deploy the version of the processor that wrote the export, or feed the messages again.",
            store=store,
            done=0,
        )


def _moved(
    export: TaskStore, store: str, look: Look, closed: str, was_closed: str | None
) -> Generator[None, None, None]:
    """Moves index entries of the export to a position after ``closed``, so that the store closes these windows.

    These are the entries of windows that were open at the time of the export. If the store already has the same window,
    the export's index entry is deleted instead.

    ``closed`` is the index position up to which the store has closed windows. ``was_closed`` is this position at the
    time of the export. For session windows ``was_closed`` is None, because the record of an open session contains the
    place of its index entry.
    """
    if closed == first_due():
        return
    prefix, after_ms = store_prefix(store), due_entry(closed).time_ms + 1
    begin, end = OWN + (was_closed or first_due()).encode() + b"\x00", OWN + closed.encode()
    while True:
        keys: list[bytes] = []
        values: list[bytes | None] = []
        last = b""
        for last, stored in export.items(store, begin):
            if last > end or len(keys) >= sweep.ENTRIES_MAX:
                break
            entry = due_entry(last[len(OWN) :].decode())
            if was_closed is None:
                there = look(entry.message_key, session_key(entry.start))
                entered = [after_ms, entry.end] if there is None else decode_value(there)[SESSION]["entered"]
                record = _session(export, store, entry, entered)
                if not record:
                    continue
            else:
                there, record = look(entry.message_key, window_key(entry.start, entry.end)), {}
            moved = due_key(after_ms, entry.start, entry.end, entry.message_key)
            keys += [prefix + last, *record, *([prefix + OWN + moved.encode()] if there is None else [])]
            values += [None, *record.values(), *([stored] if there is None else [])]
        else:
            last = end + b"\x00"
        export.load(keys, values)
        if last > end:
            return
        begin = last
        yield


def _session(export: TaskStore, store: str, entry: DueEntry, entered: list[int]) -> dict[bytes, bytes]:
    """Returns the record of an open session window, changed so that it refers to its new index entry.

    ``entry`` is the window's old index entry. ``entered`` has the time and the end of the new one. The result is empty
    if no session's record refers to ``entry``.
    """
    key = store_prefix(store) + key_prefix(entry.message_key) + session_key(entry.start).encode()
    stored = export.get(key)
    if stored is None:
        return {}
    record = decode_value(stored)
    about = record[SESSION]
    if about["entered"] != [entry.time_ms, entry.end]:
        return {}
    made = {**record, SESSION: {**about, "entered": entered}}
    return {key: encode_value(made, event_time_ms(stored))}
