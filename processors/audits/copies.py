"""The three copies of a partition as they are read: a checkpoint of RocksDB, the changelog folded, a table's version.

Each is read by code of its own, so that an error in one shows against the others.

Invariants:
    - Reading only. The live store is opened by nobody but its owner: what is read here is the owner's checkpoint.
    - A checkpoint whose own offsets are not those that its manifest says is refused, not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from xxhash import xxh64_intdigest

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.reader import read_batches
from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics import Topics, TransactionUndecided
from holdfast.processors.audits.comparison import Entry, Place
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.state.buckets import BucketPrints, bucket_of, in_buckets
from holdfast.processors.engine.state.fingerprint import BATCH_PAIRS, SEED

#: How long the markers of an answered commit may take, in seconds.
MARKERS_WITHIN_S = 10.0

Config = Mapping[str, str | int | float | bool]


class AuditImpossible(HoldfastError):
    """A copy is not at the offset that it is said to be at; fields: topic, partition, seen, expected."""


@dataclass(frozen=True, slots=True)
class Stray:
    """Records behind the owner's offset that no commit of the owner's came with: how many, and the first of them."""

    partition: int
    end: int
    records: int
    offset: int
    timestamp_ms: int


class StoreCopy:
    """One partition of a store in a checkpoint that its owner took.

    Args:
        path: The checkpoint of the task.
        store: The store.
        place: Where its manifest says that it is.
    """

    def __init__(self, path: Path, store: str, place: Place) -> None:
        self._path, self._store, self._place = path, store, place

    def prints(self) -> BucketPrints:
        """See ``Copy.prints``.

        Raises:
            AuditImpossible: The checkpoint holds other offsets than its manifest.
            CheckpointDamaged: The folder is no checkpoint, or a file of it is damaged.
        """
        from holdfast.processors.engine.state.checkpoint_reader import checkpoint_meta, checkpoint_pages

        meta = checkpoint_meta(self._path)
        at = None if meta is None else meta.stores.get(self._store)
        seen = None if at is None else Place(at.topic_id, at.offset)
        if seen != self._place or (meta is not None and meta.restoring):
            raise AuditImpossible(
                f"The checkpoint {self._path} is at {seen}, and its manifest says {self._place}.",
                action="Take another checkpoint; if that says the same, restore this partition.",
                seen=str(seen),
                expected=str(self._place),
                path=str(self._path),
            )
        found = BucketPrints()
        for keys, values in checkpoint_pages(self._path, self._store, BATCH_PAIRS):
            found.add_pairs(keys, values)
        return found

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """See ``Copy.entries``."""
        from holdfast.processors.engine.state.checkpoint_reader import (
            iterate_checkpoint,  # RocksDB is for runs, not for loading
        )

        pairs = iterate_checkpoint(self._path, self._store)
        return {key: Entry(tuple(values)) for key, values in in_buckets(pairs, buckets).items()}


class ChangelogCopy:
    """One changelog partition, folded from its beginning up to an offset; plain Python over a dict.

    Args:
        topics: Kafka.
        partition: Of which changelog.
        end: The offset to stop before.
        config: Security settings.

    Raises:
        AuditImpossible: The changelog's committed part ends before ``end``.
    """

    def __init__(self, topics: Topics, partition: Partition, end: int, config: Config) -> None:
        self._bootstrap, self._partition, self._config = topics.bootstrap, partition, config
        self.start = topics.start_offsets(partition.topic).get(partition.number, 0)
        self.end = end
        #: Records that the last fold read, meta records among them.
        self.records = 0
        self._stable = _reaching(topics, partition, end)

    def prints(self) -> BucketPrints:
        """See ``Copy.prints``; what is held of a key is one number, not its value."""
        newest: dict[bytes, int | None] = {}
        self.records = 0
        for keys, values in self._read(self.start, self.end):
            self.records += len(keys)
            newest.update(zip(keys, _pair_hashes(keys, values), strict=True))
        newest.pop(META_KEY, None)
        newest.pop(None, None)  # type: ignore[call-overload]  # a foreign record without a key
        found = BucketPrints()
        live = [(key, hashed) for key, hashed in newest.items() if hashed is not None]
        for begin in range(0, len(live), BATCH_PAIRS):
            keys_, hashes = zip(*live[begin : begin + BATCH_PAIRS], strict=True)
            found.add_hashes(list(map(xxh64_intdigest, keys_, repeat(SEED))), hashes)
        return found

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """See ``Copy.entries``; reads the log again, and holds what is in these buckets."""
        found: dict[bytes, Entry] = {}
        for batch in read_batches(
            self._bootstrap, self._partition, self.start, self.end, extra_config=self._config, places=True
        ):
            rows = zip(batch.keys, batch.values, batch.offsets, batch.timestamps, strict=True)
            for key, value, offset, timestamp_ms in rows:
                if key is None or key == META_KEY or bucket_of(key) not in buckets:
                    continue
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = Entry((value,), offset, timestamp_ms)
        return found

    def superseded(self, keys: Collection[bytes]) -> frozenset[bytes]:
        """Of some keys, those that have a committed record behind ``end``."""
        wanted = frozenset(keys)
        found: set[bytes] = set()
        for there, _ in self._read(self.end, self._stable):
            found.update(wanted.intersection(there))
        return frozenset(found)

    def stray(self) -> Stray | None:
        """Of the committed records behind ``end``, those that somebody else wrote.

        Each transaction of the owner's ends with a meta record in the changelog, and is read as a whole or not at
        all. So what no meta record follows is not the owner's; what one follows is in the fold of the next audit.
        """
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
        for batch in read_batches(self._bootstrap, self._partition, start, end, extra_config=self._config):
            yield batch.keys, batch.values


class TableCopy:
    """One partition of a version of a table.

    Args:
        read: Gives the keys and values of the partition, many at once.
    """

    def __init__(self, read: Iterable[tuple[list[bytes], list[bytes]]]) -> None:
        self._read = read

    def prints(self) -> BucketPrints:
        """See ``Copy.prints``."""
        found = BucketPrints()
        for keys, values in self._read:
            found.add_pairs(keys, values)
        return found

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """See ``Copy.entries``."""
        pairs = (pair for keys, values in self._read for pair in zip(keys, values, strict=True))
        return {key: Entry(tuple(sorted(values))) for key, values in in_buckets(pairs, buckets).items()}


def _pair_hashes(keys: list[Any], values: list[Any]) -> list[int | None]:
    """The hashes of pairs; None where the key is deleted."""
    if None in keys:
        keys = [b"" if key is None else key for key in keys]
    seeds = map(xxh64_intdigest, keys, repeat(SEED))
    if None not in values:
        return list(map(xxh64_intdigest, values, seeds))
    return [None if value is None else xxh64_intdigest(value, seed) for value, seed in zip(values, seeds, strict=True)]


def _reaching(topics: Topics, partition: Partition, end: int) -> int:
    """The end of the committed part of a changelog, which has to be at ``end`` or behind it."""
    topic, number = partition
    stable = topics.end_offsets(topic, committed=True).get(number, 0)
    if stable < end <= topics.end_offsets(topic, committed=False).get(number, 0):
        try:  # a log that itself is shorter will not catch up; what is written of it may be decided in a moment
            stable = topics.settled_end_offsets(topic, MARKERS_WITHIN_S, upto={number: end})[number]
        except TransactionUndecided as held:
            stable = held.fields["seen"]
    if stable < end:
        raise AuditImpossible(
            f"Changelog {topic}[{number}] is committed up to offset {stable}, the checkpoint is at {end}.",
            action="If the topic was deleted and made again, delete the local state and deploy again; "
            "if a transaction hangs, abort it; then take a new checkpoint.",
            topic=topic,
            partition=number,
            seen=stable,
            expected=end,
        )
    return stable
