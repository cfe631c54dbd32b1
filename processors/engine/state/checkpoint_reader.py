"""Reads of a RocksDB checkpoint by somebody who is not its owner.

Invariants:
    - The folder stays as it is, byte for byte, and may be on a disk that can't be written; readers are in nobody's way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.processors.engine.state.database import DatabaseCorrupt
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.engine.state.rocksdb import StateReader
from holdfast.processors.engine.state.task_store import TaskMeta

#: The library writes its own settings into whatever folder it opens.
_SETTINGS = "rocksdict-config.json"


class CheckpointDamaged(StateFailed):
    """A folder is no checkpoint, or a file of it is not what RocksDB wrote."""


def iterate_checkpoint(path: Path, store: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield changelog keys and values of one store, in key order.

    Raises:
        CheckpointDamaged: The folder is no checkpoint, or a file of it is damaged; what came before that is right.
    """
    with _opened(path) as reader:
        yield from reader.items(store)


def checkpoint_pages(path: Path, store: str, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Like ``iterate_checkpoint``, as parallel lists of so many; quicker for whoever takes them as lists.

    Raises:
        CheckpointDamaged: The folder is no checkpoint, or a file of it is damaged; what came before that is right.
    """
    with _opened(path) as reader:
        yield from reader.pages(store, rows_max)


def checkpoint_meta(path: Path) -> TaskMeta | None:
    """The offsets that a checkpoint itself says it is at.

    Raises:
        CheckpointDamaged: The folder is no checkpoint, or a file of it is damaged.
    """
    with _opened(path) as reader:
        return reader.meta()


def fingerprint_checkpoint(path: Path, store: str) -> Fingerprint:
    """The fingerprint of one store in a checkpoint.

    Raises:
        CheckpointDamaged: The folder is no checkpoint, or a file of it is damaged.
    """
    return fingerprint_of(iterate_checkpoint(path, store))


@contextmanager
def _opened(path: Path) -> Iterator[StateReader]:
    """The checkpoint, opened by way of a folder of links, for that is written to."""
    with tempfile.TemporaryDirectory(prefix="holdfast-checkpoint-") as view:
        try:
            for file in path.iterdir():
                if file.name == _SETTINGS:
                    Path(view, file.name).write_bytes(file.read_bytes())
                else:
                    Path(view, file.name).symlink_to(file.resolve())
            reader = StateReader(Path(view))
        except (OSError, StateFailed) as failure:
            raise _damaged(path, f"can't be opened: {failure}") from failure
        try:
            yield reader
        except DatabaseCorrupt as failure:
            raise _damaged(path, f"is damaged: {failure}") from failure
        finally:
            reader.close()


def _damaged(path: Path, seen: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"The checkpoint {path} {seen}.",
        action="Take a new checkpoint (materialise the state asset), or read the changelog instead.",
        path=str(path),
    )
