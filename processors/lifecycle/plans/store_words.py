"""Describes as text the time-related records of a store: windows, timers and TTL, each with its duration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.processors.engine.state.own_keys import ENDS, NEWEST, SCHEDULES, SINKS, SOURCES, TIMERS
from holdfast.processors.engine.state.time.stream_time import shown
from holdfast.processors.engine.state.time.time_records import CLOCKS_OF_STORES, owner_of, session_of_value
from holdfast.processors.engine.state.time.window_keys import HELD, KEY_TIME, is_session, open_window_of, window_of
from holdfast.processors.engine.store_uses import CallUse, ScheduleUse, SourceUse, TimerUse, TimeUse, TtlUse, WindowUse
from holdfast.processors.engine.topology import CALLS, StoreSpec

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def in_duration(milliseconds: int) -> str:
    """A duration in the largest unit that divides it, for example ``90 s``, ``2 h``, ``1 d`` or ``1500 ms``."""
    found = next(((size, unit) for size, unit in _UNITS if milliseconds and milliseconds % size == 0), (1, "ms"))
    return "0 s" if not milliseconds else f"{milliseconds // found[0]} {found[1]}"


def kept_of_time(store: StoreSpec) -> str:
    """The time-related content of a store as text, with durations; empty if the store has none."""
    return "; ".join(map(_in_words, store.uses))


def _in_words(use: TimeUse) -> str:
    match use:
        case WindowUse(kind=kind, counted=counted):
            return f"{kind} {'count ' if counted else ''}windows: {use.text(in_duration)}"
        case ScheduleUse():
            return use.text(in_duration)
        case SourceUse():
            return use.text()
        case CallUse():
            return use.text(in_duration)
        case TtlUse(ttl_ms=None):
            return "values that end when their `ttl` says"
        case TtlUse(ttl_ms=int(ttl_ms)):
            return f"values that end after {in_duration(ttl_ms)}"
        case _:
            return "timers"


def times_of(stores: tuple[StoreSpec, ...]) -> tuple[str, ...]:
    """A sentence for each store that has time-related content."""
    return tuple(f"store `{each.name}` has {kept}" for each in stores if (kept := kept_of_time(each)))


def rebuilt_otherwise(stores: Iterable[StoreSpec]) -> tuple[str, ...]:
    """A sentence for each store whose content a rebuild changes, because the content depends on the clock."""
    found = []
    for each in stores:
        silence = next((use.silence_ms for use in each.uses if isinstance(use, WindowUse)), None)
        if silence is not None:
            found.append(
                f"windows of store `{each.name}` close after a silence of {in_duration(silence)}, and old "
                "messages are read without silences: messages that were late may count, and a window that only a "
                "silence closed is sent again when it closes"
            )
        if TimerUse() in each.uses:
            found.append(
                f"timers of the worker's clock in store `{each.name}` do not fire while old messages are read, and "
                "fire once afterwards, also those that fired before"
            )
    return tuple(found)


def calls_again(stores: Iterable[StoreSpec]) -> tuple[str, ...]:
    """A sentence for each store of durable calls, if messages are read again whose answers are no longer stored."""
    return tuple(
        f"the calls with answers in store `{each.name}` are made again for each message, because an answer leaves the "
        "store with the commit of its message"
        for each in stores
        if each.kind == CALLS
    )


def record_in_words(store: StoreSpec, state_key: str, value: Any) -> str:
    """A timer, schedule, window or stream-time record as text; for any other record, its state key."""
    if state_key.startswith(TIMERS):
        clock, time_ms = value
        return f"timer {state_key.removeprefix(TIMERS)}: {shown(time_ms)}, {clock} time"
    if state_key.startswith(SCHEDULES):
        return f"schedule {state_key.removeprefix(SCHEDULES)}: done up to {shown(value['upto'])}"
    if state_key.startswith(SOURCES):
        return f"source {state_key.removeprefix(SOURCES)}: {value['sent']:,} messages sent"
    if state_key.startswith(SINKS):
        return f"sink {state_key.removeprefix(SINKS)}: {len(value['staged']):,} commits in the list"
    if state_key.startswith(ENDS):
        return f"end of {state_key.removeprefix(ENDS)}: {shown(value[0])}"
    if state_key == NEWEST:
        return f"newest message of the key: {shown(value[0])}"
    if store.kind != "window":
        return state_key
    if is_session(state_key):
        start, end = session_of_value(value)
        return f"open session {shown(start)} to {shown(end)}"
    if (window := window_of(state_key)) is not None:
        return f"window {shown(window[0])} to {shown(window[1])}"
    if (window := open_window_of(state_key)) is not None:
        return f"open: window {shown(window[0])} to {shown(window[1])}"
    known = {KEY_TIME: "time and open windows of the key", HELD: "result that is held back"}
    if state_key in CLOCKS_OF_STORES:
        return f"stream time {shown(value['time'])}"
    return known.get(state_key, state_key) if owner_of(state_key) is None else f"index: {state_key}"
