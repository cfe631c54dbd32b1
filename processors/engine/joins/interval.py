"""The steps of interval joins. The steps store the messages of both sides in the join's store, and look up matches.

The state keys of a message key begin with the side::

    l/<time>      left values with this event time, as [[value, has matched], ...]; r/<time> for the right side
    l/<time>/<n>  further values with the same event time, in order of arrival

``<time>`` has 15 digits and ``<n>`` has 9 digits, so that state keys sort by time. If a value must be sent when it
finds no match, it has a separate record and a timer. Other records hold several values, up to ``TOGETHER_BYTES``,
because event times in many topics are whole seconds. Older releases of Holdfast stored all values of one event time in
one record. These records can still be read.

The values of the streams are inside lists, because None, 0, "" and false are valid values.
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
#: Functions that make the stored form of instances, of the left and of the right side; None where values are plain.
Keeps = tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None]

_LEFT, _RIGHT = "l/", "r/"
#: Maximum bytes of a record to which further messages of the same event time are added. Nothing is added to a larger
#: record.
TOGETHER_BYTES = 1_024
#: Milliseconds. The event times of stored values are also kept in memory, if they are in the join's interval or at most
#: this much earlier. For still earlier times, the store must be read.
_SLACK_MS = 1_000


@dataclass(frozen=True, slots=True)
class Interval:
    """The declaration of an interval join. Durations are in milliseconds.

    A right message matches a left message if it is at most ``backward_ms`` earlier and at most ``forward_ms`` later, by
    event time.

    Raises:
        JoinInvalid: An argument is invalid.
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
        """Returns the options with which the join's store is declared."""
        slack_ms = self.backward_ms + self.forward_ms + _SLACK_MS
        dating = Dating((_LEFT, _RIGHT), self.rest_of, slack_ms, numbered=True)
        return StoreOptions(store, ttl=BY_VALUE, steps=("join by interval",), dating=dating)

    def rest_of(self, name: str, raw: bytes, look_ms: int, now_ms: int) -> Rest:
        """Returns a stored value (None if expired), and the stream time at which it must be checked again."""
        end_ms = self.end_of(name, raw)
        return Rest(None) if end_ms is not None and end_ms <= now_ms else Rest(raw, end_ms)

    def end_of(self, name: str, raw: bytes) -> int | None:
        """Returns the expiry time of a stored value, in milliseconds.

        None means that the value has no expiry time: a timer deletes it, because it may be sent without a match.
        """
        left = name.startswith(_LEFT)
        if self.how != "inner" and self.is_sent(left=left) and not _is_matched(raw):
            return None
        behind_ms = self.forward_ms if left else self.backward_ms
        return time_of(name, _LEFT) + behind_ms + self.grace_ms + 1

    def is_sent(self, *, left: bool) -> bool:
        """Whether a message of this side without a match is sent, when no match is possible any longer."""
        return self.how == "outer" or self.how == ("left" if left else "right")

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        times = f"{self.backward_ms} back, {self.forward_ms} forward, grace {self.grace_ms}"
        return f"interval, {self.how}, {name_of(self.on_merge)}, {times}"

    def side(self, *, left: bool) -> _Side:
        """Returns the time bounds and the options that a message of this side needs to find its matches."""
        before, behind = (self.backward_ms, self.forward_ms) if left else (self.forward_ms, self.backward_ms)
        own, other = (_LEFT, _RIGHT) if left else (_RIGHT, _LEFT)
        return _Side(
            left, own, own.encode(), other.encode(), before, behind, behind + self.grace_ms, self.is_sent(left=left)
        )


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of an interval join.

    A message of this side matches messages of the other side that are at most ``before_ms`` earlier and at most
    ``behind_ms`` later. The message is stored for ``lasts_ms`` of stream time. If ``sent`` is true, a message without a
    match is sent after that time.
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
    """The step of an inner interval join. It processes both streams.

    A message is the tuple (True for the left side, value). A joined row is the tuple (event time, left value, right
    value).
    """

    def __init__(self, spec: Interval, *, keeps: Keeps = (None, None)) -> None:
        self._keeps = {True: keeps[0], False: keeps[1]}
        self._sides = {True: spec.side(left=True), False: spec.side(left=False)}

    def on_message(self, tagged: tuple[bool, Any], context: Context) -> None:
        """Emits a joined row for each match of a message, and stores the message for later matches."""
        side, value = self._sides[tagged[0]], tagged[1]
        matched = self._match(side, value, context)
        state: DeclaredState = context.state  # type: ignore[assignment]
        dated, time_ms = state.dated, context.timestamp
        end_ms = time_ms + side.lasts_ms + 1
        if end_ms <= dated.stream_ms and not side.sent:
            return
        line = line_of(state.message_key, side.own)
        last = dated.last(line, time_ms)
        keep = self._keeps[side.left]
        kept = value if keep is None else keep(value)
        raw = encode_value(kept, time_ms, where=f" in store {state.name!r}")
        made = b"%b[[%b,%b]]" % (raw[:HEAD_SIZE], raw[HEAD_SIZE:], b"true" if matched else b"false")
        is_timed = side.sent and not _is_matched(made)
        if last is not None and not is_timed and _joins_last(state, side, place_at(line, last), made):
            return
        name = dated.put(line, time_ms * NUMBERS if last is None else last + 1, made)
        if is_timed:
            # The timer will send this message without a match, or delete it. Until then, ``end_of`` returns None for
            # the message.
            context._own_timers().set(Timer(name, end_ms, "stream"))
        else:
            dated.ends(name, end_ms)

    def _match(self, side: _Side, value: Any, context: Context) -> bool:
        state: DeclaredState = context.state  # type: ignore[assignment]
        dated, time_ms = state.dated, context.timestamp
        line, other = line_of(state.message_key, side.other), self._sides[not side.left]
        # Some messages in the store may already have expired by stream time. An expired message must not match.
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
    """An interval join that also sends messages without a match, of one side or of both. Timers send these messages."""

    def on_timer(self, name: str, time: int, context: Context) -> None:
        """Emits the values of a record for which no match has come, and deletes the record."""
        side = self._sides[name.startswith(_LEFT)]
        time_ms = time_of(name, side.name)
        for value, matched in context.state.pop(name, []):
            if not matched:
                context.emit(_row(side, time_ms, value, None))


def _joins_last(state: DeclaredState, side: _Side, place: bytes, made: bytes) -> bool:
    """Adds a message to the newest record with the same event time, so that messages of one time share a record.

    Returns False, and adds nothing, if this record is full or deleted. It also returns False if a timer may still send
    the record's message without a match.
    """
    held = state.read_place(place)
    if held is None or (side.sent and not _is_matched(held)):
        return False
    if len(held) + len(made) > min(TOGETHER_BYTES, state.record_bytes_max // 2):
        return False
    state.write_place(place, b"%b%b,%b" % (made[:HEAD_SIZE], held[HEAD_SIZE:-1], made[HEAD_SIZE + 1 :]))
    return True


def _matched(raw: bytes, held: list[list[Any]], time_ms: int) -> bytes:
    """Returns the bytes ``raw`` of a stored record, with all its values marked as matched.

    A record for which a timer is set has one value, so its last bytes are replaced. Older releases of Holdfast also set
    timers for records with several values; such a record is encoded again.
    """
    if len(held) > 1:
        return encode_value([[value, True] for value, _ in held], time_ms)
    return pack_head(VALUE_VERSION, CODEC_JSON, time_ms) + raw[HEAD_SIZE : -len(b"false]]")] + b"true]]"


def _is_matched(raw: bytes) -> bool:
    """Whether all values of a record are marked as matched.

    The function searches the record's bytes for ``,false]``. If a value contains this text, it returns False, even if
    all values are matched.
    """
    return b",false]" not in raw


def _row(side: _Side, time_ms: int, own: Any, other: Any) -> tuple[int, Any, Any]:
    return (time_ms, own, other) if side.left else (time_ms, other, own)


class IntervalProcessing(Processing):
    """The declaration of the step that processes an interval join."""

    __slots__ = ("_spec",)
    shared_as = "join_interval(..., name='near')"
    use = TimerUse(of_join=True)

    def __init__(self, spec: Interval, *, keeps: Keeps = (None, None)) -> None:
        step = InnerInterval if spec.how == "inner" else IntervalJoin
        super().__init__(partial(step, spec, keeps=keeps))
        object.__setattr__(self, "_spec", spec)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions that the step calls."""
        spec: Interval = self._spec  # type: ignore[attr-defined]
        return (spec.on_merge,) if callable(spec.on_merge) else ()

    def timers_of(self, state: DeclaredState) -> Timers:
        """Returns the timers that fire when a value expires without a match."""
        return EndTimers(state, _is_matched)

    def describe(self) -> str:
        """Describes the step in one line of text. If this text changes, the processor gets a new code version."""
        spec: Interval = self._spec  # type: ignore[attr-defined]
        return spec.describe()


class RowTime(Step):
    """Returns the event time of a joined row: the later one of the event times of its two messages."""

    __name__ = "join_interval"

    def __call__(self, row: tuple[int, Any, Any], *_: Any) -> int:
        """Returns the event time in milliseconds since 1970."""
        return row[0]


class RowMerge(Step):
    """Merges the left and the right value of a joined row."""

    __name__ = "join_interval"

    def __init__(self, on_merge: OnMerge, *, left: Any = None, right: Any = None) -> None:
        self._merge = merge_function(on_merge, left=left, right=right)

    def __call__(self, row: tuple[int, Any, Any]) -> Any:
        """Returns the merged value."""
        return self._merge(row[1], row[2])


class Tag(Step):
    """Converts a value to a tuple that says from which side of the join the value comes."""

    __name__ = "join_interval"

    def __init__(self, *, left: bool) -> None:
        self._left = left

    def __call__(self, value: Any) -> tuple[bool, Any]:
        """Returns the tuple (is left, value)."""
        return self._left, value
