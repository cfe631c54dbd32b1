"""The uncommitted work of a worker: number of messages, bytes of state, and the time when the next commit is due."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.infra.kafka.clients.producer import TRANSACTION_S
from holdfast.processors.engine.runtime.commit_pace import Overlays, Pace, is_due
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.steps.async_calls import CALLS_WITHIN_MS

#: Seconds. Async calls may start only while the open transaction is younger than this. Otherwise, the calls and the
#: commit might not end within ``TRANSACTION_S``, and Kafka would abort the transaction.
CALLS_BEGIN_WITHIN_S = TRANSACTION_S - CALLS_WITHIN_MS / 1000 - 2.0
#: Seconds until a commit if only watermarks and no messages were read. Watermarks arrive all the time, so a longer
#: delay saves commits. Nothing is lost, because a restart reads the watermarks again.
WATERMARKS_WAIT_S = 1.0


class OpenWork:
    """Counts uncommitted work and computes when the next commit is due. All times are monotonic seconds."""

    def __init__(self, options: RuntimeOptions, slots_are_due: Callable[[], bool] = lambda: False) -> None:
        self._options, self._slots_are_due = options, slots_are_due
        self._pace = Pace(options.commits)
        self._overlays = Overlays()
        #: Whether there is uncommitted work.
        self._open = False
        #: Number of messages since the last commit, without watermarks.
        self._messages = 0
        #: Monotonic seconds at which processing of the first uncommitted message began; None without uncommitted
        #: messages.
        self._since: float | None = None
        self._began = self._due_at = 0.0

    def polled(self, records: int, asked_for: int) -> None:
        """Counts a poll that requested ``asked_for`` records and returned ``records``. Updates when a commit is due."""
        self._pace.polled(records, asked_for)
        if self._open and self._since is not None:
            self._due_at = self._since + self._pace.interval_s

    def begin(self, now: float) -> None:
        """Notes when a slice begins. A slice is a group of messages that are processed in one go.

        The first slice after a commit starts the commit interval.
        """
        self._began = now

    def add(self, task: str, messages: int, dirty_bytes: int) -> None:
        """Counts processed messages of a task. The task's uncommitted state now has ``dirty_bytes`` bytes.

        ``messages`` is 0 if the task processed only watermarks.
        """
        if messages and not self._messages:
            due_at, self._since = self._began + self._pace.interval_s, self._began
            self._due_at = min(self._due_at, due_at) if self._open else due_at
        elif not self._open:
            self._since, self._due_at = None, self._began + WATERMARKS_WAIT_S
        self._open = True
        self._messages += messages
        self._overlays.grown(task, dirty_bytes)

    def room(self, most: int) -> int:
        """Returns the number of messages that may be processed before the next call of ``is_due``, at most ``most``."""
        every = self._options.commit_every
        return min(most, max(1, every - self._messages)) if every else most

    def commit_in(self, seconds: float, now: float) -> None:
        """Makes a commit due in ``seconds``, even without messages. Uncommitted messages keep their own commit time."""
        if not self._open:
            self._open, self._since = True, None
            self._due_at = now + seconds
        elif not self._messages:
            self._due_at = min(self._due_at, now + seconds)

    def remaining_s(self, now: float) -> float:
        """Returns the seconds until the commit is due; infinite if there is no uncommitted work."""
        return self._due_at - now if self._open else float("inf")

    def is_due(self, now: float) -> bool:
        """Whether a commit is due now.

        A schedule whose time has come does not wait for the end of the commit interval.
        """
        work_is_due = self._open and is_due(
            self._messages,
            commit_every=self._options.commit_every,
            remaining_s=self._due_at - now,
            dirty_bytes=self._overlays.total,
            overlay_bytes_max=self._options.overlay_bytes_max,
        )
        return work_is_due or self._slots_are_due()

    def has_time_for_calls(self, now: float) -> bool:
        """Whether async calls that start now will end before the open transaction times out."""
        return not self._open or self._since is None or now - self._since <= CALLS_BEGIN_WITHIN_S

    def committed(self, took_s: float | None) -> None:
        """Must be called after a commit. The next commit interval depends on its duration ``took_s``, in seconds."""
        self._pace.committed(took_s)

    def clear(self) -> int:
        """Resets the counts after a commit or an abort; returns the number of messages that were counted."""
        messages, self._open, self._messages = self._messages, False, 0
        self._overlays.clear()
        return messages
