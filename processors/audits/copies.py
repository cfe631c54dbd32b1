"""Reads the three copies of a store's partition that an audit compares.

The copies are a RocksDB checkpoint, the folded changelog, and a version (Iceberg snapshot) of the store's table. To
fold a changelog means to reduce it to the newest value of each key.

Each kind of copy is read by separate code, so that an error in one reader shows as a difference.

Invariants:
    - This module changes nothing. The worker's checkpoint is read, because only the worker may open its live store.
    - A checkpoint is refused if its offsets differ from those in its manifest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from xxhash import xxh64_intdigest

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.reader import read_batches
from holdfast.infra.kafka.topics.topics import Topics, TransactionUndecided
from holdfast.processors.audits.comparison import Entry, Place
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.joins.source_rows import rows_of
from holdfast.processors.engine.state.buckets import BucketPrints, bucket_of, in_buckets
from holdfast.processors.engine.state.fingerprint import BATCH_PAIRS, SEED
from holdfast.processors.engine.topology import SourceLog
from holdfast.processors.snapshots.gathering import MARKERS_WITHIN_S

Config = Mapping[str, str | int | float | bool]


class AuditImpossible(HoldfastError):
    """A changelog ends before the compared offset, or a checkpoint has another offset than its manifest says.

    Fields: ``topic``, ``partition``, ``seen``, ``expected``.
    """


@dataclass(frozen=True, slots=True)
class Stray:
    """Records that another program committed to a changelog partition after the worker's last record.

    ``end`` is the offset after the worker's last record. ``records`` is the number of the other program's records.
    ``offset`` and ``timestamp_ms`` are those of the other program's first record.
    """

    partition: int
    end: int
    records: int
    offset: int
    timestamp_ms: int


class StoreCopy:
    """One partition of a store in a checkpoint.

    Args:
        path: The folder of the task's checkpoint.
        store: Name of the store.
        place: The changelog's topic id and the offset, as the manifest records them.
    """

    def __init__(self, path: Path, store: str, place: Place) -> None:
        self._path, self._store, self._place = path, store, place

    def prints(self) -> BucketPrints:
        """The fingerprints of the checkpoint's buckets.

        Raises:
            AuditImpossible: The offsets in the checkpoint differ from those in its manifest.
            CheckpointDamaged: The folder is not a checkpoint, or a file in it is damaged.
        """
        from holdfast.processors.engine.state.databases.checkpoint_reader import checkpoint_meta, checkpoint_pages

        meta = checkpoint_meta(self._path)
        at = None if meta is None else meta.stores.get(self._store)
        seen = None if at is None else Place(at.topic_id, at.offset)
        if seen != self._place or (meta is not None and meta.restoring):
            raise AuditImpossible(
                f"The checkpoint {self._path} is at {seen}, expected {self._place}, as its manifest records.",
                action="Run the audit again, which takes another checkpoint. If it fails again, restore this "
                "partition: `holdfast apply restore PROCESSOR --partition N --from changelog`.",
                seen=str(seen),
                expected=str(self._place),
                path=str(self._path),
            )
        found = BucketPrints()
        for keys, values in checkpoint_pages(self._path, self._store, BATCH_PAIRS):
            found.add_pairs(keys, values)
        return found

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """Yields the keys of these buckets, with their values."""
        # imported here, because most callers of this module need no RocksDB
        from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint

        pairs = iterate_checkpoint(self._path, self._store)
        return {key: Entry(tuple(values)) for key, values in in_buckets(pairs, buckets).items()}


class ChangelogCopy:
    """One changelog partition, folded up to ``end`` with a plain Python dict to the newest value of each key.

    Args:
        topics: Access to Kafka topics and groups.
        partition: The changelog partition.
        end: The offset before which records are read; the record at this offset is not read.
        config: Security settings of the Kafka client.
        log: Conversion of records to rows, if the changelog is the source topic of a table; otherwise None.

    Raises:
        AuditImpossible: The changelog's committed part ends before ``end``.
    """

    def __init__(
        self, topics: Topics, partition: Partition, end: int, config: Config, log: SourceLog | None = None
    ) -> None:
        self._log = log
        self._bootstrap, self._partition, self._config = topics.bootstrap, partition, config
        self.start = topics.start_offsets(partition.topic).get(partition.number, 0)
        self.end = end
        #: Number of records that the last read of the changelog returned, meta records included.
        self.records = 0
        self._stable = _reaching(topics, partition, end)

    def prints(self) -> BucketPrints:
        """The fingerprints of the buckets. Only a hash for each key is kept in memory, not its value."""
        newest: dict[bytes, int | None] = {}
        self.records = 0
        for keys, values in self._read(self.start, self.end):
            self.records += len(keys)
            newest.update(zip(keys, _pair_hashes(keys, values), strict=True))
        newest.pop(META_KEY, None)
        newest.pop(None, None)  # type: ignore[call-overload]  # a record without a key is not a worker's
        found = BucketPrints()
        live = [(key, hashed) for key, hashed in newest.items() if hashed is not None]
        for begin in range(0, len(live), BATCH_PAIRS):
            keys_, hashes = zip(*live[begin : begin + BATCH_PAIRS], strict=True)
            found.add_hashes(list(map(xxh64_intdigest, keys_, repeat(SEED))), hashes)
        return found

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """The keys of these buckets, with their newest values. Each call reads the changelog again."""
        found: dict[bytes, Entry] = {}
        for batch in read_batches(
            self._bootstrap, self._partition, self.start, self.end, extra_config=self._config, places=True
        ):
            rows = zip(batch.keys, batch.values, batch.offsets, batch.timestamps, strict=True)
            for key, value, offset, timestamp_ms in map(self._row, rows):
                if key is None or key == META_KEY or bucket_of(key) not in buckets:
                    continue
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = Entry((value,), offset, timestamp_ms)
        return found

    def superseded(self, keys: Collection[bytes]) -> frozenset[bytes]:
        """Returns the keys that have a committed record at ``end`` or a later offset."""
        wanted = frozenset(keys)
        found: set[bytes] = set()
        for there, _ in self._read(self.end, self._stable):
            found.update(wanted.intersection(there))
        return frozenset(found)

    def stray(self) -> Stray | None:
        """Describes the committed records at ``end`` or later that another program wrote; None if there are none.

        A transaction of the worker ends with a meta record, and is visible completely or not at all. Records after the
        last meta record are therefore from another program. Records before the last meta record will be part of the
        next audit.
        """
        if self._log is not None:
            # The changelog of this store is the source topic of a table, so other producers may write to it. Their
            # records at `end` or later are no fault: the worker has just not processed them yet.
            return None
        count, first = 0, (0, 0)
        for batch in read_batches(
            self._bootstrap, self._partition, self.end, self._stable, extra_config=self._config, places=True
        ):
            for key, offset, timestamp_ms in zip(batch.keys, batch.offsets, batch.timestamps, strict=True):
                if key == META_KEY:
                    count = 0
                    continue
                first = first if count else (offset, timestamp_ms)
                count += 1
        return Stray(self._partition.number, self.end, count, *first) if count else None

    def _read(self, start: int, end: int) -> Iterator[tuple[list[Any], list[Any]]]:
        timed = self._log is not None
        for batch in read_batches(
            self._bootstrap, self._partition, start, end, extra_config=self._config, places=timed
        ):
            if self._log is None:
                yield batch.keys, batch.values
            else:
                yield rows_of(self._log, batch.keys, batch.values, batch.timestamps)

    def _row(self, record: tuple[Any, Any, int, int]) -> tuple[Any, Any, int, int]:
        """The parsed record: key, value, offset and timestamp.

        A record of a table's source topic is converted to a row. If the record can't be a row, its key is None.
        """
        key, value, offset, timestamp_ms = record
        if self._log is not None:
            keys, values = rows_of(self._log, [key], [value], [timestamp_ms])
            key, value = (keys[0], values[0]) if keys else (None, None)
        return key, value, offset, timestamp_ms


class TableCopy:
    """One partition of a store's table, in one version (Iceberg snapshot).

    Args:
        read: Iterable of the partition's keys and values, in batches.
    """

    def __init__(self, read: Iterable[tuple[list[bytes], list[bytes]]]) -> None:
        self._read = read

    def prints(self) -> BucketPrints:
        """The fingerprints of the table's buckets."""
        found = BucketPrints()
        for keys, values in self._read:
            found.add_pairs(keys, values)
        return found

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """The keys of these buckets, with their values."""
        pairs = (pair for keys, values in self._read for pair in zip(keys, values, strict=True))
        return {key: Entry(tuple(sorted(values))) for key, values in in_buckets(pairs, buckets).items()}


def _pair_hashes(keys: list[Any], values: list[Any]) -> list[int | None]:
    """The hash of each pair of key and value; None for a pair without a value, which is a deletion."""
    if None in keys:
        keys = [b"" if key is None else key for key in keys]
    seeds = map(xxh64_intdigest, keys, repeat(SEED))
    if None not in values:
        return list(map(xxh64_intdigest, values, seeds))
    return [None if value is None else xxh64_intdigest(value, seed) for value, seed in zip(values, seeds, strict=True)]


def _reaching(topics: Topics, partition: Partition, end: int) -> int:
    """Returns the end offset of a changelog's committed records.

    Raises AuditImpossible if this offset is below ``end``.
    """
    topic, number = partition
    stable = topics.end_offsets(topic, committed=True).get(number, 0)
    if stable < end <= topics.end_offsets(topic, committed=False).get(number, 0):
        try:  # Kafka answers a commit before it ends the transaction. So the last records may need a short wait.
            stable = topics.settled_end_offsets(topic, MARKERS_WITHIN_S, upto={number: end})[number]
        except TransactionUndecided as held:
            stable = held.fields["seen"]
    if stable < end:
        raise AuditImpossible(
            f"Changelog {topic}[{number}] is committed up to offset {stable}, the checkpoint is at {end}.",
            action="If a transaction hangs, abort it: `holdfast apply compact PROCESSOR`. If the topic was recreated "
            "and local state is right: `holdfast apply backfill PROCESSOR --store STORE --from local`. Then audit "
            "again.",
            topic=topic,
            partition=number,
            seen=stable,
            expected=end,
        )
    return stable
