"""The work of a worker since its last commit: its size, and the time of its commit."""

from __future__ import annotations

from holdfast.infra.kafka.producer import TRANSACTION_S
from holdfast.processors.engine.runtime.commit_pace import Overlays, Pace, is_due
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.steps.async_calls import CALLS_WITHIN_MS

#: Calls start only in a transaction of at most this age, in seconds: with the time for the calls and the time for the
#: commit, the transaction stays below ``TRANSACTION_S``.
CALLS_BEGIN_WITHIN_S = TRANSACTION_S - CALLS_WITHIN_MS / 1000 - 2.0
#: Seconds for which watermarks alone wait for a commit: they arrive as long as the upstream tasks run. A restart would
#: only read these watermarks again.
WATERMARKS_WAIT_S = 1.0


class OpenWork:
    """Counts uncommitted work. All times are monotonic seconds."""

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._pace = Pace(options.commits)
        self._overlays = Overlays()
        #: Whether there is something to commit.
        self._open = False
        #: Messages since the last commit. A watermark only moves the position, and is none.
        self._messages = 0
        #: When the first uncommitted message was processed; None if there is none, or when the commit only pins a
        #: start.
        self._since: float | None = None
        self._began = self._due_at = 0.0

    def polled(self, records: int, asked_for: int) -> None:
        """Counts a poll; polls influence when the open work is due."""
        self._pace.polled(records, asked_for)
        if self._open and self._since is not None:
            self._due_at = self._since + self._pace.interval_s

    def begin(self, now: float) -> None:
        """Records that processing begins now.

        The first messages after a commit determine when the next commit is due.
        """
        self._began = now

    def add(self, task: str, messages: int, dirty_bytes: int) -> None:
        """Counts messages of a task that has moved, and whose uncommitted state now has ``dirty_bytes``."""
        if messages and not self._messages:
            due_at, self._since = self._began + self._pace.interval_s, self._began
            self._due_at = min(self._due_at, due_at) if self._open else due_at
        elif not self._open:
            self._since, self._due_at = None, self._began + WATERMARKS_WAIT_S
        self._open = True
        self._messages += messages
        self._overlays.grown(task, dirty_bytes)

    def room(self, most: int) -> int:
        """How many messages to process before the next check whether a commit is due: at most ``most``."""
        every = self._options.commit_every
        return min(most, max(1, every - self._messages)) if every else most

    def commit_in(self, seconds: float, now: float) -> None:
        """Commit soon, even if no message is open."""
        if not self._open:
            self._open, self._since = True, None
            self._due_at = now + seconds
        elif not self._messages:
            self._due_at = min(self._due_at, now + seconds)

    def remaining_s(self, now: float) -> float:
        """Seconds until the commit is due; infinite without open work."""
        return self._due_at - now if self._open else float("inf")

    def is_due(self, now: float) -> bool:
        """Whether a commit is due now."""
        return self._open and is_due(
            self._messages,
            commit_every=self._options.commit_every,
            remaining_s=self._due_at - now,
            dirty_bytes=self._overlays.total,
            overlay_bytes_max=self._options.overlay_bytes_max,
        )

    def has_time_for_calls(self, now: float) -> bool:
        """Whether calls that start now end while Kafka still keeps the transaction open."""
        return not self._open or self._since is None or now - self._since <= CALLS_BEGIN_WITHIN_S

    def committed(self, took_s: float | None) -> None:
        """Records the duration of a commit, which determines the interval to the next commit."""
        self._pace.committed(took_s)

    def clear(self) -> int:
        """The open work was committed or dropped; returns how many of its messages were counted as processed."""
        messages, self._open, self._messages = self._messages, False, 0
        self._overlays.clear()
        return messages
