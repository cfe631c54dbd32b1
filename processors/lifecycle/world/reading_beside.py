"""How local state is looked at that no process has: without keeping anybody from it.

Invariants:
    - Looking takes no lock of the slot and none of RocksDB: a worker that starts meanwhile is not in the way, and has
      nobody in its way; what it changes under our eyes is told as state in use.
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
    """A way to look at local state."""

    def in_use(self, slot: Path) -> bool:
        """Whether a live process has the state of this slot."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a task has state."""
        ...

    def open(self, path: Path) -> Readable:
        """Open a task's state; the caller closes it.

        Raises:
            StateFailed: It can't be read: it is damaged, or somebody changes it just now.
        """
        ...

    def close(self, readable: Readable) -> None:
        """Close it."""
        ...


class ReadOnly:
    """RocksDB's own way of reading beside others."""

    def in_use(self, slot: Path) -> bool:
        """See ``Peek.in_use``: the lock's file has the process that took it last."""
        try:
            holder = int((slot / "lock").read_text().strip() or "0")
            if holder <= 0:
                return False
            os.kill(holder, 0)
        except (OSError, ValueError) as gone:
            return isinstance(gone, PermissionError)
        return True

    def exists(self, path: Path) -> bool:
        """See ``Peek.exists``: what has no CURRENT yet is being made."""
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
    """A task's state for as long as the block lasts.

    Raises:
        StateFailed: It can't be read; whatever the library calls it, and whenever it is found.
    """
    readable = peek.open(path)
    try:
        yield readable
    except HoldfastError:
        raise
    except Exception as failure:
        raise StateFailed(
            f"Local state {path} can't be read: {str(failure)[:200]}.",
            action="If a worker starts just now, ask again; else restore the processor: damaged state is set aside.",
            path=str(path),
        ) from failure
    finally:
        peek.close(readable)
