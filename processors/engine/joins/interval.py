"""The steps of joins by interval: each side's records in the join's store, and its lookups.

All state is written with ``State``, values of one message key under state keys that begin with their side::

    l/<time>      left values of this event time, as [[value, has matched], ...]; r/<time> for the right side
    l/<time>/<n>  the same, further values of this time, in the order in which they came

``<time>`` has 15 digits and ``<n>`` has 9, so that the order of texts is the order of times. A value that is sent if it
finds no match has a separate record and timer. Other records contain several values, up to ``TOGETHER_BYTES``, because
times of many topics are whole seconds. Older versions kept all values of a time in one record; such records are still
read.

Values of streams are inside lists: None, 0, "" and false are values like others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from holdfast.processors.engine.changelog.format import (
    CODEC_JSON,
    HEAD_SIZE,
    VALUE_VERSION,
    decode_value,
    encode_value,
    pack_head,
)
from holdfast.processors.engine.joins.merge import OnMerge, check_how, check_merge, merge_function, name_of
from holdfast.processors.engine.state.time.dated_values import NUMBERS, Dating, Rest, line_of, place_at, time_of
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.end_timers import EndTimers
from holdfast.processors.engine.state.time.timers import Timer, Timers
from holdfast.processors.engine.steps.processing import Context, Processing
from holdfast.processors.engine.steps.step import Step
from holdfast.processors.engine.steps.store_options import BY_VALUE, StoreOptions
from holdfast.processors.engine.store_uses import TimerUse

How = Literal["inner", "left", "right", "outer"]

_LEFT, _RIGHT = "l/", "r/"
#: Size in bytes up to which a record accepts further messages of its time.
TOGETHER_BYTES = 1_024
#: How far before the interval times are kept in memory, in milliseconds; a later message costs a range read.
_SLACK_MS = 1_000


@dataclass(frozen=True, slots=True)
class Interval:
    """The declaration of an interval join; durations are milliseconds.

    A right message matches a left message if it is at most ``backward_ms`` older and at most ``forward_ms`` younger.

    Raises:
        JoinInvalid: An argument can't be used.
    """

    how: How
    on_merge: OnMerge
    backward_ms: int
    forward_ms: int
    grace_ms: int

    def __post_init__(self) -> None:
        check_how(self.how, ("inner", "left", "right", "outer"))
        check_merge(self.on_merge)

    def options(self, store: str) -> StoreOptions:
        """What the join's store is declared with."""
        slack_ms = self.backward_ms + self.forward_ms + _SLACK_MS
        dating = Dating((_LEFT, _RIGHT), self.rest_of, slack_ms, numbered=True)
        return StoreOptions(store, ttl=BY_VALUE, steps=("join by interval",), dating=dating)

    def rest_of(self, name: str, raw: bytes, look_ms: int, now_ms: int) -> Rest:
        """The remaining part of a stored value, and the time of the next visit."""
        end_ms = self.end_of(name, raw)
        return Rest(None) if end_ms is not None and end_ms <= now_ms else Rest(raw, end_ms)

    def end_of(self, name: str, raw: bytes) -> int | None:
        """When a stored value ends; None if a timer ends it, as it may be a row without a match."""
        left = name.startswith(_LEFT)
        if self.how != "inner" and self.is_sent(left=left) and not _is_matched(raw):
            return None
        behind_ms = self.forward_ms if left else self.backward_ms
        return time_of(name, _LEFT) + behind_ms + self.grace_ms + 1

    def is_sent(self, *, left: bool) -> bool:
        """Whether a message of this side is sent if it has no match."""
        return self.how == "outer" or self.how == ("left" if left else "right")

    def describe(self) -> str:
        """The rule as one line of text; a change of the text changes the version."""
        times = f"{self.backward_ms} back, {self.forward_ms} forward, grace {self.grace_ms}"
        return f"interval, {self.how}, {name_of(self.on_merge)}, {times}"

    def side(self, *, left: bool) -> _Side:
        """The bounds and the behaviour of one side of the join."""
        before, behind = (self.backward_ms, self.forward_ms) if left else (self.forward_ms, self.backward_ms)
        own, other = (_LEFT, _RIGHT) if left else (_RIGHT, _LEFT)
        return _Side(
            left, own, own.encode(), other.encode(), before, behind, behind + self.grace_ms, self.is_sent(left=left)
        )


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of an interval join.

    A message matches messages of the other side that are at most ``before_ms`` older and at most ``behind_ms`` younger.
    It is kept for ``lasts_ms`` of stream time. After that, a message without a match is sent if ``sent`` is true.
    """

    left: bool
    name: str
    own: bytes
    other: bytes
    before_ms: int
    behind_ms: int
    lasts_ms: int
    sent: bool


class InnerInterval:
    """One step after both streams; a value is (is left, value). It emits (event time, left, right)."""

    def __init__(self, spec: Interval) -> None:
        self._sides = {True: spec.side(left=True), False: spec.side(left=False)}

    def on_message(self, tagged: tuple[bool, Any], context: Context) -> None:
        """Emits a message with each match, and keeps it."""
        side, value = self._sides[tagged[0]], tagged[1]
        matched = self._match(side, value, context)
        state: DeclaredState = context.state  # type: ignore[assignment]
        dated, time_ms = state.dated, context.timestamp
        end_ms = time_ms + side.lasts_ms + 1
        if end_ms <= dated.stream_ms and not side.sent:
            return
        line = line_of(state.message_key, side.own)
        last = dated.last(line, time_ms)
        raw = encode_value(value, time_ms, where=f" in store {state.name!r}")
        made = b"%b[[%b,%b]]" % (raw[:HEAD_SIZE], raw[HEAD_SIZE:], b"true" if matched else b"false")
        is_timed = side.sent and not _is_matched(made)
        if last is not None and not is_timed and _joins_last(state, side, place_at(line, last), made):
            return
        name = dated.put(line, time_ms * NUMBERS if last is None else last + 1, made)
        if is_timed:
            # The timer sends and deletes the message; ``end_of`` keeps it until then.
            context._own_timers().set(Timer(name, end_ms, "stream"))
        else:
            dated.ends(name, end_ms)

    def _match(self, side: _Side, value: Any, context: Context) -> bool:
        state: DeclaredState = context.state  # type: ignore[assignment]
        dated, time_ms = state.dated, context.timestamp
        line, other = line_of(state.message_key, side.other), self._sides[not side.left]
        # Messages whose end is before the stream time no longer match, even while they are in the store.
        first_ms = max(time_ms - side.before_ms, dated.stream_ms - other.lasts_ms)
        matched = False
        for moment in dated.moments(line, first_ms, time_ms + side.behind_ms):
            place = place_at(line, moment)
            raw = state.read_place(place)
            if raw is None:
                continue
            held, at_ms = decode_value(raw), moment // NUMBERS
            for found, _ in held:
                context.emit(_row(side, max(at_ms, time_ms), value, found))
                matched = True
            if other.sent and not all(has for _, has in held):
                state.write_place(place, _matched(raw, held, time_ms))
        return matched


class IntervalJoin(InnerInterval):
    """Like ``InnerInterval``, with rows for messages without a match, of one side or both: timers send these rows."""

    def on_timer(self, name: str, time: int, context: Context) -> None:
        """Emits the unmatched values of a record, and deletes the record."""
        side = self._sides[name.startswith(_LEFT)]
        time_ms = time_of(name, side.name)
        for value, matched in context.state.pop(name, []):
            if not matched:
                context.emit(_row(side, time_ms, value, None))


def _joins_last(state: DeclaredState, side: _Side, place: bytes, made: bytes) -> bool:
    """Adds a message to the last record of its time; False if that record is full, deleted, or sent without a match."""
    held = state.read_place(place)
    if held is None or (side.sent and not _is_matched(held)):
        return False
    if len(held) + len(made) > min(TOGETHER_BYTES, state.record_bytes_max // 2):
        return False
    state.write_place(place, b"%b%b,%b" % (made[:HEAD_SIZE], held[HEAD_SIZE:-1], made[HEAD_SIZE + 1 :]))
    return True


def _matched(raw: bytes, held: list[list[Any]], time_ms: int) -> bytes:
    """The stored form of a record whose values have all matched; only records of older versions have several values."""
    if len(held) > 1:
        return encode_value([[value, True] for value, _ in held], time_ms)
    return pack_head(VALUE_VERSION, CODEC_JSON, time_ms) + raw[HEAD_SIZE : -len(b"false]]")] + b"true]]"


def _is_matched(raw: bytes) -> bool:
    """Whether all values of a record have matched; False may be wrong."""
    return b",false]" not in raw


def _row(side: _Side, time_ms: int, own: Any, other: Any) -> tuple[int, Any, Any]:
    return (time_ms, own, other) if side.left else (time_ms, other, own)


class IntervalProcessing(Processing):
    """The declaration of the step of an interval join."""

    __slots__ = ("_spec",)
    shared_as = "join_interval(..., name='near')"
    use = TimerUse(of_join=True)

    def __init__(self, spec: Interval) -> None:
        super().__init__(partial(InnerInterval if spec.how == "inner" else IntervalJoin, spec))
        object.__setattr__(self, "_spec", spec)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        spec: Interval = self._spec  # type: ignore[attr-defined]
        return (spec.on_merge,) if callable(spec.on_merge) else ()

    def timers_of(self, state: DeclaredState) -> Timers:
        """The ends of values that are sent without a match."""
        return EndTimers(state, _is_matched)

    def describe(self) -> str:
        """The rule as one line of text; a change of the text changes the version."""
        spec: Interval = self._spec  # type: ignore[attr-defined]
        return spec.describe()


class RowTime(Step):
    """The event time of a joined row: the later one of its two messages."""

    __name__ = "join_interval"

    def __call__(self, row: tuple[int, Any, Any], *_: Any) -> int:
        """The time in milliseconds since 1970."""
        return row[0]


class RowMerge(Step):
    """The value of a joined row."""

    __name__ = "join_interval"

    def __init__(self, on_merge: OnMerge) -> None:
        self._merge = merge_function(on_merge)

    def __call__(self, row: tuple[int, Any, Any]) -> Any:
        """The value."""
        return self._merge(row[1], row[2])


class Tag(Step):
    """Marks a value with its side of an interval join."""

    __name__ = "join_interval"

    def __init__(self, *, left: bool) -> None:
        self._left = left

    def __call__(self, value: Any) -> tuple[bool, Any]:
        """(is left, value)."""
        return self._left, value
