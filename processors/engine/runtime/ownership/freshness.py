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

from holdfast.processors.engine.runtime.task.facts import TaskFacts

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
    """The state, and the monotonic time in seconds of the last turn of the worker's loop."""

    ownership: Ownership
    turned_at: float


class CommitDue(Protocol):
    """The part of ``OpenWork`` that makes a commit due."""

    def commit_in(self, seconds: float, now: float) -> None:
        """Makes a commit due in this many seconds."""


class Freshness:
    """The state machine of ``Ownership`` for one worker."""

    def __init__(self) -> None:
        self.seen = Seen(Ownership.UNKNOWN, float("-inf"))
        #: Seconds without a turn after which the ownership is doubted.
        self.gap_s = GAP_S_MAX
        #: Whether a query has asked. A worker that nobody asks needs no proof.
        self.is_asked = False
        #: Whether the proof is under way: tasks that must commit are not proven yet.
        self._proves = False

    def turn(self, tasks: Sequence[TaskFacts], work: CommitDue, now: float, session_s: float) -> None:
        """Notes a turn of the loop: a poll returned, and did not say that the membership is lost.

        If the tasks are doubted, and a query waits for the proof, the next commit contains all running tasks.

        Args:
            tasks: The tasks of this worker.
            work: Takes the time at which a commit is due.
            now: Monotonic seconds.
            session_s: Seconds without a heartbeat after which the group removes this member.
        """
        self.gap_s = min(GAP_S_MAX, session_s * GAP_OF_SESSION)
        known, at = self.seen
        if known is Ownership.UNKNOWN:
            known = Ownership.KNOWN
        elif now - at > self.gap_s:
            known, self._proves = Ownership.DOUBTED, False
        owned = [task for task in tasks if task.running]
        if known is Ownership.DOUBTED and self._proves and not any(task.must_commit for task in owned):
            known = Ownership.KNOWN
        elif known is Ownership.DOUBTED and self.is_asked and not self._proves:
            self._proves = True
            for task in owned:
                task.commits_again()
            work.commit_in(0.0, now)
        self.seen = Seen(known, now)

    def left(self) -> None:
        """Notes that the worker leaves its group."""
        self.seen = Seen(Ownership.UNKNOWN, float("-inf"))
