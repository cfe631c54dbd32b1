"""Computes order-independent fingerprints with Spark, equal to those of ``processors.engine.state.fingerprint``.

Typed columns have separate fingerprints, which only Spark computes, from the key and all typed columns of each row.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.processors.engine.schema.evolution import plain
from holdfast.processors.engine.schema.types import ColumnType, Entries, Items, Record, StoreSchema, tick
from holdfast.processors.engine.state.fingerprint import Fingerprint

if TYPE_CHECKING:
    from holdfast.processors.engine.state.buckets import BucketPrints

#: SQL expression: the bucket of a row's key (a part of the key's hash), from 0 to 255.
BUCKET = "cast(xxhash64(key) & 255L AS int)"
#: SQL expression: the hash of a pair of key and value.
_HASH = "xxhash64(key, value)"
#: SQL condition that is true for a row of ``type_rows`` whose value could not be read.
_UNREADABLE = "why IS NOT NULL"
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Prints:
    """Fingerprints by store partition: of the keys with their values (``pairs``), and of the typed columns (``typed``).

    ``typed`` is empty if the table has no typed columns, or if their fingerprints are unknown.
    """

    pairs: Mapping[int, Fingerprint]
    typed: Mapping[int, Fingerprint] = field(default_factory=dict)


def typed_hash(schema: StoreSchema | None) -> str | None:
    """SQL expression for the hash of a row's key and typed columns; None for a schema without columns.

    A column that is null adds nothing to the hash, so a new column that is null in all rows changes no hash.
    """
    if schema is None or not schema.columns:
        return None
    parts = []
    for column in schema.columns:
        name = tick(column.name)
        parts.append(f"if({name} IS NULL, NULL, {zlib.crc32(column.name.encode())}L)")
        parts.append(_without_maps(name, plain(column.type)))
    return f"xxhash64(key, {', '.join(parts)})"


def _without_maps(value: str, kind: ColumnType, depth: int = 0) -> str:
    """SQL expression: the value with each map replaced by the list of its entries, because Spark cannot hash maps."""
    if "map<" not in kind.sql:
        return value
    each = f"e{depth}"
    match kind:
        case Items(element):
            return f"transform({value}, {each} -> {_without_maps(each, element, depth + 1)})"
        case Entries(inner):
            entry = f"struct({each}.key, {_without_maps(f'{each}.value', inner, depth + 1)} AS value)"
            return f"transform(map_entries({value}), {each} -> {entry})"
        case Record(members):
            fields = (
                f"{_without_maps(f'{value}.{tick(member.name)}', member.type, depth)} AS {tick(member.name)}"
                for member in members
            )
            return f"if({value} IS NULL, NULL, struct({', '.join(fields)}))"
    return value


def prints_of(rows: DataFrame, typed: str | None = None) -> Prints:
    """Returns the fingerprints of rows that have values. ``typed`` is the result of ``typed_hash``.

    One scan computes the fingerprints of key-value pairs and of typed columns.
    """
    columns = [] if typed is None else [f"{typed} AS typed"]
    sums = [*_sums("hash"), *([] if typed is None else _sums("typed"))]
    found = _hashed(rows, *columns).groupBy("store_partition").agg(*sums).collect()
    return _prints(found, "hash", typed and "typed")


def typed_prints(rows: DataFrame, typed: str) -> tuple[dict[int, Fingerprint], dict[int, int]]:
    """Two mappings, from the rows of ``type_rows``: store partition to fingerprint, and to number of unreadable values.

    The fingerprints cover the typed columns. One scan computes both mappings. Partitions without unreadable values are
    absent from the second mapping.
    """
    sums = (*_sums("typed"), F.expr(f"count_if({_UNREADABLE})").alias("strange"))
    found = _hashed(rows, f"{typed} AS typed", "why").groupBy("store_partition").agg(*sums).collect()
    return {row["store_partition"]: _fingerprint(row, "typed") for row in found}, _strange(found)


def prints_after(known: Prints, before: DataFrame, changed: DataFrame, live: str, typed: str | None = None) -> Prints:
    """The fingerprints after a merge, computed from the fingerprints ``known`` before it.

    The hashes of replaced rows are subtracted, and the hashes of merged rows are added. ``before`` has the rows before
    the merge, and ``changed`` the newest row of each changed key. ``live`` is an SQL condition that is true if a row of
    ``changed`` has a value, so is no deletion. If ``typed`` (the result of ``typed_hash``) is given, both frames must
    have the typed columns.
    """
    return _after(known, replacing_sums(changed, live, before, typed).collect(), typed)


def typed_prints_after(
    known: Prints, before: DataFrame, changed: DataFrame, live: str, typed: str
) -> tuple[Prints, dict[int, int]]:
    """The fingerprints after a merge, and a mapping from store partition to number of unreadable values.

    One scan computes both. ``known`` has the fingerprints before the merge, and ``before`` the rows before the merge.
    ``changed`` has the newest row of each changed key, with the column ``why`` of ``type_rows``. ``live`` is an SQL
    condition that is true if a row of ``changed`` has a value, so is no deletion.
    """
    rows = replacing_sums(changed, live, before, typed).collect()
    return _after(known, rows, typed), _strange(rows)


def _after(known: Prints, rows: Sequence[Any], typed: str | None) -> Prints:
    old, new = _prints(rows, "old", typed and "typed_old"), _prints(rows, "new", typed and "typed_new")
    return Prints(_replaced(known.pairs, old.pairs, new.pairs), _replaced(known.typed, old.typed, new.typed))


def _strange(rows: Sequence[Any]) -> dict[int, int]:
    return {row["store_partition"]: row["strange"] for row in rows if row["strange"]}


def _replaced(
    known: Mapping[int, Fingerprint], old: Mapping[int, Fingerprint], new: Mapping[int, Fingerprint]
) -> dict[int, Fingerprint]:
    after = dict(known)
    for number in known.keys() & old.keys():
        whole, gone = known[number], old[number]
        rest = Fingerprint(whole.count - gone.count, whole.xor ^ gone.xor, (whole.total - gone.total) & _MASK)
        after[number] = rest + new[number]
    return after


def replacing_sums(changed: DataFrame, live: str, before: DataFrame, typed: str | None = None) -> DataFrame:
    """For each changed partition, one row with two sums of hashes: over the replaced rows and over the changed rows.

    One join computes both sums.

    Args:
        changed: The newest row of each changed key: store_partition, key, value, and the columns that ``live`` uses.
        live: SQL condition that is true if a row of ``changed`` has a value, so is no deletion.
        before: The rows before the changes, each key once: store_partition, key, value.
        typed: SQL: the hash of a row's typed columns. If given, both frames must have these columns.

    If ``changed`` has the column ``why``, the result has the column ``strange`` with the number of unreadable values.
    """
    named = {"": _HASH} if typed is None else {"": _HASH, "typed_": typed}
    hashes = [f"if({live}, {each}, NULL) AS {name}new" for name, each in named.items()]
    judged = [f"{_UNREADABLE} AS unreadable"] if "why" in changed.columns else []
    new = changed.selectExpr("store_partition", "key", *hashes, *judged)
    old = before.selectExpr("store_partition", "key", *(f"{each} AS {name}old" for name, each in named.items()))
    both = new.join(old, ["store_partition", "key"], "left").groupBy("store_partition")
    strange = [F.expr("count_if(unreadable)").alias("strange")] if judged else []
    return both.agg(*(each for name in named for side in ("old", "new") for each in _sums(f"{name}{side}")), *strange)


def _prints(rows: Any, pairs: str, typed: str | None) -> Prints:
    found = ({row["store_partition"]: _fingerprint(row, name) for row in rows} for name in (pairs, typed) if name)
    return Prints(*found)


def fingerprint_buckets(pairs: DataFrame) -> dict[int, BucketPrints]:
    """Maps each partition to the fingerprints (hashes) of its 256 buckets of key-value pairs.

    Empty partitions are absent. Spark tasks exchange only sums, at most 256 rows for each partition and task.
    """
    from holdfast.processors.engine.state.buckets import BucketPrints

    found: dict[int, BucketPrints] = {}
    for row in bucket_sums(pairs).collect():
        found.setdefault(row["store_partition"], BucketPrints()).put(row["bucket"], _fingerprint(row, "hash"))
    return found


def bucket_sums(pairs: DataFrame) -> DataFrame:
    """The sums of hashes for each partition and each of its 256 buckets; empty buckets are left out."""
    return _hashed(pairs, f"{BUCKET} AS bucket").groupBy("store_partition", "bucket").agg(*_sums("hash"))


def differing_partitions(one: Mapping[int, Fingerprint], other: Mapping[int, Fingerprint]) -> list[int]:
    """The partitions whose fingerprints (hashes of all rows) differ in the two mappings, sorted.

    A partition that is absent from a mapping counts as empty.
    """
    empty = Fingerprint()
    return [number for number in sorted({*one, *other}) if one.get(number, empty) != other.get(number, empty)]


def _hashed(pairs: DataFrame, *columns: str) -> DataFrame:
    return pairs.selectExpr("store_partition", f"{_HASH} AS hash", *columns)


def _sums(name: str) -> list[Column]:
    """SQL sums over a column of hashes, from which its fingerprint is made; null hashes are ignored.

    The lower and the upper 32 bits are summed separately, because a sum of 64-bit numbers overflows under ANSI rules.
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
