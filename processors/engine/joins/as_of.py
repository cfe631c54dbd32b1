"""The two steps of as-of joins, for messages of a left and of a right stream.

One step stores the right messages in the join's store. The other step looks them up for each left message. State keys
of a message key::

    right          [look, sealed, [time, value], ...]: the newest right messages, sorted by time
    past/<time>    [end, [time, value], ...]: a group of older messages, from this time on (a *sealed* record)

``look`` is the stream time at which the record is checked for expired messages. The store's index by time has an entry
at this time. ``look`` is 0 without an entry. Messages with an event time up to ``sealed`` are in the records ``past/``;
``sealed`` is -1 if the key has no such record. ``<time>`` has 15 digits. Values are inside lists, because None, 0, ""
and false are valid values.

A right message expires ``grace_ms`` after the time of the next right message. With a tolerance, the message expires at
the latest at its own time plus tolerance plus ``grace_ms``. The expiry time is computed from the messages, so it is not
stored. A left message never finds an expired message. An expired message is deleted when the next right message of its
key comes, or when the record's index entry is due. An index entry belongs to a record, not to a message. Otherwise,
most writes of the join would be index entries. All new messages of a key are in one record, which a commit writes once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.changelog.format import (
    HEAD_SIZE,
    ValueNotStorable,
    decode_json,
    decode_value,
    encode_value,
)
from holdfast.processors.engine.joins.merge import OnMerge, check_how, check_merge, merge_function, name_of
from holdfast.processors.engine.state.time.dated_values import Dating, Rest, line_of, place_of, time_text
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS
from holdfast.processors.engine.steps.step import VALUES, Step, StoreForm, StoreUse
from holdfast.processors.engine.steps.store_options import BY_VALUE, StoreOptions

#: The state key of the record with the newest right messages, and the prefix of the state keys of sealed records
#: (groups of older messages).
RIGHT, PAST = "right", "past/"
#: The maximum messages and maximum bytes of the record with the newest messages. If this record is full, its older
#: messages are moved to a sealed record, and at most ``OPEN_KEPT`` messages stay.
OPEN_MAX, OPEN_BYTES_MAX, OPEN_KEPT = 16, 4_096, 8
#: Maximum messages of a sealed record (a group of older messages). If a late message exceeds this number, the record is
#: split into smaller ones.
SEALED_MAX = 32
#: Milliseconds. Without a tolerance, an expired right message stays in the store at most this long after its expiry.
#: These messages need little space, because the newest message of each key is kept forever anyway.
SLACK_MS = 600_000
#: Maximum bytes that a record with a single message has in addition to the message.
_AROUND = 128

_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: A parsed record of right messages: its leading numbers, the ascending event times, and the JSON texts
#: ``[time,value]``.
Line = tuple[tuple[int, ...], tuple[int, ...], tuple[bytes, ...]]
_NO_LINE: Line = ((0, -1), (), ())


def _line_of(raw: bytes, numbers: int) -> Line:
    """Parses a record. ``numbers`` is the count of numbers at the beginning of the record."""
    try:
        parts = _decode_parts(raw[HEAD_SIZE:])
        head = tuple(int(bytes(part)) for part in parts[:numbers])
        items = tuple(bytes(part) for part in parts[numbers:])
        return head, tuple(int(item[1 : item.index(b",")]) for item in items), items
    except (msgspec.DecodeError, ValueError):
        decode_value(raw)  # raises an error that blames the stored state; the re-raised error would blame the message
        raise


def _read_open(state: DeclaredState) -> Line:
    """Reads the record with the newest right messages of the current key; ``_NO_LINE`` if there is no record."""
    raw = state.read_plain(RIGHT)
    line = _NO_LINE
    if raw is not None:
        line = state.dated.read[state.message_key] = _line_of(raw, 2)
    return line


@dataclass(frozen=True, slots=True)
class AsOf:
    """The declaration of an as-of join.

    Durations are in milliseconds. If ``tolerance_ms`` is None, a match may have any age.

    Raises:
        JoinInvalid: An argument is invalid.
    """

    how: Literal["inner", "left"]
    on_merge: OnMerge
    grace_ms: int
    tolerance_ms: int | None

    def __post_init__(self) -> None:
        check_how(self.how, ("inner", "left"))
        check_merge(self.on_merge)

    def options(self, store: str) -> StoreOptions:
        """Returns the options with which the join's store is declared."""
        steps = ("join as of, right messages together",)
        return StoreOptions(store, ttl=BY_VALUE, steps=steps, dating=Dating((PAST,), self.rest_of, 0))

    def is_over(self, time_ms: int, now_ms: int) -> bool:
        """Whether a right message with this event time is too old for every left message that may still come.

        Always False without a tolerance.
        """
        return self.tolerance_ms is not None and time_ms + self.tolerance_ms + self.grace_ms < now_ms

    def ended(self, times: tuple[int, ...], now_ms: int) -> int:
        """Returns the number of expired right messages, counted from the oldest.

        ``times`` are the event times of all right messages of a key, ascending. The last one is the newest message.
        """
        newest = len(times) - 1
        if newest < 0 or self.is_over(times[-1], now_ms):
            return newest + 1
        if not self.grace_ms:
            return newest
        count, before_ms = 0, now_ms - self.grace_ms
        while count < newest and times[count + 1] <= before_ms:
            count += 1
        return count

    def look_at(self, times: tuple[int, ...]) -> int:
        """Returns the stream time at which these right messages must be checked for expiry next; 0 for never.

        ``times`` are their event times, ascending.
        """
        if self.tolerance_ms is not None:
            look_ms = times[-1] + self.tolerance_ms + self.grace_ms + 1
        elif len(times) > 1:
            look_ms = times[-1] + self.grace_ms + SLACK_MS
        else:
            return 0
        return min(look_ms, EVENT_TIME_END_MS - 1)

    def rest_of(self, name: str, raw: bytes, look_ms: int, now_ms: int) -> Rest:
        """Returns a record without its expired messages, and the stream time at which it must be checked again."""
        if name != RIGHT:
            end_ms = _line_of(raw, 1)[0][0]
            return Rest(None) if end_ms <= now_ms else Rest(raw, end_ms)
        (own_look, sealed), times, items = _line_of(raw, 2)
        if own_look != look_ms:
            return Rest(raw)  # the record has changed since this index entry; it has a newer entry, with another time
        ended = self.ended(times, now_ms)
        if ended == len(times):
            return Rest(None)
        look_ms = self.look_at(times[ended:])
        return Rest(_open_record(raw[:HEAD_SIZE], look_ms, sealed, items[ended:]), look_ms or None)

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return f"as of, {self.how}, {name_of(self.on_merge)}, grace {self.grace_ms}, tolerance {self.tolerance_ms}"


def _open_record(head: bytes, look_ms: int, sealed: int, items: tuple[bytes, ...]) -> bytes:
    return b"%b[%d,%d,%b]" % (head, look_ms, sealed, b",".join(items))


class AsOfRight(Step):
    """Stores the messages of the right side of an as-of join."""

    __name__ = "join_asof"
    ignores_headers = True
    order = "feeds"
    store_use: StoreUse = VALUES

    def __init__(self, spec: AsOf, *, keep: Callable[[Any], Any] | None = None) -> None:
        self.spec, self._keep = spec, keep
        self._grace_ms, self._tolerates = spec.grace_ms, spec.tolerance_ms is not None
        self.store_use = StoreUse(StoreForm.JOIN, join=spec)

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers, state: DeclaredState) -> None:
        """Stores one right message in the record of its key. A late message may go to a sealed record."""
        spec, dated = self.spec, state.dated
        if self._keep is not None:
            value = self._keep(value)
        try:
            made = encode_value(value, timestamp)
        except ValueNotStorable:  # Building the error's text costs time, so it is built only after a failure.
            made = encode_value(value, timestamp, where=f" for key {RIGHT!r} of store {state.name!r}")
        head, item = made[:HEAD_SIZE], b"[%d,%b]" % (timestamp, made[HEAD_SIZE:])
        (look_ms, sealed), times, items = dated.read.get(state.message_key) or _read_open(state)
        if self._tolerates or (len(times) > 1 and times[1] <= dated.stream.time_ms - self._grace_ms):
            ended = spec.ended(times, dated.now_ms())
            times, items = times[ended:], items[ended:]
            sealed = sealed if times else -1
        if not times or timestamp > times[-1]:
            if self._tolerates and spec.is_over(timestamp, dated.now_ms()):
                return
            times, items = ((*times, timestamp), (*items, item)) if self._grace_ms else ((timestamp,), (item,))
        elif timestamp > sealed:
            at = bisect_left(times, timestamp)
            behind = at + (times[at] == timestamp)
            if behind < len(times) and (not self._grace_ms or times[behind] + self._grace_ms <= dated.now_ms()):
                return
            times, items = (*times[:at], timestamp, *times[behind:]), (*items[:at], item, *items[behind:])
        else:
            self._put_sealed(state, timestamp, item, head, times[0])
            return
        if not look_ms and (look_ms := spec.look_at(times)):
            dated.ends(RIGHT, look_ms)
        raw = _open_record(head, look_ms, sealed, items)
        if len(times) > OPEN_MAX or len(raw) > OPEN_BYTES_MAX or len(raw) > state.record_bytes_max // 2:
            cut = self._sealable(state, items)
            if cut:
                sealed = times[cut - 1]
                self._seal(state, times[:cut], items[:cut], times[cut] + self._grace_ms, head)
                times, items = times[cut:], items[cut:]
                raw = _open_record(head, look_ms, sealed, items)
        state.write_plain(RIGHT, raw)
        dated.read[state.message_key] = (look_ms, sealed), times, items

    def _sealable(self, state: DeclaredState, items: tuple[bytes, ...]) -> int:
        """Returns how many of the oldest messages must be moved from the newest record to a sealed record."""
        state.check_room(RIGHT, max(map(len, items)) + _AROUND)
        kept, size = 1, len(items[-1])
        for item in items[-2::-1]:
            size += len(item)
            if kept == OPEN_KEPT or size > min(OPEN_BYTES_MAX, state.record_bytes_max) // 2:
                break
            kept += 1
        return len(items) - kept

    def _put_sealed(self, state: DeclaredState, timestamp: int, item: bytes, head: bytes, open_ms: int) -> None:
        """Stores a late message in a sealed record. ``open_ms`` is the earliest time that is not in a sealed record."""
        grace_ms = self.spec.grace_ms
        state.check_room(PAST + time_text(timestamp), len(item) + _AROUND)
        found = state.neighbour(PAST, PAST + time_text(timestamp + 1), before=True)
        (end_ms, *_), times, items = _NO_LINE if found is None else _line_of(found[1], 1)
        at = bisect_left(times, timestamp)
        behind = at + (times[at : at + 1] == (timestamp,))
        if behind == len(times):
            next_ms = _sealed_behind(state, timestamp) or open_ms
            end_ms = next_ms + grace_ms
        else:
            next_ms = times[behind]
        if next_ms + grace_ms <= state.dated.now_ms():
            return
        times, items = (*times[:at], timestamp, *times[behind:]), (*items[:at], item, *items[behind:])
        most = min(OPEN_BYTES_MAX, state.record_bytes_max // 2)
        for first, last in _portions(items, most):
            end = times[last] + grace_ms if last < len(times) else end_ms
            self._seal(state, times[first:last], items[first:last], end, head)

    def _seal(
        self, state: DeclaredState, times: tuple[int, ...], items: tuple[bytes, ...], end_ms: int, head: bytes
    ) -> None:
        """Writes messages as one sealed record (a group of older messages), which expires at stream time ``end_ms``."""
        place = place_of(line_of(state.message_key, PAST.encode()), times[0])
        state.write_place(place, b"%b[%d,%b]" % (head, end_ms, b",".join(items)))
        state.dated.ends(PAST + time_text(times[0]), end_ms)


def _portions(items: tuple[bytes, ...], most: int) -> Iterator[tuple[int, int]]:
    """Splits messages into groups, so that each group fits into one record of at most ``most`` bytes.

    Yields for each group the index of its first message, and the index after its last message.
    """
    if len(items) <= SEALED_MAX and sum(map(len, items)) <= most:
        yield 0, len(items)
        return
    first, size = 0, 0
    for at, item in enumerate(items):
        size += len(item)
        if at > first and (at - first == OPEN_MAX or size > most):
            yield first, at
            first, size = at, len(item)
    yield first, len(items)


class AsOfLeft(Step):
    """Finds for each left message the newest right message that is not later than the left message."""

    __name__ = "join_asof"
    ignores_headers = True
    order = "reads"
    store_use: StoreUse = VALUES
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, spec: AsOf, *, right: Any = None) -> None:
        self.spec = spec
        self._merge = merge_function(spec.on_merge, right=right)
        self._inner = spec.how == "inner"
        self._tolerance_ms = spec.tolerance_ms
        self.store_use = StoreUse(StoreForm.JOIN, writes=False, join=spec)
        self.functions = (spec.on_merge,) if callable(spec.on_merge) else ()

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        return self.spec.describe()

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers, state: DeclaredState) -> list[Any]:
        """Returns a list with the joined value. If the list is empty, the message is dropped."""
        found = self._found(timestamp, state)
        if found is not None and (self._tolerance_ms is None or timestamp - found[0] <= self._tolerance_ms):
            return [self._merge(value, found[1])]
        return [] if self._inner else [self._merge(value, None)]

    def _found(self, timestamp: int, state: DeclaredState) -> Any:
        """Returns the newest right message up to ``timestamp`` as [time, value]; None if there is no such message."""
        (_, sealed), times, items = state.dated.read.get(state.message_key) or _read_open(state)
        if not times:
            return None
        if times[-1] <= timestamp:
            over = self._tolerance_ms is not None and self.spec.is_over(times[-1], state.dated.now_ms())
            return None if over else decode_json(items[-1])
        open_ms = 0
        if timestamp < times[0]:
            older = state.neighbour(PAST, PAST + time_text(timestamp + 1), before=True) if sealed >= 0 else None
            if older is None:
                return None
            open_ms = times[0]
            _, times, items = _line_of(older[1], 1)
        at, now_ms = bisect_right(times, timestamp), state.dated.now_ms()
        next_ms = times[at] if at < len(times) else _sealed_behind(state, timestamp) or open_ms
        # A message expires ``grace_ms`` after the time of the next right message. If the next message was deleted
        # because it has expired too, ``next_ms`` is the time of a later one. The test then still finds that the message
        # has expired.
        if next_ms + self.spec.grace_ms <= now_ms or self.spec.is_over(times[at - 1], now_ms):
            return None
        return decode_json(items[at - 1])


def _sealed_behind(state: DeclaredState, time_ms: int) -> int | None:
    """Returns the first event time of the next sealed record that begins after ``time_ms``; None if none does."""
    found = state.neighbour(PAST, PAST + time_text(time_ms + 1), before=False)
    return None if found is None else int(found[0][len(PAST) :])
