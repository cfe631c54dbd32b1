"""Computes with Spark one side of an audit: fingerprints and rows of a table, or of a folded changelog.

To fold a changelog means to keep the newest value of each key. The results are identical to those of the Python code in
``processors.audits.copies``.

Invariants:
    - Spark returns only fingerprints of buckets, and the rows of buckets that differ, never a whole store.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from pyspark.sql import DataFrame

from holdfast.assets.spark.fingerprint import BUCKET, fingerprint_buckets
from holdfast.processors.audits.comparison import Entry
from holdfast.processors.engine.state.buckets import BucketPrints


class FrameCopies:
    """Computes with Spark, for an audit, fingerprints of all partitions of a store from the rows of its live keys.

    The rows have the columns store_partition, key and value. One Spark job computes all fingerprints.
    """

    def __init__(self, pairs: DataFrame) -> None:
        self._pairs = pairs.select("store_partition", "key", "value")

    def partition(self, number: int) -> FrameCopy:
        """The copy of one partition, which can be compared with other copies."""
        return FrameCopy(self, number)

    @cached_property
    def prints(self) -> dict[int, BucketPrints]:
        """Maps each partition to the fingerprints (hashes) of its key buckets; partitions without rows are absent."""
        return fingerprint_buckets(self._pairs)

    def entries(self, partition: int, buckets: Collection[int]) -> dict[bytes, Entry]:
        """The rows of these buckets (groups of keys by hash) in one partition."""
        wanted = ", ".join(str(bucket) for bucket in sorted(buckets))
        rows = self._pairs.where(f"store_partition = {partition} AND {BUCKET} IN ({wanted})")
        found: dict[bytes, list[bytes]] = {}
        for row in rows.collect():
            found.setdefault(bytes(row["key"]), []).append(bytes(row["value"]))
        return {key: Entry(tuple(sorted(values))) for key, values in found.items()}


class FrameCopy:
    """The rows of one store partition, as a copy in an audit; implements ``processors.audits.comparison.Copy``."""

    def __init__(self, copies: FrameCopies, partition: int) -> None:
        self._copies, self._partition = copies, partition

    def prints(self) -> BucketPrints:
        """The fingerprints (hashes) of this partition's buckets. A bucket has the keys with one value of a key hash."""
        return self._copies.prints.get(self._partition, BucketPrints())

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """The keys in these buckets (groups of keys by hash), with their values."""
        return self._copies.entries(self._partition, buckets)
