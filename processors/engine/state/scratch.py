"""Databases beside the tasks' own, for the time of a command."""

from __future__ import annotations

from pathlib import Path

from holdfast.processors.engine.state.database import Databases
from holdfast.processors.engine.state.task_store import TaskStore


class ScratchFolder:
    """Where they are.

    Args:
        databases: What they are.
        folder: The slot's state folder.
    """

    def __init__(self, databases: Databases, folder: Path) -> None:
        self._databases, self._folder = databases, folder / ".scratch"

    def open(self, task: str) -> TaskStore:
        """An empty database for a task; what a former life left there is deleted."""
        self.delete(task)
        return TaskStore(self._databases, self._folder / task)

    def delete(self, task: str) -> None:
        """Delete it, closed, where it is."""
        if self._databases.exists(self._folder / task):
            self._databases.delete(self._folder / task)
