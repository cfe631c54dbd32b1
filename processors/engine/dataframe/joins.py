"""The steps of joins: what each side keeps in the join's store, and what it finds there.

All state is written with ``State``, values of one message key under state keys that begin with their kind::

    as-of      newest        [time, value] of the newest right message
               past/<time>   [value] of an older one; it ends ``grace_ms`` after a newer one took its place
    table      row           the value
    interval   l/<time>      left values of this event time, as [[value, has matched], ...]; r/<time> for the right side

``<time>`` has 15 digits, so that texts are in the order of times. Values of streams are inside lists: None, 0, "" and
false are values like others. In a table None is no row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.dataframe.merging import JoinInvalid, OnMerge, check_merge, merge_function, name_of
from holdfast.processors.engine.dataframe.processing import Context, Processing
from holdfast.processors.engine.dataframe.store_options import BY_VALUE, StoreOptions
from holdfast.processors.engine.state.interface import State

How = Literal["inner", "left", "right", "outer"]

#: The state key of a table's row.
ROW = "row"
#: What the state keys of former values begin with.
PAST = "past/"

_NEWEST = "newest"
_LEFT, _RIGHT = "l/", "r/"


def check_how(how: Any, allowed: tuple[str, ...]) -> None:
    """Raises JoinInvalid unless ``how`` is one of the allowed kinds."""
    if how not in allowed:
        raise JoinInvalid(
            f"`how` is {how!r}, expected {' or '.join(map(repr, allowed))}.",
            action=f"Write, for example, `how={allowed[0]!r}`.",
            seen=repr(how),
        )


def time_text(time_ms: int) -> str:
    """An event time as a part of a state key."""
    return f"{time_ms:015d}"


@dataclass(frozen=True, slots=True)
class AsOf:
    """The declaration of an as-of join; durations in milliseconds, ``tolerance_ms`` None for no limit.

    Raises:
        JoinInvalid: An argument can't be used.
    """

    how: Literal["inner", "left"]
    on_merge: OnMerge
    grace_ms: int
    tolerance_ms: int | None

    def __post_init__(self) -> None:
        check_how(self.how, ("inner", "left"))
        check_merge(self.on_merge)

    def options(self, store: str) -> StoreOptions:
        """What the join's store is declared with."""
        return StoreOptions(store, ttl=BY_VALUE, steps=("join as of",))

    def describe(self) -> str:
        """The rule in a line; another rule is another version."""
        return f"as of, {self.how}, {name_of(self.on_merge)}, grace {self.grace_ms}, tolerance {self.tolerance_ms}"


class AsOfRight:
    """Keeps the messages of the right side."""

    __name__ = "join_asof"

    def __init__(self, spec: AsOf) -> None:
        self.spec = spec
        self._newest_ttl = None if spec.tolerance_ms is None else spec.tolerance_ms + spec.grace_ms + 1
        self.functions: tuple[Callable[..., Any], ...] = ()

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers, state: State) -> None:
        """Takes one message."""
        grace_ms = self.spec.grace_ms
        newest = state.get(_NEWEST)
        if newest is None or timestamp >= newest[0]:
            if newest is not None and timestamp > newest[0] and grace_ms:
                state.set(PAST + time_text(newest[0]), newest[1:], ttl=grace_ms)
            state.set(_NEWEST, [timestamp, value], ttl=self._newest_ttl)
        elif grace_ms:
            state.set(PAST + time_text(timestamp), [value], ttl=newest[0] - timestamp + grace_ms)


class AsOfLeft:
    """Finds for each message of the left side the right one as of its time."""

    __name__ = "join_asof"

    def __init__(self, spec: AsOf) -> None:
        self.spec = spec
        self._merge = merge_function(spec.on_merge)
        self._inner = spec.how == "inner"
        self._tolerance_ms = spec.tolerance_ms
        self.functions = (spec.on_merge,) if callable(spec.on_merge) else ()

    def describe(self) -> str:
        """The rule in a line; another rule is another version."""
        return self.spec.describe()

    def __call__(self, value: Any, key: Any, timestamp: int, headers: Headers, state: State) -> list[Any]:
        """The joined value, or nothing."""
        newest = state.get(_NEWEST)
        if newest is not None and newest[0] > timestamp:
            older = state.items(prefix=PAST, end=PAST + time_text(timestamp + 1), reverse=True, limit=1)
            newest = [int(older[0][0][len(PAST) :]), *older[0][1]] if older else None
        if newest is not None and (self._tolerance_ms is None or timestamp - newest[0] <= self._tolerance_ms):
            return [self._merge(value, newest[1])]
        return [] if self._inner else [self._merge(value, None)]


class TablePut:
    """Keeps the newest value of each key as the row of a table; None deletes the row."""

    __name__ = "table"

    def __init__(self) -> None:
        self.functions: tuple[Callable[..., Any], ...] = ()

    def __call__(self, value: Any, state: State) -> None:
        """Takes one message."""
        if value is None:
            state.delete(ROW)
        else:
            state.set(ROW, value)


class TableRead:
    """Finds for each message the row of its key."""

    __name__ = "join_table"

    def __init__(self, how: Literal["inner", "left"], on_merge: OnMerge) -> None:
        check_how(how, ("inner", "left"))
        check_merge(on_merge)
        self._merge, self._inner = merge_function(on_merge), how == "inner"
        self._rule = f"table, {how}, {name_of(on_merge)}"
        self.functions = (on_merge,) if callable(on_merge) else ()

    def describe(self) -> str:
        """The rule in a line; another rule is another version."""
        return self._rule

    def __call__(self, value: Any, state: State) -> list[Any]:
        """The joined value, or nothing."""
        return self.joined(value, state.get(ROW))

    def joined(self, value: Any, row: Any) -> list[Any]:
        """The value joined with a row, None for no row; nothing for a value that is dropped."""
        if row is not None:
            return [self._merge(value, row)]
        return [] if self._inner else [self._merge(value, None)]


@dataclass(frozen=True, slots=True)
class Interval:
    """The declaration of an interval join; durations are milliseconds.

    A right message matches a left one if it is at most ``backward_ms`` older and at most ``forward_ms`` younger.

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
        return StoreOptions(store, ttl=BY_VALUE, steps=("join by interval",))

    def describe(self) -> str:
        """The rule in a line; another rule is another version."""
        times = f"{self.backward_ms} back, {self.forward_ms} forward, grace {self.grace_ms}"
        return f"interval, {self.how}, {name_of(self.on_merge)}, {times}"

    def side(self, *, left: bool) -> _Side:
        """What one side of the join does."""
        before, behind = (self.backward_ms, self.forward_ms) if left else (self.forward_ms, self.backward_ms)
        sent = self.how in (("left", "outer") if left else ("right", "outer"))
        own, other = (_LEFT, _RIGHT) if left else (_RIGHT, _LEFT)
        return _Side(left, own, other, before, behind, behind + self.grace_ms, sent)


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of an interval join.

    A message finds those of the other side that are at most ``before_ms`` older and at most ``behind_ms`` younger. It
    is kept for ``lasts_ms`` of stream time. One without a match is sent then, if ``sent``.
    """

    left: bool
    own: str
    other: str
    before_ms: int
    behind_ms: int
    lasts_ms: int
    sent: bool


class IntervalJoin:
    """One step behind both streams; a value is (is left, value). It emits (event time, left, right)."""

    def __init__(self, spec: Interval) -> None:
        self._sides = {True: spec.side(left=True), False: spec.side(left=False)}

    def on_message(self, tagged: tuple[bool, Any], context: Context) -> None:
        """Emits a message with each match, and keeps it."""
        side, value = self._sides[tagged[0]], tagged[1]
        matched = self._match(side, value, context)
        state, place = context.state, side.own + time_text(context.timestamp)
        held = state.get(place) or []
        if side.sent:
            # Its timer deletes it: a value that ends at the same time would not be there any more.
            state.set(place, [*held, [value, matched]])
            context.set_timer(place, context.timestamp + side.lasts_ms + 1)
        else:
            state.set(place, [*held, [value, matched]], ttl=side.lasts_ms + 1)

    def on_timer(self, name: str, time: int, context: Context) -> None:
        """Emits the values of one side and time that have not matched, and deletes all of it."""
        side = self._sides[name.startswith(_LEFT)]
        for value, matched in context.state.pop(name, []):
            if not matched:
                context.emit(_row(side, int(name[len(side.own) :]), value, None))

    def _match(self, side: _Side, value: Any, context: Context) -> bool:
        state, time_ms = context.state, context.timestamp
        first = side.other + time_text(max(0, time_ms - side.before_ms))
        end = side.other + time_text(time_ms + side.behind_ms + 1)
        other = self._sides[not side.left]
        matched = False
        for place, held in state.items(start=first, end=end):
            at = int(place[len(side.other) :])
            for found, _ in held:
                context.emit(_row(side, max(at, time_ms), value, found))
                matched = True
            if other.sent and not all(has for _, has in held):
                state.set(place, [[found, True] for found, _ in held])
        return matched


def _row(side: _Side, time_ms: int, own: Any, other: Any) -> tuple[int, Any, Any]:
    return (time_ms, own, other) if side.left else (time_ms, other, own)


class IntervalProcessing(Processing):
    """The declaration of the step of an interval join."""

    __slots__ = ("_spec",)

    def __init__(self, spec: Interval) -> None:
        super().__init__(partial(IntervalJoin, spec))
        object.__setattr__(self, "_spec", spec)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        spec: Interval = self._spec  # type: ignore[attr-defined]
        return (spec.on_merge,) if callable(spec.on_merge) else ()

    def describe(self) -> str:
        """The rule in a line; another rule is another version."""
        spec: Interval = self._spec  # type: ignore[attr-defined]
        return spec.describe()


class RowTime:
    """The event time of a joined row: the later one of its two messages."""

    __name__ = "join_interval"
    functions: tuple[Callable[..., Any], ...] = ()

    def __call__(self, row: tuple[int, Any, Any], *_: Any) -> int:
        """The time in milliseconds since 1970."""
        return row[0]


class RowMerge:
    """The value of a joined row."""

    __name__ = "join_interval"
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, on_merge: OnMerge) -> None:
        self._merge = merge_function(on_merge)

    def __call__(self, row: tuple[int, Any, Any]) -> Any:
        """The value."""
        return self._merge(row[1], row[2])


class Tag:
    """Says of which side of an interval join a value is."""

    __name__ = "join_interval"
    functions: tuple[Callable[..., Any], ...] = ()

    def __init__(self, *, left: bool) -> None:
        self._left = left

    def __call__(self, value: Any) -> tuple[bool, Any]:
        """(is left, value)."""
        return self._left, value


#: The functions of steps that joins are made of.
JoinStep = (AsOfRight, AsOfLeft, TablePut, TableRead, RowTime, RowMerge, Tag)
