"""Fences the dead owner of a task, so that the next owner need not wait for the timeout of an open transaction.

A worker that is killed during a commit leaves a transaction open on its tasks' changelogs, and pending offsets. Without
fencing, the next owner waits until the broker aborts that transaction, at least ``TRANSACTION_S`` after its start. If
the next owner had a standby of the task, it knows the dead owner's transactional id from the changelog. It then
initialises a producer with this id, so that the broker aborts the open transaction.

Fencing is safe for these reasons. A worker fences only after the group has assigned the partition to it, and only while
a transaction is open on the changelog. A live owner ends its transaction before it gives a partition back. If an owner
could not end its transaction, the group has removed it. Kafka refuses this owner's commits anyway, because its group
generation is old. If the dead owner was already restarted with the same id, the restarted process is fenced, too, and
joins the group again. Fencing never commits a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.runtime.ownership.unfinished import Unfinished, open_transactions
from holdfast.processors.engine.runtime.ports import Cluster

_log = structlog.get_logger("runtime.fencing")

#: Timeout in seconds of a request to the transaction coordinator. The worker's main loop waits for the answer.
FENCE_TIMEOUT_S = 5.0
#: Seconds. A transaction that stays open longer was left open by a dead owner. A shorter time is normal, because Kafka
#: answers a commit before it writes the markers.
MARKERS_S = 0.5
#: Seconds between two checks of an open transaction, until it has been open for ``MARKERS_S`` seconds.
LOOK_EVERY_S = 0.05
#: Minimum seconds between two searches for transactions that dead workers left open.
LEFT_EVERY_S = 5.0


class FormerOwners:
    """Remembers who owned the tasks for which this worker keeps standbys (copies), and fences dead owners."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners: dict[str, str] = {}
        #: Maps each task to the monotonic time at which this worker first saw an open transaction on the task's
        #: changelogs.
        self._open_since: dict[str, float] = {}
        self._look_at = self._left_look_at = 0.0
        #: This worker's own transactional id.
        self.own = ""
        #: Writes missing markers of transactions that have ended. This first object knows no topics; ``Committer``
        #: replaces it.
        self.unfinished = Unfinished(cluster, (), "", FENCE_TIMEOUT_S)
        #: A function that is called between two requests while the worker waits for Kafka.
        self.on_wait: Callable[[], None] = lambda: None

    def note(self, task: str, owner: str) -> None:
        """Remember that ``owner`` (a transactional id) made the last replayed commit of a task.

        An empty id is ignored.
        """
        if owner:
            self._owners[task] = owner

    def forget(self, task: str) -> None:
        """Forget the owner of a task, because this worker no longer has a standby of the task."""
        self._owners.pop(task, None)
        self._open_since.pop(task, None)

    def fence(self, taken: Mapping[str, int], changelogs: Mapping[str, Sequence[str]]) -> bool:
        """Abort the transactions that dead owners left open on the changelogs of newly assigned tasks.

        ``taken`` maps each newly assigned task to its partition, and ``changelogs`` maps it to its changelog topics. A
        failure is only logged, because the broker aborts the transaction after its timeout.

        Returns False if the caller must call again, because an open transaction may be a commit whose markers are not
        written yet.
        """
        others = {task: self._owners[task] for task in taken if self._owners.get(task, self.own) != self.own}
        now = self._cluster.clock.monotonic()
        if others and now < self._look_at:
            return False
        try:
            topics = {topic for task in others for topic in changelogs[task]}
            held = open_transactions(self._cluster.topics(FENCE_TIMEOUT_S), topics)
        except HoldfastError as failure:  # if Kafka does not answer, the tasks can't be opened either, and are retried
            _log.warning("open transactions of former owners are not checked", error=failure.message)
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

    def end_left(self) -> None:
        """Complete transactions that dead workers left open, because these transactions block this worker.

        Searches at most once in ``LEFT_EVERY_S`` seconds. A failure is only logged.
        """
        now = self._cluster.clock.monotonic()
        if now < self._left_look_at:
            return
        self._left_look_at = now + LEFT_EVERY_S
        try:
            self.unfinished.settle_for_others()
        except HoldfastError as failure:
            _log.warning("what other workers left open is not checked", error=failure.message, action=failure.action)

    def _end(self, owner: str) -> None:
        producer = self._cluster.producer(owner)
        try:
            # ``settle`` must run before ``init``, because after ``init`` the coordinator no longer knows how the last
            # transaction ended.
            self.unfinished.settle(owner, self.on_wait, timeout_s=FENCE_TIMEOUT_S)
            producer.init(FENCE_TIMEOUT_S)
            self.unfinished.settle(owner, self.on_wait, timeout_s=FENCE_TIMEOUT_S)
            _log.warning("a former owner left a transaction open; it was ended", transactional_id=owner)
        except HoldfastError as failure:
            _log.warning("a former owner's open transaction is left to the broker", error=failure.message)
        finally:
            producer.close()
