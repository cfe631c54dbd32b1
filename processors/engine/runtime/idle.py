"""Carries out work that becomes due while no messages arrive.

Without messages, timers that follow the worker's clock fire, windows of idle inputs close, and sources run. Stream time
also advances when the clock reaches event times that were in the future when their messages arrived. A source is a
user's class that produces messages for a topic, in a thread. Its messages are committed in units: all messages of a
unit, or none.

    turn of the loop ──► look: the threads of sources start; if a unit waits, a commit is due
    stop, revoke ──► end: `running` of the sources is False ──► commits until all end or time out ──► the task closes

A window with ``close_when_idle`` closes when its task's inputs have no new record for that duration::

    last message ──── close_when_idle ────► a window is due at (stream time + idle time)
                                              ├── the inputs have no unread record: the window closes
                                              └── an input has an unread record: the task is not idle

Invariants:
    - Only an input that is read to its high watermark is idle. An input is not idle while it lags, while its broker is
      down, or while a producer's open transaction blocks it. If windows closed in these cases, the input's next
      messages would be late.
    - A task that reads a repartition topic is idle while all upstream tasks report that they are at the ends of their
      inputs.
    - A source runs only in the task that owns it, while the task runs and the worker is not paused.
    - Stream time of an idle task moves only when a window is due, so that an idle task makes no needless commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from holdfast.infra.clock import Clock, SystemClock
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.infra.masking import masked
from holdfast.processors.engine.dataframe.sinks import publish, ready_at
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember
from holdfast.processors.engine.runtime.reading.empty_ranges import EmptyRanges
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.failure_policy import ProcessingFailed
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.runtime.task.task_time import TaskTime
from holdfast.processors.engine.sources.running import TaskSources
from holdfast.processors.engine.state.time.stream_time import NO_TIME

_log = structlog.get_logger("runtime.idle")

#: Seconds between two checks for idle tasks.
LOOK_EVERY_S = 0.5
#: Seconds. If more time passes between two checks, the worker was frozen or busy and read no input. Idle time then
#: starts again from 0.
ABSENT_S = 5.0
#: Timeout of one request for the end offsets of an input, in seconds. The worker's main loop waits for the answer.
REQUEST_TIMEOUT_S = 2.0
#: Maximum seconds for which a poll waits for records while a source runs, so that the source's messages are sent soon.
SOURCE_PATIENCE_S = 0.01
#: Maximum seconds of one wait for sources to end. The wait is repeated.
ENDED_WITHIN_S = 0.05


@dataclass(slots=True)
class _Silence:
    """The work counter (``TaskTime.work``) and the stream time of a task when the task became idle.

    ``since`` is that moment in monotonic seconds. If the counter has grown since then, the task is not idle.
    """

    time: TaskTime
    work: int
    stream_ms: int
    since: float


class SourceFailed(ProcessingFailed):
    """A method of a source, for example ``run``, raised an error.

    The worker stops, after it has committed what the source completed.
    """

    cause = ""


class SourceTurns:
    """Starts and ends the sources of a worker's tasks.

    A source is a user's class that produces messages in a thread.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()  # a thread needs real time, even if the worker's clock is simulated in a test
        self._end_at: float | None = None

    def look(self, tasks: Sequence[Task]) -> bool:
        """Starts sources. Returns True if the messages of a source wait for a commit.

        Call it only while the inputs are not paused.

        Raises:
            SourceFailed: The ``run`` of a source has raised an error.
        """
        self._end_at = None
        found = [(task, task.sources) for task in active(tasks) if task.sources is not None]
        looks = [sources.look() for _, sources in found]
        for _, sources in found:
            raise_failed(sources)
        return any(looks)

    def patience_s(self, tasks: Sequence[Task], longest_s: float) -> float:
        """Returns the maximum seconds for which a poll may wait for records. The time is short while a source runs."""
        return min(longest_s, SOURCE_PATIENCE_S) if any(each.hurries for each in _of(tasks)) else longest_s

    def pending(self, tasks: Sequence[Task]) -> bool:
        """Whether a source has produced messages that are not committed yet, so that a commit must follow."""
        return any(each.pending for each in _of(tasks))

    def end(self, tasks: Sequence[Task]) -> bool:
        """Asks sources to end, and waits a moment. Call it again, after a commit, until it returns True.

        Returns True if all sources have ended, or if the longest ``shutdown_timeout`` of a source has passed.

        Raises:
            SourceFailed: The ``run`` of a source has raised an error.
        """
        found = _of(tasks)
        if not found:
            return True
        now = self._clock.monotonic()
        if self._end_at is None:
            self._end_at = now + max(each.patience_s for each in found)
        for each in found:
            each.end()
        ended = [each.have_ended(ENDED_WITHIN_S) for each in found]
        for each in found:
            raise_failed(each)
        return all(ended) or now >= self._end_at

    def end_of(self, partitions: Sequence[Partition], tasks: Sequence[Task], commit: Callable[[], None]) -> None:
        """Ends the sources of tasks whose partitions the worker is about to lose."""
        lost = {(each.topic, each.number) for each in partitions}
        those = [task for task in tasks if any((topic, task.partition) in lost for topic in task.inputs)]
        self._end_at = None
        while not self.end(those):
            commit()


def raise_failed(sources: TaskSources) -> None:
    """Raises SourceFailed if a method of a source, for example ``run``, has raised an error.

    The error is raised after the task has taken over all messages that the source had completed.
    """
    if (failed := sources.failure) is None:
        return
    name, method, error = failed
    if isinstance(error, HoldfastError):
        said, action = error.message, error.action
    else:
        said, action = masked(str(error)), f"Correct its `{method}`, or the system that it reads."
    raise SourceFailed(
        f"Source {name!r} raised {type(error).__name__}: {said.rstrip('.')}. What it had completed is committed; what "
        "a StatefulSource has produced since its last `flush` is discarded.",
        action=f"{action} Then restart: the source starts again.",
        source=name,
        method=method,
        error=type(error).__name__,
    ) from error


def _of(tasks: Sequence[Task]) -> list[TaskSources]:
    return [task.sources for task in running(tasks) if task.sources is not None]


class SinkPauses:
    """Pauses the inputs of tasks whose sink takes nothing now, and resumes them when the sink may be asked again.

    A task rests as a whole: its timers and windows wait, too. The worker polls meanwhile, so it stays in its group.
    Other tasks of the worker process their messages.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until = 0.0
        self._flowed = True

    def step(self, tasks: Sequence[Task], member: GroupMember, *, flows: bool) -> bool:
        """Pauses and resumes the inputs of tasks. Returns whether a task rests. Must be called in each turn.

        ``flows`` is False while all inputs of the worker are paused for another reason, and must stay paused.
        """
        now, self._until = self._clock.monotonic(), 0.0
        # When all inputs of the worker were resumed, those of tasks that rest were, too.
        resumed, self._flowed = flows and not self._flowed, flows
        for task in running(tasks):
            publish(task.outboxes.values(), self._clock)
            until = ready_at(task.outboxes.values())
            rests = until > now
            self._until = max(self._until, until) if rests else self._until
            if rests == bool(task.sink_pause) and not (rests and resumed):
                continue
            task.sink_pause.set(on=rests)
            inputs = [Partition(topic, task.partition) for topic in task.inputs]
            if rests:
                member.pause(inputs)
                _log.warning("inputs are paused: a sink takes nothing", task=task.name, seconds=round(until - now, 1))
            elif flows:
                member.resume(inputs)
                if task.order is not None:
                    task.order.flows()
                _log.info("inputs are resumed: the sink is asked again", task=task.name)
        return self._until > 0.0

    def patience_s(self, longest_s: float) -> float:
        """Returns the maximum seconds for which a poll may wait, so that a task that rests is resumed in time."""
        return longest_s if not self._until else max(0.0, min(longest_s, self._until - self._clock.monotonic()))


class IdleTime:
    """Checks for due timers, and moves the stream time of idle tasks so that their windows close."""

    def __init__(self, cluster: Cluster) -> None:
        self.sources, self.sinks = SourceTurns(), SinkPauses(cluster.clock)
        self._cluster = cluster
        self._clock: Clock = cluster.clock
        self._silent: dict[str, _Silence] = {}
        self._looked_at = 0.0
        self._gap: EmptyRanges | None = None

    def step(self, tasks: Sequence[Task], *, silent: bool) -> bool:
        """Checks for due work. Returns True if a commit is needed, because a timer or a window is due now.

        Must be called after each poll, but not while the inputs are paused. ``silent`` is True if the poll returned no
        records.
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
        """Discards the idle times of all tasks, and closes the consumer that checks for unread records."""
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
            # Watermarks may have advanced stream time since the task became idle. The idle time is added to the newer
            # time.
            silence.stream_ms = time.stream.time_ms
        if is_short:
            return False
        to_ms = silence.stream_ms + silent_ms
        if not time.due_at(to_ms) or not self._is_read(task):
            return False
        time.go_on(to_ms)
        return True

    def _is_read(self, task: Task) -> bool:
        """Whether all source topics of a task are read to their ends.

        Repartition topics are not checked, because watermarks report whether they are read.
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
    """Returns those of ``tasks`` that are in the phase RUNNING."""
    return [task for task in tasks if task.phase is TaskPhase.RUNNING]


def active(tasks: Sequence[Task]) -> list[Task]:
    """Returns those running tasks whose inputs are not paused because of a sink."""
    return [task for task in running(tasks) if not task.sink_pause]


def timed(tasks: Sequence[Task]) -> list[Task]:
    """Returns the active tasks that may act without a message: those with stream time, schedules or sources."""
    return [task for task in active(tasks) if (task.time, task.schedules, task.sources) != (None, None, None)]


def slots_are_due(tasks: Sequence[Task], clock: Clock) -> bool:
    """Whether a commit is needed, because a slot of a schedule (a time at which its function must run) has come.

    Call it only while inputs are not paused.
    """
    schedules = [task.schedules for task in active(tasks) if task.schedules is not None]
    # a list and not a generator, so that ``look`` is called for every task, even after one with a due slot
    looks = [each.look(int(clock.time() * 1000)) for each in schedules]
    return any(looks)


def more_is_due(tasks: Sequence[Task]) -> bool:
    """Whether windows, timers or schedules are still due after a commit.

    One commit handles a limited number of them.
    """
    return any(each is not None and each.more for task in timed(tasks) for each in (task.time, task.schedules))
