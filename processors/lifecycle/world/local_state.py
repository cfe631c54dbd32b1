"""Reads, renames and deletes the state folders of a processor on this machine while no process uses them.

A slot is the place of one worker, with its own folder and lock.

Invariants:
    - Folders are renamed only while this process has the slot's lock, which no live worker can have at the same time.
    - Reading takes no lock (module ``reading_beside``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.processors.engine.changelog.format import split_key
from holdfast.processors.engine.changelog.names import transactional_id
from holdfast.processors.engine.state.databases.database import Databases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.exports import answer_of
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.state.time.time_records import Span, is_window_in
from holdfast.processors.lifecycle.plans.facts.facts import LOCAL, Counted, LocalTask, partition_of
from holdfast.processors.lifecycle.plans.requests import Keys, Prefix, Selection, Windows
from holdfast.processors.lifecycle.world.reading_beside import ReadOnly, opened
from holdfast.processors.lifecycle.world.running_owners import Found, Place


class LocalFolders:
    """The local state of one processor.

    Args:
        databases: Moves and deletes task databases.
        state_dir: The root folder of all state.
        processor: Name of the processor.
        tasks: Names of its tasks, derived from the topology and the partition counts.
        peek: Reader of local state; None for RocksDB in read-only mode.
    """

    def __init__(
        self,
        databases: Databases,
        state_dir: Path,
        processor: str,
        tasks: Sequence[str],
        peek: ReadOnly | None = None,
    ) -> None:
        self._databases = databases
        self._peek = peek or ReadOnly()
        self._state_dir = state_dir
        self._processor = processor
        self._tasks = tuple(tasks)

    def local_tasks(self) -> tuple[LocalTask, ...]:
        """The local state of all tasks on this machine.

        If a live process uses the slot (place of one worker), or state is unreadable, only the names of its tasks are
        known.
        """
        found = []
        for slot in self._slots():
            if self._peek.in_use(self._folder(slot)):
                found += [LocalTask(slot, task) for task in self._tasks]
            else:
                found += [self._look(slot, task) for task in self._there(slot)]
        return tuple(found)

    def client_ids(self) -> frozenset[str]:
        """The client ids of all workers, alive or dead, that have a slot (place of one worker) on this machine."""
        ids = {slot: StateFolder.id_of(self._folder(slot)) for slot in self._slots()}
        return frozenset(transactional_id(self._processor, made, slot) for slot, made in ids.items() if made)

    def count(self, store: str, selection: Selection, partitions: tuple[int, ...]) -> Counted | None:
        """Counts keys and bytes of a selection in local state.

        If a task has several copies, the copy with the greatest offsets is counted.

        Returns None if a live process uses a slot (place of one worker), if state cannot be read, or if there is no
        state.
        """
        copies: dict[str, tuple[tuple[int, int], int, int]] = {}
        for slot in self._slots():
            if self._peek.in_use(self._folder(slot)):
                return None
            for task in self._there(slot):
                if not partitions or partition_of(task) in partitions:
                    try:
                        found = self._count_in(self._path(slot, task), store, selection)
                    except StateFailed:
                        return None
                    copies[task] = max(found, copies.get(task, found))
        if not copies:
            return None
        return Counted(sum(keys for _, keys, _ in copies.values()), sum(size for *_, size in copies.values()), LOCAL)

    def read(self, store: str, tasks: Sequence[str], selection: Selection, limit: int) -> Found | None:
        """At most ``limit`` entries of a selection; of each task, the copy with the greatest offsets is read.

        Returns None if a live process uses a slot (place of one worker), or if state is missing, unreadable or
        incomplete.
        """
        best: dict[str, LocalTask] = {}
        for found in (each for each in self.local_tasks() if each.task in tasks):
            if found.stores is None or found.restoring:
                return None  # The state is in use or unreadable, or its restore was not finished.
            best[found.task] = max(found, best.get(found.task, found), key=lambda each: _advance(each, store))
        if not best or len(best) < len(tasks):
            return None
        rows: list[dict[str, Any]] = []
        for task, copy in sorted(best.items()):
            with opened(self._peek, self._path(copy.slot, task)) as state:
                number = partition_of(task)
                for key, stored in islice(selected_items(state.items(store), selection), limit + 1):
                    rows.append({**answer_of(store, number, key, stored), "slot": copy.slot})
        places = tuple(Place(partition_of(each.task), each.slot, each.inputs or {}) for each in best.values())
        return Found(tuple(rows[:limit]), len(rows) > limit, places, LOCAL)

    def _count_in(self, path: Path, store: str, selection: Selection) -> tuple[tuple[int, int], int, int]:
        """Returns three values about one copy of a task: its progress; keys and bytes of the selected entries.

        The progress is a pair: the changelog offset, and the sum of the input offsets.
        """
        keys: set[bytes] = set()
        size = 0
        with opened(self._peek, path) as state:
            for key, value in selected_items(state.items(store), selection):
                keys.add(split_key(key)[0])
                size += len(key) + len(value)
            meta = state.meta() or TaskMeta()
        at = meta.stores.get(store)
        return (0 if at is None else at.offset, sum(meta.inputs.values())), len(keys), size

    def set_aside(self, tasks: tuple[str, ...], name: str) -> int:
        """Rename the state folders of these tasks to ``name``; returns the number of folders that this call renamed.

        Raises:
            StateFolderTaken: A live process uses the slot (place of one worker).
        """
        moved = 0
        for slot in self._slots():
            with self._held(slot) as folder:
                for task in tasks:
                    path, aside = folder.task(task), _aside(folder.task(task), name)
                    if self._databases.exists(path) and not self._databases.exists(aside):
                        self._databases.move(path, aside)
                        moved += 1
        return moved

    def delete_aside(self, tasks: tuple[str, ...], name: str) -> int:
        """Delete the renamed folders; returns their number.

        This also works while a process uses the slot (place of one worker), because no worker opens these folders.
        """
        gone = 0
        for slot in self._slots():
            for task in tasks:
                aside = _aside(self._path(slot, task), name)
                if self._databases.exists(aside):
                    self._databases.delete(aside)
                    gone += 1
        return gone

    def _slots(self) -> list[str]:
        return StateFolder.slots(self._state_dir, self._processor)

    @contextmanager
    def _held(self, slot: str) -> Iterator[StateFolder]:
        folder = StateFolder(self._state_dir, self._processor, slot)
        try:
            yield folder
        finally:
            folder.release()

    def _folder(self, slot: str) -> Path:
        return self._state_dir / self._processor / slot

    def _path(self, slot: str, task: str) -> Path:
        return StateFolder.path_of(self._state_dir, self._processor, slot, task)

    def _there(self, slot: str) -> list[str]:
        return [task for task in self._tasks if self._peek.exists(self._path(slot, task))]

    def _look(self, slot: str, task: str) -> LocalTask:
        try:
            with opened(self._peek, self._path(slot, task)) as state:
                meta, size = state.meta() or TaskMeta(), state.size_bytes()
        except StateFailed:
            return LocalTask(slot, task)
        stores = {name: (at.topic, at.topic_id, at.offset) for name, at in meta.stores.items()}
        return LocalTask(slot, task, size, stores, dict(meta.inputs), meta.complete_at, meta.restoring)


def selected_items(items: Iterator[tuple[bytes, bytes]], selection: Selection) -> Iterator[tuple[bytes, bytes]]:
    """Yields the changelog keys and values with a selected message key; for ``Windows``, only the selected windows."""
    match selection:
        case Keys(keys=keys):
            wanted = {key.encode() for key in keys}
            return ((key, value) for key, value in items if split_key(key)[0] in wanted)
        case Prefix(prefix=prefix):
            begins = prefix.encode()
            return ((key, value) for key, value in items if split_key(key)[0].startswith(begins))
        case Windows(start_ms=start, end_ms=end, of=of):
            span = Span(start, end)
            return ((key, value) for key, value in selected_items(items, of) if is_window_in(span, key, value))
        case _:
            return items


def _advance(task: LocalTask, store: str) -> tuple[int, int]:
    """The progress of a copy of a task: the offset in the store's changelog, and the sum of the input offsets."""
    return (task.stores or {}).get(store, ("", "", 0))[2], sum((task.inputs or {}).values())


def _aside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}")
