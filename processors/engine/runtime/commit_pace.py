"""Decides when a commit is due: frequently while the worker keeps up with its input, rarely while it has a backlog.

Readers see results at the commit, so frequent commits lower the latency. Each commit has a fixed cost, so rare commits
raise the throughput. A worker with a backlog needs the throughput.

``commit_interval`` computes the commit interval. ``is_due`` says whether to commit: when the interval has passed, after
``commit_every`` messages, or when the uncommitted state is too large. Both functions are pure: their results depend
only on their arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The commit interval is at least this many times the duration of the last commit, within the limits of ``Bounds``.
SHARE_OF_COMMITS = 10
#: Seconds that a slice should take. A slice is a group of messages that are processed in one go. Commits, heartbeats
#: and requests run between slices.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """The minimum and the maximum commit interval, in seconds. If they are equal, the interval is constant."""

    shortest_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of the polls since the last commit, and the duration of the last commit.

    Attributes:
        polls: Number of polls that returned records.
        full: Number of polls that returned as many records as requested, so that more records were waiting.
        commit_s: Duration of the last commit in seconds; None before the first commit.
    """

    polls: int = 0
    full: int = 0
    commit_s: float | None = None

    @property
    def behind(self) -> bool:
        """Whether the worker probably has a backlog: more than half of the polls were full."""
        return 2 * self.full > self.polls


def commit_interval(last_s: float, seen: Seen, bounds: Bounds) -> float:
    """Returns the seconds from the first uncommitted record to its commit. ``last_s`` is the previous interval.

    With a backlog, the result is the maximum interval. Without a backlog, it is at least half of the previous interval.
    Otherwise the interval would oscillate when the load is at the worker's limit.
    """
    if seen.behind:
        return bounds.longest_s
    least = max(bounds.shortest_s, SHARE_OF_COMMITS * (seen.commit_s or 0.0))
    return min(bounds.longest_s, max(least, last_s / 2))


def is_due(messages: int, *, commit_every: int, remaining_s: float, dirty_bytes: int, overlay_bytes_max: int) -> bool:
    """Whether the uncommitted work has to be committed now.

    Args:
        messages: Number of uncommitted messages.
        commit_every: Commit after this many messages; 0 for no limit.
        remaining_s: Seconds until the end of the commit interval; 0 or negative when the interval has passed.
        dirty_bytes: Size of the uncommitted state in bytes.
        overlay_bytes_max: Commit when the uncommitted state is larger than this.
    """
    if (commit_every and messages >= commit_every) or remaining_s <= 0:
        return True
    return dirty_bytes > overlay_bytes_max


def slice_size(size: int, took_s: float, most: int) -> int:
    """Returns the number of records for the next slice (records that are processed in one go), at most ``most``.

    The previous slice had ``size`` records and took ``took_s`` seconds. After a slow slice, the size is halved; after a
    fast slice, it is doubled.
    """
    if took_s > 2 * SLICE_S:
        return max(1, size // 2)
    return min(most, size * 2) if took_s < SLICE_S / 2 else size


class Overlays:
    """The total size of the uncommitted state of all tasks, in bytes.

    Only the size of the changed task is updated. With many partitions, it would be slow to add up the sizes of all
    tasks after each batch.
    """

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}

    def grown(self, task: str, size: int) -> None:
        """Sets the size of a task's uncommitted state to ``size`` bytes.

        Must be called after this state has changed.
        """
        self.total += size - self._of.get(task, 0)
        self._of[task] = size

    def clear(self) -> None:
        """Sets all sizes to 0. Must be called after a commit or an aborted transaction."""
        self.total = 0
        self._of.clear()


class Pace:
    """Keeps statistics of a worker's polls and commits, and computes the commit interval from them."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._last_s = bounds.shortest_s
        self._seen = Seen()

    @property
    def interval_s(self) -> float:
        """Seconds from the first uncommitted record to its commit, computed from the polls since the last commit."""
        return commit_interval(self._last_s, self._seen, self._bounds)

    def polled(self, records: int, asked_for: int) -> None:
        """Count a poll that requested ``asked_for`` records and returned ``records``; an empty poll is not counted."""
        if records:
            seen = self._seen
            self._seen = Seen(seen.polls + 1, seen.full + (records >= asked_for), seen.commit_s)

    def committed(self, took_s: float | None) -> None:
        """Starts a new commit interval. Must be called after a commit, which took ``took_s`` seconds."""
        self._last_s = self.interval_s
        self._seen = Seen(commit_s=took_s)
