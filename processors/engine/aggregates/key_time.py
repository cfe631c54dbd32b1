"""The record of a window store about one message key: the key's own stream time, and its open windows.

    event times of a key   ──x──x────x────────────x─────►       times ahead of the worker's clock wait in ``ahead``
                                     ▲       now  └ counts when the worker's clock is there
                                     └ the key's time

The record has the newest ``OPEN_KEPT`` open windows. Other open windows have separate records, which are read in order
by range. So the record's size and the cost of a message do not depend on the number of open windows.

Invariants:
    - A window that is closed at a time of its key stays closed, also with a longer grace: ``closed`` remembers it.
    - A time that is ahead is not forgotten, and closes windows without another message of its key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from holdfast.processors.engine.state.time.stream_time import AHEAD_KEPT, NO_TIME

#: Open windows in the record of a key. A key has more open windows only with a long grace, small steps, or much
#: disorder.
OPEN_KEPT = 16


class KeyTime:
    """The record of a key, as the current message changes it. Times are milliseconds.

    Attributes:
        time: The key's own time: the largest event time that the world has reached.
        closed: Windows that are due up to here, without a grace, are closed.
        open: The newest open windows. For tumbling and hopping windows: start and end. For sessions: start, and the
            time that opened the session.
        more: Bounds of the open windows that are not in ``open``; None for none. For sessions: the least and the
            greatest time that opened one. For other windows: the end of the first one. Some of these windows may be
            closed already.
        ahead: Event times that are later than the worker's clock, ascending.
    """

    __slots__ = ("ahead", "closed", "more", "open", "stored", "time")

    def __init__(self, stored: dict[str, Any] | None) -> None:
        #: The record as it was read; None for a key that is not in the store.
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
        """Whether an older version wrote the record; that version did not add open windows to the index."""
        return self.stored is not None and "closed" not in self.stored

    def reach(self, cap_ms: int) -> None:
        """Applies the times ahead that the worker's clock has reached."""
        if self.ahead and self.ahead[0] <= cap_ms:
            reached = bisect_right(self.ahead, cap_ms)
            self.time, self.ahead = max(self.time, self.ahead[reached - 1]), self.ahead[reached:]

    def take(self, time_ms: int, cap_ms: int) -> None:
        """Applies the time of a message; a time ahead of the worker's clock waits."""
        if time_ms <= cap_ms:
            self.time = max(self.time, time_ms)
        else:
            self.ahead = with_time(self.ahead, time_ms)

    def record(self, *, by_key: bool) -> dict[str, Any]:
        """The record in its stored form; if stream time closes windows, a key has no time."""
        made: dict[str, Any] = {"time": self.time, "open": self.open}
        if by_key:
            made["closed"] = self.closed
        if self.more is not None:
            made["more"] = self.more
        if self.ahead:
            made["ahead"] = self.ahead
        return made


def with_time(ahead: Sequence[int], time_ms: int) -> list[int]:
    """The times ahead plus one more.

    If there are many, every second time is dropped; the next time then stands for both.
    """
    at = bisect_left(ahead, time_ms)
    if at < len(ahead) and ahead[at] == time_ms:
        return list(ahead)
    made = [*ahead[:at], time_ms, *ahead[at:]]
    if len(made) > AHEAD_KEPT:
        del made[-2::-2]
    return made
