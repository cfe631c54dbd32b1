"""One RocksDB for one task: every store of the task and the offsets that belong to it, in one atomic batch.

Keys: ``length of store name (1 byte) | store name | changelog key``; the reserved key ``0x00 "meta"`` holds
the offsets. All in one column family, so that no flush can ever part data from offsets.

Invariants:
    - The meta key is in the last piece of every batch: a crash between pieces leaves the older offsets, and the
      replay from them writes the same values again.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from processors.changelog.format import META_KEY, FormatUnknown
from processors.state.errors import StateDiskFailed, StateFailed
from processors.state.keys import store_prefix

_log = structlog.get_logger("state.rocksdb")

META_VERSION = 1

#: ``write()`` holds the interpreter lock: pieces stay small enough to never stall the process noticeably.
BATCH_OPERATIONS_MAX = 10_000
BLOCK_CACHE_BYTES = 64 << 20
WRITE_BUFFER_BYTES = 32 << 20

_shared_cache: Cache | None = None


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
    way, so that the data is not the fold of any input yet; ``written_at`` is wall-clock seconds since 1970.
    """

    inputs: Mapping[str, int] = field(default_factory=dict)
    stores: Mapping[str, StoreOffset] = field(default_factory=dict)
    transaction: int = 0
    restoring: bool = False
    written_at: float = 0.0

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
                "written_at": self.written_at,
            }
        ).encode()

    @staticmethod
    def decode(raw: bytes) -> TaskMeta:
        """From JSON bytes.

        Raises:
            FormatUnknown: The version is not ours.
        """
        fields = json.loads(raw)
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
            written_at=fields["written_at"],
        )


def _options() -> Options:
    global _shared_cache
    if _shared_cache is None:
        _shared_cache = Cache(BLOCK_CACHE_BYTES)
    table = BlockBasedOptions()
    table.set_block_cache(_shared_cache)
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.increase_parallelism(2)
    return options


class TaskStore:
    """The RocksDB of one task, open.

    Raises (from every method that touches the disk):
        StateDiskFailed: The disk refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The first failure of the disk; the store is of no more use after it.
        self.failure: StateDiskFailed | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _open(path)
        except Exception as failure:
            if "Corruption" not in str(failure):
                raise _disk_failed(path, "opened", failure) from failure
            aside = path.with_name(f"{path.name}.corrupt-{int(time.time())}")
            path.rename(aside)
            _log.error(
                "state was corrupt and is restored from its changelog",
                path=str(path),
                moved_to=str(aside),
                error=str(failure)[:200],
            )
            self._db = _open(path)

    def meta(self) -> TaskMeta | None:
        """The offsets of the last batch; None for a new store."""
        raw = self._db.get(META_KEY)
        return None if raw is None else TaskMeta.decode(raw)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of full keys (store prefix included), None where absent."""
        try:
            return list(self._db.get(list(keys))) if keys else []
        except Exception as failure:
            raise self._broken("read", failure) from failure

    def get(self, key: bytes) -> bytes | None:
        """The value of one full key; None when absent."""
        try:
            value: bytes | None = self._db.get(key)
        except Exception as failure:
            raise self._broken("read", failure) from failure
        return value

    def _broken(self, done: str, failure: Exception) -> StateDiskFailed:
        """Remember a failure, so that no commit follows it even where user code swallowed it."""
        self.failure = _disk_failed(self.path, done, failure)
        return self.failure

    def write(self, changes: Iterable[tuple[bytes, bytes | None]], meta: TaskMeta) -> None:
        """Apply full keys and values (None deletes) and the offsets; the offsets come last."""
        if self.failure is not None:
            raise self.failure
        try:
            batch = WriteBatch(raw_mode=True)
            size = 0
            for key, value in changes:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
                size += 1
                if size >= BATCH_OPERATIONS_MAX:
                    self._db.write(batch)
                    batch = WriteBatch(raw_mode=True)
                    size = 0
            batch.put(META_KEY, meta.encode())
            self._db.write(batch)
        except Exception as failure:
            raise self._broken("written", failure) from failure

    def items(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Changelog keys and values of one store, in key order."""
        return _items(self._db, store)

    def checkpoint(self, path: Path) -> None:
        """A consistent copy of the whole store (hard links where the file system allows)."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db.flush()
            checkpoint = Checkpoint(self._db)
            checkpoint.create_checkpoint(str(path))
            del checkpoint
        except Exception as failure:
            raise _disk_failed(path, "checkpointed", failure) from failure

    def size_bytes(self) -> int:
        """The size of all SST files."""
        return int(self._db.property_int_value("rocksdb.total-sst-files-size") or 0)

    def close(self) -> None:
        """Close; what was written stays, and what could not be is replayed from the changelog."""
        try:
            self._db.close()
        except Exception as failure:
            _log.error("state was not closed cleanly", path=str(self.path), error=str(failure)[:200])

    def wipe(self) -> None:
        """Delete everything and start empty."""
        self._db.close()
        shutil.rmtree(self.path)
        self._db = _open(self.path)


class StateReader:
    """A RocksDB folder opened for reading only: a checkpoint, or a store whose process is gone.

    Raises:
        StateFailed: The folder is not a RocksDB.
    """

    def __init__(self, path: Path) -> None:
        try:
            options = Options(raw_mode=True)
            self._db = Rdict(str(path), options, access_type=AccessType.read_only())
        except Exception as failure:
            raise StateFailed(
                f"{path} can't be opened as a RocksDB: {str(failure)[:200]}.",
                action="Give the folder of a checkpoint or of a stopped task.",
                path=str(path),
            ) from failure

    def meta(self) -> TaskMeta | None:
        """The offsets of the last batch."""
        raw = self._db.get(META_KEY)
        return None if raw is None else TaskMeta.decode(raw)

    def items(self, store: str) -> Iterator[tuple[bytes, bytes]]:
        """Changelog keys and values of one store, in key order."""
        return _items(self._db, store)

    def close(self) -> None:
        """Close."""
        self._db.close()


def _open(path: Path) -> Rdict:
    options = _options()
    # Without the explicit column family, a reopened store takes its options from disk, with an 8 MB cache.
    return Rdict(str(path), options, column_families={"default": options})


def _items(db: Rdict, store: str) -> Iterator[tuple[bytes, bytes]]:
    prefix = store_prefix(store)
    size = len(prefix)
    for key, value in db.items(from_key=prefix):
        if not key.startswith(prefix):
            return
        yield key[size:], value


def _disk_failed(path: Path, done: str, failure: Any) -> StateDiskFailed:
    return StateDiskFailed(
        f"The state folder {path} can't be {done}: {str(failure)[:300]}.",
        action="Make room on the disk or give back the rights, then restart: what was committed is replayed "
        "from the changelog.",
        path=str(path),
    )
