"""Order-free fingerprints computed by Spark; equal to ``processors.state.fingerprint`` bit by bit."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from processors.state.fingerprint import Fingerprint

_MASK = (1 << 64) - 1


def fingerprint_partitions(pairs: DataFrame) -> dict[int, Fingerprint]:
    """By ``store_partition``, the fingerprint of the (key, value) pairs of a DataFrame; values must not be null.

    The sum is taken in two halves, because a 64-bit sum overflows under ANSI rules.
    """
    rows = (
        pairs.selectExpr("store_partition", "xxhash64(key, value) AS h")
        .groupBy("store_partition")
        .agg(
            F.expr("count(1)").alias("pairs"),
            F.expr("bit_xor(h)").alias("mixed"),
            F.expr("sum(h & 4294967295L)").alias("low"),
            F.expr("sum(shiftrightunsigned(h, 32))").alias("high"),
        )
        .collect()
    )
    return {
        row["store_partition"]: Fingerprint(
            row["pairs"], row["mixed"] & _MASK, ((row["high"] << 32) + row["low"]) & _MASK
        )
        for row in rows
    }
