"""Gives each async call a lane and a round, so that all calls of one turn of the worker's main loop end in time.

    lane 1    a1 ──► c1 ──► a3          letters are message keys. A call waits for the previous call of its lane, and
    lane 2    b1 ──► a2                 for the previous call of its key: a3 waits for c1 and a2
             round 1  round 2  round 3

A call gets the first round with a free lane after the round of its key's last call. A call waits only for calls of
earlier rounds. A call of round n therefore ends after at most n timeouts, even if every call times out.
"""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The place of a call in the schedule: its lane and its round.

    ``after`` is the number of an earlier call with the same key, which must end first; None without such a call.
    """

    lane: int
    round: int
    after: int | None


class CallSchedule:
    """Assigns lanes and rounds to calls, in the order of their messages.

    Args:
        width: Number of lanes, which is the maximum number of calls that run at the same time.
        rounds: Maximum number of rounds. This number of timeouts, one after another, fits into the time limit of a turn
            of the worker's main loop.
        by_key: Whether calls with the same key run one after another.
    """

    def __init__(self, width: int, rounds: int, *, by_key: bool) -> None:
        self._width, self._by_key = width, by_key
        self._filled = [0] * rounds
        #: The first round with a free lane.
        self._open = 0
        self._last: dict[bytes, tuple[int, int]] = {}
        self._count = 0

    def place(self, key: bytes | None) -> Place | None:
        """Returns the lane and round of the next call; None if the call would not end in time."""
        after, at = None, self._open
        if self._by_key and key is not None and key in self._last:
            after, of_last = self._last[key]
            at = max(at, of_last + 1)
        while at < len(self._filled) and self._filled[at] == self._width:
            at += 1
        if at == len(self._filled):
            return None
        made = Place(self._filled[at], at, after)
        self._filled[at] += 1
        while self._open < len(self._filled) and self._filled[self._open] == self._width:
            self._open += 1
        if self._by_key and key is not None:
            self._last[key] = self._count, at
        self._count += 1
        return made
