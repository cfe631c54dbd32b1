"""Steps with timers, which ``sdf.process(MyProcessor)`` adds to a stream.

A task calls the methods of the user's class for messages and due timers. The methods emit values to the next step. Each
task has one instance of the class, for all keys. State and timers belong to the key of the current message. Other
attributes of the instance are lost when the process ends.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.infra.errors import BadConfiguration, HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.state.time.declared_store import DeclaredState
from holdfast.processors.engine.state.time.stream_time import EVENT_TIME_END_MS, NO_TIME, StreamTime
from holdfast.processors.engine.state.time.timers import CLOCKS, Due, Timer, TimerClock, Timers
from holdfast.processors.engine.steps.signatures import is_async, refuses, written
from holdfast.processors.engine.steps.step import Step
from holdfast.processors.engine.store_uses import TimerUse

if TYPE_CHECKING:
    from holdfast.processors.engine.state.interface import State


class ProcessorInvalid(BadConfiguration):
    """The argument of ``process`` is neither a class with ``on_message`` nor a function that returns such an object."""


#: Maximum number of timers that one call of a processor may set.
TIMERS_OF_A_CALL_MAX = 10_000


class TimerInvalid(HoldfastError):
    """A timer can't be set with these arguments."""


class Context:
    """The object that the methods of a processor get: the key, the key's state and timers, and ``emit``.

    The object is valid only during the call of ``on_message`` or ``on_timer``.

    Attributes:
        key: The message key, deserialized by the topic's deserializer.
        timestamp: The event time of the message, or the time of the timer, in milliseconds since 1970.
        headers: The headers of the message; None for a timer.
        state: The state of the key.
    """

    __slots__ = (
        *("_asked", "_emitted", "_fired", "_now_ms", "_stream", "_timers"),
        *("headers", "key", "state", "timestamp"),
    )

    key: Any
    timestamp: int
    headers: Headers
    state: State

    def __init__(self, timers: Timers | None, stream: StreamTime, now_ms: Callable[[], int]) -> None:
        self._timers, self._stream, self._now_ms = timers, stream, now_ms
        self._emitted: list[Any] = []
        self._fired: Timer | None = None
        self._asked = 0

    @property
    def stream_time(self) -> int | None:
        """The stream time of the task, in milliseconds since 1970; None before the first message."""
        return None if self._stream.time_ms == NO_TIME else self._stream.time_ms

    def now(self) -> int:
        """Returns the time of the worker's clock, in milliseconds since 1970.

        ``processing`` timers fire by this clock.
        """
        return self._now_ms()

    def emit(self, value: Any) -> None:
        """Sends a value to the next steps, with the key and the timestamp of this call."""
        self._emitted.append(value)

    def set_timer(self, name: str, at: int | timedelta, clock: TimerClock = "stream") -> None:
        """Sets a timer: when it is due, ``on_timer`` is called once. A timer of the key with the same name is replaced.

        Args:
            name: The timer's name, unique for the key.
            at: Milliseconds since 1970, or a timedelta. The timedelta counts from ``timestamp``, or from now for a
                ``processing`` timer. A time in the past fires as soon as possible.
            clock: ``stream`` (the default) for the stream time of the task, ``processing`` for the worker's clock.

        Raises:
            TimerInvalid: An argument is invalid. Or ``on_timer`` sets a timer of the same clock that is not later than
                the firing timer. Or one call has set more than ``TIMERS_OF_A_CALL_MAX`` timers.
        """
        timers = self._own_timers()
        if not isinstance(name, str):
            raise _invalid(f"the name {name!r}", "a text", 'Write, for example, `set_timer("expire", at=...)`.')
        if clock not in CLOCKS:
            raise _invalid(f"the clock {clock!r}", "`stream` or `processing`", 'Write `clock="processing"`.')
        at_ms: Any = at
        if isinstance(at, timedelta):
            begin = self.timestamp if clock == "stream" else self._now_ms()
            at_ms = begin + at // timedelta(milliseconds=1)
        if type(at_ms) is not int or not 0 <= at_ms < EVENT_TIME_END_MS:
            raise _invalid(
                f"the time {at!r}",
                f"0 to {EVENT_TIME_END_MS - 1} ms since 1970, or a timedelta",
                "Write, for example, `at=context.timestamp + 60_000`.",
            )
        fired = self._fired
        if fired is not None and fired.clock == clock and at_ms <= fired.time:
            raise _invalid(
                f"the time {at_ms} in `on_timer` of a timer at {fired.time}",
                "a later time: the timer would fire over and over",
                "Set it later, or do its work at once.",
            )
        self._asked += 1
        if self._asked > TIMERS_OF_A_CALL_MAX:
            raise _invalid(
                f"{self._asked:,} timers in one call of `{'on_message' if fired is None else 'on_timer'}`",
                f"at most {TIMERS_OF_A_CALL_MAX:,}: they are one transaction",
                "Set one timer for the next step, and let `on_timer` set those behind it.",
            )
        timers.set(Timer(name, at_ms, clock))

    def cancel_timer(self, name: str) -> bool:
        """Deletes a timer of the key; returns False if it does not exist."""
        return self._own_timers().cancel(name)

    def timers(self, prefix: str = "", limit: int | None = None) -> list[Timer]:
        """Returns the timers of the key whose names begin with ``prefix``, at most ``limit``, sorted by name."""
        return self._own_timers().of_key(prefix, limit)

    def _own_timers(self) -> Timers:
        if self._timers is None:
            raise TimerInvalid(
                "A timer was asked for, but the processor has no method `on_timer`.",
                action="Write `def on_timer(self, name, time, context)` in its class.",
            )
        return self._timers


@dataclass(frozen=True, slots=True)
class Processing(Step):
    """The declaration of a step with timers. It has the user's class, or a function that returns a processor object.

    Raises:
        ProcessorInvalid: The value is neither a class nor a function, or its methods have other parameters.
    """

    factory: Callable[[], Any]

    #: Example code that gives the step a separate store. It is shown in errors.
    shared_as: ClassVar[str] = "process(..., store='reminders')"
    #: Describes to the engine that the step's store contains timers.
    use: ClassVar[TimerUse] = TimerUse()

    def __post_init__(self) -> None:
        kind = _class_of(self.factory)
        wrong = not callable(self.factory) or (
            isinstance(kind, type) and not callable(getattr(kind, "on_message", None))
        )
        if wrong:
            raise ProcessorInvalid(
                f"`process` got {self.factory!r}, expected a class with `on_message(value, context)`.",
                action="Write `sdf.process(MyProcessor)`; for arguments, `sdf.process(partial(MyProcessor, limit=3))`.",
                seen=repr(self.factory),
            )
        if refuses(self.factory, 0):
            raise ProcessorInvalid(
                f"`process` got {written(self.factory)}, which can't be called without arguments.",
                action="Write, for arguments, `sdf.process(partial(MyProcessor, limit=3))`.",
                seen=written(self.factory),
            )
        for method, arguments in _METHODS.items():
            _check_method(kind, method, arguments)

    @property
    def __name__(self) -> str:
        """The step's name in errors."""
        return getattr(_class_of(self.factory), "__name__", "process")

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The user functions of the step."""
        kind = _class_of(self.factory)
        if not isinstance(kind, type):
            return (self.factory,)
        methods = [getattr(kind, name) for name in sorted(vars(kind)) if callable(getattr(kind, name, None))]
        return tuple(each for each in methods if hasattr(each, "__code__"))

    def timers_of(self, state: DeclaredState) -> Timers:
        """Returns the object that stores and reads the timers of the step in one task."""
        return Timers(state)

    def __call__(self, *_: Any) -> Any:
        """Raises RuntimeError, because a task must call ``Processor.on_message`` instead."""
        raise RuntimeError("a step with timers runs in a task only")


class Processor:
    """A user's processor object in one task.

    Raises:
        ProcessorInvalid: The user's class or function made an object without ``on_message``.
    """

    def __init__(
        self, declared: Processing, state: DeclaredState, stream: StreamTime, now_ms: Callable[[], int]
    ) -> None:
        self._user = declared.factory()
        if not callable(getattr(self._user, "on_message", None)):
            raise ProcessorInvalid(
                f"`process` made {self._user!r}, expected an object with `on_message(value, context)`.",
                action="Write the method `on_message`.",
                seen=repr(self._user),
            )
        self._stream = stream
        self.timers = declared.timers_of(state)
        #: Whether the user's object has the method ``on_timer``. Without this method, the object can't set timers.
        self.fires = callable(getattr(self._user, "on_timer", None))
        self._context = Context(self.timers if self.fires else None, stream, now_ms)

    def on_message(self, value: Any, key: Any, timestamp: int, headers: Headers, state: DeclaredState) -> list[Any]:
        """Calls the user's ``on_message`` and returns the values that it emits."""
        context = self._begun(key, timestamp, headers, state, None)
        self._user.on_message(value, context)
        return context._emitted

    def on_timer(self, due: Due, key: Any, timestamp: int, headers: Headers, state: DeclaredState) -> list[Any]:
        """Deletes a due timer, calls the user's ``on_timer``, and returns the emitted values.

        If the timer was cancelled since it became due, returns no values.
        """
        self._stream.begin_call(due.timer.time if due.timer.clock == "stream" else None)
        if not self.timers.take(due):
            return []
        # The time of a processing timer is not an event time. The state gets the stream time instead.
        if due.timer.clock == "processing":
            state.timestamp_ms = max(self._stream.time_ms, 0)
        context = self._begun(key, timestamp, headers, state, due.timer)
        self._user.on_timer(due.timer.name, due.timer.time, context)
        return context._emitted

    def _begun(self, key: Any, timestamp: int, headers: Headers, state: DeclaredState, fired: Timer | None) -> Context:
        context = self._context
        context.key, context.timestamp, context.headers, context.state = key, timestamp, headers, state
        context._fired, context._emitted, context._asked = fired, [], 0
        return context


#: The methods of a user's processor, with their arguments.
_METHODS = {"on_message": ("value", "context"), "on_timer": ("name", "time", "context")}


def _check_method(kind: Any, method: str, arguments: tuple[str, ...]) -> None:
    """Raises ProcessorInvalid if the user's class defines the method with other parameters."""
    made = inspect.getattr_static(kind, method, None) if isinstance(kind, type) else None
    if made is not None and is_async(made):
        raise ProcessorInvalid(
            f"`process` got {kind.__name__}, whose method {method} is async; it is not awaited.",
            action=f"Write `def {method}(self, {', '.join(arguments)})`; await other systems before it, by "
            "`sdf.apply_async(function)`.",
        )
    if inspect.isfunction(made) and refuses(made, 1 + len(arguments)):
        raise ProcessorInvalid(
            f"`process` got {kind.__name__}, whose method is {written(made)}.",
            action=f"Write `def {method}(self, {', '.join(arguments)})`.",
            seen=written(made),
        )


def _class_of(factory: Any) -> Any:
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory


def _invalid(seen: str, expected: str, action: str) -> TimerInvalid:
    return TimerInvalid(f"A timer was asked for with {seen}, expected {expected}.", action=action, seen=seen)
