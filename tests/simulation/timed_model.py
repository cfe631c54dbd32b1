"""Computes expected results of windows, sessions and timers from the input, and the allowed content of their stores.

The models are ``tests/oracles/window_rules.py``, ``tests/oracles/sessions.py`` and ``tests/oracles/timers.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.processors.engine.state.own_keys import CLOCK_OF_STORE, RESERVED
from holdfast.processors.engine.state.own_keys import TIMERS as TIMERS_OF_KEYS
from holdfast.processors.engine.state.time.window_keys import CLOCK, KEY_TIME, OWN_KEY, due_entry, is_session, window_of
from tests.oracles import sessions as windowing_sessions
from tests.oracles import timers as timing
from tests.oracles import window_rules as windowing
from tests.simulation.timed import ALARMS, SESSIONS, TIMERS, WINDOWS, TimedWorkload
from tests.simulation.workload import Expected

#: A time after every event time. With it, no message is ahead of the models' clock.
NEVER_MS = 10**15

#: The content of a store: (message key, state key) to value.
State = Mapping[tuple[bytes, str], Any]


@dataclass(slots=True)
class Models:
    """The models of one partition, and the number of alarms of each key."""

    windows: windowing.Windows
    sessions: windowing_sessions.Sessions
    timers: timing.Model
    alarms: Counter[bytes] = field(default_factory=Counter)


@dataclass(slots=True)
class TimedExpected(Expected):
    """The expected result if each message is processed once, in order.

    Attributes:
        sent: The results in order, as JSON, by message key and branch.
        models: The models of each partition.
    """

    sent: dict[tuple[bytes, str], list[str]] = field(default_factory=dict)
    models: list[Models] = field(default_factory=list)

    def waiting(self, store: str) -> int:
        """The number of a store's sessions that are open at the end of the input, or of timers that are set."""
        if store == SESSIONS:
            sessions = [each for models in self.models for each in models.sessions.by_key.values()]
            return sum(session.open for found in sessions for session in found)
        return sum(len(models.timers.timers) for models in self.models) if store == TIMERS else 0


def waits(store: str, state_key: str) -> bool:
    """Whether a record of a store is an open session or a set timer."""
    if store == SESSIONS:
        return is_session(state_key)
    return store in (TIMERS, ALARMS) and state_key.startswith(TIMERS_OF_KEYS)


def expect_timed(workload: TimedWorkload) -> TimedExpected:
    """Computes the expected result from the input, in plain Python."""
    expected = TimedExpected()
    for partition, messages in enumerate(workload.messages):
        models = Models(
            windowing.Windows(workload.window, NEVER_MS),
            windowing_sessions.Sessions(workload.session, NEVER_MS),
            timing.Model(workload.ttl),
        )
        expected.models.append(models)
        for message in messages:
            if message.spoils is not None:
                expected.dead.add((partition, message.number))
                continue
            models.windows.take(windowing.Event(message.key, message.at, message.amount))
            models.sessions.take(windowing.Event(message.key, message.at, message.amount))
            models.timers.take(timing.Event(message.key.decode(), message.at, message.steps))
            if message.alarm is not None:
                models.alarms[message.key] += 1
                if ALARMS in workload.branches:
                    _send(expected, message.key, ALARMS, ["alarm", message.key.decode(), str(message.number)])
        for key, start, end, count, total in models.windows.results if WINDOWS in workload.branches else ():
            _send(expected, key, WINDOWS, {"start": start, "end": end, "n": count, "total": total})
        for key, *made in models.sessions.results if SESSIONS in workload.branches else ():
            names = ("start", "end", "n", "total", "all", "first", "last")
            _send(expected, key, SESSIONS, dict(zip(names, made, strict=True)))
        for sent in models.timers.sent if TIMERS in workload.branches else ():
            _send(expected, sent[1].encode(), TIMERS, sent)
    return expected


def _send(expected: TimedExpected, key: bytes, branch: str, sent: Any) -> None:
    expected.sent.setdefault((key, branch), []).append(json.dumps(sent))


# -- what a store may hold ---------------------------------------------------------------------------------------------


def check_state(workload: TimedWorkload, models: Models, store: str, state: State) -> None:
    """Compare a store at the end of the input with its model. Expired records may still be in the store.

    Raises:
        AssertionError: The store has other content.
    """
    if store == WINDOWS:
        check_windows(models.windows, state, settled=False)
    elif store == SESSIONS:
        check_sessions(models.sessions, state, settled=False)
    elif store == TIMERS:
        check_timers(models.timers, state, settled=False)
    else:
        counts = dict(models.alarms)
        for name in ("set", "fired"):
            assert {key: value for (key, of), value in state.items() if of == name} == counts, name
        left = {of for _, of in state} - {"set", "fired", CLOCK_OF_STORE}
        assert not left, f"alarms that have not fired: {left}"
    time = {WINDOWS: models.windows.time, SESSIONS: models.sessions.time}.get(store, models.timers.time)
    clock = state.get((OWN_KEY, CLOCK if store in (WINDOWS, SESSIONS) else CLOCK_OF_STORE))
    assert (-1 if clock is None else clock["time"]) == time, "the stream time"


def check_windows(model: windowing.Windows, state: State, *, settled: bool = True) -> None:
    """Check that a store has the windows of its model. If not ``settled``, it may also have expired windows."""
    windows = {(key, *window): made for (key, name), made in state.items() if (window := window_of(name))}
    held = {place: (made["count"]["n"], made["sum"]["total"]) for place, made in windows.items()}
    everything = {**model.open, **model.closed}
    lasts = model.shape.grace + model.shape.retention
    # With closing by key, a window may close at any message of its key. It then stays in the store at least until its
    # retention ends. With both closing strategies, windows are removed only in a later commit.
    for place, amounts in everything.items():
        if place in model.open or place[2] + lasts > model.time:
            assert held.pop(place, None) == (len(amounts), sum(amounts)), place
    check_known(state)
    for place, seen in held.items():
        assert not settled or model.shape.closing == "key", place
        assert seen == (len(everything[place]), sum(everything[place])), place


def check_sessions(model: windowing_sessions.Sessions, state: State, *, settled: bool = True) -> None:
    """Check that a store has the sessions of its model, nothing of merged sessions, and a matching index."""
    shape, opens, closed = model.shape, {}, {}
    for (key, name), made in state.items():
        if is_session(name):
            opens[key, made["session"]["start"], made["session"]["end"]] = made["count"]["n"]
        elif (window := window_of(name)) is not None:
            closed[key, *window] = made["count"]["n"]
    sessions = [(key, each) for key, found in model.by_key.items() for each in found]
    assert opens == {(key, each.start, each.end): len(each.events) for key, each in sessions if each.open}
    kept = {(key, each.start, each.end): len(each.events) for key, each in sessions if not each.open}
    lasts = shape.gap + shape.grace + shape.retention
    stays = {place: count for place, count in kept.items() if place[2] + lasts > model.time}
    assert stays.items() <= closed.items() <= kept.items()
    # With closing by key, a session may stay in the store for longer than its retention. With the other closing
    # strategy, it stays at most one millisecond longer.
    assert not settled or shape.closing == "key" or all(place[2] + lasts >= model.time for place in closed)
    entries = [due_entry(name) for key, name in state if key == OWN_KEY and name.startswith("due/")]
    indexed = Counter(entry.message_key for entry in entries)
    assert indexed == Counter(key for key, *_ in [*closed, *opens])
    check_known(state)


def check_known(state: State) -> None:
    """Check that the records about a key are removed together with the key's last window, which has an index entry."""
    indexed = {due_entry(name).message_key for key, name in state if key == OWN_KEY and name.startswith("due/")}
    assert {key for key, name in state if name == KEY_TIME or name.startswith("o/")} <= indexed


def check_timers(model: timing.Model, state: State, *, settled: bool = True) -> None:
    """Check that a store has the values and timers of its model.

    If not ``settled``, expired values may still be in the store.
    """
    values = {(key.decode(), name): value for (key, name), value in state.items() if not name.startswith(RESERVED)}
    live = {place: value for place, (value, end, _) in model.values.items() if end > model.time}
    ended = {place: value for place, (value, *_) in model.values.items() if place not in live}
    assert live.items() <= values.items() <= (live if settled else {**live, **ended}).items()
    # The number of the engine's own records: two for each value, two for each timer, and one for stream time.
    own = sum(name.startswith(RESERVED) for _, name in state)
    assert own == 2 * len(values) + 2 * len(model.timers) + ((OWN_KEY, CLOCK_OF_STORE) in state)
