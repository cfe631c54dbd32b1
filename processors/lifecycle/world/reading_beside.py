"""Reads local state without a lock.

Invariants:
    - Reading takes neither the slot's lock nor RocksDB's: a worker may start meanwhile. State that it changes during
      the read counts as in use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.rocksdb import StateReader
from holdfast.processors.engine.state.task_store import TaskMeta


class Readable(Protocol):
    """One task's state, open for reading."""

    def meta(self) -> TaskMeta | None:
        """The offsets of the last batch."""
        ...

    def items(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Changelog keys and values of one store."""
        ...

    def size_bytes(self) -> int:
        """Its size on disk."""
        ...


class Peek(Protocol):
    """Reads local state without a lock."""

    def in_use(self, slot: Path) -> bool:
        """Whether a live process uses the state of this slot."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a task has state."""
        ...

    def open(self, path: Path) -> Readable:
        """Open a task's state; the caller closes it.

        Raises:
            StateFailed: It is damaged, or a process is changing it.
        """
        ...

    def close(self, readable: Readable) -> None:
        """Close a task's state."""
        ...


class ReadOnly:
    """RocksDB in read-only mode."""

    def in_use(self, slot: Path) -> bool:
        """See ``Peek.in_use``: the lock file holds the pid of the process that took the lock last."""
        try:
            holder = int((slot / "lock").read_text().strip() or "0")
            if holder <= 0:
                return False
            os.kill(holder, 0)
        except (OSError, ValueError) as gone:
            return isinstance(gone, PermissionError)
        return True

    def exists(self, path: Path) -> bool:
        """See ``Peek.exists``: a folder without the file CURRENT is still being created."""
        return (path / "CURRENT").exists()

    def open(self, path: Path) -> Readable:
        """See ``Peek.open``."""
        return StateReader(path)

    def close(self, readable: Readable) -> None:
        """See ``Peek.close``."""
        if isinstance(readable, StateReader):
            readable.close()


@contextmanager
def opened(peek: Peek, path: Path) -> Iterator[Readable]:
    """A task's state, open for the duration of the block.

    Raises:
        StateFailed: It cannot be read, at opening or later; every error of the library becomes this one.
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
        peek.close(readable)
