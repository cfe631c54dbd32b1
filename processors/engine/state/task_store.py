"""The store of one task: every store of its topology and the offsets that belong to them, in one database.

Keys: ``length of store name (1 byte) | store name | changelog key``; the reserved key ``0x00 "meta"`` holds
the offsets. All in one column family, so that no flush can ever part data from offsets: a crash in a bulk replay loses
the writes since the last flush, data and offsets together, and they are replayed from the changelog.

Invariants:
    - The meta key is in the last piece of every batch: a crash between pieces leaves the older offsets, and the
      replay from them writes the same values again.
    - After the first failure nothing is written any more; damaged data is moved aside when the store is closed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from holdfast.processors.engine.changelog.format import META_KEY, FormatUnknown
from holdfast.processors.engine.state.database import Change, Database, DatabaseCorrupt, Databases
from holdfast.processors.engine.state.errors import StateCorrupt, StateDiskFailed, StateFailed
from holdfast.processors.engine.state.keys import store_prefix

_log = structlog.get_logger("state.task_store")

META_VERSION = 1

#: Stands for the topic id of a changelog that is being made anew from local state.
RESEEDING = "re-seeding"

#: A write may hold the interpreter lock: pieces stay small enough to never stall the process noticeably.
BATCH_OPERATIONS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class StoreOffset:
    """How far a store has its changelog: the next offset to replay, which topic that is about, and the input
    offsets of the last meta record before it."""

    topic: str
    topic_id: str
    offset: int
    inputs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskMeta:
    """The offsets that belong to a task's data.

    ``inputs`` are the next input offsets whose effects the data holds; ``restoring`` says that a replay was under
    way, so that the data is not the fold of any input yet; ``complete_at`` is when the data was last known to hold
    the whole changelog (wall-clock seconds since 1970): a replay keeps it until it has reached its target, because
    deletes written since then are what compaction may take first; ``sources`` has the topic ids of the inputs.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    stores: Mapping[str, StoreOffset] = field(default_factory=dict)
    transaction: int = 0
    restoring: bool = False
    complete_at: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As JSON bytes."""
        return json.dumps(
            {
                "version": META_VERSION,
                "inputs": dict(self.inputs),
                "stores": {
                    name: [at.topic, at.topic_id, at.offset, dict(at.inputs)] for name, at in self.stores.items()
                },
                "transaction": self.transaction,
                "restoring": self.restoring,
                "complete_at": self.complete_at,
                "sources": dict(self.sources),
            }
        ).encode()

    @staticmethod
    def decode(raw: bytes) -> TaskMeta:
        """From JSON bytes.

        Raises:
            FormatUnknown: The version is not ours.
            DatabaseCorrupt: This is no JSON.
        """
        try:
            fields = json.loads(raw)
        except ValueError as failure:
            raise DatabaseCorrupt(f"the offsets are no JSON: {raw[:60]!r}") from failure
        if fields.get("version") != META_VERSION:
            raise FormatUnknown(
                f"A state folder has format version {fields.get('version')}, expected {META_VERSION}.",
                action="Run the Holdfast version that wrote it, or delete the folder to restore from the changelog.",
                version=fields.get("version"),
            )
        return TaskMeta(
            inputs=fields["inputs"],
            stores={name: StoreOffset(*at) for name, at in fields["stores"].items()},
            transaction=fields["transaction"],
            restoring=fields["restoring"],
            complete_at=fields.get("complete_at", 0.0),
            sources=fields.get("sources", {}),
        )


class TaskStore:
    """The store of one task, open.

    Args:
        databases: Where databases live.
        path: The task's own.
        bulk_records: Opened at once as after ``begin_bulk``, for a replay of so many records; None otherwise.

    Raises (from every method that touches the disk):
        StateDiskFailed: The disk refused.
        StateCorrupt: The data is damaged; it is moved aside on ``close``, and restored when opened again.
    """

    def __init__(self, databases: Databases, path: Path, bulk_records: int | None = None) -> None:
        self.path = path
        #: The first failure; the store is of no more use after it.
        self.failure: StateFailed | None = None
        self._databases = databases
        self._compaction: threading.Thread | None = None
        self._bulk = bulk_records is not None
        try:
            self._database = databases.open(path, bulk_records)
        except DatabaseCorrupt as damage:
            self._bulk = False
            self._move_aside(str(damage))
            self._database = self._open_new()
        except Exception as failure:
            raise _disk_failed(path, "opened", failure) from failure

    def meta(self) -> TaskMeta | None:
        """The offsets of the last batch; None for a new store."""
        try:
            raw = self._database.get(META_KEY)
            return None if raw is None else TaskMeta.decode(raw)
        except FormatUnknown:
            raise
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def holds_data(self, store: str) -> bool:
        """Whether there is anything at all of one store."""
        try:
            return next(items_of(self._database, store), None) is not None
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of full keys (store prefix included), None where absent."""
        try:
            return self._database.get_many(keys) if keys else []
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def get(self, key: bytes) -> bytes | None:
        """The value of one full key; None when absent."""
        try:
            return self._database.get(key)
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def write(self, changes: Iterable[Change], meta: TaskMeta) -> None:
        """Apply full keys and values (None deletes) and the offsets; the offsets come last."""
        if self.failure is not None:
            raise self.failure
        pieces = [*changes, (META_KEY, meta.encode())]
        try:
            for first in range(0, len(pieces), BATCH_OPERATIONS_MAX):
                self._database.write(pieces[first : first + BATCH_OPERATIONS_MAX])
        except Exception as failure:
            raise self._broken("written", failure) from failure

    def load(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Apply full keys and values (None deletes) that the offsets do not cover yet: see ``write``."""
        if self.failure is not None:
            raise self.failure
        try:
            for first in range(0, len(keys), BATCH_OPERATIONS_MAX):
                last = first + BATCH_OPERATIONS_MAX
                self._database.load(keys[first:last], values[first:last])
        except Exception as failure:
            raise self._broken("written", failure) from failure

    @property
    def in_bulk(self) -> bool:
        """Whether it was told to expect a replay in bulk, and not yet that this is over."""
        return self._bulk

    def begin_bulk(self, records: int) -> None:
        """Expect to ``load`` about so many records and to read hardly anything, until ``end_bulk``."""
        self._bulk = True
        try:
            self._database.begin_bulk(records)
        except Exception as failure:
            raise self._broken("opened", failure) from failure

    def end_bulk(self) -> None:
        """Flush, and be ready for reads again; see ``flush_soon`` for not waiting."""
        try:
            self._database.end_bulk()
        except Exception as failure:
            raise self._broken("flushed", failure) from failure
        self._bulk = False

    def flush(self) -> None:
        """Flush, and wait for it."""
        try:
            self._database.flush()
        except Exception as failure:
            raise self._broken("flushed", failure) from failure

    def flush_soon(self) -> None:
        """Flush without waiting; ``flushing`` tells how long it lasts."""
        try:
            self._database.flush(wait=False)
        except Exception as failure:
            raise self._broken("flushed", failure) from failure

    @property
    def flushing(self) -> bool:
        """Whether a flush is under way."""
        return self._database.flushing

    def items(self, store: str, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Changelog keys and values of one store, in key order, from a changelog key on."""
        try:
            yield from items_of(self._database, store, first)
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def checkpoint(self, path: Path) -> None:
        """A consistent copy of the whole store (hard links where the file system allows)."""
        try:
            self._database.checkpoint(path)
        except DatabaseCorrupt as damage:
            raise self._broken("checkpointed", damage) from damage
        except Exception as failure:
            raise _disk_failed(path, "checkpointed", failure) from failure

    def compact(self, on_wait: Callable[[], None]) -> None:
        """Rewrite the store without what was deleted or overwritten.

        Args:
            on_wait: Called about twice a second while it lasts; it may also close the store, which then waits.
        """
        failures: list[Exception] = []

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
        """See ``Database.estimates``."""
        return self._database.estimates()

    def size_bytes(self) -> int:
        """The store's size on disk."""
        return self._database.size_bytes()

    def close(self) -> None:
        """Close; what was written stays, and what could not be is replayed from the changelog."""
        if self._compaction is not None:
            self._compaction.join()
        try:
            if self._bulk and self.failure is None:
                self._database.flush()
        except Exception as failure:
            _log.error("state was not flushed: it is replayed", path=str(self.path), error=str(failure)[:200])
        try:
            self._database.close()
        except Exception as failure:
            _log.error("state was not closed cleanly", path=str(self.path), error=str(failure)[:200])
        if isinstance(self.failure, StateCorrupt):
            self._move_aside(self.failure.message)

    def wipe(self) -> None:
        """Delete everything and start empty."""
        try:
            self._database.close()
            self._databases.delete(self.path)
        except Exception as failure:
            raise _disk_failed(self.path, "emptied", failure) from failure
        self._bulk = False
        self._database = self._open_new()

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
            next="check the disk; delete the folder when it is not needed for an inquiry",
        )

    def _broken(self, done: str, failure: Exception) -> StateFailed:
        """Remember a failure, so that no commit follows it even where user code swallowed it."""
        if isinstance(failure, DatabaseCorrupt):
            self.failure = StateCorrupt(
                f"The state folder {self.path} is damaged: {str(failure)[:300]}.",
                action="Nothing: it is moved aside and restored from the changelog. Check the disk if this repeats.",
                path=str(self.path),
            )
        else:
            self.failure = _disk_failed(self.path, done, failure)
        return self.failure


def items_of(database: Database, store: str, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """Changelog keys and values of one store in a database, in key order, from a changelog key on."""
    prefix = store_prefix(store)
    size = len(prefix)
    for key, value in database.items(prefix + first):
        if not key.startswith(prefix):
            return
        yield key[size:], value


def _disk_failed(path: Path, done: str, failure: Any) -> StateDiskFailed:
    remedy, cause = "Make room on the disk or give back the rights", ""
    if any(said in str(failure) for said in ("No space left", "Disk quota exceeded")):
        cause = "disk-full"
    if "Too many open files" in str(failure):
        remedy = "Let the process have more open files (ulimit -n, LimitNOFILE of systemd)"
    return StateDiskFailed(
        f"The state folder {path} can't be {done}: {str(failure)[:300]}.",
        action=f"{remedy}, then restart: what was committed is replayed from the changelog.",
        cause=cause,
        path=str(path),
    )
