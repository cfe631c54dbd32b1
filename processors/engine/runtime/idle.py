"""The effects of time without messages.

Timers of the worker's clock fire, times ahead of the clock become valid, and windows of silent inputs close.

Windows with ``close_when_idle`` close when their task's inputs are silent for so long::

    last message ──── close_when_idle ────► a window is due at (stream time + time since) ──► ends read ──► closes
                                                                                                └── a record: not silent

Invariants:
    - Only an input that is read to its high watermark is silent. One that lags, whose broker is away, or that an open
      transaction of its producer holds back, is not: closing then would make its messages late.
    - Behind ``group_by``, silence lasts as long as all tasks before say that they are at their ends.
    - Stream time moves only where a window is due, so an idle task commits nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from holdfast.infra.clock import Clock
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.runtime.reading.empty_ranges import EmptyRanges
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.runtime.task.task_time import TaskTime
from holdfast.processors.engine.state.time.stream_time import NO_TIME

_log = structlog.get_logger("runtime.idle")

#: Seconds between two looks.
LOOK_EVERY_S = 0.5
#: A longer pause between two calls, in seconds, means that the worker was frozen or busy and read no input.
ABSENT_S = 5.0
#: Timeout of one request for the end offsets of an input, in seconds; the loop waits for it.
REQUEST_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Silence:
    """The start of a task's silence: after which work, at which stream time, and when (monotonic seconds)."""

    time: TaskTime
    work: int
    stream_ms: int
    since: float


class IdleTime:
    """Moves the stream time of silent tasks."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock: Clock = cluster.clock
        self._silent: dict[str, _Silence] = {}
        self._looked_at = 0.0
        self._gap: EmptyRanges | None = None

    def step(self, tasks: Sequence[Task], *, silent: bool) -> bool:
        """Lets time pass for running tasks; True if a timer, a window or a time ahead of the clock is due.

        Called after each poll while the inputs are not paused; ``silent`` if it brought no records.
        """
        now_ms = int(self._clock.time() * 1000)
        timers = [task.time.timers for task in tasks if task.time is not None and task.time.timers is not None]
        due = [each.look(now_ms) for each in timers]
        due += [task.time.ahead_is_due(now_ms) for task in tasks if task.time is not None]
        return (silent and self._pass_silence(tasks)) or any(due)

    def _pass_silence(self, tasks: Sequence[Task]) -> bool:
        """Moves the stream time of silent tasks; True if a window is due now."""
        now = self._clock.monotonic()
        asked = [task for task in tasks if task.time is not None and task.time.idle_ms is not None]
        if not asked or now - self._looked_at < LOOK_EVERY_S:
            return False
        absent, self._looked_at = now - self._looked_at > ABSENT_S, now
        silent = {task.name: self._silence(task, now, absent=absent) for task in asked}
        self._silent = silent
        due = False
        for task in asked:
            due |= self._go_on(task, silent[task.name], now)
        return due

    def close(self) -> None:
        """Forgets all tasks, and closes the reader."""
        self._silent.clear()
        if self._gap is not None:
            self._gap.close()
            self._gap = None

    def _silence(self, task: Task, now: float, *, absent: bool) -> _Silence:
        assert task.time is not None
        known = self._silent.get(task.name)
        if known is None or absent or known.time is not task.time or known.work != task.time.work:
            return _Silence(task.time, task.time.work, task.time.stream.time_ms, now)
        return known

    def _go_on(self, task: Task, silence: _Silence, now: float) -> bool:
        time = silence.time
        until = now if time.upstream is None else time.upstream.silent_until(now)
        silent_ms = int((until - silence.since) * 1000)
        is_short = time.idle_ms is None or silent_ms < time.idle_ms
        if time.upstream is not None and (is_short or silence.stream_ms == NO_TIME):
            silence.stream_ms = time.stream.time_ms  # during a silence, the upstream tasks report what came before it
        if is_short:
            return False
        to_ms = silence.stream_ms + silent_ms
        if not time.due_at(to_ms) or not self._is_read(task):
            return False
        time.go_on(to_ms)
        return True

    def _is_read(self, task: Task) -> bool:
        """Whether all inputs are read to their ends; for repartition topics, upstream tasks have reported it."""
        waiting, upstream = {}, None if task.time is None else task.time.upstream
        try:
            topics = self._cluster.topics(REQUEST_TIMEOUT_S)
            for topic in (each for each in task.inputs if upstream is None or each not in upstream.topics):
                end = topics.end_offsets(topic, committed=False).get(task.partition, 0)
                if task.positions[topic] < end:
                    waiting[Partition(topic, task.partition)] = (task.positions[topic], end)
            if not waiting:
                return True
            self._gap = self._gap or EmptyRanges(self._cluster)
            return set(self._gap.found(waiting)) == set(waiting)
        except KafkaFailed as away:
            _log.warning("windows of an idle task stay open: the ends of its inputs can't be read", error=away.message)
            return False


def running(tasks: Sequence[Task]) -> list[Task]:
    """The tasks that process."""
    return [task for task in tasks if task.phase is TaskPhase.RUNNING]


def timed(tasks: Sequence[Task]) -> list[Task]:
    """The running tasks that keep a stream time."""
    return [task for task in tasks if task.time is not None and task.phase is TaskPhase.RUNNING]


def more_is_due(tasks: Sequence[Task]) -> bool:
    """Whether due windows or timers remain that the last commit did not include."""
    return any(task.time is not None and task.time.more for task in timed(tasks))
