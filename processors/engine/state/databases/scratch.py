"""Temporary databases for owner commands (changes of state that an operator requests), in the worker's state folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.state.databases.database import Databases
from holdfast.processors.engine.state.databases.task_store import TaskStore


class ScratchFolder:
    """The folder of temporary databases in a slot's state folder."""

    def __init__(self, databases: Databases, folder: Path) -> None:
        self._databases, self._folder = databases, folder / ".scratch"

    @contextmanager
    def opened(self, task: str, records: int) -> Iterator[TaskStore]:
        """Opens an empty temporary database for a task, in bulk mode for ``records`` writes.

        The database is deleted at the end of the ``with`` block. If the deletion fails or the process dies, the next
        call with the same task name deletes the old database.
        """
        self._delete(task)
        store = TaskStore(self._databases, self._folder / task)
        try:
            store.begin_bulk(records)
            yield store
        finally:
            store.close()
            with suppress(HoldfastError, OSError):
                self._delete(task)

    def _delete(self, task: str) -> None:
        if self._databases.exists(self._folder / task):
            self._databases.delete(self._folder / task)
