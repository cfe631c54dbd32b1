"""Computes which windows contain an event time, and whether a window is closed. A message for a closed window is late.

Invariants:
    - Each rule is implemented only once. The same function is used for single messages and for numpy arrays of
      messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.infra.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.processors.engine.aggregates.kernels import Places


class LateMessage(HoldfastError):
    """A message is late: all of its windows are closed. Raised only if the window has ``on_late="dead-letter"``."""


def is_closed(due_ms: Any, grace_ms: int, time_ms: Any, closed_ms: int) -> Any:
    """Whether a window is closed: it accepts no more messages. Works on single numbers and on numpy arrays.

    Args:
        due_ms: The time at which the window ends, without its grace: one number, or an array.
        grace_ms: Milliseconds after ``due_ms`` for which the window still accepts messages.
        time_ms: The present stream time (or the key's largest event time): one number, or one for each window.
        closed_ms: Windows with ``due_ms`` up to this time are already closed, for example because an earlier version
            of the processor had a shorter grace.
    """
    return (due_ms + grace_ms <= time_ms) | (due_ms <= closed_ms)


def closed_upto(grace_ms: int, time_ms: int, closed_ms: int) -> int:
    """Returns the latest window end (``due_ms``, without grace) for which ``is_closed`` returns True."""
    return max(time_ms - grace_ms, closed_ms)


def steps_closed(time_ms: int, duration_ms: int, grace_ms: int, step_ms: int) -> int:
    """Returns a number that increases each time stream time passes a time at which a window may close.

    The windows have this duration, grace and step. While the number stays the same, no window can have closed.
    """
    return (time_ms - duration_ms - grace_ms) // step_ms


def starts(time_ms: int, duration_ms: int, step_ms: int) -> range:
    """Returns the starts of the tumbling or hopping windows that contain an event time, ascending.

    No start is below 0.
    """
    last = time_ms - time_ms % step_ms
    first = max(last - (duration_ms - 1 - time_ms % step_ms) // step_ms * step_ms, 0)
    return range(first, last + 1, step_ms)


def starts_of_column(times: Places, duration_ms: int, step_ms: int) -> tuple[Places | None, Places]:
    """Returns the starts of the windows for an array of event times, as ``starts`` does for one event time.

    The result is two arrays with one item for each window: the index of the event time, and the start of the window.
    The first array is None if each event time has exactly one window.
    """
    import numpy as np  # Imported here, so that a worker that uses no columns does not load numpy.

    last = times - times % step_ms
    if step_ms >= duration_ms:
        return None, last
    back = np.arange(-(-duration_ms // step_ms) - 1, -1, -1) * step_ms
    grid = last[:, None] - back
    inside = (grid + duration_ms > times[:, None]) & (grid >= 0)
    return np.nonzero(inside)[0], grid[inside]
