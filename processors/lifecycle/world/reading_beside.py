"""Reads local state without a lock.

Invariants:
    - Reading takes neither the lock of the slot (place of one worker) nor RocksDB's lock. So a worker may start during
      the read. If the worker changes the state during the read, the state counts as in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.state.databases.rocksdb import StateReader
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.folder import StateFolder


class ReadOnly:
    """Reads RocksDB in read-only mode; the simulation in tests replaces it by a class with the same methods."""

    def in_use(self, slot: Path) -> bool:
        """Whether a live worker process uses this slot (place of one worker), given by its state folder."""
        return StateFolder.in_use(slot)

    def exists(self, path: Path) -> bool:
        """Whether a task has state.

        A folder without RocksDB's file CURRENT does not count as state, because a worker is still creating it.
        """
        return (path / "CURRENT").exists()

    def open(self, path: Path) -> StateReader:
        """Opens a task's state; the caller must close it.

        Raises:
            StateFailed: The state is damaged, or a process is changing it.
        """
        return StateReader(path)


@contextmanager
def opened(peek: ReadOnly, path: Path) -> Iterator[StateReader]:
    """Opens a task's state for the duration of the block.

    Raises:
        StateFailed: The state cannot be read. Every error of the database library, also inside the block, becomes this
            error.
    """
    readable = peek.open(path)
    try:
        yield readable
    except HoldfastError:
        raise
    except Exception as failure:
        raise StateFailed(
            f"Local state {path} cannot be read: {str(failure)[:200]}.",
            action="If a worker is starting, retry; else `holdfast apply restore PROCESSOR`, which sets damaged state "
            "aside.",
            path=str(path),
        ) from failure
    finally:
        readable.close()
