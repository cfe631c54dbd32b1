"""The record of a window store about one message key: the key's own stream time, and its open windows.

    event times of a key   ──x──x────x────────────x─────►       times after the worker's clock are kept in ``ahead``
                                     ▲       now  └ used when the worker's clock reaches it
                                     └ the key's time

The record holds the newest ``OPEN_KEPT`` open windows. Older open windows have separate records, which range reads
find. The size of the record and the cost of a message therefore do not depend on the number of open windows.

Invariants:
    - A closed window stays closed, even if the window is later declared with a longer grace. The record's time
      ``closed`` ensures this.
    - A future event time is kept until the clock reaches it. The event time then closes windows, even if the key gets
      no further message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from holdfast.processors.engine.state.time.stream_time import AHEAD_KEPT, NO_TIME

#: Maximum number of open windows in the record of a key.
#: A key has more open windows only with a long grace, a small step, or many out-of-order messages.
OPEN_KEPT = 16


class KeyTime:
    """A window store's record about one message key, as an object in memory that messages change.

    Times are in milliseconds.

    Attributes:
        time: The key's stream time: the largest event time of its messages that is not after the worker's clock.
        closed: The time up to which windows are closed. A window is closed if its end (without its grace) is at or
            before this time.
        open: The newest open windows. For tumbling and hopping windows: start and end. For sessions: start, and the
            event time that opened the session.
        more: Bounds of the open windows that are not in ``open``; None if ``open`` has all open windows. For sessions:
            the smallest and the largest event time that opened a session. For other windows: the end of the first
            window. Some windows within the bounds may already be closed.
        ahead: Event times after the worker's clock, ascending.
    """

    __slots__ = ("ahead", "closed", "more", "open", "stored", "time")

    def __init__(self, stored: dict[str, Any] | None) -> None:
        #: The record as it was read; None if the key has no record.
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
        """Whether an older Holdfast version wrote the record. That version wrote no index entries for open windows.

        Read it only if windows close by the stream time of their message key, because only such records have the field
        ``closed``, which shows the newer version.
        """
        return self.stored is not None and "closed" not in self.stored

    def reach(self, cap_ms: int) -> None:
        """Moves event times up to ``cap_ms``, the time of the worker's clock, from ``ahead`` to ``time``."""
        if self.ahead and self.ahead[0] <= cap_ms:
            reached = bisect_right(self.ahead, cap_ms)
            self.time, self.ahead = max(self.time, self.ahead[reached - 1]), self.ahead[reached:]

    def take(self, time_ms: int, cap_ms: int) -> None:
        """Applies the event time of a message. A time after the worker's clock is added to ``ahead``."""
        if time_ms <= cap_ms:
            self.time = max(self.time, time_ms)
        else:
            self.ahead = with_time(self.ahead, time_ms)

    def record(self, *, by_key: bool) -> dict[str, Any]:
        """Returns the stored form of the record.

        ``by_key`` is True if windows close by the stream time of their message key, and not by that of the whole store.
        """
        made: dict[str, Any] = {"time": self.time, "open": self.open}
        if by_key:
            made["closed"] = self.closed
        if self.more is not None:
            made["more"] = self.more
        if self.ahead:
            made["ahead"] = self.ahead
        return made


def with_time(ahead: Sequence[int], time_ms: int) -> list[int]:
    """Returns ``ahead`` (event times after the worker's clock, ascending) with ``time_ms`` added.

    If there are more than ``AHEAD_KEPT`` times, every second time is dropped. The windows of a dropped time close at
    the next remaining time.
    """
    at = bisect_left(ahead, time_ms)
    if at < len(ahead) and ahead[at] == time_ms:
        return list(ahead)
    made = [*ahead[:at], time_ms, *ahead[at:]]
    if len(made) > AHEAD_KEPT:
        del made[-2::-2]
    return made
