"""When a commit is due: early while the worker keeps up with its input, late while it is behind.

Readers see results at the commit, so early commits lower the latency. Each commit has a fixed cost, so rare commits
raise the throughput. A worker that keeps up has time for early commits; a worker that is behind has not.

``loop`` calls ``is_due``: a commit is due at this interval, and earlier after ``commit_every`` messages or when the
overlay is full. Both decisions are pure functions of the events since the last commit.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Commits take at most 1/10 of the time, if the bounds allow it.
SHARE_OF_COMMITS = 10
#: Target duration of a slice in seconds: commits, heartbeats and requests run between slices.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """The shortest and the longest interval between commits, in seconds; equal for a fixed interval."""

    shortest_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """The events since the last commit.

    Attributes:
        polls: Polls that returned records.
        full: The number of polls that returned as many records as requested, so that more records were waiting.
        commit_s: Duration of the last commit in seconds; None before the first.
    """

    polls: int = 0
    full: int = 0
    commit_s: float | None = None

    @property
    def behind(self) -> bool:
        """Whether most polls were full: records wait for the worker."""
        return 2 * self.full > self.polls


def commit_interval(last_s: float, seen: Seen, bounds: Bounds) -> float:
    """Seconds from the first uncommitted record to its commit; ``last_s`` is the interval before this one.

    The interval grows to the longest at once and shrinks by halves, so that a load at the limit does not oscillate.
    """
    if seen.behind:
        return bounds.longest_s
    least = max(bounds.shortest_s, SHARE_OF_COMMITS * (seen.commit_s or 0.0))
    return min(bounds.longest_s, max(least, last_s / 2))


def is_due(messages: int, *, commit_every: int, remaining_s: float, dirty_bytes: int, overlay_bytes_max: int) -> bool:
    """Whether open work has to be committed now.

    Args:
        messages: Uncommitted messages.
        commit_every: Commit after this many messages; 0 for no such limit.
        remaining_s: Seconds until the commit of the interval; not positive when it has passed.
        dirty_bytes: Size of the uncommitted state in bytes.
    """
    if (commit_every and messages >= commit_every) or remaining_s <= 0:
        return True
    return dirty_bytes > overlay_bytes_max


def slice_size(size: int, took_s: float, most: int) -> int:
    """Records of the next slice, after a slice of ``size`` records that took ``took_s`` seconds; at most ``most``."""
    if took_s > 2 * SLICE_S:
        return max(1, size // 2)
    return min(most, size * 2) if took_s < SLICE_S / 2 else size


class Overlays:
    """The size of all uncommitted state, in bytes, updated task by task.

    A sum over all tasks for each batch would make the cost of a message grow with the number of partitions.
    """

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}

    def grown(self, task: str, size: int) -> None:
        """Record the present size of a task's uncommitted state."""
        self.total += size - self._of.get(task, 0)
        self._of[task] = size

    def clear(self) -> None:
        """Forget all sizes, after a commit or when the work was dropped."""
        self.total = 0
        self._of.clear()


class Pace:
    """Counts a worker's polls and commits for ``commit_interval``."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._last_s = bounds.shortest_s
        self._seen = Seen()

    @property
    def interval_s(self) -> float:
        """Seconds from the first uncommitted record to its commit, from the polls so far."""
        return commit_interval(self._last_s, self._seen, self._bounds)

    def polled(self, records: int, asked_for: int) -> None:
        """Count a poll that returned ``records`` of ``asked_for`` records; an empty poll does not count."""
        if records:
            seen = self._seen
            self._seen = Seen(seen.polls + 1, seen.full + (records >= asked_for), seen.commit_s)

    def committed(self, took_s: float | None) -> None:
        """Start a new interval after a commit that took ``took_s`` seconds."""
        self._last_s = self.interval_s
        self._seen = Seen(commit_s=took_s)
