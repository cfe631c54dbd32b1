"""A histogram of commit durations, for metrics and status. This module imports no Kafka client, so it loads fast."""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds of the histogram's buckets, in seconds.
COMMIT_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class LatencyHistogram:
    """Counts durations in buckets. The last item of ``counts`` is for durations longer than all bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(COMMIT_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration, in seconds."""
        self.counts[bisect_left(COMMIT_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
