"""How soon to commit: early while the worker keeps up, as late as it may while it is behind.

Results are seen at the commit, so that commits make the latency; each costs the same whatever it holds, so that they
take from the throughput. A worker that keeps up has the time for them, and one that is behind has not.

Pure: what was seen since the last commit goes in, seconds come out.
"""

from __future__ import annotations

from dataclasses import dataclass

#: No more than one part in so many of the time goes to commits, as long as the bounds allow it.
SHARE_OF_COMMITS = 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds between commits: as few as the shortest, at the most the longest; equal for always the same."""

    shortest_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What happened since the last commit.

    Attributes:
        polls: Polls that brought records.
        full: Those of them that brought as many as were asked for: there were more to be had.
        commit_s: How long the last commit took, in seconds; None before the first.
    """

    polls: int = 0
    full: int = 0
    commit_s: float | None = None

    @property
    def behind(self) -> bool:
        """Whether records waited for the worker, rather than the worker for records."""
        return 2 * self.full > self.polls


def commit_interval(last_s: float, seen: Seen, bounds: Bounds) -> float:
    """Seconds from the first record to its commit.

    To the longest at once, back by halves: a load that is just too much for early commits does not swing.

    Args:
        last_s: The interval before this one.
        seen: What happened since the last commit.
        bounds: What the application allows.
    """
    if seen.behind:
        return bounds.longest_s
    least = max(bounds.shortest_s, SHARE_OF_COMMITS * (seen.commit_s or 0.0))
    return min(bounds.longest_s, max(least, last_s / 2))


class Pace:
    """Counts for ``commit_interval`` what a worker sees."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._last_s = bounds.shortest_s
        self._seen = Seen()

    @property
    def interval_s(self) -> float:
        """Seconds from the first record to its commit, as things are."""
        return commit_interval(self._last_s, self._seen, self._bounds)

    def polled(self, records: int, asked_for: int) -> None:
        """Note a poll."""
        if records:
            seen = self._seen
            self._seen = Seen(seen.polls + 1, seen.full + (records >= asked_for), seen.commit_s)

    def committed(self, took_s: float | None) -> None:
        """Note a commit and how long it took, in seconds."""
        self._last_s = self.interval_s
        self._seen = Seen(commit_s=took_s)
