"""Detects, by topic ids, that a changelog was deleted or recreated while its tasks run, or that a topic is missing.

Kafka's clients identify topics by name. If a topic is deleted, the clients wait as if a broker were down. If the topic
is recreated, the clients write to the new topic without an error, and all earlier records are lost in Kafka. A missing
output or dead-letter topic is an error only after an aborted transaction. Before that, the topic may not have been
needed.

Invariants:
    - A separate thread requests the topic ids; the worker's main loop only compares the answer.
    - A difference is an error only if two answers in a row agree, because a restarted broker may not know its topics at
      first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import changelog_recreated, topic_missing
from holdfast.processors.engine.state.databases.task_meta import RESEEDING
from holdfast.processors.engine.topology import Topology

#: ``EVERY_S``: seconds between two checks. ``AGAIN_S``: seconds until a second check, which must confirm a difference.
EVERY_S = 10.0
AGAIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Parted:
    """A store whose changelog was deleted, or deleted and created again.

    ``expected`` is the topic id in the local state. ``seen`` is the changelog's current topic id; None if it is
    missing.
    """

    task: str
    store: str
    topic: str
    seen: str | None
    expected: str


def parted(tasks: Iterable[Task], seen: Mapping[str, str | None]) -> Parted | None:
    """Returns the first store of a running task whose changelog was deleted or created again, or None.

    ``seen`` has the current topic ids of the changelogs by name; None for a missing topic.
    """
    for task in tasks:
        if task.phase is TaskPhase.RUNNING:
            for store, at in dict(task.meta.stores).items():
                if at.topic_id != RESEEDING and seen.get(at.topic, at.topic_id) != at.topic_id:
                    return Parted(task.name, store, at.topic, seen[at.topic], at.topic_id)
    return None


class SameChangelogs:
    """Checks every ``EVERY_S`` seconds the topic ids of a worker's changelogs, outputs and global tables."""

    def __init__(self, topology: Topology, cluster: Cluster) -> None:
        self._topology = topology
        self._cluster = cluster
        read = (spec.name for spec in topology.global_tables)
        self._names = tuple(dict.fromkeys((*topology.written(), *read)))
        #: Topic ids by name, from Kafka's last answer; None for a missing topic.
        self.seen: Mapping[str, str | None] = {}
        #: The number of partitions of each existing topic, by name, from Kafka's last answer.
        self.widths: Mapping[str, int] = {}
        self._next_at = 0.0
        self._look: _Look | None = None
        self._suspected: Parted | str | None = None

    def check(self, tasks: Iterable[Task], *, failing: bool = False) -> None:
        """Compare Kafka's last answer with the state, or start a new request. The call never waits.

        If ``failing`` is True (the last transaction was aborted), a missing output topic is also an error.

        Raises:
            StateIncoherent: A changelog is missing, or has a different topic id.
            TopicUnusable: An output or dead-letter topic is missing.
        """
        now = self._cluster.clock.monotonic()
        if self._look is None:
            if self._names and now >= self._next_at:
                self._look = _Look(self._cluster, self._names)
            return
        if self._look.thread.is_alive():
            return
        seen, self.widths, self._look = self._look.seen, self._look.widths, None
        self.seen = seen or {}
        found: Parted | str | None = None if seen is None else parted(tasks, seen)
        if found is None and failing:
            found = next((name for name, topic_id in (seen or {}).items() if topic_id is None), None)
        confirmed = found is not None and found == self._suspected
        self._suspected = found
        self._next_at = now + (EVERY_S if found is None else AGAIN_S)
        if found is not None and confirmed:
            if isinstance(found, str) or found.seen is None:
                raise topic_missing(found if isinstance(found, str) else found.topic, self._topology)
            raise changelog_recreated(found.task, found.store, found.topic, found.seen, found.expected)

    def finish(self) -> None:
        """Wait until a running request has ended."""
        if self._look is not None:
            self._look.thread.join()


class _Look:
    """One request for the topic ids, on a separate daemon thread."""

    def __init__(self, cluster: Cluster, names: tuple[str, ...]) -> None:
        self._topics = cluster.topics()
        self._names = names
        #: Topic ids by name, from Kafka's answer; None for a missing topic. None instead of a mapping if Kafka did not
        #: answer.
        self.seen: Mapping[str, str | None] | None = None
        self.widths: Mapping[str, int] = {}
        self.thread = threading.Thread(target=self._run, name="changelogs", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with suppress(HoldfastError):  # errors are ignored, because the worker's main loop reports unreachable brokers
            facts = self._topics.describe(self._names)
            self.widths = {name: each.partitions for name, each in facts.items()}
            self.seen = {name: facts[name].topic_id if name in facts else None for name in self._names}
