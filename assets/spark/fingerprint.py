"""Order-free fingerprints computed by Spark; identical to those of ``processors.engine.state.fingerprint``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.processors.engine.state.fingerprint import Fingerprint

if TYPE_CHECKING:
    from holdfast.processors.engine.state.buckets import BucketPrints

#: SQL: the bucket of a row's key.
BUCKET = "cast(xxhash64(key) & 255L AS int)"
#: SQL: the hash of one pair.
_HASH = "xxhash64(key, value)"
_MASK = (1 << 64) - 1


def fingerprint_partitions(pairs: DataFrame) -> dict[int, Fingerprint]:
    """``store_partition`` -> the fingerprint of its (key, value) pairs; values must not be null."""
    rows = _hashed(pairs).groupBy("store_partition").agg(*_sums("hash")).collect()
    return {row["store_partition"]: _fingerprint(row, "hash") for row in rows}


def fingerprint_after(
    known: Mapping[int, Fingerprint], before: DataFrame, changed: DataFrame, live: str
) -> dict[int, Fingerprint]:
    """The fingerprints ``known`` after a merge: without the replaced pairs, and with the new ones.

    The other arguments are those of ``replacing_sums``.
    """
    expected = dict(known)
    for row in replacing_sums(changed, live, before).collect():
        number, old, new = row["store_partition"], _fingerprint(row, "old"), _fingerprint(row, "new")
        if number in known:
            whole = known[number]
            rest = Fingerprint(whole.count - old.count, whole.xor ^ old.xor, (whole.total - old.total) & _MASK)
            expected[number] = rest + new
    return expected


def replacing_sums(changed: DataFrame, live: str, before: DataFrame) -> DataFrame:
    """The sums of replaced and of new pairs, one row for each partition with a change, in one join.

    Args:
        changed: The newest row of each changed key: store_partition, key, value, and the columns that ``live`` uses.
        live: SQL: whether such a row has a value.
        before: The pairs before the changes, each key once: store_partition, key, value.
    """
    new = changed.selectExpr("store_partition", "key", f"if({live}, {_HASH}, NULL) AS new")
    old = before.selectExpr("store_partition", "key", f"{_HASH} AS old")
    both = new.join(old, ["store_partition", "key"], "left").groupBy("store_partition")
    return both.agg(*_sums("old"), *_sums("new"))


def fingerprint_buckets(pairs: DataFrame) -> dict[int, BucketPrints]:
    """``store_partition`` -> the fingerprints of its 256 buckets of pairs; partitions without a pair are absent.

    Tasks exchange sums only, at most 256 rows for each partition and task.
    """
    from holdfast.processors.engine.state.buckets import BucketPrints

    found: dict[int, BucketPrints] = {}
    for row in bucket_sums(pairs).collect():
        found.setdefault(row["store_partition"], BucketPrints()).put(row["bucket"], _fingerprint(row, "hash"))
    return found


def bucket_sums(pairs: DataFrame) -> DataFrame:
    """The sums of each partition and bucket that has a pair."""
    return _hashed(pairs, f"{BUCKET} AS bucket").groupBy("store_partition", "bucket").agg(*_sums("hash"))


def differing_partitions(one: Mapping[int, Fingerprint], other: Mapping[int, Fingerprint]) -> list[int]:
    """The partitions whose fingerprints differ, in order; an absent partition is an empty one."""
    empty = Fingerprint()
    return [number for number in sorted({*one, *other}) if one.get(number, empty) != other.get(number, empty)]


def _hashed(pairs: DataFrame, *columns: str) -> DataFrame:
    return pairs.selectExpr("store_partition", f"{_HASH} AS hash", *columns)


def _sums(name: str) -> list[Column]:
    """The parts of a fingerprint of a column of hashes; null counts as no pair.

    The sum is in two halves, because a 64-bit sum overflows under ANSI rules.
    """
    return [
        F.expr(f"count({name})").alias(f"{name}_pairs"),
        F.expr(f"bit_xor({name})").alias(f"{name}_mixed"),
        F.expr(f"sum({name} & 4294967295L)").alias(f"{name}_low"),
        F.expr(f"sum(shiftrightunsigned({name}, 32))").alias(f"{name}_high"),
    ]


def _fingerprint(row: Any, name: str) -> Fingerprint:
    pairs, mixed, low, high = (row[f"{name}_{part}"] or 0 for part in ("pairs", "mixed", "low", "high"))
    return Fingerprint(pairs, mixed & _MASK, ((high << 32) + low) & _MASK)
