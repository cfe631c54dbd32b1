"""Temporary databases of commands, beside those of the tasks."""

from __future__ import annotations

from pathlib import Path

from holdfast.processors.engine.state.database import Databases
from holdfast.processors.engine.state.task_store import TaskStore


class ScratchFolder:
    """The folder of temporary databases in a slot's state folder.

    Args:
        databases: The worker's databases.
        folder: The slot's state folder.
    """

    def __init__(self, databases: Databases, folder: Path) -> None:
        self._databases, self._folder = databases, folder / ".scratch"

    def open(self, task: str) -> TaskStore:
        """An empty database for a task; a leftover of a killed process is deleted."""
        self.delete(task)
        return TaskStore(self._databases, self._folder / task)

    def delete(self, task: str) -> None:
        """Deletes a task's temporary database; it must be closed."""
        if self._databases.exists(self._folder / task):
            self._databases.delete(self._folder / task)
