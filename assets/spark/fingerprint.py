"""Order-free fingerprints computed by Spark; equal to ``processors.engine.state.fingerprint`` bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.processors.engine.state.fingerprint import Fingerprint

if TYPE_CHECKING:
    from holdfast.processors.engine.state.buckets import BucketPrints

#: SQL: the bucket of a row's key.
BUCKET = "cast(xxhash64(key) & 255L AS int)"
#: SQL: of one pair.
_HASH = "xxhash64(key, value)"
_MASK = (1 << 64) - 1


def fingerprint_partitions(pairs: DataFrame) -> dict[int, Fingerprint]:
    """By ``store_partition``, the fingerprint of the (key, value) pairs of a DataFrame; values must not be null.

    The sum is taken in two halves, because a 64-bit sum overflows under ANSI rules.
    """
    rows = _hashed(pairs).groupBy("store_partition").agg(*_sums("hash")).collect()
    return {row["store_partition"]: _fingerprint(row, "hash") for row in rows}


def fingerprint_replacing(
    changed: DataFrame, live: str, before: DataFrame
) -> dict[int, tuple[Fingerprint, Fingerprint]]:
    """By ``store_partition``, the fingerprints of the pairs that changes replace, and of those that they put there.

    Partitions without a change are absent. Args: as of ``replacing_sums``.
    """
    rows = replacing_sums(changed, live, before).collect()
    return {row["store_partition"]: (_fingerprint(row, "old"), _fingerprint(row, "new")) for row in rows}


def replacing_sums(changed: DataFrame, live: str, before: DataFrame) -> DataFrame:
    """One row for each partition that has a change, of two sums: one pass over both, by one join.

    Args:
        changed: The newest row of each key that changed: store_partition, key, value, and what ``live`` asks for.
        live: SQL: whether such a row leaves a value.
        before: The pairs that there were, each key once: store_partition, key, value.
    """
    new = changed.selectExpr("store_partition", "key", f"if({live}, {_HASH}, NULL) AS new")
    old = before.selectExpr("store_partition", "key", f"{_HASH} AS old")
    both = new.join(old, ["store_partition", "key"], "left").groupBy("store_partition")
    return both.agg(*_sums("old"), *_sums("new"))


def fingerprint_buckets(pairs: DataFrame) -> dict[int, BucketPrints]:
    """By ``store_partition``, the fingerprints of the 256 buckets of the pairs of a DataFrame.

    What is exchanged between tasks is their sums, at most 256 rows for each partition and task. Partitions without
    a pair are absent.
    """
    from holdfast.processors.engine.state.buckets import BucketPrints

    found: dict[int, BucketPrints] = {}
    for row in bucket_sums(pairs).collect():
        found.setdefault(row["store_partition"], BucketPrints()).put(row["bucket"], _fingerprint(row, "hash"))
    return found


def bucket_sums(pairs: DataFrame) -> DataFrame:
    """One row for each partition and bucket that has a pair."""
    return _hashed(pairs, f"{BUCKET} AS bucket").groupBy("store_partition", "bucket").agg(*_sums("hash"))


def _hashed(pairs: DataFrame, *columns: str) -> DataFrame:
    return pairs.selectExpr("store_partition", f"{_HASH} AS hash", *columns)


def _sums(name: str) -> list[Column]:
    """What a fingerprint is made of, out of a column of hashes; null is no pair."""
    return [
        F.expr(f"count({name})").alias(f"{name}_pairs"),
        F.expr(f"bit_xor({name})").alias(f"{name}_mixed"),
        F.expr(f"sum({name} & 4294967295L)").alias(f"{name}_low"),
        F.expr(f"sum(shiftrightunsigned({name}, 32))").alias(f"{name}_high"),
    ]


def _fingerprint(row: Any, name: str) -> Fingerprint:
    pairs, mixed, low, high = (row[f"{name}_{part}"] or 0 for part in ("pairs", "mixed", "low", "high"))
    return Fingerprint(pairs, mixed & _MASK, ((high << 32) + low) & _MASK)
