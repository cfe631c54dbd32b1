"""What a dead owner left open is ended by its heir, at once, instead of by the broker's clock.

A worker that is killed in mid-commit leaves a transaction open on the changelogs of its tasks, and pending offsets:
whoever gets a task next would wait for the broker to end them, 15 s after they began or later. The heir knows the
transactional id of the owner from the changelog that it has followed, and fences it: the broker ends what is open.

Why nobody is harmed: it is done only by whom the group has given the partition, and only where a transaction is open on
its changelog then. A live owner ends its transaction before it gives a partition back; one that could not was thrown
out, and is fenced by the group's generation anyway. Whoever else is hit, as a worker that was just restarted in the
dead one's slot, joins anew: fencing never commits anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.runtime.ports import Cluster

_log = structlog.get_logger("runtime.fencing")

#: How long the transaction coordinator may take, in seconds: the worker waits for it.
FENCE_TIMEOUT_S = 5.0
#: A commit is answered before its markers are written. What is open for longer than this, in seconds, was left open.
MARKERS_S = 0.5
#: How often is looked until then, in seconds.
LOOK_EVERY_S = 0.05


class FormerOwners:
    """The transactional ids of those that ran the tasks that this worker follows.

    Args:
        cluster: Where their transactions are.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners: dict[str, str] = {}
        #: Since when something was seen open, by task.
        self._open_since: dict[str, float] = {}
        self._look_at = 0.0
        #: This worker's own transactional id.
        self.own = ""

    def note(self, task: str, owner: str) -> None:
        """A commit of a task was seen, of this owner."""
        if owner:
            self._owners[task] = owner

    def forget(self, task: str) -> None:
        """A task is followed no longer: who owns it is not known any more."""
        self._owners.pop(task, None)
        self._open_since.pop(task, None)

    def fence(self, taken: Mapping[str, int], changelogs: Mapping[str, Sequence[str]]) -> bool:
        """End what the former owners of tasks, that were given to this worker, have open on their changelogs.

        What fails is logged, and left to the broker's clock.

        Args:
            taken: The partition of each task.
            changelogs: The topics of each task.

        Returns:
            Whether that is done; else it is to be called again: what is open may be a commit whose markers are on
            their way.
        """
        others = {task: self._owners[task] for task in taken if self._owners.get(task, self.own) != self.own}
        now = self._cluster.clock.monotonic()
        if others and now < self._look_at:
            return False
        try:
            held = self._held({topic for task in others for topic in changelogs[task]})
        except HoldfastError as failure:  # Kafka is away: the tasks are opened again when it is back
            _log.warning("open transactions of former owners are not looked for", error=failure.message)
            return True
        still = {task for task in others if any((topic, taken[task]) in held for topic in changelogs[task])}
        self._open_since = {task: self._open_since.get(task, now) for task in still}
        if any(now - since < MARKERS_S for since in self._open_since.values()):
            self._look_at = now + LOOK_EVERY_S
            return False
        for task in taken:
            self.forget(task)
        for owner in sorted({others[task] for task in still}):
            self._end(owner)
        return True

    def _held(self, topics: set[str]) -> set[tuple[str, int]]:
        """The partitions with something open."""
        view = self._cluster.topics(FENCE_TIMEOUT_S)
        found = set()
        for topic in sorted(topics):
            stable = view.end_offsets(topic, committed=True)
            for number, end in view.end_offsets(topic, committed=False).items():
                if stable.get(number, end) < end:
                    found.add((topic, number))
        return found

    def _end(self, owner: str) -> None:
        producer = self._cluster.producer(owner)
        try:
            producer.init(FENCE_TIMEOUT_S)
            _log.warning("a former owner left a transaction open; it was ended", transactional_id=owner)
        except HoldfastError as failure:
            _log.warning("a former owner's open transaction is left to the broker", error=failure.message)
        finally:
            producer.close()
