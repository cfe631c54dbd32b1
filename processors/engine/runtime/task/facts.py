"""The phase of one task, its input offsets, and its meta record (the offsets that are stored in its RocksDB).

    CREATED ──open──► RESTORING ──restored──► RUNNING ──close──► CLOSED
                          └───────────────close──────────────────►┘

Only ``TaskFacts.move`` changes the phase; any other transition raises an error.

Three offsets are kept for each input topic::

    offset   0 ─────── began ─────────── committed ─────────── positions ────────► end
                         │                   │                     └─ next record to process
                         │                   └─ next offset of the last commit, in RocksDB and in the consumer group
                         └─ where this task began to read; only a command with new positions changes it
                                             └─────── (1) ─────────┘

    (1) These records are processed, but their changes are only in memory and in the open transaction. A commit
    moves ``committed`` up to ``positions``. An abort moves ``positions`` back to ``committed``. Before the first commit
    of an input, an abort moves ``positions`` back to ``began``.

Invariants:
    - The meta record in memory equals the meta record in RocksDB, except between ``correct`` and the next ``write``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from holdfast.processors.engine.state.databases.database import Change
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore


class TaskPhase(Enum):
    """The phases of a task; the module's docstring shows the transitions."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    CLOSED = "closed"


_MOVES = {
    TaskPhase.CREATED: {TaskPhase.RESTORING, TaskPhase.CLOSED},
    TaskPhase.RESTORING: {TaskPhase.RUNNING, TaskPhase.CLOSED},
    TaskPhase.RUNNING: {TaskPhase.CLOSED},
    TaskPhase.CLOSED: set(),
}


class SinkPause:
    """Whether a task's inputs are paused, because a sink takes nothing now."""

    def __init__(self) -> None:
        self._is_on = False

    def __bool__(self) -> bool:
        return self._is_on

    def set(self, *, on: bool) -> None:
        """Notes that the inputs are paused, or flow again."""
        self._is_on = on


class TaskFacts:
    """The phase, the meta record (offsets in RocksDB) and the offsets of one task.

    The task's name is ``<subtopology>-<partition>``.

    Attributes:
        restored: Number of changelog records that were replayed before the task ran.
        restored_s: Duration of the replay in seconds.
        sink_pause: Whether the task's inputs are paused, because a sink takes nothing now.
    """

    def __init__(self, name: str, subtopology: str, partition: int, inputs: tuple[str, ...]) -> None:
        self.name, self.subtopology, self.partition = name, subtopology, partition
        self._inputs = inputs
        self._phase = TaskPhase.CREATED
        self._store: TaskStore | None = None
        self._meta = TaskMeta()
        self._committed: dict[str, int] = {}
        self._positions: dict[str, int] = {}
        self._began: dict[str, int] = {}
        self._begun_empty: frozenset[str] = frozenset()
        self.restored, self.restored_s = 0, 0.0
        #: The transaction after which a commit is needed even without changes; -1 for none.
        self._again_after = -1
        self.sink_pause = SinkPause()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that the task reads."""
        return self._inputs

    @property
    def phase(self) -> TaskPhase:
        """The current phase of the task."""
        return self._phase

    @property
    def running(self) -> bool:
        """Whether the task is restored and processes input."""
        return self._phase is TaskPhase.RUNNING

    @property
    def store(self) -> TaskStore | None:
        """The task's RocksDB; None for a task without stores, or while it is not open."""
        return self._store

    @property
    def meta(self) -> TaskMeta:
        """The task's meta record in RocksDB: the input and changelog offsets up to which the data is complete."""
        return self._meta

    @property
    def committed(self) -> Mapping[str, int]:
        """Maps each input topic to its committed offset, which is the next offset to process after a restart."""
        return self._committed

    @property
    def positions(self) -> Mapping[str, int]:
        """Maps each input topic to the offset of the next record to process."""
        return self._positions

    @property
    def began(self) -> Mapping[str, int]:
        """Maps each input topic to the offset at which this task began to read."""
        return self._began

    @property
    def begun_empty(self) -> frozenset[str]:
        """Stores that start without data at the committed offsets.

        The first commit writes a meta record (the commit's input offsets) to their changelogs.
        """
        return self._begun_empty

    def move(self, to: TaskPhase) -> None:
        """Change the phase; raises RuntimeError if this transition is not allowed."""
        if to not in _MOVES[self._phase]:
            raise RuntimeError(f"task {self.name} can't move from {self._phase.value} to {to.value}")
        self._phase = to

    def reads(self, topic: str) -> None:
        """Adds an input topic. May be called only before the task is opened."""
        self._inputs = (*self._inputs, topic)

    def opened(self, store: TaskStore | None) -> None:
        """Attaches the task's RocksDB, reads its meta record (offsets), and changes the phase to RESTORING."""
        self._store = store
        if store is not None:
            self._meta = store.meta() or TaskMeta()
        self.move(TaskPhase.RESTORING)

    def correct(self, meta: TaskMeta) -> None:
        """Replaces the meta record (offsets of the data) in memory. The next ``write`` also writes it to RocksDB."""
        self._meta = meta

    def write(self, changes: Iterable[Change] = (), **facts: Any) -> None:
        """Writes changes of data and the meta record (the offsets of the data) to RocksDB in one batch.

        ``facts`` has the fields of the meta record that have changed.
        """
        assert self._store is not None
        self._meta = replace(self._meta, **facts)
        self._store.write(changes, self._meta)

    def release(self) -> None:
        """Close the RocksDB, if it is open."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def wipe(self, *, aside: bool = False) -> None:
        """Deletes the data and the meta record (offsets). If ``aside`` is True, renames the database instead."""
        assert self._store is not None
        self._store.wipe(aside=aside)
        self._meta = TaskMeta()

    def restored_by(self, records: int, seconds: float, begun_empty: frozenset[str]) -> None:
        """Stores the statistics of the restore, and the names of the stores that begin empty."""
        self.restored, self.restored_s, self._begun_empty = records, seconds, begun_empty

    def begins(self, committed: Mapping[str, int], began: Mapping[str, int]) -> None:
        """Sets the positions to ``began``, and the committed offsets to ``committed``.

        Must be called when the task starts.
        """
        self._committed = dict(committed)
        self.moved_to(began)

    def committed_as(self, inputs: Mapping[str, int]) -> None:
        """Stores the input offsets of a commit as the committed offsets. Must be called after the commit."""
        self._committed, self._begun_empty = dict(inputs), frozenset()

    def moved_to(self, positions: Mapping[str, int]) -> None:
        """Sets the positions, and ``began``, to other offsets. The task then reads from these offsets."""
        self._began, self._positions = dict(positions), dict(positions)

    def passed(self, offsets: Mapping[str, int]) -> None:
        """Moves positions forward over offsets that have no record, such as transaction markers."""
        self._positions.update(offsets)

    def back_to_committed(self) -> dict[str, int]:
        """Sets the positions back to the last commit, and returns them by topic."""
        self._positions = {**self._began, **self._committed}
        return dict(self._positions)
