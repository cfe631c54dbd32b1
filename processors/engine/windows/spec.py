"""The frozen declaration of a window: its times, and the rules for when a window ends, closes and is deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from holdfast.infra.errors import BadConfiguration
from holdfast.processors.engine.aggregates.window_aggregates import WindowAggregation
from holdfast.processors.engine.state.time.stream_time import shown
from holdfast.processors.engine.steps.node import Node
from holdfast.processors.engine.store_uses import Ms, Parts, WindowUse
from holdfast.processors.engine.windows.bounds import LateMessage

#: What closes a window. ``key``: event times of messages with the window's key. ``partition``: event times of all
#: messages of the task.
ClosingStrategy = Literal["key", "partition"]
#: What happens to a late message: it is dropped, handled like a failed message (``dead-letter``), or passed to a
#: function.
OnLate = Literal["drop", "dead-letter"] | Callable[..., Any]
#: A user function that decides whether to send a window early. Arguments: aggregated, value, key, timestamp, headers.
Trigger = Callable[[Any, Any, Any, int, Any], Any]
#: Default time for which a closed window stays readable, in milliseconds (one day).
RETENTION_MS = 86_400_000
#: Maximum number of windows that may contain the same message, because a message reads and writes all of its windows.
WINDOWS_OF_A_MESSAGE_MAX = 1_000


#: The kinds of windows by time. The kind is also the suffix of a store's default name, ``<topic>-<kind>``.
WindowKind = Literal["tumbling", "hopping", "session", "sliding"]


class WindowInvalid(BadConfiguration):
    """The declaration of a window has an invalid argument, or arguments that contradict each other."""


class WindowUnplaced(WindowInvalid, AttributeError):
    """A step was called on an incomplete window, which has no columns yet or no ``current()`` or ``final()``."""


class Unplaced:
    """Base class of window objects that are incomplete without further calls.

    ``_missing`` is the missing call as code.
    """

    _missing: ClassVar[str]

    if not TYPE_CHECKING:  # hidden from type checkers, so that a type checker reports the missing call

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise WindowUnplaced(
                f"A window has no `{name}`: it is no stream before {self._missing}.",
                action=f"Write {self._missing} before `.{name}(...)`.",
                step=name,
            )


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The declaration of a window. Times are milliseconds.

    A window contains event times from its start (inclusive) to its end (exclusive). A window closes, and accepts no
    more messages, ``closes_ms`` plus ``grace_ms`` after its end. ``closing`` says which time must reach this point:
    stream time, or the largest event time of the window's key. The window is deleted when ``retention_ms`` have passed
    after it closed. ``duration_ms`` is the window's length; for sessions, the gap without messages that ends a session.
    """

    kind: WindowKind
    duration_ms: int
    step_ms: int
    grace_ms: int
    retention_ms: int
    aggregation: WindowAggregation
    on_late: OnLate = "drop"
    closing: ClosingStrategy = "key"
    #: True: a result is sent when a window closes. False: a result is sent with each message.
    final: bool = False
    #: Milliseconds without messages after which stream time advances with the clock; None means that only messages
    #: advance it.
    idle_ms: int | None = None
    #: Functions that are called before and after a message is added to a window. If one returns a true value, the
    #: window is sent and starts again.
    before_update: Trigger | None = None
    after_update: Trigger | None = None
    #: Minimum stream time between two results of a key, in milliseconds; None means no limit.
    every_ms: int | None = None

    store_kind: ClassVar[str] = "window"
    called: ClassVar[str] = "a window"

    @property
    def overlaps(self) -> bool:
        """Whether one message may produce the results of several windows."""
        return self.kind != "tumbling"

    @property
    def owes(self) -> bool:
        """Whether a message may send results that earlier messages made (``OwedResult``)."""
        closes = self.final and self.closing == "key"
        return closes or self.before_update is not None or self.every_ms is not None

    @property
    def asks_headers(self) -> bool:
        """Whether the window calls a user function that gets headers."""
        return (self.before_update or self.after_update) is not None

    @property
    def __name__(self) -> str:
        """The step's name in errors."""
        return f"{self.kind}_window"

    @property
    def kept_as(self) -> str:
        """The name of the format in which the windows are stored.

        Windows that are stored in one format can't be read as windows of another format.
        """
        return {"session": "session", "sliding": "sliding"}.get(self.kind, "tumbling or hopping")

    @property
    def closes_ms(self) -> int:
        """The time from a window's end until it closes, without the grace, in milliseconds.

        For a session this is the gap, because the session may grow for that time. For a sliding window it is 1 ms,
        because the window includes its end.
        """
        return {"session": self.duration_ms, "sliding": 1}.get(self.kind, 0)

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions that the window calls."""
        asked = (self.on_late, self.before_update, self.after_update)
        return (*self.aggregation.functions, *(each for each in asked if callable(each)))

    @property
    def use(self) -> WindowUse:
        """Describes the windows in the store: their size, step, grace and retention, and how they close.

        Plans show this description to an operator, and it is a part of the store's definition (``lines``).
        """
        gap = ("gap ",) if self.kind == "session" else ()
        step = (", step ", Ms(self.step_ms)) if self.kind == "hopping" else ()
        times: Parts = (", grace ", Ms(self.grace_ms), ", retention ", Ms(self.retention_ms))
        idle = () if self.idle_ms is None else (", idle after ", Ms(self.idle_ms))
        by = f", closed by {self.closing}, {'final' if self.final else 'current'}"
        named = (("before_update", self.before_update), ("after_update", self.after_update))
        early = "".join(
            f", {name} {getattr(made, '__qualname__', type(made).__qualname__)}" for name, made in named if made
        )
        held = () if self.every_ms is None else (", at most every ", Ms(self.every_ms))
        parts = (*gap, Ms(self.duration_ms), *step, *times, by, *idle, early, *held)
        return WindowUse(self.kind, False, parts, self.idle_ms)

    def lines(self) -> tuple[str, ...]:
        """The definition as text: one line for the times, and one for each column.

        If a line changes, the definition of the store has changed.
        """
        return f"window = {self.kind} {self.use.text()}", *self.aggregation.lines()

    def late(self, time_ms: int, now_ms: int, end: int) -> LateMessage:
        """Returns the error for a message whose windows are all closed.

        ``end`` is the end of the message's last window.
        """
        closed = end + self.closes_ms + self.grace_ms
        parts = ((f"{self.closes_ms:,} ms", self.closes_ms), (f"the grace of {self.grace_ms:,} ms", self.grace_ms))
        after = " and ".join(words for words, ms in parts if ms)
        return LateMessage(
            f"The message's event time is {shown(time_ms)}. Its window ended at {shown(end)}, and closed when stream "
            f"time reached {shown(closed)}{f' ({after} later)' if after else ''}. Stream time is {shown(now_ms)}: the "
            f"message is {(now_ms - closed) / 1000:,.3f} s too late.",
            action="Raise `grace_ms` of the window if such messages are to count.",
            seen=time_ms,
            expected=now_ms - self.grace_ms,
        )


def checked_times(duration_ms: int, step_ms: int, grace_ms: int, retention_ms: int | None) -> tuple[int, int, int, int]:
    """Checks and returns duration, step, grace and retention. If ``retention_ms`` is None, returns the default.

    Raises:
        WindowInvalid: The arguments contradict each other.
    """
    if step_ms > duration_ms:
        raise WindowInvalid(
            f"`step_ms` is {step_ms} and `duration_ms` is {duration_ms}: messages between two windows would be lost.",
            action="Make the step as long as the duration, or shorter.",
            seen=step_ms,
            expected=duration_ms,
        )
    if -(-duration_ms // step_ms) > WINDOWS_OF_A_MESSAGE_MAX:
        raise WindowInvalid(
            f"With `step_ms` {step_ms} and `duration_ms` {duration_ms}, each message belongs to "
            f"{-(-duration_ms // step_ms)} windows; at most {WINDOWS_OF_A_MESSAGE_MAX} are possible.",
            action="Make the step longer.",
            seen=step_ms,
        )
    if retention_ms is not None and grace_ms > retention_ms:
        raise WindowInvalid(
            f"`grace_ms` is {grace_ms}, longer than the retention of {retention_ms} ms.",
            action="Raise `retention`, or leave it out: a closed window then stays for a day.",
            seen=grace_ms,
            expected=retention_ms,
        )
    return duration_ms, step_ms, grace_ms, RETENTION_MS if retention_ms is None else retention_ms


def checked_gap(gap_ms: int, retention_ms: int | None) -> None:
    """Raises WindowInvalid if the gap is longer than the retention. Otherwise, a session would be deleted too early."""
    if retention_ms is not None and gap_ms > retention_ms:
        raise WindowInvalid(
            f"`inactivity_gap_ms` is {gap_ms}, longer than the retention of {retention_ms} ms.",
            action="Raise `retention`, or leave it out: a closed session then stays for a day.",
            seen=gap_ms,
            expected=retention_ms,
        )


def window_of(node: Node) -> WindowSpec | None:
    """Returns the declaration of a step's window by time; None for any other step."""
    return node.window if isinstance(node.window, WindowSpec) else None
