"""Carries out work that becomes due while no messages arrive.

Timers of the worker's clock fire, windows of idle inputs close, and the clock reaches event times that were in the
future. A window with ``close_when_idle`` closes when its task's inputs have no new record for that duration::

    last message ──── close_when_idle ────► a window is due at (stream time + idle time)
                                              ├── the inputs have no unread record: the window closes
                                              └── an input has an unread record: the task is not idle

Invariants:
    - Only an input that is read to its high watermark is idle. An input is not idle while it lags, while its broker is
      down, or while a producer's open transaction blocks it. If windows closed then, the input's next messages would be
      late.
    - A task that reads a repartition topic is idle while all upstream tasks report that they are at the ends of their
      inputs.
    - Stream time of an idle task moves only when a window is due, so that an idle task makes no needless commits.
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

#: Seconds between two checks for idle tasks.
LOOK_EVERY_S = 0.5
#: Seconds. If more time passes between two checks, the worker was frozen or busy and read no input. Idle time then
#: starts again from 0.
ABSENT_S = 5.0
#: Timeout of one request for the end offsets of an input, in seconds; the worker's loop is blocked until the answer.
REQUEST_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Silence:
    """The time ``since`` which a task is idle, with the task's work counter and stream time at this time.

    ``since`` is in monotonic seconds.
    """

    time: TaskTime
    work: int
    stream_ms: int
    since: float


class IdleTime:
    """Checks for due timers, and moves the stream time of idle tasks so that their windows close."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock: Clock = cluster.clock
        self._silent: dict[str, _Silence] = {}
        self._looked_at = 0.0
        self._gap: EmptyRanges | None = None

    def step(self, tasks: Sequence[Task], *, silent: bool) -> bool:
        """Must be called after each poll. Returns True if a commit is needed, because a timer or a window is due now.

        It must not be called while the inputs are paused. ``silent`` is True if the poll returned no records.
        """
        now_ms = int(self._clock.time() * 1000)
        timers = [task.time.timers for task in tasks if task.time is not None and task.time.timers is not None]
        due = [each.look(now_ms) for each in timers]
        due += [task.time.ahead_is_due(now_ms) for task in tasks if task.time is not None]
        return (silent and self._pass_silence(tasks)) or any(due)

    def _pass_silence(self, tasks: Sequence[Task]) -> bool:
        """Advances the stream time of idle tasks. Returns True if one of their windows is due now."""
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
        """Discards the idle times of all tasks, and closes the consumer."""
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
            # watermarks that arrive after the start of the idle time still advance stream time
            silence.stream_ms = time.stream.time_ms
        if is_short:
            return False
        to_ms = silence.stream_ms + silent_ms
        if not time.due_at(to_ms) or not self._is_read(task):
            return False
        time.go_on(to_ms)
        return True

    def _is_read(self, task: Task) -> bool:
        """Whether all inputs are read to their ends.

        Repartition topics are not checked, because watermarks report their ends.
        """
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
    """The tasks in the phase RUNNING."""
    return [task for task in tasks if task.phase is TaskPhase.RUNNING]


def timed(tasks: Sequence[Task]) -> list[Task]:
    """The running tasks that keep a stream time, for example because they have windows, or that have schedules."""
    return [task for task in running(tasks) if task.time is not None or task.schedules is not None]


def slots_are_due(tasks: Sequence[Task], clock: Clock) -> bool:
    """Whether a commit is needed, because a slot (a due time of a schedule) has come.

    Call it only while inputs flow.
    """
    schedules = [task.schedules for task in running(tasks) if task.schedules is not None]
    # a list, so that ``look`` is called for every task, even after a due slot
    looks = [each.look(int(clock.time() * 1000)) for each in schedules]
    return any(looks)


def more_is_due(tasks: Sequence[Task]) -> bool:
    """Whether windows, timers or schedules are still due, because one commit handles a limited number of them."""
    return any(each is not None and each.more for task in timed(tasks) for each in (task.time, task.schedules))
