"""Timers, and values with a TTL, in plain Python, by the rules of ``docs/timers.md`` and ``docs/state.md`` alone.

The model shares no code with the engine. Each message contains a list of steps. ``Step`` carries them out in the
engine, and ``Model`` in plain Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Step:
    """A processor of the engine that carries out the steps of each message.

    ``Model`` carries them out in plain Python.
    """

    def on_message(self, value: Any, context: Any) -> None:
        for step in value:
            self.do(context, *step)

    def on_timer(self, name: str, time: int, context: Any) -> None:
        context.emit(["timer", context.key.decode(), name, time, context.state.get(name, 0)])
        if time % 3 == 0:
            context.set_timer(f"{name}'"[:4], at=time + 7)
        context.state.increment(name)

    def do(self, context: Any, call: str, *arguments: Any) -> None:
        if call == "fail":
            raise ValueError("as told")
        if call == "set_timer":
            context.set_timer(*arguments)
        elif call == "cancel":
            context.cancel_timer(*arguments)
        elif call == "count":
            context.state.increment(*arguments)
        elif call == "delete":
            context.state.delete(*arguments)
        else:
            context.emit(["read", context.key.decode(), context.timestamp, context.state.get(arguments[0], 0)])


class Event(NamedTuple):
    """A message: its key, its event time in milliseconds, and its steps.

    A step is the name of a call and its arguments.
    """

    key: str
    time: int
    steps: tuple[tuple[Any, ...], ...]


@dataclass(slots=True)
class Model:
    """The outputs and the state of one partition, computed in plain Python.

    Attributes:
        ttl: How long a value lasts, ms.
        sent: The outputs, in order.
        timers: The time of each timer, by key and timer name.
        values: By key and value name: the value, the time at which it ends, and the time of the message that set it.
        time: The stream time.
    """

    ttl: int
    sent: list[list[Any]] = field(default_factory=list)
    timers: dict[tuple[str, str], int] = field(default_factory=dict)
    values: dict[tuple[str, str], tuple[int, int, int]] = field(default_factory=dict)
    time: int = -1

    def take(self, event: Event) -> None:
        """Processes one message, then fires the timers that are due at the new stream time."""
        before = dict(self.timers), dict(self.values), len(self.sent)
        if not all(self.do(event.key, event.time, step) for step in event.steps):
            self.timers, self.values = before[0], before[1]  # a failed message changes no state and sends no output
            del self.sent[before[2] :]
            return
        before, self.time = self.time, max(self.time, event.time)
        while due := sorted((at, key, name) for (key, name), at in self.timers.items() if at <= self.time):
            at, key, name = due[0]
            del self.timers[key, name]
            now = max(at, before)  # values that expired before this message do not exist for the timer
            self.sent.append(["timer", key, name, at, self.read(key, name, now)])
            if at % 3 == 0:
                self.timers[key, f"{name}'"[:4]] = at + 7
            self.count(key, name, at, now)

    def do(self, key: str, now: int, step: tuple[Any, ...]) -> bool:
        """Carry out one step of a message. Returns False if the step fails."""
        call, *arguments = step
        if call == "fail":
            return False
        if call == "set_timer":
            self.timers[key, arguments[0]] = arguments[1]
        elif call == "cancel":
            self.timers.pop((key, arguments[0]), None)
        elif call == "count":
            self.count(key, arguments[0], now, max(self.time, now))
        elif call == "delete":
            self.values.pop((key, arguments[0]), None)
        else:
            self.sent.append(["read", key, now, self.read(key, arguments[0], max(self.time, now))])
        return True

    def count(self, key: str, name: str, at: int, now: int) -> None:
        """Add one to a value and renew its expiry time.

        A message that is older than the one that set the value cannot move the expiry time back.
        """
        _, end, since = self.values.get((key, name), (0, 0, 0))
        made = max(at + self.ttl, end) if at < since else at + self.ttl
        self.values[key, name] = (self.read(key, name, now) + 1, made, at)

    def read(self, key: str, name: str, now: int) -> int:
        """The value at the time ``now``; 0 if it has ended."""
        value, end, _ = self.values.get((key, name), (0, 0, 0))
        return value if end > now else 0
