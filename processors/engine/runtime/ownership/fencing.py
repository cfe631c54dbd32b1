"""Fencing by the heir: end the transaction that a dead owner left open, without waiting for the broker's timeout.

A worker killed in mid-commit leaves a transaction open on its tasks' changelogs, and pending offsets. The next owner
would wait until the broker aborts the transaction, ``TRANSACTION_S`` after its start or later. The heir knows the
owner's transactional id from the changelog that it followed, and fences the owner: the broker then ends the
transaction.

Why this is safe: only the worker that the group gave the partition to fences, and only while a transaction is open on
the changelog. A live owner ends its transaction before it gives a partition back. An owner that could not do so was
removed from the group, and the group's generation fences it. A worker just restarted in the dead owner's slot may be
fenced, too; it joins again. Fencing never commits anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.runtime.ownership.unfinished import Unfinished, open_transactions
from holdfast.processors.engine.runtime.ports import Cluster

_log = structlog.get_logger("runtime.fencing")

#: Timeout of a request to the transaction coordinator, in seconds: the worker waits for it.
FENCE_TIMEOUT_S = 5.0
#: Kafka answers a commit before it writes the markers. A transaction open for longer than this, in seconds, counts as
#: left open.
MARKERS_S = 0.5
#: Seconds between two checks until then.
LOOK_EVERY_S = 0.05
#: Seconds between two searches for transactions that gone workers left open.
LEFT_EVERY_S = 5.0


class FormerOwners:
    """The transactional ids of the owners of the tasks that this worker follows."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners: dict[str, str] = {}
        #: By task, when its transaction was first seen open.
        self._open_since: dict[str, float] = {}
        self._look_at = self._left_look_at = 0.0
        #: This worker's own transactional id.
        self.own = ""
        #: The transactions that former owners may have left open: they wrote to the same topics as this worker.
        self.unfinished = Unfinished(cluster, (), "", FENCE_TIMEOUT_S)
        #: Called between two looks.
        self.on_wait: Callable[[], None] = lambda: None

    def note(self, task: str, owner: str) -> None:
        """Remember the owner that made the last replayed commit of a task; an empty owner is ignored."""
        if owner:
            self._owners[task] = owner

    def forget(self, task: str) -> None:
        """Remove the remembered owner of a task that this worker no longer follows."""
        self._owners.pop(task, None)
        self._open_since.pop(task, None)

    def fence(self, taken: Mapping[str, int], changelogs: Mapping[str, Sequence[str]]) -> bool:
        """End the transactions that former owners left open on the changelogs of newly assigned tasks.

        A failure is logged, and the broker ends the transaction after its timeout. ``taken`` has the partition of each
        task, ``changelogs`` its changelog topics.

        Returns False to be called again, because an open transaction may be a commit whose markers are not written yet.
        """
        others = {task: self._owners[task] for task in taken if self._owners.get(task, self.own) != self.own}
        now = self._cluster.clock.monotonic()
        if others and now < self._look_at:
            return False
        try:
            topics = {topic for task in others for topic in changelogs[task]}
            held = open_transactions(self._cluster.topics(FENCE_TIMEOUT_S), topics)
        except HoldfastError as failure:  # Kafka does not answer: the tasks are opened again when it is back
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
        """End transactions that gone workers left open, because they block this worker.

        A failure is logged.

        It searches at most once in ``LEFT_EVERY_S`` seconds.
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
            # On all topics, before the init makes the coordinator forget how the owner's last transaction ended.
            self.unfinished.settle(owner, self.on_wait, timeout_s=FENCE_TIMEOUT_S)
            producer.init(FENCE_TIMEOUT_S)
            self.unfinished.settle(owner, self.on_wait, timeout_s=FENCE_TIMEOUT_S)
            _log.warning("a former owner left a transaction open; it was ended", transactional_id=owner)
        except HoldfastError as failure:
            _log.warning("a former owner's open transaction is left to the broker", error=failure.message)
        finally:
            producer.close()
