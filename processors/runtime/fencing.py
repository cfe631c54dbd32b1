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

from infra.errors import HoldfastError
from processors.runtime.ports import Cluster

_log = structlog.get_logger("runtime.fencing")

#: How long the transaction coordinator may take, in seconds: the worker waits for it.
FENCE_TIMEOUT_S = 5.0


class FormerOwners:
    """The transactional ids of those that ran the tasks that this worker follows.

    Args:
        cluster: Where their transactions are.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners: dict[str, str] = {}
        #: This worker's own transactional id.
        self.own = ""

    def note(self, task: str, owner: str) -> None:
        """A commit of a task was seen, of this owner."""
        if owner:
            self._owners[task] = owner

    def forget(self, task: str) -> None:
        """A task is followed no longer: who owns it is not known any more."""
        self._owners.pop(task, None)

    def fence(self, taken: Mapping[str, int], changelogs: Mapping[str, Sequence[str]]) -> None:
        """End what the former owners of tasks, that were given to this worker, have open on their changelogs.

        What fails is logged, and left to the broker's clock.

        Args:
            taken: The partition of each task.
            changelogs: The topics of each task.
        """
        known = {task: self._owners.pop(task) for task in taken if task in self._owners}
        others = {task: owner for task, owner in known.items() if owner != self.own}
        if not others:
            return
        try:
            held = self._held({topic for task in others for topic in changelogs[task]})
        except HoldfastError as failure:
            self._owners.update(others)  # Kafka is away: the tasks are opened again when it is back
            _log.warning("open transactions of former owners are not looked for", error=failure.message)
            return
        wanted = {
            owner for task, owner in others.items() if any((topic, taken[task]) in held for topic in changelogs[task])
        }
        for owner in sorted(wanted):
            self._end(owner)

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
