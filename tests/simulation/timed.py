"""A workload for the simulation with steps that depend on time: windows, sessions, timers, and values with a TTL.

One input has several branches: a window, sessions, a processor with timers of stream time, and one with timers of the
worker's clock. Each branch has its own store, and all stores commit together. ``timed_model`` computes the same results
from the input alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

from holdfast.dataframe.windows import Collect, Count, First, Last, Sum
from holdfast.processors.application.application import Application
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.record_times import RecordTimeRefused
from holdfast.processors.engine.state.time.stream_time import EventTimeAhead
from tests.oracles.sessions import Shape as Sessions
from tests.oracles.timers import Step
from tests.oracles.window_rules import Shape
from tests.simulation.schedule import Schedule
from tests.simulation.workload import AHEAD, AHEAD_S, INPUT, OUTPUT, Spoilt, Workload

#: The branches of the topology (window, sessions, timers, alarms). A branch's name is also the name of its store.
WINDOWS, SESSIONS, TIMERS, ALARMS = "windows", "sessions", "timers", "alarms"
BRANCHES = (WINDOWS, SESSIONS, TIMERS, ALARMS)
#: The first event time, in milliseconds. It is long before the start of the simulation's clock.
FIRST_MS = 1_690_000_000_000
#: The step at which a message raises an error: before all branches, or after them.
BEFORE, BEHIND = "before", "behind"
KEYS = (b"a", b"ab", b"b", b"\x00holdfast", b"a/b")
#: The share of seeds whose processor has only a window.
BARE = 0.2
TIMER_NAMES = ("x", "y", "a/b", "")


class TimedMessage(NamedTuple):
    """One input message. ``number`` counts the messages of its partition; ``at`` is its event time in milliseconds.

    ``spoils`` is the step at which the message raises an error, or ``AHEAD`` for an event time that no window accepts.
    ``steps`` are the calls that the processor with timers makes. ``alarm`` is the delay of its alarm, in milliseconds
    of the worker's clock.
    """

    number: int
    key: bytes
    at: int
    amount: int
    spoils: str | None
    steps: tuple[tuple[Any, ...], ...]
    alarm: int | None

    def time_ms(self, now_s: float) -> int:
        """The message's timestamp if it is produced now."""
        return int((now_s + AHEAD_S) * 1000) if self.spoils == AHEAD else self.at

    def encode(self, partition: int) -> bytes:
        return json.dumps(
            {
                "p": partition,
                "n": self.number,
                "v": self.amount,
                "spoil": self.spoils,
                "steps": self.steps,
                "alarm": self.alarm,
            }
        ).encode()


class Alarm:
    """A processor with timers of the worker's clock. Each timer must fire once, at any time after its delay."""

    def on_message(self, value: Any, context: Any) -> None:
        if value["alarm"] is not None:
            delay = timedelta(milliseconds=value["alarm"])
            context.set_timer(str(value["n"]), at=delay, clock="processing")
            context.state.increment("set")

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit(["alarm", context.key.decode(), name])
        context.state.increment("fired")


class _Raises:
    """A step that raises an error for the messages that name this step."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __call__(self, value: dict[str, Any]) -> dict[str, Any]:
        if value["spoil"] == self._where:
            raise Spoilt(self._where)
        return value


class _Named:
    """A step that adds the name of the branch to each result."""

    def __init__(self, branch: str) -> None:
        self._branch = branch

    def __call__(self, value: Any) -> dict[str, Any]:
        return {"of": self._branch, "sent": value}


def _skip(error: Exception, *_: Any) -> bool:
    return isinstance(error, (Spoilt, EventTimeAhead, RecordTimeRefused))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWorkload(Workload):
    """All messages by partition, in order, and the branches that process them.

    Attributes:
        branches: The branches that the processor has, of ``BRANCHES``.
        bare: Whether the only branch is a window, without other steps. The engine then computes the window by columns
            (whole batches at once).
        ttl: How long values of the processor with timers last, ms.
    """

    branches: tuple[str, ...]
    bare: bool
    window: Shape
    session: Sessions
    ttl: int

    @property
    def names(self) -> tuple[str, ...]:
        """The stores whose content is determined by the input."""
        return self.branches

    def application(self, *, joined: bool = False, **settings: Any) -> Application:
        """The processor, which has only one version in this workload."""
        app = self.without_steps(_skip, settings)
        output = app.topic(OUTPUT)
        if self.bare:
            windows(app.dataframe(app.topic(INPUT)), self.window).to_topic(output)
            return app
        frame = app.dataframe(app.topic(INPUT)).apply(_Raises(BEFORE))
        for branch in self.branches:
            self._placed(app, frame, branch).apply(_Named(branch)).to_topic(output)
        frame.apply(_Raises(BEHIND))
        return app

    def _placed(self, app: Application, frame: StreamingDataFrame, branch: str) -> StreamingDataFrame:
        if branch == TIMERS:
            steps = frame.apply(lambda value: value["steps"])
            return steps.process(Step, store=app.store(TIMERS, ttl=self.ttl))
        if branch == ALARMS:
            return frame.process(Alarm, store=ALARMS)
        return windows(frame, self.window) if branch == WINDOWS else sessions(frame, self.session)


def windows(frame: StreamingDataFrame, shape: Shape, name: str = WINDOWS, **options: Any) -> StreamingDataFrame:
    """A window of this shape, with the aggregates that its model computes."""
    times: dict[str, Any] = {"grace_ms": shape.grace, "name": name, "retention": shape.retention}
    window = (
        frame.tumbling_window(shape.duration, **times)
        if shape.step == shape.duration
        else frame.hopping_window(shape.duration, shape.step, **times)
    ).agg(n=Count(), total=Sum("v"))
    placed: Any = window.final if shape.final else window.current
    made: StreamingDataFrame = placed(closing_strategy=shape.closing, **options)
    return made


def sessions(frame: StreamingDataFrame, shape: Sessions, name: str = SESSIONS, **options: Any) -> StreamingDataFrame:
    """Sessions of this shape, with the aggregates that their model computes."""
    window = frame.session_window(shape.gap, shape.grace, name, retention=shape.retention).agg(
        n=Count(), total=Sum("v"), all=Collect("v"), first=First("v"), last=Last("v")
    )
    placed: Any = window.final if shape.final else window.current
    made: StreamingDataFrame = placed(closing_strategy=shape.closing, **options)
    return made


def timed_workload(schedule: Schedule) -> TimedWorkload:
    """Draw messages of a few keys, out of order. Some are late, some connect two sessions, some raise an error."""
    random = Random(f"timed of {schedule.seed}")
    most, spoils = max(3, 160 // schedule.partitions), random.choice([0.0, 0.05, 0.15])
    gap = random.choice([1, 10, 25])
    keys = KEYS[: random.choice([1, 2, len(KEYS)])]
    made = TimedWorkload(
        tuple(
            tuple(_messages(random, random.randint(min(10, most), most), _keys_in(partition, keys), gap, spoils))
            for partition in range(schedule.partitions)
        ),
        stores=0,
        exactly_once=schedule.exactly_once,
        dead_letters=schedule.dead_letters,
        branches=tuple(sorted(random.sample(BRANCHES, random.choice([1, 2, 2, 3, 4])))),
        bare=False,
        window=_window(random),
        session=_sessions(random, gap),
        ttl=random.choice([1, 20, 100]),
    )
    return _bare(made) if random.random() < BARE else made


def _bare(workload: TimedWorkload) -> TimedWorkload:
    """The same workload with only a window that closes by partition.

    Without other steps, no message raises in a step.
    """
    return replace(
        workload,
        messages=tuple(
            tuple(message._replace(spoils=AHEAD if message.spoils == AHEAD else None) for message in messages)
            for messages in workload.messages
        ),
        branches=(WINDOWS,),
        bare=True,
        window=workload.window._replace(closing="partition"),
    )


def _keys_in(partition: int, keys: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Give each partition its own keys. A result then shows the partition from which its messages came."""
    return tuple(key + str(partition).encode() for key in keys) if partition else keys


def _window(random: Random) -> Shape:
    duration = random.choice([10, 60, 100])
    step = random.choice([duration, duration, 10, min(20, duration)])
    grace = random.choice([0, 5, 40])
    retention = random.choice([grace, 200, 86_400_000])
    return Shape(duration, step, grace, random.choice(["key", "partition"]), random.random() < 0.7, retention)


def _sessions(random: Random, gap: int) -> Sessions:
    grace = random.choice([0, 5, 40, 150])
    retention = random.choice([max(gap, grace), 200, 86_400_000])
    return Sessions(gap, grace, random.choice(["key", "partition"]), random.random() < 0.7, retention)


def _messages(random: Random, count: int, keys: tuple[bytes, ...], gap: int, spoils: float) -> list[TimedMessage]:
    at, messages = FIRST_MS, list[TimedMessage]()
    while len(messages) < count:
        at += random.choice([0, 1, 3, gap + 1, 30, 300 if random.random() < 0.1 else 5])
        time = at - random.choice([0, 0, 0, 1, gap, 45, 120])
        key = random.choice(keys)
        # Sometimes a second session follows, and then a message that connects both sessions.
        for later in (0, 2 * gap, gap) if random.random() < 0.15 else (0,):
            spoilt = random.choice([BEFORE, BEHIND, AHEAD]) if random.random() < spoils else None
            alarm = random.choice([1, 100, 2_500]) if random.random() < 0.3 else None
            steps = tuple(_step(random, time + later) for _ in range(random.randint(0, 3)))
            number = len(messages)
            messages.append(TimedMessage(number, key, time + later, random.randint(1, 9), spoilt, steps, alarm))
    return messages[:count]


def _step(random: Random, time: int) -> tuple[Any, ...]:
    name = random.choice(TIMER_NAMES)
    timer = ("set_timer", name, time + random.choice([-60, -1, 0, 1, 10, 40, 300]))
    return random.choice([timer, timer, *((call, name) for call in ("cancel", "count", "read", "count", "delete"))])
