"""A table or a folded changelog as copies of an audit, computed by Spark; the same to the bit as Python's.

Invariants:
    - What Spark hands over is sums of buckets, and the rows of buckets that differ; never a whole store.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from pyspark.sql import DataFrame

from holdfast.assets.spark.fingerprint import BUCKET, fingerprint_buckets
from holdfast.processors.audits.comparison import Entry
from holdfast.processors.engine.state.buckets import BucketPrints


class FrameCopies:
    """Partitions of (store_partition, key, value) rows: their fingerprints are computed together, once.

    Args:
        pairs: The rows; of a key that is deleted there is none.
    """

    def __init__(self, pairs: DataFrame) -> None:
        self._pairs = pairs.select("store_partition", "key", "value")

    def partition(self, number: int) -> FrameCopy:
        """One partition of them."""
        return FrameCopy(self, number)

    @cached_property
    def prints(self) -> dict[int, BucketPrints]:
        """By partition; those without a row are absent."""
        return fingerprint_buckets(self._pairs)

    def entries(self, partition: int, buckets: Collection[int]) -> dict[bytes, Entry]:
        """The rows of some buckets of one partition."""
        wanted = ", ".join(str(bucket) for bucket in sorted(buckets))
        rows = self._pairs.where(f"store_partition = {partition} AND {BUCKET} IN ({wanted})")
        found: dict[bytes, list[bytes]] = {}
        for row in rows.collect():
            found.setdefault(bytes(row["key"]), []).append(bytes(row["value"]))
        return {key: Entry(tuple(sorted(values))) for key, values in found.items()}


class FrameCopy:
    """One partition of a DataFrame (``processors.audits.comparison.Copy``)."""

    def __init__(self, copies: FrameCopies, partition: int) -> None:
        self._copies, self._partition = copies, partition

    def prints(self) -> BucketPrints:
        """See ``Copy.prints``."""
        return self._copies.prints.get(self._partition, BucketPrints())

    def entries(self, buckets: frozenset[int]) -> dict[bytes, Entry]:
        """See ``Copy.entries``."""
        return self._copies.entries(self._partition, buckets)
