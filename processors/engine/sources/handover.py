"""What a source's thread gives to the worker's loop: messages and state, in units that are committed as a whole.

    thread                          handover                            worker's loop
    produce, state.set ──► the open unit
    flush, end of run  ──► closed units ──── take ────► outboxes and store ──► transaction
              ▲                                                                    │
              └────────────────── committed (or: restore, after an abort) ◄────────┘

The messages of a ``Source`` without state need no bound: ``take`` closes the open unit. Those of a ``StatefulSource``
wait for ``flush``, because only then messages and state belong together.

*In step*: under a virtual clock, the loop waits until the thread waits for the loop. So a test has one order of events.

Invariants:
    - Any thread may call the methods of the first half, and only the worker's loop the others.
    - A unit stays here until it is committed. An aborted transaction gives it back.
    - After ``close``, nothing more is taken, and each call of the thread raises ``SourceStopped``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition

from holdfast.infra.clock import Clock, SystemClock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.formats.serialization import headers_size
from holdfast.processors.engine.record_size import too_large
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.sources.source_state import SourceState
from holdfast.processors.engine.steps.outbox import Output

#: ``produce`` of a ``Source`` waits while so many messages or bytes are not committed yet.
WAITING_MAX, WAITING_BYTES_MAX = 10_000, 16 << 20
#: The maximum between two calls of ``flush`` of a ``StatefulSource``. A transaction has them all.
UNIT_MAX, UNIT_BYTES_MAX = 100_000, 64 << 20
#: In step: maximum real seconds for which the loop waits for the thread.
SETTLED_WITHIN_S = 60.0

_real = SystemClock()


class SourceStopped(HoldfastError):
    """The task of the source has ended on this worker. The error ends the source's ``run``."""


class FlushTimeout(HoldfastError):
    """``flush`` of a source ended by its timeout, before its messages were committed."""


class UnitTooLarge(HoldfastError):
    """A ``StatefulSource`` has produced too much since its last ``flush``."""


class SourceHangs(HoldfastError):
    """In a test with virtual time, a source did nothing for a minute of real time."""


@dataclass(slots=True)
class Unit:
    """Messages and state writes that are committed together."""

    outputs: list[Output] = field(default_factory=list)
    size: int = 0
    writes: dict[str, bytes | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Units:
    """The unit that is open, the closed units, and those that were taken and are not committed.

    ``made`` is the number of units that were closed, ``done`` of those that are committed.
    """

    open: Unit = field(default_factory=Unit)
    closed: list[Unit] = field(default_factory=list)
    taken: list[Unit] = field(default_factory=list)
    made: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum bytes of a record of the source's topic, and the record times that the topic accepts."""

    record_bytes_max: int
    times: RecordTimes


class Handover:
    """The way from one run of a source to the worker's loop.

    Args:
        source: The name of the source.
        topic: The name of its topic.
        state: Its state at the start.
        limits: The limits of a message.
        clock: The worker's clock.
        whole: Whether messages wait for ``flush`` (a ``StatefulSource``).
    """

    def __init__(
        self, source: str, topic: str, state: SourceState, limits: Limits, clock: Clock, *, whole: bool
    ) -> None:
        self.source, self.state, self._topic = source, state, topic
        self._limits, self._clock, self._whole = limits, clock, whole
        #: Whether the loop and the thread take turns, because the clock is virtual.
        self.in_step = not isinstance(clock, SystemClock)
        self._changed = Condition()
        self._units = _Units()
        #: What the threads of the source wait for. The source is settled if none of it has come.
        self._waits: list[Callable[[], bool]] = []
        self._running, self._over, self._flushing = True, False, 0
        self.error: BaseException | None = None
        self.ended = False

    # -- for the source's threads -----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """False if the source shall end."""
        return self._running

    def put(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Headers) -> None:
        """Adds a message; waits while too many wait. Raises the errors of ``Source.produce``."""
        at_ms = self._limits.times.now_ms() if timestamp_ms is None else timestamp_ms
        size = len(value or b"") + len(key or b"") + headers_size(headers)
        if size > self._limits.record_bytes_max:
            raise too_large(f"A message of source {self.source!r}", self._topic, size, self._limits.record_bytes_max)
        earliest, latest = self._limits.times.bounds(self._topic)
        if not earliest <= at_ms <= latest:
            raise self._limits.times.refusal(self._topic, at_ms, of_source=True)
        with self._changed:
            self._check()
            if not self._has_room():
                self._wait(self._has_room)
            unit = self._units.open
            if self._whole and (len(unit.outputs) >= UNIT_MAX or unit.size + size > UNIT_BYTES_MAX):
                raise UnitTooLarge(
                    f"Source {self.source!r} has produced {len(unit.outputs):,} messages ({unit.size:,} bytes) since "
                    f"its last `flush`; {UNIT_MAX:,} messages or {UNIT_BYTES_MAX:,} bytes are allowed, because one "
                    "transaction has them all.",
                    action="Call `self.flush()` more often: it commits messages and state.",
                    source=self.source,
                )
            self._units.open.outputs.append(Output(self._topic, key, value, at_ms, headers))
            self._units.open.size += size
            self._changed.notify_all()

    def flush(self, timeout_s: float | None) -> None:
        """Closes the open unit, and waits until all units are committed."""
        with self._changed:
            self._check()
            self._close_unit()
            goal = self._units.made
            self._flushing += 1
            self._changed.notify_all()
            try:
                if not self._wait(lambda: self._units.done >= goal, timeout_s):
                    raise FlushTimeout(
                        f"`flush` of source {self.source!r} waited {timeout_s:g} s, and the worker has not committed.",
                        action="Look whether the worker is paused or behind: `holdfast status`. Or raise `timeout`.",
                        source=self.source,
                    )
            finally:
                self._flushing -= 1

    def sleep(self, seconds: float) -> bool:
        """Waits for a time of the worker's clock, or for the end; returns False if the source shall end."""
        until = self._clock.monotonic() + seconds
        with self._changed:
            left = None if self.in_step else max(0.0, seconds)
            self._wait(lambda: not self._running or self._clock.monotonic() >= until, left)
            return self._running

    def run(self, start: Callable[[], None]) -> None:
        """Calls ``start`` until it ends, and notes how it ended."""
        try:
            start()
        except BaseException as error:
            with self._changed:
                stopped = isinstance(error, SourceStopped) and self._over
                self.error = None if stopped else error
        with self._changed:
            if self.error is None and not self._over:
                self._close_unit()
            elif self._whole:
                self._units.open = Unit()
            self.ended, self._running = True, False
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        def over() -> bool:
            return self._over or ready()

        self._waits.append(over)
        try:
            if not over():
                self._changed.notify_all()
                self._changed.wait_for(over, timeout_s)
        finally:
            self._waits.remove(over)
        self._check()
        return ready()

    def _has_room(self) -> bool:
        if self._whole:
            return True
        waiting = [self._units.open, *self._units.closed, *self._units.taken]
        messages, size = sum(len(unit.outputs) for unit in waiting), sum(unit.size for unit in waiting)
        return messages < self._waiting_max and size < WAITING_BYTES_MAX

    @property
    def _waiting_max(self) -> int:
        return 1 if self.in_step else WAITING_MAX

    def _check(self) -> None:
        if self._over:
            raise SourceStopped(
                f"Source {self.source!r} has ended on this worker; what it had not flushed is discarded.",
                action="Let this error end `run`. The next owner of the task starts the source again.",
                source=self.source,
            )

    def _close_unit(self) -> None:
        unit = self._units.open
        unit.writes, self.state.writes = self.state.writes, {}
        if unit.outputs or unit.writes:
            self._units.closed.append(unit)
            self._units.open = Unit()
            self._units.made += 1

    # -- for the worker's loop --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Under a virtual clock, blocks the loop until the source's thread has ended, or waits for the loop.

        With a real clock, returns at once. Raises SourceHangs if the thread does neither within ``SETTLED_WITHIN_S``.
        """
        if not self.in_step:
            return
        with self._changed:
            self._changed.notify_all()
            if not self._changed.wait_for(self._is_settled, SETTLED_WITHIN_S):
                raise SourceHangs(
                    f"Source {self.source!r} did nothing for {SETTLED_WITHIN_S:g} s in a test with virtual time.",
                    action="Let `run` produce, flush, return, or wait by `self.sleep(seconds)`; let the test replace "
                    "a call that blocks.",
                    source=self.source,
                )

    def _is_settled(self) -> bool:
        return self.ended or (bool(self._waits) and not any(ready() for ready in self._waits))

    @property
    def pending(self) -> bool:
        """Whether there is a unit to take."""
        return bool(self._units.closed) or (not self._whole and bool(self._units.open.outputs))

    @property
    def urgent(self) -> bool:
        """Whether the source waits for a commit: in ``flush``, because its messages have no room, or at its end."""
        return self.pending and (self.in_step or self.ended or bool(self._flushing) or not self._has_half())

    def _has_half(self) -> bool:
        with self._changed:
            waiting = [self._units.open, *self._units.closed]
            messages, size = sum(len(unit.outputs) for unit in waiting), sum(unit.size for unit in waiting)
        return messages < self._waiting_max // 2 and size < WAITING_BYTES_MAX // 2

    def take(self) -> list[Unit]:
        """Returns the units that are complete. They wait for ``committed`` or ``restore``."""
        with self._changed:
            if not self._whole and not self._over:
                self._close_unit()
            taken, self._units.closed = self._units.closed, []
            self._units.taken += taken
            return taken

    def committed(self) -> None:
        """Must be called after a commit: the units that were taken are done."""
        with self._changed:
            self._units.done += len(self._units.taken)
            self._units.taken.clear()
            self._changed.notify_all()

    def restore(self) -> None:
        """Gives back the units that were taken, after an aborted transaction."""
        with self._changed:
            self._units.closed[:0] = self._units.taken
            self._units.taken.clear()

    def end(self) -> None:
        """Asks the source to end: ``running`` becomes False. Complete units are still taken."""
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def wait_for_more(self, seconds: float) -> bool:
        """Waits until the source has ended or waits for a commit; returns whether it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self.pending, seconds)
            return self.ended

    def close(self) -> None:
        """Ends the source and discards all units. Its next call raises ``SourceStopped``."""
        with self._changed:
            self._running, self._over = False, True
            self._units.open = Unit()
            self._units.closed.clear()
            self._units.taken.clear()
            self._changed.notify_all()

    def wait_ended(self, seconds: float) -> bool:
        """Waits until ``run`` has ended; returns whether it has."""
        until = _real.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, max(0.0, until - _real.monotonic()))
