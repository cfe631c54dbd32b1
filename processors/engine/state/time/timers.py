"""The timers of one store.

A timer belongs to a message key, has a name, and fires when one of two clocks reaches its time.

    message key     state key                                                           value
    the message's   __holdfast/timers/<name>                                            [clock, time]
    OWN_KEY         __holdfast/timers-by-<clock>/<time>/<message key in hex>/<name>     1

Times are milliseconds since 1970. ``stream`` timers fire by the stream time of the task, ``processing`` timers by the
worker's clock.

Invariants:
    - A timer fires once, in the transaction that deletes it.
    - A timer has one entry in the index of its clock. If a command clears the key, the timer is deleted and its entry
      stays. When this entry is due, no timer fires, and the entry is deleted.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from holdfast.processors.engine.changelog.format import decode_value
from holdfast.processors.engine.state.own_keys import TIMERS, TIMERS_BY_CLOCK
from holdfast.processors.engine.state.ranges import behind, state_keys
from holdfast.processors.engine.state.time.time_index import Entry, OwnRecords, TimeIndex

#: The clock by which a timer fires: ``stream`` is the stream time of the task, ``processing`` the worker's clock.
TimerClock = Literal["stream", "processing"]
CLOCKS: tuple[TimerClock, ...] = get_args(TimerClock)


class Timer(NamedTuple):
    """A timer of a message key; ``time`` is milliseconds since 1970."""

    name: str
    time: int
    clock: TimerClock


class Due(NamedTuple):
    """A timer that is due, and the message key to which it belongs."""

    timer: Timer
    message_key: bytes

    @property
    def entry(self) -> Entry:
        """The timer's entry in the index of its clock."""
        return Entry(self.timer.time, self.message_key, self.timer.name)


class Pending(NamedTuple):
    """A summary of the timers of a store that have not fired yet.

    Attributes:
        pending: The number of timers. For each clock, the count stops at a limit.
        more: Whether a count stopped at its limit, so that there are more timers.
        next: For each clock, the time of the next timer in milliseconds since 1970; None without a timer.
    """

    pending: int
    more: bool
    next: dict[str, int | None]


class Timers:
    """The timers of one store in one task."""

    def __init__(self, state: OwnRecords) -> None:
        self._state = state
        self._indexes = {clock: TimeIndex(state, f"{TIMERS_BY_CLOCK}{clock}/") for clock in CLOCKS}
        #: The index of the timers that fire by stream time.
        self.on_stream = self._indexes["stream"]
        #: Maps each clock to the earliest index entry that was added since the last call of ``due``; None without such
        #: an entry.
        self._added: dict[TimerClock, Entry | None] = dict.fromkeys(CLOCKS)
        #: The number of timers that were set since the last commit, including those set by failed messages.
        self.set_since = 0

    @property
    def store(self) -> str:
        """The name of the store."""
        return self._state.name

    def set(self, timer: Timer) -> None:
        """Sets a timer of the current message's key. It replaces a timer with the same name."""
        state = self._state
        self.cancel(timer.name)
        self.set_since += 1
        entry = Entry(timer.time, state.message_key, timer.name)
        state.write_own(state.message_key, TIMERS + timer.name, [timer.clock, timer.time])
        self._indexes[timer.clock].enter(entry)
        added = self._added[timer.clock]
        self._added[timer.clock] = entry if added is None else min(added, entry)

    def cancel(self, name: str) -> bool:
        """Deletes a timer of the current message's key. Returns False if it does not exist."""
        state = self._state
        held = state.read_own(state.message_key, TIMERS + name)
        if held is None:
            return False
        clock, time_ms = held
        state.write_own(state.message_key, TIMERS + name, None)
        self._indexes[clock].leave(Entry(time_ms, state.message_key, name))
        return True

    def of_key(self, prefix: str, limit: int | None) -> list[Timer]:
        """Returns the timers of the current message's key whose names begin with ``prefix``, sorted by name."""
        first = (TIMERS + prefix).encode()
        found = state_keys(self._state, self._state.message_key, first, behind(first), reverse=False)
        made: list[Timer] = []
        try:
            for key, raw in found:
                if len(made) == limit:
                    break
                clock, time_ms = decode_value(raw)
                made.append(Timer(key.decode()[len(TIMERS) :], time_ms, clock))
        finally:
            found.close()
        return made

    def pending(self, limit: int) -> Pending:
        """Counts the timers that have not fired yet; for each clock, the count stops at ``limit``."""
        found = {clock: index.pending(limit + 1) for clock, index in self._indexes.items()}
        counts = [count for count, _ in found.values()]
        firsts: dict[str, int | None] = {clock: first for clock, (_, first) in found.items()}
        return Pending(sum(min(count, limit) for count in counts), max(counts) > limit, firsts)

    def is_due(self, clock: TimerClock, now_ms: int) -> bool:
        """Whether a timer may be due at ``now_ms``.

        False is certain. True may be wrong, because only memory is checked.
        """
        return self._indexes[clock].next_ms <= now_ms

    def due(self, clock: TimerClock, now_ms: int, limit: int) -> list[Due]:
        """Returns at most ``limit`` due timers, sorted by time, message key and name.

        The caller must fire each returned timer, or pass it to ``put_back``.
        """
        self._added[clock] = None
        found = self._indexes[clock].due(now_ms, limit)
        return [Due(Timer(entry.name, entry.time_ms, clock), entry.message_key) for entry in found]

    def put_back(self, due: Due) -> None:
        """Puts back a due timer that was not fired, so that ``due`` returns it again."""
        self._indexes[due.timer.clock].put_back(due.entry)

    def take(self, due: Due) -> bool:
        """Deletes a due timer, and returns True if it must fire.

        Returns False if the timer was cancelled, replaced or cleared since it became due.
        """
        state, timer = self._state, due.timer
        held = state.read_own(due.message_key, TIMERS + timer.name)
        self._indexes[timer.clock].leave(due.entry)
        if held != [timer.clock, timer.time]:
            return False
        state.write_own(due.message_key, TIMERS + timer.name, None)
        return True

    def give_up(self, due: Due) -> None:
        """Deletes a timer whose function call failed."""
        self.take(due)

    def comes_first(self, due: Due) -> bool:
        """Whether this timer is still the earliest timer: no earlier timer was added since the last call of ``due``."""
        added = self._added[due.timer.clock]
        return added is None or added > due.entry

    def look_again(self) -> None:
        """Drops the index entries in memory.

        Must be called after an aborted transaction, and after a command such as ``clear`` has changed the store.
        """
        self._added = dict.fromkeys(CLOCKS)
        for index in self._indexes.values():
            index.look_again()
