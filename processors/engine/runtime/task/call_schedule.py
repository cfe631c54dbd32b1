"""The schedule of async calls: which calls start together, and which call each waits for, so that all end in time.

    lane 1    a1 ──► c1 ──► a3          a call waits for the one before it in its lane, and for that of its key
    lane 2    b1 ──► a2                 (a3 for c1 and a2)
             round 1  round 2  round 3

A call is placed after the round of its key's last call, in the first round with a free lane. A call only waits for
calls of earlier rounds, so a call of round n ends after at most n timeouts, whatever each call takes.
"""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The lane and the round of a call; ``after`` is the number of the previous call of its key, which it waits for."""

    lane: int
    round: int
    after: int | None


class CallSchedule:
    """Places calls, in the order of their messages, in ``rounds`` rounds of ``width`` lanes.

    Args:
        width: How many calls wait at once.
        rounds: How many consecutive timeouts fit in the time limit.
        by_key: Whether the calls of a key run one after the other.
    """

    def __init__(self, width: int, rounds: int, *, by_key: bool) -> None:
        self._width, self._by_key = width, by_key
        self._filled = [0] * rounds
        #: The first round with a free lane.
        self._open = 0
        self._last: dict[bytes, tuple[int, int]] = {}
        self._count = 0

    def place(self, key: bytes | None) -> Place | None:
        """The place of the next call; None when the call would not end in time."""
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
