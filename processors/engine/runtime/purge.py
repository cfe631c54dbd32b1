"""Deletes processed records from repartition topics, so that these topics do not grow.

    start ─── deleted ───────── committed ──── position ──── end
                 └─ next purge ─────┘

Invariants:
    - Only records below the offset that this worker has committed are deleted, because no program reads them again. A
      rebuild of state starts at the source topics.
    - A failed purge does not stop the worker. The topic grows until a later purge succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from holdfast.infra.kafka.errors import AccessRefused, KafkaFailed
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.topology import Topology

_log = structlog.get_logger("runtime.purge")

#: Seconds between two purges. Kafka Streams has the same default (``repartition.purge.interval.ms``).
PURGE_EVERY_S = 30.0
#: Seconds until the next attempt, after Kafka has refused a purge because this client may not delete records.
REFUSED_AGAIN_S = 3_600.0
#: Timeout of one request, in seconds. It is short, because the worker's main loop waits for the answer.
REQUEST_TIMEOUT_S = 2.0


class Purge:
    """Deletes processed records of the repartition topics whose partitions a worker owns."""

    def __init__(self, topology: Topology, cluster: Cluster) -> None:
        self._topics = frozenset(spec.topic for spec in topology.repartitions)
        self._cluster = cluster
        self._next_at = cluster.clock.monotonic() + PURGE_EVERY_S
        self._deleted: dict[Partition, int] = {}

    def step(self, tasks: Sequence[Task]) -> None:
        """Deletes the committed records of these tasks, at most every ``PURGE_EVERY_S`` seconds."""
        now = self._cluster.clock.monotonic()
        if not self._topics or now < self._next_at:
            return
        self._next_at = now + PURGE_EVERY_S
        due = {
            Partition(topic, task.partition): offset
            for task in tasks
            if task.phase is TaskPhase.RUNNING
            for topic, offset in task.committed.items()
            if topic in self._topics and offset > self._deleted.get(Partition(topic, task.partition), 0)
        }
        if not due:
            return
        try:
            self._cluster.topics(REQUEST_TIMEOUT_S).delete_before(due)
        except AccessRefused as refused:
            self._next_at = now + REFUSED_AGAIN_S
            _log.warning(
                "processed messages stay in a repartition topic, which grows: this client may not delete them",
                error=refused.message,
                next=refused.action,
            )
        except KafkaFailed as failure:
            _log.warning("processed messages are not deleted yet; this is tried again", error=failure.message)
        else:
            self._deleted.update(due)
