"""The declarations of an application's schedules: the arguments of ``app.every`` and ``app.cron``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from holdfast.processors.engine.changelog.names import IllegalName, check_name
from holdfast.processors.engine.schedules.times import ScheduleInvalid, Times
from holdfast.processors.engine.steps.checked_arguments import StepInvalid, check_function, check_own_topic, check_topic
from holdfast.processors.engine.steps.topic import Topic
from holdfast.processors.engine.store_uses import ScheduleUse

#: The tasks in which a slot (a time at which the schedule is due) fires. ``processor``: once for the whole processor,
#: in the task of partition 0. ``task``: once in each task.
Per = Literal["processor", "task"]
#: The rule for missed slots (times at which the schedule was due but no worker was ready). ``once``: only the last one
#: fires later. ``all``: all of them fire later. ``none``: none of them fires.
Missed = Literal["once", "all", "none"]
#: The suffix of the names of the stores that hold the state of schedules.
STORE_SUFFIX = "-schedules"

_PER = {"processor": "once for the processor", "task": "once for each task"}
_MISSED = {"once": "the last of missed slots fires", "all": "missed slots fire", "none": "missed slots do not fire"}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A function that runs at given times (slots): once for the processor, or once in each task.

    ``outputs`` are the topics to which the function may send. The function runs in the tasks of one stream: ``beside``
    is the topic of this stream; None means the first stream.

    Raises:
        ScheduleInvalid: An argument has a value that is not allowed.
        StepInvalid: The function can't be called with one argument, or is async; or an output is no topic.
    """

    name: str
    times: Times
    function: Callable[[Any], Any]
    per: Per = "processor"
    missed: Missed = "once"
    outputs: tuple[Topic, ...] = ()
    beside: str | None = None

    def __post_init__(self) -> None:
        for argument, seen, known in (("per", self.per, get_args(Per)), ("missed", self.missed, get_args(Missed))):
            if seen not in known:
                raise ScheduleInvalid(
                    f"`{argument}` of a schedule is {seen!r}, expected one of {', '.join(known)}.",
                    action=f"Write, for example, `{argument}={known[-1]!r}`.",
                    seen=repr(seen)[:80],
                )
        try:
            check_name(self.name, "name of a schedule")
        except IllegalName as failure:
            raise ScheduleInvalid(
                f"A schedule has the name {self.name!r}; expected letters, digits, dots, underscores and dashes.",
                action="Write, for example, `name='report'` in the decorator.",
                seen=repr(self.name)[:80],
            ) from failure
        check_function(self.function, f"Schedule {self.name!r}", ("slot",))
        if inspect.isgeneratorfunction(self.function):
            raise ScheduleInvalid(
                f"The function of schedule {self.name!r} is a generator: a call would run nothing of it.",
                action="Send each result by `slot.send(value)` in place of `yield`.",
            )

    @property
    def use(self) -> ScheduleUse:
        """For the text about the schedule's store: its times, how often a slot fires, and the rule for missed slots."""
        return ScheduleUse(self.name, (*self.times.parts, ", ", _PER[self.per], "; ", _MISSED[self.missed]))

    @property
    def slots(self) -> str:
        """Describes the slots (the times at which the schedule is due) as text, without the rule for missed slots.

        The text is stored with the schedule's progress. If the text differs at the next start, slots before the start
        are not fired later.
        """
        return ScheduleUse(self.name, (*self.times.parts, ", ", _PER[self.per])).text()


@dataclass(slots=True)
class Schedules:
    """The schedules of one application, by name. ``renamed`` maps the new name of a store to its former name."""

    processor: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    by_name: dict[str, Schedule] = field(default_factory=dict)

    def add(self, schedule: Schedule) -> None:
        """Adds a schedule.

        Raises:
            ScheduleInvalid: There is a schedule of this name.
            StepInvalid: An output is a topic of another application.
        """
        if schedule.name in self.by_name:
            raise ScheduleInvalid(
                f"Application {self.processor} has two schedules of the name {schedule.name!r}: the last slot is "
                "kept by name.",
                action="Give one of them another name: `@app.every(..., name='other')`.",
                name=schedule.name,
            )
        for topic in schedule.outputs:
            check_own_topic(topic, self.processor)
        self.by_name[schedule.name] = schedule

    def by_store(self, labels: Mapping[str, str]) -> dict[str, tuple[str, tuple[Schedule, ...]]]:
        """Maps each store to its input topic and its schedules.

        ``labels`` maps each input topic to the text with which the default names of its stores begin. The topics are in
        the order of their declaration.

        Raises:
            ScheduleInvalid: The application has no stream.
        """
        found: dict[str, tuple[str, tuple[Schedule, ...]]] = {}
        for schedule in self.by_name.values():
            topic = schedule.beside or next(iter(labels), None)
            if topic is None:
                raise ScheduleInvalid(
                    f"Schedule {schedule.name!r} of {self.processor} has no tasks to run in: the application has no "
                    "input topic.",
                    action="Declare one with `app.dataframe(topic)`.",
                )
            store = f"{labels[topic]}{STORE_SUFFIX}"
            store = self.renamed.get(store, store)
            found[store] = (topic, (*found.get(store, (topic, ()))[1], schedule))
        return found


def outputs_of(given: Any) -> tuple[Topic, ...]:
    """Returns the topics of the argument ``to``: None, one topic, or several topics.

    Raises:
        StepInvalid: A value is no topic.
    """
    if given is None:
        return ()
    found = tuple(given) if isinstance(given, list | tuple) else (given,)
    for topic in found:
        check_topic(topic, "to=")
        if topic.repartitions:
            raise StepInvalid(
                f"`to=` of a schedule has {topic.name}, a topic of `group_by`.",
                action="Send to a topic of `app.topic`.",
            )
    return found
