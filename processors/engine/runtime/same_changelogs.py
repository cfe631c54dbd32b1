"""While tasks run: are their changelogs still the topics that the state belongs to?

Kafka's clients know topics by their names. One that was deleted is waited for as if its broker were away, and one that
was made anew under the same name is written to as if nothing had happened: what it held is then on this disk alone.

Invariants:
    - Kafka is asked beside the worker's turns; a turn only compares.
    - One look proves nothing, as a broker that comes back knows its topics a little later: two that agree do.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.runtime.task import Task, TaskPhase
from holdfast.processors.engine.state.coherence import changelog_missing, changelog_recreated
from holdfast.processors.engine.state.task_store import RESEEDING
from holdfast.processors.engine.topology import Topology

#: Between two looks, seconds; and before one that confirms what the last one saw.
EVERY_S = 10.0
AGAIN_S = 3.0


@dataclass(frozen=True, slots=True)
class Parted:
    """A store whose changelog is another topic than its state says; ``seen`` is None where there is none."""

    task: str
    store: str
    topic: str
    seen: str | None
    expected: str


def parted(tasks: Iterable[Task], seen: Mapping[str, str | None]) -> Parted | None:
    """The first store of a running task whose changelog is not the one that its state belongs to.

    Args:
        tasks: What the worker has.
        seen: The ids of changelogs by name, None for those that are not there.
    """
    for task in tasks:
        if task.phase is TaskPhase.RUNNING:
            for store, at in dict(task.meta.stores).items():
                if at.topic_id != RESEEDING and seen.get(at.topic, at.topic_id) != at.topic_id:
                    return Parted(task.name, store, at.topic, seen[at.topic], at.topic_id)
    return None


class SameChangelogs:
    """Looks now and then.

    Args:
        topology: Whose changelogs.
        cluster: Where they are.
    """

    def __init__(self, topology: Topology, cluster: Cluster) -> None:
        self._topology = topology
        self._cluster = cluster
        self._names = tuple(spec.topic.name for spec in topology.changelogs)
        self._next_at = 0.0
        self._look: _Look | None = None
        self._suspected: Parted | None = None

    def check(self, tasks: Iterable[Task]) -> None:
        """Take what the last look saw, or begin the next when it is time; returns at once.

        Raises:
            StateIncoherent: A changelog is gone, or was made anew.
        """
        now = self._cluster.clock.monotonic()
        if self._look is None:
            if self._names and now >= self._next_at:
                self._look = _Look(self._cluster, self._names)
            return
        if not self._look.done:
            return
        seen, self._look = self._look.seen, None
        found = None if seen is None else parted(tasks, seen)
        confirmed = found is not None and found == self._suspected
        self._suspected = found
        self._next_at = now + (EVERY_S if found is None else AGAIN_S)
        if found is not None and confirmed:
            if found.seen is None:
                raise changelog_missing(found.topic, self._topology)
            raise changelog_recreated(found.task, found.store, found.topic, found.seen, found.expected)

    def finish(self) -> None:
        """Wait for the look that is under way, if one is."""
        if self._look is not None:
            self._look.thread.join()


class _Look:
    """One look, on a thread that ends with it, or with the process."""

    def __init__(self, cluster: Cluster, names: tuple[str, ...]) -> None:
        self._topics = cluster.topics()
        self._names = names
        self.done = False
        #: None when Kafka did not say.
        self.seen: Mapping[str, str | None] | None = None
        self.thread = threading.Thread(target=self._run, name="changelogs", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            facts = self._topics.describe(self._names)
            self.seen = {name: facts[name].topic_id if name in facts else None for name in self._names}
        except HoldfastError:
            self.seen = None  # brokers that are away are not what is looked for here
        finally:
            self.done = True
