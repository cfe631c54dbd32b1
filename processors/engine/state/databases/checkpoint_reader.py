"""Reads RocksDB checkpoints that other processes have written.

A checkpoint is a copy of a task's database. All functions raise CheckpointDamaged if it is damaged.

Invariants:
    - The checkpoint's folder is not changed and may be read-only. Any number of processes may read it at the same time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.processors.engine.state.databases.database import DatabaseCorrupt
from holdfast.processors.engine.state.databases.rocksdb import StateReader
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of

#: A file that rocksdict writes into each folder that it opens. Therefore this file is copied, and not linked.
_SETTINGS = "rocksdict-config.json"


class CheckpointDamaged(StateFailed):
    """A folder is not a checkpoint, or RocksDB reports a damaged file in it."""


def iterate_checkpoint(path: Path, store: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields changelog keys and values of one store, in key order.

    If it raises an error, the pairs that it has yielded before are correct.
    """
    with _opened(path) as reader:
        yield from reader.items(store)


def checkpoint_pages(path: Path, store: str, rows_max: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yields the pairs of one store in batches: a list of keys and a list of values, with up to ``rows_max`` items.

    This is faster than ``iterate_checkpoint``, which yields single pairs.
    """
    with _opened(path) as reader:
        yield from reader.pages(store, rows_max)


def pairs_of_messages(path: Path, store: str, message_keys: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Returns the pairs (changelog key, value) that one store has for the given message keys."""
    with _opened(path) as reader:
        return [pair for key in message_keys for pair in reader.of_message(store, key)]


def checkpoint_meta(path: Path) -> TaskMeta | None:
    """Reads the offsets stored in a checkpoint; None if its task has never committed."""
    with _opened(path) as reader:
        return reader.meta()


def fingerprint_checkpoint(path: Path, store: str) -> Fingerprint:
    """Computes the fingerprint of one store in a checkpoint."""
    return fingerprint_of(iterate_checkpoint(path, store))


@contextmanager
def _opened(path: Path) -> Iterator[StateReader]:
    """Opens the checkpoint through a temporary folder of links, because rocksdict writes to the opened folder."""
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
        action="Materialise the store's state asset, which takes a new checkpoint; or read the changelog instead.",
        path=str(path),
    )
