"""What a running worker has for queries: its tasks, its standbys, and the rows of its global tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.processors.engine.queries.errors import StateAway
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.task.facts import TaskFacts


class WorkerTasks:
    """Implements ``HeldTasks`` for a running worker.

    The methods copy the worker's collections in one step, because the worker's loop changes them at any time.
    """

    def __init__(self, worker: Worker, slot: str) -> None:
        self._worker, self.slot = worker, slot
        self.topology, self.clock, self.freshness = worker.topology, worker.clock, worker.assignment.freshness

    def owned(self) -> Sequence[TaskFacts]:
        """All tasks that the group has assigned to this worker."""
        return self._worker.assignment.tasks

    def followed(self) -> Sequence[TaskFacts]:
        """The standbys of this worker."""
        return self._worker.assignment.standbys.tasks

    def restore_progress(self, task: str) -> Mapping[str, float | None] | None:
        """The progress of a restore, with ``remaining`` records and ``seconds_left``; None if none runs."""
        restore = self._worker.assignment.restoring.get(task)
        return None if restore is None else restore.progress(self.clock.monotonic())

    def global_row(self, topic: str, key: bytes) -> tuple[bool, Any]:
        """Returns whether a global table has a row of this key, and the row as the table's deserializer reads it.

        Raises:
            StateAway: The tables are not loaded yet, or the row can't be read.
        """
        if not self._worker.global_tables.is_loaded:
            raise StateAway("The global tables are being loaded.", waits=True)
        return self._worker.global_tables.row(topic, key)
