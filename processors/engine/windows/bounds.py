"""The windows of a time, and when a window is closed, so that a message for it is late.

Invariants:
    - Each rule is one function, for messages and for columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.infra.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.processors.engine.aggregates.kernels import Places


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


def steps_closed(time_ms: int, duration_ms: int, grace_ms: int, step_ms: int) -> int:
    """A number that grows with the time where, by ``is_closed``, a tumbling or hopping window may close."""
    return (time_ms - duration_ms - grace_ms) // step_ms


def starts(time_ms: int, duration_ms: int, step_ms: int) -> range:
    """The starts of the tumbling or hopping windows that contain an event time, ascending; none is negative."""
    last = time_ms - time_ms % step_ms
    first = max(last - (duration_ms - 1 - time_ms % step_ms) // step_ms * step_ms, 0)
    return range(first, last + 1, step_ms)


def starts_of_column(times: Places, duration_ms: int, step_ms: int) -> tuple[Places | None, Places]:
    """``starts`` for a column of event times: for each window the place of its time, and its start.

    The places are None if each time has one window.
    """
    import numpy as np  # here, because a worker without columns does not load it

    last = times - times % step_ms
    if step_ms >= duration_ms:
        return None, last
    back = np.arange(-(-duration_ms // step_ms) - 1, -1, -1) * step_ms
    grid = last[:, None] - back
    inside = (grid + duration_ms > times[:, None]) & (grid >= 0)
    return np.nonzero(inside)[0], grid[inside]
