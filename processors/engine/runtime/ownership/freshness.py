"""Says whether a worker may still believe that its tasks belong to it, for threads that answer queries.

    UNKNOWN ──first turn as a member──► KNOWN ──no turn for ``gap_s``──► DOUBTED ──commit──► KNOWN
       ▲───────────left the group─────────┴───────────────────────────────┘

A process may be frozen, for example by SIGSTOP or by a machine that is paused. Meanwhile, the group gives its tasks to
another worker, which commits newer state. When the frozen process wakes up, its threads may run before its Kafka client
notices the loss. So after a gap between two turns of the loop, only a commit proves that the tasks still belong to this
worker: Kafka refuses the commit of a member of an old generation.

Invariants:
    - Only the worker's loop changes the state. Other threads read ``seen``, one immutable value.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore

#: A worker whose loop has made no turn for longer than this answers no queries. After such a gap, it answers again when
#: a commit has succeeded. In seconds, and as a part of the group's session: a member that was silent for a shorter time
#: is still in the group, because it has sent a heartbeat in the rest of the session.
GAP_S_MAX, GAP_OF_SESSION = 5.0, 0.5


class Ownership(Enum):
    """What a worker knows of its tasks; the module's docstring shows the transitions."""

    UNKNOWN = "unknown"
    KNOWN = "known"
    DOUBTED = "doubted"


class Seen(NamedTuple):
    """The state, and monotonic times in seconds: of the loop's last turn, and of its last turn that was ``KNOWN``."""

    ownership: Ownership
    turned_at: float
    known_at: float


_NEVER = Seen(Ownership.UNKNOWN, float("-inf"), float("-inf"))


class CommitDue(Protocol):
    """The part of ``OpenWork`` that makes a commit due."""

    def commit_in(self, seconds: float, now: float) -> None:
        """Makes a commit due in this many seconds."""


class OwnedTask(Protocol):
    """The part of a task that the proof of ownership uses; ``task.Task`` implements it."""

    @property
    def running(self) -> bool:
        """Whether the task is restored and processes input."""

    @property
    def store(self) -> TaskStore | None:
        """The task's database; None for a task without state, about which nobody asks."""

    @property
    def meta(self) -> TaskMeta:
        """The offsets of the last commit."""

    def commit_again(self) -> None:
        """Makes the next commit contain the task, even without changes."""


class Freshness:
    """The state machine of ``Ownership`` for one worker.

    Args:
        session_s: Seconds without a heartbeat after which the group removes this worker.
    """

    def __init__(self, session_s: float) -> None:
        self.seen = _NEVER
        #: Seconds without a turn after which the ownership is doubted.
        self.gap_s = min(GAP_S_MAX, session_s * GAP_OF_SESSION)
        #: Whether a query has asked. A worker that nobody asks needs no proof.
        self._is_asked = False
        #: Whether the group has assigned partitions since the worker joined it.
        self._joined = False
        #: The tasks whose commit is the proof that is under way, with their last transaction before it.
        self._unproven: list[tuple[OwnedTask, int]] | None = None

    @property
    def joined(self) -> bool:
        """Whether the group has assigned partitions since the worker joined it."""
        return self._joined

    def asked(self) -> None:
        """Notes that a query has come. Any thread may call it."""
        self._is_asked = True

    def assigned(self) -> None:
        """Notes that the group has assigned partitions."""
        self._joined = True

    def turn(self, tasks: Sequence[OwnedTask], work: CommitDue, now: float) -> None:
        """Notes a turn of the loop: a poll returned, and did not say that the membership is lost.

        If the tasks are doubted, and a query waits for the proof, the next commit contains all running tasks.

        Args:
            tasks: The tasks of this worker.
            work: Takes the time at which a commit is due.
            now: Monotonic seconds.
        """
        known, at, known_at = self.seen
        if known is Ownership.UNKNOWN:
            known = Ownership.KNOWN
        elif now - at > self.gap_s:
            known, self._unproven = Ownership.DOUBTED, None
        if known is Ownership.DOUBTED and self._unproven is not None:
            if all(task.meta.transaction > before for task, before in self._unproven if task.running):
                known, self._unproven = Ownership.KNOWN, None
        elif known is Ownership.DOUBTED and self._is_asked:
            owned = [task for task in tasks if task.running and task.store is not None]
            self._unproven = [(task, task.meta.transaction) for task in owned]
            for task, _ in self._unproven:
                task.commit_again()
            work.commit_in(0.0, now)
        self.seen = Seen(known, now, now if known is Ownership.KNOWN else known_at)

    def left(self) -> None:
        """Notes that the worker leaves its group."""
        self.seen, self._joined, self._unproven = _NEVER, False, None
