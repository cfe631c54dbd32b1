"""Count windows: each window has a fixed number of messages of a key, in processing order. No clock is needed.

    messages of a key     0   1   2   3   4   5   6   7
    hopping, 4 by 2       ├───────────┤
                                  ├───────────┤
                                          ├───────────┤

A tumbling window stores only its aggregates. Overlapping windows share messages. The store keeps the items that the
columns read from the messages, in chunks. Each window is computed from these items.

Invariants:
    - Message n of a key is in several windows. They begin at the multiples of the step from n - count + 1 to n.
    - A chunk is deleted when the last window that needs its last message is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from holdfast.processors.engine.aggregates.aggregation import Mean, Sum
from holdfast.processors.engine.aggregates.window_aggregates import WindowAggregation
from holdfast.processors.engine.changelog.format import unknown_version
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.engine.state.time.stream_time import time_invalid
from holdfast.processors.engine.state.time.window_keys import COUNTED, COUNTED_OPEN, counted_key
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.store_uses import WindowUse
from holdfast.processors.engine.windows.spec import WINDOWS_OF_A_MESSAGE_MAX, WindowInvalid
from holdfast.processors.engine.windows.stored import OwedResult, Result

COUNTED_VERSION = 1
#: The messages of one overlapping window are split into about this many chunks. The second number is the minimum number
#: of messages in a chunk.
CHUNKS, CHUNK_LEAST = 16, 8
#: A value above ``SURE_MAX`` is large. A sum of up to ``MESSAGES_MAX`` smaller values can't overflow a float. The field
#: ``LARGE`` of a key's record has the number of the last message with a large value.
LARGE, SURE_MAX = "large", 1e300
#: The name of the field with the window's times and message count, in the record of a tumbling window. All other fields
#: of this record are aggregates.
WINDOW = "window"
#: Maximum number of messages of a window, because these messages are in one record or are read together.
MESSAGES_MAX = 1_000_000
CountKind = Literal["tumbling", "hopping", "sliding"]


@dataclass(frozen=True, slots=True)
class CountSpec:
    """The declaration of a count window.

    A new window of ``count`` messages begins at every ``step``-th message of a key.
    """

    kind: CountKind
    count: int
    step: int
    aggregation: WindowAggregation
    #: True: a result is sent when a window is full. False: a result is sent with each message.
    final: bool = False

    store_kind: ClassVar[str] = "count-window"
    called: ClassVar[str] = "a window"

    @property
    def overlaps(self) -> bool:
        """True, because one message may produce the results of several windows."""
        return True

    @property
    def owes(self) -> bool:
        """Whether the message that fills a window sends a result that earlier messages made (``OwedResult``)."""
        return self.final

    @property
    def asks_headers(self) -> bool:
        """False, because count windows call no user functions that get headers."""
        return False

    @property
    def __name__(self) -> str:
        """The step's name in errors."""
        return f"{self.kind}_count_window"

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions that the window calls."""
        return self.aggregation.functions

    @property
    def use(self) -> WindowUse:
        """Describes the content of the window's store, with the number of messages of a window."""
        return WindowUse(self.kind, True, (f"{self.count} messages{self._how}",))

    @property
    def _how(self) -> str:
        step = f", step {self.step}" if self.kind == "hopping" else ""
        return f"{step}, {'final' if self.final else 'current'}"

    def lines(self) -> tuple[str, ...]:
        """The definition as text: one line for the window's size, and one for each column.

        If a line changes, the definition of the store has changed.
        """
        return f"window = {self.kind} count {self.count}{self._how}", *self.aggregation.lines()


def count_window_of(node: Node) -> CountSpec | None:
    """Returns the count window that a step declares; None if the step is no count window."""
    return node.window if isinstance(node.window, CountSpec) else None


def checked_count(count: int, step: int) -> tuple[int, int]:
    """Checks and returns ``count`` and ``step``.

    Raises:
        WindowInvalid: An argument is not a whole number or is out of range, or ``step`` exceeds ``count``.
    """
    for name, given in (("count", count), ("step", step)):
        if type(given) is not int or not 1 <= given <= MESSAGES_MAX:
            raise WindowInvalid(
                f"`{name}` is {given!r}, expected a whole number from 1 to {MESSAGES_MAX}.",
                action=f"Write, for example, `{name}=10`.",
                seen=repr(given),
            )
    if step > count:
        raise WindowInvalid(
            f"`step` is {step} and `count` is {count}: messages between two windows would be lost.",
            action="Make the step as large as the count, or smaller.",
            seen=step,
            expected=count,
        )
    if -(-count // step) > WINDOWS_OF_A_MESSAGE_MAX:
        raise WindowInvalid(
            f"With `step` {step} and `count` {count}, each message belongs to {-(-count // step)} windows; at most "
            f"{WINDOWS_OF_A_MESSAGE_MAX} are possible.",
            action="Make the step larger.",
            seen=step,
        )
    return count, step


class CountStore:
    """The count windows of one step in one task.

    Args:
        spec: The declaration.
        state: The store of the step; no other step uses it.
    """

    def __init__(self, spec: CountSpec, state: StoreState) -> None:
        self.spec, self._state = spec, state
        self._chunk = max(CHUNK_LEAST, spec.count // CHUNKS)
        #: The names of the columns that add numbers.
        self._added = [name for name, made in spec.aggregation.columns.items() if isinstance(made, (Sum, Mean))]
        self._take = self._tumble if spec.step == spec.count else self._overlap

    def take(self, value: Any, key: Any, raw_key: bytes, time_ms: int, headers: Any = None) -> Sequence[Result]:
        """Adds a message to its windows and returns the results to send.

        Raises:
            AggregationFailed: The message can't be aggregated.
            EventTimeInvalid: The message has no event time. A window needs event times for its start and end.
        """
        if time_ms < 0:
            raise time_invalid(time_ms)
        self._state.point_at(raw_key, time_ms)
        return self._take(value, time_ms)

    def _tumble(self, value: Any, time_ms: int) -> Sequence[Result]:
        spec, state = self.spec, self._state
        held = state.get(COUNTED_OPEN)
        about = {"messages": 0, "start": time_ms, "end": time_ms} if held is None else held.pop(WINDOW)
        stored = spec.aggregation.folded(held, value, time_ms)
        start, end = min(about["start"], time_ms), max(about["end"], time_ms)
        messages = about["messages"] + 1
        full = messages >= spec.count
        if full:
            state.delete(COUNTED_OPEN)
        else:
            state.set(COUNTED_OPEN, {**stored, WINDOW: {"messages": messages, "start": start, "end": end}})
        if spec.final:
            return [OwedResult(spec.aggregation.due(start, end, stored), start)] if full else []
        return [(spec.aggregation.result(start, end, stored), start)]

    def _overlap(self, value: Any, time_ms: int) -> Sequence[Result]:
        spec, state = self.spec, self._state
        known = state.get(COUNTED) or {"format": COUNTED_VERSION, "messages": 0, "chunks": []}
        if known.get("format") != COUNTED_VERSION:
            what = f"The record of count windows in store {state.name}"
            raise unknown_version(what, known.get("format"), COUNTED_VERSION)
        number, chunks = known["messages"], known["chunks"]
        if not chunks or number >= chunks[-1] + self._chunk:
            chunks = [*chunks, number]
        item = spec.aggregation.read(value)
        large = known.get(LARGE)
        for name in self._added:
            if not -SURE_MAX <= item[name] <= SURE_MAX:
                large = number
        newest = [*(state.get(counted_key(chunks[-1])) or ()), [time_ms, item]]
        state.set(counted_key(chunks[-1]), newest)
        results = self._windows(number, chunks, large)
        needed = self._first_window(number + 1)
        while len(chunks) > 1 and chunks[1] <= needed:
            state.delete(counted_key(chunks[0]))
            chunks = chunks[1:]
        made = {"format": COUNTED_VERSION, "messages": number + 1, "chunks": chunks}
        if large is not None and large >= needed:
            made[LARGE] = large
        state.set(COUNTED, made)
        return results

    def _first_window(self, number: int) -> int:
        """Returns the number of the first message of the earliest window that contains message ``number``."""
        step = self.spec.step
        return max(0, -(-(number - self.spec.count + 1) // step) * step)

    def _windows(self, number: int, chunks: Sequence[int], large: int | None) -> list[Result]:
        """Returns the results to send after message ``number`` was added, ordered by the start of their windows.

        ``large`` is the number of the last message with a value so large that sums could overflow a float.
        """
        spec = self.spec
        first = self._first_window(number)
        # Windows are computed even if no result is sent now. If this message can't be aggregated, it must fail now;
        # otherwise, a later message would fail. Usually it is enough to compute the first window, because it contains
        # the messages of all other windows. With large values, a sum of another window can still overflow.
        one = spec.final and (large is None or large < first)
        begins = (first,) if one else range(first, number + 1, spec.step)
        items = [item for chunk in chunks for item in self._state.get(counted_key(chunk)) or ()]
        results: list[Result] = []
        for begin in begins:
            if begin < chunks[0]:
                # an earlier definition of the windows did not store the first messages of this window
                continue
            inside = items[begin - chunks[0] :]
            times = [item[0] for item in inside]
            start, end = min(times), max(times)
            if not spec.final:
                results.append((spec.aggregation.computed(start, end, inside), start))
            else:
                results.append(OwedResult(spec.aggregation.computed_due(start, end, inside, closes=False), start))
        if not spec.final:
            return results
        return results[:1] if number - first + 1 == spec.count and first >= chunks[0] else []
