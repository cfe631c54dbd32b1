"""Erases a key in the tables of a store: in the history, in the quarantine, and in every version that has the key.

    history, quarantine: rows deleted ──┐
    current table        ───────────────┴─► files rewritten ─► tags, versions with the key expire ─► files read again

    A deletion only hides rows: deletion vectors and older versions keep the files. So files are rewritten, and every
    version that has a file with the key expires.

In this module, a *version* is an Iceberg snapshot of a table. The current table needs no deletion, because a snapshot
of the state after the deletes is published before.

Invariants:
    - The newest version keeps the properties of Holdfast's snapshot, so the next snapshot continues from it.
    - Versions and tags whose files do not have the key stay. The table of a past time that is gone can be built again
      from the history.
    - "Gone" is what storage says: all Parquet files in the table's folder are read, also those of no version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from holdfast.assets.spark.catalog.metadata import exists
from holdfast.assets.spark.catalog.versions import MAIN, Versions, set_tag
from holdfast.assets.spark.history import BASE, BASE_DELETE, history_head, reaching_version, tag_newest_changes
from holdfast.infra.spark.session import short_errors
from holdfast.processors.engine.state.time.time_records import OWN
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.finding import not_yet
from holdfast.processors.snapshots.names import CATALOG, history_name, procedure_name, quoted, table_name, tables_of

#: Maximum number of keys in one DELETE statement.
KEYS_AT_ONCE = 500

#: Function of a table's name that reads all Parquet files in its folder, and returns the names of those with the key.
FilesWithKey = Callable[[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class TablesErased:
    """What was removed from the tables of a store: rows, tags, versions (Iceberg snapshots), and files with the key."""

    tables: int
    rows: int = 0
    tags: int = 0
    versions: int = 0
    files: int = 0


def erase_in_tables(
    spark: SparkSession,
    processor: str,
    store: str,
    entries: KeyEntries,
    ends: Mapping[int, int],
    with_key: FilesWithKey,
) -> TablesErased:
    """Erase a key in all tables of a store; changes after the offsets ``ends`` (of the deletes) stay.

    Raises:
        NotYetGone: A file in storage still has the key.
        SparkFailed: A step failed; the call can be repeated.
    """
    names = [name for name in tables_of(processor, store) if exists(spark, name)]
    began, rows, tags, versions, files = time.time(), 0, 0, 0, 0
    for name in names:
        with short_errors(f"erase a key in {name}"):
            rows += _delete_rows(spark, name, processor, store, entries, ends)
            bad = with_key(name)
            if not bad and not rows:
                continue
            _rewrite(spark, name)
            _seal(spark, name, is_history=name == history_name(processor, store))
            tags += _drop_references(spark, name, bad)
            versions += _expire(spark, name, bad, began)
            files += len(bad)
    for name in names:
        if left := with_key(name):
            raise not_yet(
                name,
                f"{len(left)} files of {name} still have the key: {', '.join(sorted(left)[:3])}",
                "A snapshot that runs may have written them: wait for its end. A killed one leaves files, which "
                "maintenance deletes after 24 hours.",
            )
    return TablesErased(len(names), rows, tags, versions, files)


def newest_ends(spark: SparkSession, processor: str, store: str) -> Mapping[int, int] | None:
    """Partition -> changelog offset of the newest published snapshot of a store; None without one."""
    table = table_name(processor, store)
    newest = next(Versions.of(spark, table).published(), None) if exists(spark, table) else None
    return None if newest is None else newest.manifest.ends


def key_ranges(entries: KeyEntries) -> list[tuple[bytes, bytes]]:
    """The ranges of changelog keys, as (first, end), that can belong to the key: its own, and those of indexes."""
    return [(head, after_prefix(head)) for head in (entries.head, OWN)]


def after_prefix(prefix: bytes) -> bytes:
    """The first bytes after all those that begin with ``prefix``."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def _delete_rows(
    spark: SparkSession, name: str, processor: str, store: str, entries: KeyEntries, ends: Mapping[int, int]
) -> int:
    """Delete the key's rows of history and quarantine; returns their number."""
    if name == table_name(processor, store):
        return 0
    if name == history_name(processor, store):
        head = history_head(Versions.of(spark, name), name)
        before = _before(ends, 0 if head is None else head.generation)
    else:
        before = "true"
    first, last = (f"X'{each.hex()}'" for each in key_ranges(entries)[0])
    conditions = [f"key >= {first} AND key < {last}"]
    conditions += [
        f"key IN ({', '.join(chunk)})" for chunk in _chunks(_keys_of_indexes(spark, name, entries), KEYS_AT_ONCE)
    ]
    count = 0
    for condition in conditions:
        where = f"({condition}) AND ({before})"
        found = spark.table(quoted(name)).where(where).count()
        if found:
            spark.sql(f"DELETE FROM {quoted(name)} WHERE {where}")
            count += found
    return count


def _before(ends: Mapping[int, int], generation: int) -> str:
    """SQL: whether a row of the history is from before the deletes. Rows of a full snapshot count as before."""
    later = " OR ".join(f"(store_partition = {number} AND offset >= {end})" for number, end in sorted(ends.items()))
    own = f"generation = {generation} AND op NOT IN ('{BASE}', '{BASE_DELETE}')"
    return f"NOT ({own} AND ({later or 'false'}))"


def _keys_of_indexes(spark: SparkSession, name: str, entries: KeyEntries) -> Iterator[str]:
    first, last = (f"X'{each.hex()}'" for each in key_ranges(entries)[1])
    rows = spark.table(quoted(name)).where(f"key >= {first} AND key < {last}").select("key").distinct()
    for row in rows.toLocalIterator():
        if entries.has(bytes(row["key"])):
            yield f"X'{bytes(row['key']).hex()}'"


def _chunks(texts: Iterable[str], size: int) -> Iterator[Sequence[str]]:
    chunk: list[str] = []
    for each in texts:
        chunk.append(each)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _rewrite(spark: SparkSession, name: str) -> None:
    """Rewrite all files with deleted rows, and the manifests, whose column bounds can show the beginning of a key."""
    options = "map('min-input-files', '2', 'delete-file-threshold', '1', 'partial-progress.enabled', 'false')"
    place = procedure_name(name)
    spark.sql(f"CALL {CATALOG}.system.rewrite_data_files(table => '{place}', options => {options})").collect()
    spark.sql(f"CALL {CATALOG}.system.rewrite_manifests(table => '{place}', use_caching => false)").collect()


def _seal(spark: SparkSession, name: str, *, is_history: bool) -> None:
    """Commit a version without new rows that has the properties of the newest one that Holdfast published.

    Tags of that version then name the new one, because the former one may have files with the key.
    """
    seen = Versions.of(spark, name)
    newest = next(seen.published(), None)
    former = reaching_version(seen) if is_history else None if newest is None else newest.version
    if former is None or former not in seen.summaries or former == next(seen.ancestors(), None):
        return
    writer = spark.table(quoted(name)).where("false").writeTo(quoted(name))
    for text, value in seen.summaries[former].items():
        if text.startswith("holdfast."):
            writer = writer.option(f"snapshot-property.{text}", value)
    writer.append()
    head = next(Versions.of(spark, name).ancestors())
    for tag, (kind, at) in seen.refs.items():
        if kind == "TAG" and at == former:
            set_tag(spark, name, tag, head)
    if is_history:
        tag_newest_changes(spark, name)


def _drop_references(spark: SparkSession, name: str, bad: frozenset[str]) -> int:
    """Drop all tags and branches, except main, whose version has a file with the key; returns their number."""
    dropped = 0
    for reference, (kind, at) in Versions.of(spark, name).refs.items():
        if reference != MAIN and _has_file(spark, name, at, bad):
            spark.sql(f"ALTER TABLE {quoted(name)} DROP {kind} IF EXISTS `{reference}`")
            dropped += kind == "TAG"
    return dropped


def _expire(spark: SparkSession, name: str, bad: frozenset[str], began: float) -> int:
    """Expire the versions that have a file with the key, and those that this erasure made on its way.

    The manifests of the latter name the removed files.
    """
    seen = Versions.of(spark, name)
    named = {at for _, at in seen.refs.values()}
    old = [
        at
        for at, committed in seen.committed.items()
        if at not in named and (committed >= began or _has_file(spark, name, at, bad))
    ]
    if old:
        never = f"TIMESTAMP '{datetime.fromtimestamp(86_400, UTC):%Y-%m-%d %H:%M:%S}'"
        spark.sql(
            f"CALL {CATALOG}.system.expire_snapshots(table => '{procedure_name(name)}', older_than => {never}, "
            f"snapshot_ids => ARRAY({', '.join(map(str, old))}))"
        ).collect()
    return len(old)


def _has_file(spark: SparkSession, name: str, version: int, bad: frozenset[str]) -> bool:
    if not bad:
        return False
    rows = spark.sql(f"SELECT file_path FROM {quoted(name)}.files VERSION AS OF {version}").collect()
    return any(row["file_path"].rpartition("/")[2] in bad for row in rows)
