"""The methods of ``Application`` that declare schedules: functions that run at clock times, without a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.dataframe.groups import Streams
from holdfast.processors.engine.schedules.declaration import Missed, Per, Schedule, outputs_of
from holdfast.processors.engine.schedules.slot import Slot
from holdfast.processors.engine.schedules.times import Cron, Every, ScheduleInvalid, Times
from holdfast.processors.engine.steps.topic import Topic

#: The type of a schedule's function. The decorators return this function unchanged.
Function = TypeVar("Function", bound=Callable[[Slot], Any])


class ApplicationSchedules:
    """The base class of ``Application`` with the methods that declare schedules."""

    _streams: Streams[StreamingDataFrame]

    def every(
        self,
        interval: int | timedelta,
        *,
        name: str | None = None,
        per: Per = "processor",
        missed: Missed = "once",
        to: Topic | Sequence[Topic] | None = None,
        stream: StreamingDataFrame | None = None,
    ) -> Callable[[Function], Function]:
        """Runs the decorated function at each multiple of an interval since 1970 UTC, by the worker's clock.

        The function gets a ``Slot``, which is one of these times. The function's outputs, its state and the slot are
        committed in one transaction.

        Args:
            interval: Milliseconds or a timedelta, 0.1 s or more.
            name: The name of the schedule; None means the function's name. It must be unique in the application.
            per: ``processor``: once for each slot, in the task of partition 0. ``task``: once for each slot and task.
            missed: If no worker ran at the time of a slot, the slot was missed. This says which missed slots run
                later. ``once``: the last one. ``all``: all of them, in order. ``none``: none of them.
            to: The topics to which the function sends.
            stream: A stream of the tasks that run the function. It is needed if the streams of the application do not
                share a task.

        Raises:
            ScheduleInvalid: An argument is invalid, or the application already has a schedule of this name.
            StepInvalid: The function takes other arguments or is async, or an output is no topic.
        """
        return self._schedule(Every.of(interval), name, per, missed, to, stream)

    def cron(  # tidy: allow-wide because it needs one parameter more than `every`: the time zone
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        name: str | None = None,
        per: Per = "processor",
        missed: Missed = "once",
        to: Topic | Sequence[Topic] | None = None,
        stream: StreamingDataFrame | None = None,
    ) -> Callable[[Function], Function]:
        """Runs the decorated function at the times of a cron expression, by the worker's clock.

        Each of these times is a slot.

        Args:
            expression: Five fields: minute, hour, day of the month, month, day of the week; or six, with the second
                first.
            timezone: The name of the expression's time zone, for example ``Europe/Berlin``. When clocks go forward, a
                slot in the skipped time fires at the end of that time. When clocks go back, a slot with a fixed hour
                fires once. Both rules hold only for five fields without ``*/n``.
            name: As for ``every``.
            per: As for ``every``.
            missed: As for ``every``.
            to: As for ``every``.
            stream: As for ``every``.

        Raises:
            ScheduleInvalid: An argument is invalid, or the application already has a schedule of this name.
            StepInvalid: The function takes other arguments or is async, or an output is no topic.
        """
        return self._schedule(Cron.of(expression, timezone), name, per, missed, to, stream)

    def _schedule(
        self, times: Times, name: str | None, per: Per, missed: Missed, to: Any, stream: Any
    ) -> Callable[[Function], Function]:
        outputs, beside = outputs_of(to), None if stream is None else self._topic_of(stream)

        def declare(function: Function) -> Function:
            called = getattr(function, "__name__", None) if name is None else name
            self._streams.schedules.add(Schedule(called, times, function, per, missed, outputs, beside))  # type: ignore[arg-type]
            return function

        return declare

    def _topic_of(self, stream: Any) -> str:
        if isinstance(stream, StreamingDataFrame) and stream.topic.name in self._streams.by_topic:
            return stream.topic.name
        raise ScheduleInvalid(
            f"`stream=` of a schedule is {repr(stream)[:80]}, expected a stream of this application.",
            action="Write `stream=sdf`, with `sdf = app.dataframe(topic)`.",
            seen=repr(stream)[:80],
        )


def check_one_task(by_store: Mapping[str, tuple[str, tuple[Schedule, ...]]], parts: Sequence[Sequence[str]]) -> None:
    """Raises ScheduleInvalid for a schedule without ``stream=`` if it could run in several kinds of tasks.

    ``parts`` has the input topics of each kind of task.
    """
    for schedule in (each for _, schedules in by_store.values() for each in schedules):
        if schedule.beside is None and len(parts) > 1:
            raise ScheduleInvalid(
                f"Schedule {schedule.name!r} could run in the tasks of {' or of '.join(map('+'.join, parts))}: their "
                "streams share no store.",
                action="Name one of these streams in the decorator: `stream=sdf`.",
                name=schedule.name,
            )
