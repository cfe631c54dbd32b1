"""Passes messages and state from a source's thread to the worker's loop, in units.

A *unit* is a group of messages and state writes that are committed in one transaction::

    thread                          handover                            worker's loop
    produce, state.set ──► the open unit
    flush, end of run  ──► closed units ──── take ────► outboxes and store ──► transaction
              ▲                                                                    │
              └────────────────── committed (or: restore, after an abort) ◄────────┘

For a ``Source`` without state, any messages may form a unit, so ``take`` closes the open unit. The messages of a
``StatefulSource`` wait for ``flush``, because messages and state match only at a ``flush``.

*In step*: if a test uses a virtual clock, the loop waits until the thread waits for the loop. The order of events is
therefore the same in every run of the test.

Invariants:
    - Any thread may call the methods above the line "for the worker's loop". Only the worker's loop may call the
      methods below it.
    - The handover keeps a unit until it is committed. After an aborted transaction, ``restore`` offers the unit again.
    - After ``close``, no unit is taken, and each call by the source's thread raises ``SourceStopped``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

from holdfast.infra.clock import Clock, SystemClock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Headers
from holdfast.processors.engine.connectors import failure_text
from holdfast.processors.engine.formats.serialization import headers_size
from holdfast.processors.engine.record_size import too_large
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.sources.reports import SourceReports
from holdfast.processors.engine.sources.source_state import SourceState
from holdfast.processors.engine.steps.outbox import Output

#: Maximum number of messages, and maximum bytes, that a ``Source`` has produced but the worker has not committed. At
#: this limit, ``produce`` waits.
WAITING_MAX, WAITING_BYTES_MAX = 10_000, 16 << 20
#: Maximum number of messages, and maximum bytes, between two calls of ``flush`` of a ``StatefulSource``. One
#: transaction contains all of them.
UNIT_MAX, UNIT_BYTES_MAX = 100_000, 64 << 20
#: Seconds of real time. With a virtual clock, the loop waits for the source's thread at most this long.
SETTLED_WITHIN_S = 60.0

_real = SystemClock()


class SourceStopped(HoldfastError):
    """The source's task has ended on this worker. Methods of the source raise this error, so that its ``run`` ends."""


class FlushTimeout(HoldfastError):
    """The timeout of ``flush`` has passed before the source's messages were committed."""


class UnitTooLarge(HoldfastError):
    """A ``StatefulSource`` has produced more since its last ``flush`` than one transaction may contain."""


class SourceHangs(HoldfastError):
    """In a test with virtual time, a source neither ended nor waited for the worker for a minute of real time."""


@dataclass(slots=True)
class Unit:
    """Messages and state writes of a source that are committed in one transaction."""

    outputs: list[Output] = field(default_factory=list)
    size: int = 0
    writes: dict[str, bytes | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Units:
    """The open unit, the closed units, and the units that were taken into the present transaction.

    ``made`` is the number of units that were closed so far. ``done`` is the number of units that were committed so far.
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

    def checked(
        self, source: str, topic: str, parts: tuple[bytes | None, bytes | None, Headers], timestamp_ms: int | None
    ) -> tuple[int, int]:
        """Returns the time and the size in bytes of a message. ``parts`` has its value, key and headers.

        Raises:
            RecordTooLarge: The message is larger than the topic allows.
            RecordTimeRefused: The topic does not accept the timestamp.
        """
        value, key, headers = parts
        at_ms = self.times.now_ms() if timestamp_ms is None else timestamp_ms
        size = len(value or b"") + len(key or b"") + headers_size(headers)
        if size > self.record_bytes_max:
            raise too_large(f"A message of source {source!r}", topic, size, self.record_bytes_max)
        earliest, latest = self.times.bounds(topic)
        if not earliest <= at_ms <= latest:
            raise self.times.refusal(topic, at_ms, of_source=True)
        return at_ms, size


class Handover(SourceReports):
    """Passes the messages and state of one run of a source to the worker's loop.

    Args:
        source: The name of the source.
        topic: The name of the topic to which the source produces.
        state: The source's state at the start of the run.
        limits: The limits for each message.
        clock: The worker's clock.
        whole: Whether messages wait for ``flush``. True for a ``StatefulSource``.
    """

    def __init__(
        self, source: str, topic: str, state: SourceState, limits: Limits, clock: Clock, *, whole: bool
    ) -> None:
        super().__init__(clock)
        self.source, self.state, self._topic = source, state, topic
        self.limits, self._clock, self._whole = limits, clock, whole
        #: Whether the clock is virtual, so that the loop and the source's thread run in turns.
        self.in_step = not isinstance(clock, SystemClock)
        self._changed = Condition()
        self._units = _Units()
        #: For each waiting thread of the source, a function that returns True when its wait has ended. If all of them
        #: return False, all threads wait, so the source is settled.
        self._waits: list[Callable[[], bool]] = []
        #: False if the source's ``run`` should end.
        self.running, self._over, self._flushing = True, False, 0
        self.error: BaseException | None = None
        self.ended = False

    # -- for the source's threads -----------------------------------------------------------------------------------

    def put(self, value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Headers) -> None:
        """Adds a message to the open unit. Waits first if too many messages are not committed yet.

        Raises the errors of ``Source.produce``.
        """
        at_ms, size = self.limits.checked(self.source, self._topic, (value, key, headers), timestamp_ms)
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
        """Closes the open unit, and waits until all closed units are committed.

        Raises FlushTimeout if they are not committed within ``timeout_s`` seconds.
        """
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

    def sleep(self, seconds: float, ready: Callable[[], bool] = lambda: False) -> bool:
        """Waits for ``seconds`` of the worker's clock, or until the source should end, or until ``ready`` returns True.

        Returns False if the source should end. ``wake`` asks ``ready`` again.
        """
        until = self._clock.monotonic() + seconds
        with self._changed:
            left = None if self.in_step else max(0.0, seconds)
            self._wait(lambda: not self.running or ready() or self._clock.monotonic() >= until, left)
            return self.running

    def wake(self) -> None:
        """Asks the ``ready`` functions of ``sleep`` again. Any thread may call it."""
        with self._changed:
            self._changed.notify_all()

    def run(self, start: Callable[[], None]) -> None:
        """Calls ``start``, which runs the source. Stores the error that it raised, and marks the run as ended."""
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
            self.ended, self.running = True, False
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
        """With a virtual clock, blocks the worker's loop until the source's thread has ended or waits for the loop.

        With a real clock, returns at once. Raises SourceHangs if the thread neither ends nor waits within
        ``SETTLED_WITHIN_S``.
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
        """Whether ``take`` would return a unit."""
        return bool(self._units.closed) or (not self._whole and bool(self._units.open.outputs))

    @property
    def urgent(self) -> bool:
        """Whether the worker should commit soon.

        True if a unit waits and one of these is the case: the clock is virtual, the source waits in ``flush``, the
        source has ended, or half of a limit for uncommitted messages is reached.
        """
        return self.pending and (self.in_step or self.ended or bool(self._flushing) or not self._has_half())

    def _present(self) -> dict[str, Any]:
        with self._changed:
            units = (self._units.open, *self._units.closed, *self._units.taken)
            waiting = sum(len(unit.outputs) for unit in units)
        failed = {} if self.error is None else {"failure": failure_text(self.error)}
        return {"waiting": waiting, "runs": not self.ended, **failed}

    def _has_half(self) -> bool:
        with self._changed:
            waiting = [self._units.open, *self._units.closed]
            messages, size = sum(len(unit.outputs) for unit in waiting), sum(unit.size for unit in waiting)
        return messages < self._waiting_max // 2 and size < WAITING_BYTES_MAX // 2

    def take(self) -> list[Unit]:
        """Returns the complete units for the next commit. Then call ``committed``, or ``restore`` after an abort."""
        with self._changed:
            if not self._whole and not self._over:
                self._close_unit()
            taken, self._units.closed = self._units.closed, []
            self._units.taken += taken
            return taken

    def committed(self) -> None:
        """Must be called after each commit. Marks the taken units as committed, which ends the wait of ``flush``."""
        with self._changed:
            self._units.done += len(self._units.taken)
            self._units.taken.clear()
            self._changed.notify_all()

    def restore(self) -> None:
        """Must be called after an aborted transaction. The next ``take`` returns the taken units again."""
        with self._changed:
            self._units.closed[:0] = self._units.taken
            self._units.taken.clear()

    def end(self) -> None:
        """Asks the source to end: ``running`` becomes False. Complete units can still be taken."""
        with self._changed:
            self.running = False
            self._changed.notify_all()

    def wait_for_more(self, seconds: float) -> bool:
        """Waits until the source has ended, or has a unit for the next commit. Returns True if the source has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self.ended or self.pending, seconds)
            return self.ended

    def close(self) -> None:
        """Ends the source and discards all units. The next call by the source's thread raises ``SourceStopped``."""
        with self._changed:
            self.running, self._over = False, True
            self._units.open = Unit()
            self._units.closed.clear()
            self._units.taken.clear()
            self._changed.notify_all()

    def wait_ended(self, seconds: float) -> bool:
        """Waits until ``run`` has ended, for at most ``seconds`` of real time.

        Returns False if ``run`` has not ended by then.
        """
        until = _real.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, max(0.0, until - _real.monotonic()))
