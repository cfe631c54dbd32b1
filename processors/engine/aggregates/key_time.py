"""What a window store knows of one message key: the key's own time, and which of its windows are open.

    event times of a key   ──x──x────x────────────x─────►       times ahead of the worker's clock wait in ``ahead``
                                     ▲       now  └ counts when the worker's clock is there
                                     └ the key's time

The record has the newest ``OPEN_KEPT`` open windows. All others have records of their own, which ranges read in order.
So the record does not grow with what a key has open, and a message costs the same.

Invariants:
    - A window that is closed at a time of its key stays closed, also with a longer grace: ``closed`` remembers it.
    - A time that is ahead is not forgotten, and closes windows without another message of its key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from holdfast.processors.engine.state.time.stream_time import AHEAD_KEPT, NO_TIME

#: Open windows in the record of a key. A key has more of them only with a long grace, small steps, or much disorder.
OPEN_KEPT = 16


class KeyTime:
    """The record of a key, as the current message changes it. Times are milliseconds.

    Attributes:
        time: The key's own time: the largest event time that the world has reached.
        closed: Windows that are due up to here, without a grace, are closed.
        open: The newest open windows. Of tumbling and hopping ones start and end; of sessions start, and the time
            that opened it.
        more: What open windows are not in ``open``; None for none. Of sessions the least and the greatest time that
            opened one, of other windows the end of the first one. There may be fewer of them than it says.
        ahead: Event times that the worker's clock has not reached, ascending.
    """

    __slots__ = ("ahead", "closed", "more", "open", "stored", "time")

    def __init__(self, stored: dict[str, Any] | None) -> None:
        #: The record as it was read; None for a key that the store does not know.
        self.stored = stored
        if stored is None:
            self.time = self.closed = NO_TIME
            self.open: list[list[int]] = []
            self.more: Any = None
            self.ahead: list[int] = []
        else:
            get = stored.get
            self.time, self.closed, self.open = stored["time"], get("closed", NO_TIME), stored["open"]
            self.more, self.ahead = get("more"), get("ahead", [])

    @property
    def is_former(self) -> bool:
        """Whether a version wrote the record that did not enter open windows in the index."""
        return self.stored is not None and "closed" not in self.stored

    def reach(self, cap_ms: int) -> None:
        """Counts the times ahead that the worker's clock has reached."""
        if self.ahead and self.ahead[0] <= cap_ms:
            reached = bisect_right(self.ahead, cap_ms)
            self.time, self.ahead = max(self.time, self.ahead[reached - 1]), self.ahead[reached:]

    def take(self, time_ms: int, cap_ms: int) -> None:
        """Counts the time of a message; one that is dated ahead of the worker's clock waits."""
        if time_ms <= cap_ms:
            self.time = max(self.time, time_ms)
        else:
            self.ahead = with_time(self.ahead, time_ms)

    def record(self, *, by_key: bool) -> dict[str, Any]:
        """The record as it is stored; where stream time closes windows, a key has no time."""
        made: dict[str, Any] = {"time": self.time, "open": self.open}
        if by_key:
            made["closed"] = self.closed
        if self.more is not None:
            made["more"] = self.more
        if self.ahead:
            made["ahead"] = self.ahead
        return made


def with_time(ahead: Sequence[int], time_ms: int) -> list[int]:
    """Times ahead, and one more. Of many, every second one is forgotten: the next one stands for it."""
    at = bisect_left(ahead, time_ms)
    if at < len(ahead) and ahead[at] == time_ms:
        return list(ahead)
    made = [*ahead[:at], time_ms, *ahead[at:]]
    if len(made) > AHEAD_KEPT:
        del made[-2::-2]
    return made
