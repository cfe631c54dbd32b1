"""When a window is closed, so that a message for it is late: one rule for each kind of window, and for columns."""

from __future__ import annotations

from typing import Any

from holdfast.infra.errors import HoldfastError


class LateMessage(HoldfastError):
    """All windows of a message are closed, and the window has ``on_late="dead-letter"``."""


def is_closed(due_ms: Any, grace_ms: int, time_ms: Any, closed_ms: int) -> Any:
    """Whether a window has ended and accepts no further message: the same rule by message and by columns.

    Args:
        due_ms: When the window is due, without its grace: one number, or a column of them.
        grace_ms: How long after that the window still accepts messages.
        time_ms: The time that closes the window: one number, or one for each window.
        closed_ms: Windows that are due up to here were closed before, maybe with a shorter grace.
    """
    return (due_ms + grace_ms <= time_ms) | (due_ms <= closed_ms)


def closed_upto(grace_ms: int, time_ms: int, closed_ms: int) -> int:
    """The last time at which a closed window is due, by ``is_closed``."""
    return max(time_ms - grace_ms, closed_ms)
