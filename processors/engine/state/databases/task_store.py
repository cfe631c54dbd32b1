"""The database of one task. It contains all stores of the task, and the offsets up to which their data is complete.

A key is ``length of store name (1 byte) | store name | changelog key``. The reserved key ``0x00 "meta"`` holds the
offsets. Data and offsets are in one column family, so that one flush writes both. A crash in a bulk replay loses the
data and the offsets that were written after the last flush. The changelog is then replayed from the last flushed
offsets.

Invariants:
    - A batch is written in pieces, and its last piece contains the meta key. After a crash between pieces, the database
      has the offsets of the previous batch. The replay from these offsets writes the same values again.
    - After the first failure, nothing more is written. Closing the store moves damaged data to another folder.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.infra.log import get_logger
from holdfast.processors.engine.changelog.format import (
    META_KEY,
    FormatUnknown,
)
from holdfast.processors.engine.state.databases.database import (
    Change,
    Database,
    DatabaseCorrupt,
    Databases,
    Snapshot,
)
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.views import Views
from holdfast.processors.engine.state.errors import StateCorrupt, StateDiskFailed, StateFailed

_log = get_logger("state.task_store")

#: Suffix of the folder to which old local state is renamed. The folder is kept until the changelogs have restored the
#: task.
ASIDE_SUFFIX = ".former"

#: Maximum operations of one write. During a write, rocksdict holds the interpreter lock, so a large write would stop
#: all threads.
BATCH_OPERATIONS_MAX = 10_000


class TaskStore:
    """The open database of one task.

    Args:
        bulk_records: Number of records of the replay for which the database is opened in bulk mode; None opens it
            normally.

    Raises (from every method that accesses the disk):
        StateDiskFailed: The disk refused a read or a write.
        StateCorrupt: The data is damaged. ``close`` moves it to another folder, and the next start restores the state.
    """

    def __init__(self, databases: Databases, path: Path, bulk_records: int | None = None) -> None:
        self.path = path
        #: The first failure of the database. After it, the store refuses all writes.
        self.failure: StateFailed | None = None
        self._databases = databases
        self._compaction: threading.Thread | None = None
        #: The views of the committed state for other threads.
        self.views = Views(self._snapshot)
        #: Whether the database is in bulk mode.
        self.in_bulk = bulk_records is not None
        try:
            self._database = databases.open(path, bulk_records)
        except DatabaseCorrupt as damage:
            self.in_bulk = False
            self._move_aside(str(damage))
            self._database = self._open_new()
        except Exception as failure:
            raise _disk_failed(path, "opened", failure) from failure

    def meta(self) -> TaskMeta | None:
        """Returns the offsets of the last write; None if nothing was written yet."""
        with self._watched("read"):
            raw = self._database.get(META_KEY)
            return None if raw is None else TaskMeta.decode(raw)

    def holds_data(self, store: str) -> bool:
        """Whether a store has any data."""
        with self._watched("read"):
            return next(items_of(self._database, store), None) is not None

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Returns the values of database keys (store prefix + changelog key); None for an absent key."""
        try:
            return self._database.get_many(keys) if keys else []
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a database key (store prefix + changelog key); None if the key is absent."""
        try:
            return self._database.get(key)
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def write(self, changes: Iterable[Change], meta: TaskMeta) -> None:
        """Writes database keys with their values (None deletes a key). The last write contains the offsets ``meta``."""
        if self.failure is not None:
            raise self.failure
        pieces = [*changes, (META_KEY, meta.encode())]
        with self._watched("written"), self.views.commit():
            for first in range(0, len(pieces), BATCH_OPERATIONS_MAX):
                self._database.write(pieces[first : first + BATCH_OPERATIONS_MAX])

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Writes database keys with values (None deletes a key), but no offsets.

        Call ``write`` later, to write the offsets.
        """
        if self.failure is not None:
            raise self.failure
        self.views.tear()
        with self._watched("written"):
            for first in range(0, len(keys), BATCH_OPERATIONS_MAX):
                last = first + BATCH_OPERATIONS_MAX
                self._database.load(keys[first:last], values[first:last])

    def empty(self, store: str) -> None:
        """Deletes all keys of one store, but writes no offsets.

        Call ``write`` later, with the offsets of the empty store.
        """
        prefix = store_prefix(store)
        while keys := [prefix + key for key, _ in islice(self.items(store), BATCH_OPERATIONS_MAX)]:
            self.load(keys, [None] * len(keys))

    def begin_bulk(self, records: int) -> None:
        """Starts bulk mode for a replay of about ``records`` records; reads may be slow until ``end_bulk``."""
        self.in_bulk = True
        with self._watched("opened"), self.views.reopened():
            self._database.reopen(records)

    def end_bulk(self) -> None:
        """Flushes all writes and ends bulk mode.

        The call waits for the flush. To avoid a long wait, first call ``flush(wait=False)``. Call ``end_bulk`` when
        ``flushing`` is False.
        """
        with self._watched("flushed"), self.views.reopened():
            self._database.reopen(None)
        self.in_bulk = False

    def flush(self, *, wait: bool = True) -> None:
        """Flushes all writes. If ``wait`` is False, returns at once; ``flushing`` is True until the flush ends."""
        with self._watched("flushed"):
            self._database.flush(wait=wait)

    @property
    def flushing(self) -> bool:
        """Whether a background flush is running."""
        return self._database.flushing

    def items(self, store: str, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yields changelog keys and values of one store, in key order, from the changelog key ``first`` upward."""
        with self._watched("read"):
            yield from items_of(self._database, store, first)

    def items_back(self, store: str, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields changelog keys and values of one store in reverse order, from the last key before ``end``."""
        prefix = store_prefix(store)
        size = len(prefix)
        with self._watched("read"):
            for key, value in self._database.items_back(prefix + end):
                if not key.startswith(prefix):
                    return
                yield key[size:], value

    def checkpoint(self, path: Path) -> None:
        """Writes a consistent copy of the database at ``path``, as hard links if the file system allows them."""
        try:
            self._database.checkpoint(path)
        except DatabaseCorrupt as damage:
            raise self._broken("checkpointed", damage) from damage
        except Exception as failure:
            raise _disk_failed(path, "checkpointed", failure) from failure

    def compact(self, on_wait: Callable[[], None]) -> None:
        """Rewrites the database without deleted and overwritten values.

        While the compaction runs, ``on_wait`` is called about twice a second. ``on_wait`` may close the store;
        ``close`` then waits for the compaction.
        """
        failures: list[Exception] = []
        self.views.unpublish()  # a snapshot keeps the deleted values that it can see

        def work() -> None:
            try:
                self._database.compact()
            except Exception as failure:
                failures.append(failure)

        self._compaction = thread = threading.Thread(target=work, name="compaction", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.5)
            on_wait()
        self._compaction = None
        if failures:
            raise self._broken("compacted", failures[0]) from failures[0]

    def estimates(self) -> tuple[int, int]:
        """Returns estimates of the number of keys and of the live bytes on disk."""
        return self._database.estimates()

    def size_bytes(self) -> int:
        """Returns the bytes on disk, without the write-ahead log."""
        return self._database.size_bytes()

    def close(self) -> None:
        """Closes the database.

        Never raises an error, because a write that is lost can be replayed from the changelog.
        """
        self.views.retire()
        if self._compaction is not None:
            self._compaction.join()
        try:
            if self.in_bulk and self.failure is None:
                self._database.flush()
        except Exception as failure:
            _log.error("state was not flushed: it is replayed", path=str(self.path), error=str(failure)[:200])
        try:
            self._database.close()
        except Exception as failure:
            _log.error("state was not closed cleanly", path=str(self.path), error=str(failure)[:200])
        if isinstance(self.failure, StateCorrupt):
            self._move_aside(self.failure.message)

    def wipe(self, *, aside: bool = False) -> None:
        """Replaces the database by an empty one. The old database is deleted.

        With ``aside``, it is renamed and kept as a copy instead. But if an earlier copy exists and the restore of the
        old database is incomplete, the old database is deleted and the earlier copy is kept.
        """
        if aside:
            meta = self.meta()
            aside = meta is not None and not (meta.restoring and self._databases.exists(self._aside))
        with self.views.reopened():
            try:
                self._database.close()
                if aside:
                    self.forget_aside()
                    self._databases.move(self.path, self._aside)
                else:
                    self._databases.delete(self.path)
            except StateDiskFailed:
                raise
            except Exception as failure:
                raise _disk_failed(self.path, "emptied", failure) from failure
            self.in_bulk = False
            self._database = self._open_new()

    def forget_aside(self) -> None:
        """Deletes the copy that ``wipe`` kept under another name, if it exists."""
        try:
            if self._databases.exists(self._aside):
                self._databases.delete(self._aside)
        except Exception as failure:
            raise _disk_failed(self._aside, "deleted", failure) from failure

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f"{self.path.name}{ASIDE_SUFFIX}")

    def _snapshot(self) -> Snapshot:
        return self._database.snapshot()

    def _open_new(self) -> Database:
        try:
            return self._databases.open(self.path)
        except Exception as failure:
            raise _disk_failed(self.path, "opened", failure) from failure

    def _move_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.corrupt")
        try:
            if self._databases.exists(aside):
                self._databases.delete(aside)
            self._databases.move(self.path, aside)
        except Exception as failure:
            raise _disk_failed(self.path, "moved aside", failure) from failure
        _log.error(
            "state was corrupt: it is moved aside and restored from its changelog",
            path=str(self.path),
            moved_to=str(aside),
            error=why[:200],
            next="check the disk; delete the folder after the inquiry",
        )

    @contextmanager
    def _watched(self, done: str) -> Iterator[None]:
        """A context that converts an error to a StateFailed and records it. The store then refuses all later writes.

        ``get`` and ``get_many`` repeat this code inline, for speed.
        """
        try:
            yield
        except FormatUnknown:
            raise
        except Exception as failure:
            raise self._broken(done, failure) from failure

    def _broken(self, done: str, failure: Exception) -> StateFailed:
        """Records the failure, and returns the error to raise.

        Because the failure is recorded, no later commit succeeds, even if user code catches the exception.
        """
        if isinstance(failure, DatabaseCorrupt):
            self.failure = StateCorrupt(
                f"The state folder {self.path} is damaged: {str(failure)[:300]}.",
                action="Nothing: the folder is moved aside, and the changelog restores the state. Check the disk if "
                "this repeats.",
                path=str(self.path),
            )
        else:
            self.failure = _disk_failed(self.path, done, failure)
        return self.failure


def items_of(database: Database, store: str, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Yields changelog keys and values of one store in a database, in key order, from the changelog key ``first``."""
    prefix = store_prefix(store)
    size = len(prefix)
    for key, value in database.items(prefix + first):
        if not key.startswith(prefix):
            return
        yield key[size:], value


def _disk_failed(path: Path, done: str, failure: Any) -> StateDiskFailed:
    remedy, cause = "Free space on the disk, or restore the folder's permissions", ""
    if any(words in str(failure) for words in ("No space left", "Disk quota exceeded")):
        cause = "disk-full"
    if "Too many open files" in str(failure):
        remedy = "Raise the limit of open files (`ulimit -n`, or `LimitNOFILE` of systemd)"
    return StateDiskFailed(
        f"The state folder {path} can't be {done}: {str(failure)[:300]}.",
        action=f"{remedy}, then restart: the changelog replays all committed state.",
        cause=cause,
        path=str(path),
    )
