"""Order-free fingerprints computed by Spark; equal to ``processors.state.fingerprint`` bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from processors.state.fingerprint import Fingerprint

if TYPE_CHECKING:
    from processors.state.buckets import BucketPrints

#: SQL: the bucket of a row's key.
BUCKET = "cast(xxhash64(key) & 255L AS int)"
_MASK = (1 << 64) - 1


def fingerprint_partitions(pairs: DataFrame) -> dict[int, Fingerprint]:
    """By ``store_partition``, the fingerprint of the (key, value) pairs of a DataFrame; values must not be null.

    The sum is taken in two halves, because a 64-bit sum overflows under ANSI rules.
    """
    return {row["store_partition"]: _fingerprint(row) for row in _sums(pairs, ["store_partition"], []).collect()}


def fingerprint_buckets(pairs: DataFrame) -> dict[int, BucketPrints]:
    """By ``store_partition``, the fingerprints of the 256 buckets of the pairs of a DataFrame.

    What is exchanged between tasks is their sums, at most 256 rows for each partition and task. Partitions without
    a pair are absent.
    """
    from processors.state.buckets import BucketPrints

    found: dict[int, BucketPrints] = {}
    for row in bucket_sums(pairs).collect():
        found.setdefault(row["store_partition"], BucketPrints()).put(row["bucket"], _fingerprint(row))
    return found


def bucket_sums(pairs: DataFrame) -> DataFrame:
    """One row for each partition and bucket that has a pair."""
    return _sums(pairs, ["store_partition", "bucket"], [f"{BUCKET} AS bucket"])


def _sums(pairs: DataFrame, by: Sequence[str], columns: Sequence[str]) -> DataFrame:
    return (
        pairs.selectExpr("store_partition", "xxhash64(key, value) AS h", *columns)
        .groupBy(*by)
        .agg(
            F.expr("count(1)").alias("pairs"),
            F.expr("bit_xor(h)").alias("mixed"),
            F.expr("sum(h & 4294967295L)").alias("low"),
            F.expr("sum(shiftrightunsigned(h, 32))").alias("high"),
        )
    )


def _fingerprint(row: Any) -> Fingerprint:
    return Fingerprint(row["pairs"], row["mixed"] & _MASK, ((row["high"] << 32) + row["low"]) & _MASK)
