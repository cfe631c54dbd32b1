"""The known facts of one task: its phase, the content of its store, and its progress. Only its methods change them.

    CREATED ──open──► RESTORING ──restored──► RUNNING ──close──► CLOSED
                          └───────────────close──────────────────►┘

Only ``TaskFacts.move`` changes the phase; an illegal move raises.

The three offsets of one input topic, on its line of offsets::

    offset   0 ─────── began ─────────── committed ─────────── positions ────────► end
                         │                   │                     └─ next record to process
                         │                   └─ next offset of the last commit: RocksDB and the group have it
                         └─ where this task began to read; only a command with new positions moves it
                                             └─────── (1) ─────────┘

    (1) is only in the overlay and in the open transaction. A commit moves ``committed`` up to ``positions``; a drop
    moves ``positions`` back to ``committed``. An input without a committed offset has no ``committed``: a drop goes
    back to ``began``, and the first commit pins that start.

Invariants:
    - The meta record in memory is the one that the store has, but between ``correct`` and the next ``write``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from holdfast.processors.engine.state.database import Change
from holdfast.processors.engine.state.task_store import TaskMeta, TaskStore


class TaskPhase(Enum):
    """The phases of a task, in the order of the module's drawing."""

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


class TaskFacts:
    """The facts of one task; its name is ``<subtopology>-<partition>``.

    Attributes:
        restored: Changelog records that were replayed before the task ran.
        restored_s: Seconds that this took.
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

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that the task reads."""
        return self._inputs

    @property
    def phase(self) -> TaskPhase:
        """Where the task is in the module's drawing."""
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
        """The meta record next to the data: the offsets of the data."""
        return self._meta

    @property
    def committed(self) -> Mapping[str, int]:
        """By input topic, the next offset of the last commit."""
        return self._committed

    @property
    def positions(self) -> Mapping[str, int]:
        """By input topic, the offset of the next record to process."""
        return self._positions

    @property
    def began(self) -> Mapping[str, int]:
        """By input topic, the first offset that was read: a committed or a chosen offset."""
        return self._began

    @property
    def begun_empty(self) -> frozenset[str]:
        """Stores that begin empty; the first commit records this in their changelogs."""
        return self._begun_empty

    def move(self, to: TaskPhase) -> None:
        """Change the phase; RuntimeError if the module's drawing has no arrow between the two phases."""
        if to not in _MOVES[self._phase]:
            raise RuntimeError(f"task {self.name} can't move from {self._phase.value} to {to.value}")
        self._phase = to

    def reads(self, topic: str) -> None:
        """Add one more input, before the task is open."""
        self._inputs = (*self._inputs, topic)

    def opened(self, store: TaskStore | None) -> None:
        """Attach the RocksDB with its meta record, and begin to restore it."""
        self._store = store
        if store is not None:
            self._meta = store.meta() or TaskMeta()
        self.move(TaskPhase.RESTORING)

    def correct(self, meta: TaskMeta) -> None:
        """Replace the meta record in memory; the next ``write`` writes it."""
        self._meta = meta

    def write(self, changes: Iterable[Change] = (), **facts: Any) -> None:
        """Write changes of the data and the meta record with updated facts, in one batch."""
        assert self._store is not None
        self._meta = replace(self._meta, **facts)
        self._store.write(changes, self._meta)

    def release(self) -> None:
        """Close the RocksDB, if it is open."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def wipe(self, *, aside: bool = False) -> None:
        """Delete the data or set it aside, together with its meta record's facts."""
        assert self._store is not None
        self._store.wipe(aside=aside)
        self._meta = TaskMeta()

    def restored_by(self, records: int, seconds: float, begun_empty: frozenset[str]) -> None:
        """Record the statistics of the restore, and the stores that began empty."""
        self.restored, self.restored_s, self._begun_empty = records, seconds, begun_empty

    def begins(self, committed: Mapping[str, int], began: Mapping[str, int]) -> None:
        """Read on from ``began``; the restored state and the group have the offsets ``committed``."""
        self._committed = dict(committed)
        self.moved_to(began)

    def committed_as(self, inputs: Mapping[str, int]) -> None:
        """Take the input offsets of a commit."""
        self._committed, self._begun_empty = dict(inputs), frozenset()

    def moved_to(self, positions: Mapping[str, int]) -> None:
        """Read on from other offsets."""
        self._began, self._positions = dict(positions), dict(positions)

    def passed(self, offsets: Mapping[str, int]) -> None:
        """Move the positions past offsets without a record, such as transaction markers."""
        self._positions.update(offsets)

    def back_to_committed(self) -> dict[str, int]:
        """Read again from the last commit; returns these offsets by topic."""
        self._positions = {**self._began, **self._committed}
        return dict(self._positions)
