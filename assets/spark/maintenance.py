"""Maintains a store's tables: deletes expired tags and versions, compacts small files, and deletes orphan files.

In this module, a *snapshot* is Holdfast's snapshot of the store. An Iceberg snapshot of a table is called a *version*.

Each step can run while other programs read the current version or a version with a kept tag. An interrupted step can be
repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

import msgspec
from pyspark.sql import Row, SparkSession

from holdfast.assets.spark.catalog.metadata import exists, metadata_of
from holdfast.assets.spark.catalog.sides import forget_old
from holdfast.assets.spark.catalog.versions import Versions
from holdfast.assets.spark.history import tag_newest_changes
from holdfast.infra.settings import MaintenanceSettings
from holdfast.infra.spark.session import short_errors
from holdfast.processors.snapshots.manifest import ATTEMPT_PROPERTY, MANIFEST_PROPERTY
from holdfast.processors.snapshots.names import (
    BRANCH,
    CATALOG,
    history_name,
    procedure_name,
    quarantine_name,
    quoted,
    snapshot_of,
    snapshots_name,
    table_name,
    tables_of,
)
from holdfast.processors.snapshots.table_retention import Reference, Retention, expired_references

#: Minimum age in hours at which orphan files are deleted, because younger files may belong to a commit in progress.
LEFTOVER_HOURS_MIN = 24.0


@dataclass(frozen=True, slots=True)
class Kept:
    """The figures of the maintenance of one table; ``bytes_compacted`` is the total size of the rewritten files."""

    table: str
    tags_dropped: int = 0
    versions_expired: int = 0
    files_deleted: int = 0
    files_compacted: int = 0
    files_written: int = 0
    bytes_compacted: int = 0
    deletes_folded: int = 0
    leftovers_removed: int = 0
    quarantined_dropped: int = 0

    def numbers(self) -> dict[str, int]:
        """All figures of this table's maintenance: name of the figure -> value."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "table"}


def maintain_store(
    spark: SparkSession,
    processor: str,
    store: str,
    keep: MaintenanceSettings,
    now: datetime,
    needed: Collection[int] = (),
) -> tuple[Kept, ...]:
    """Maintain all existing tables of a store.

    Values of Holdfast snapshots whose tag is gone are deleted from the quarantine table.

    Tags of the table versions (Iceberg snapshots) in ``needed`` are kept, because an unfinished execution of a plan
    reads these versions.

    Raises:
        SparkFailed: A step failed; maintenance can run again.
    """
    done = []
    days, hours = (keep.keep_snapshots_days, keep.keep_times_days), keep.leftovers_hours
    retention = Retention(keep.keep_snapshots, *days, branch_hours=hours)
    with short_errors(f"maintain {table_name(processor, store)}"):
        names = [name for name in (*tables_of(processor, store), snapshots_name(processor)) if exists(spark, name)]
    for name in names:
        with short_errors(f"maintain {name}"):
            gone = drop_references(spark, name, retention, now, needed)
            numbers: dict[str, int] = {"tags_dropped": len(gone)}
            if name == quarantine_name(processor, store):
                numbers |= forget_quarantined(spark, name, names[0])
            if name == history_name(processor, store):
                tag_newest_changes(spark, name)
            numbers |= compact(spark, name, keep.compact_every)
            numbers |= expire_versions(spark, name, now - timedelta(hours=keep.keep_versions_hours))
            numbers |= remove_leftovers(spark, name, now - timedelta(hours=hours))
            if name == names[0]:
                forget_old(spark, name, timedelta(hours=hours), now)
            done.append(Kept(name, **numbers))
    return tuple(done)


def drop_references(
    spark: SparkSession, table: str, retention: Retention, now: datetime, needed: Collection[int] = ()
) -> tuple[str, ...]:
    """Delete expired tags and unpublished branches; returns their names."""
    seen = Versions.of(spark, table)
    found = [
        Reference(name, datetime.fromtimestamp(seen.committed[at], UTC), at, _source(seen.summaries[at]))
        for name, (_, at) in seen.refs.items()
        if at in seen.committed
    ]
    names = expired_references(found, retention, now, needed)
    for name in names:
        kind = "BRANCH" if name.startswith(BRANCH) else "TAG"
        spark.sql(f"ALTER TABLE {quoted(table)} DROP {kind} IF EXISTS `{name}`")
    return names


def _source(summary: Mapping[str, str]) -> str | None:
    """Returns the source from which the rows of a table version (Iceberg snapshot) were written: ``checkpoint``, ….

    None if the version is no Holdfast snapshot. ``summary`` is the version's Iceberg summary.
    """
    text = summary.get(MANIFEST_PROPERTY)
    try:
        return None if text is None else msgspec.json.decode(text, type=_Sourced).source
    except msgspec.DecodeError:
        return None


class _Sourced(msgspec.Struct):
    source: str | None = None


def forget_quarantined(spark: SparkSession, table: str, current: str) -> dict[str, int]:
    """Delete the quarantined values of Holdfast snapshots that have neither a tag nor a branch in the store's table.

    Values of snapshots that were never published, and of unpublished attempts at a published snapshot, are deleted too.
    Returns the number of deleted values.
    """
    seen = Versions.of(spark, current)
    refs = [(name, seen.summaries.get(at, {}).get(ATTEMPT_PROPERTY)) for name, (_, at) in seen.refs.items()]
    ids = _texts(snapshot_of(name) for name, _ in refs)
    attempts = _texts(each for named in refs for each in named)
    gone = f"snapshot_id NOT IN ({ids})" if ids else "true"
    if "attempt" in spark.table(quoted(table)).columns:
        gone = f"({gone}) OR attempt NOT IN ({attempts})" if attempts else gone
    count = spark.table(quoted(table)).where(gone).count()
    if count:
        spark.sql(f"DELETE FROM {quoted(table)} WHERE {gone}")
    return {"quarantined_dropped": count}


def _texts(words: Iterable[str | None]) -> str:
    """Returns texts as SQL literals, separated by commas."""
    return ", ".join(f"'{each}'" for each in sorted(set(filter(None, words))))


def commits_since_compaction(spark: SparkSession, table: str) -> int:
    """The number of commits to main since the last compaction; without a compaction, the number of all commits."""
    seen, line = Versions.of(spark, table), metadata_of(spark, table).snapshot_log
    published = set(seen.ancestors())
    was = [each.snapshot_id for each in reversed(line) if each.snapshot_id in published]
    names = [seen.summaries[at].get("operation") for at in was]
    return names.index("replace") if "replace" in names else len(names)


def compact(spark: SparkSession, table: str, every: int) -> dict[str, int]:
    """Rewrite small files and files with deleted rows, if at least ``every`` commits followed the last compaction."""
    if commits_since_compaction(spark, table) < every:
        return {}
    options = "map('min-input-files', '2', 'delete-file-threshold', '1', 'partial-progress.enabled', 'false')"
    row = _call(spark, "rewrite_data_files", f"table => '{procedure_name(table)}', options => {options}")
    return {
        "files_compacted": _number(row, "rewritten_data_files_count"),
        "files_written": _number(row, "added_data_files_count"),
        "bytes_compacted": _number(row, "rewritten_bytes_count"),
        "deletes_folded": _number(row, "removed_delete_files_count"),
    }


def expire_versions(spark: SparkSession, table: str, older_than: datetime) -> dict[str, int]:
    """Expire untagged versions (Iceberg snapshots) older than ``older_than``; delete files that only they used."""
    before = len(Versions.of(spark, table).summaries)
    row = _call(
        spark,
        "expire_snapshots",
        f"table => '{procedure_name(table)}', older_than => {_moment(older_than)}, retain_last => 1",
    )
    counts = [_number(row, name) for name in row.asDict() if name.startswith("deleted_")] if row is not None else []
    after = len(Versions.of(spark, table).summaries)
    return {"versions_expired": before - after, "files_deleted": sum(counts)}


def remove_leftovers(spark: SparkSession, table: str, older_than: datetime) -> dict[str, int]:
    """Delete files in the table's folder that no version (Iceberg snapshot) uses, for example files of killed runs.

    In an object store, Iceberg's S3 client lists the files by prefix, because Hadoop's S3 client is not installed.
    """
    latest = datetime.now(UTC) - timedelta(hours=LEFTOVER_HOURS_MIN)
    folder = str(spark.conf.get(f"spark.sql.catalog.{CATALOG}.warehouse", "")).startswith(("file:", "/"))
    rows = spark.sql(
        f"CALL {CATALOG}.system.remove_orphan_files(table => '{procedure_name(table)}', "
        f"older_than => {_moment(min(older_than, latest))}, prefix_listing => {'false' if folder else 'true'})"
    ).collect()
    return {"leftovers_removed": len(rows)}


def _call(spark: SparkSession, procedure: str, arguments: str) -> Row | None:
    rows = spark.sql(f"CALL {CATALOG}.system.{procedure}({arguments})").collect()
    return rows[0] if rows else None


def _number(row: Row | None, name: str) -> int:
    return int(row.asDict().get(name) or 0) if row is not None else 0


def _moment(moment: datetime) -> str:
    return f"TIMESTAMP '{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}'"
