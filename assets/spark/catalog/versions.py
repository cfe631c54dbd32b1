"""Reads the versions of a table with their manifests, and changes the table's branches and tags.

In this module, a *version* is an Iceberg snapshot of the table. A *snapshot* is Holdfast's snapshot of a store: it is a
version whose summary has the snapshot's manifest (JSON description).

Invariants:
    - Only ``fast_forward`` moves the branch main. ``fast_forward`` fails if another run has moved main since the branch
      was created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from holdfast.assets.spark.catalog.metadata import metadata_of
from holdfast.infra.errors import HoldfastError
from holdfast.infra.spark.session import CATALOG
from holdfast.infra.warehouse import table_metadata
from holdfast.processors.snapshots.coverage import with_ends
from holdfast.processors.snapshots.manifest import ID_PROPERTY, MANIFEST_PROPERTY, SnapshotManifest
from holdfast.processors.snapshots.names import SNAPSHOT_TAG, new_branch_name, procedure_name, quoted, snapshot_tag

#: The name of the branch that readers see.
MAIN = table_metadata.MAIN
_MOVED = ("not an ancestor", "does not exist", "Branch does not", "unknown branch", "CommitFailed", "has changed")


class TableMoved(HoldfastError):
    """Another run published to the table at the same time; this run published nothing."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version (Iceberg snapshot) of a table that is a Holdfast snapshot.

    ``version`` is its Iceberg snapshot id. ``manifest`` is the JSON description of the Holdfast snapshot.
    ``committed_at`` is in seconds since 1970.
    """

    version: int
    manifest: SnapshotManifest
    committed_at: float


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions (Iceberg snapshots), branches and tags of a table, all read from the same metadata file.

    Maintenance expires versions without a tag, so the chain of a branch's versions may be incomplete. For this reason,
    Holdfast snapshots are also searched by their tags.
    """

    summaries: Mapping[int, Mapping[str, str]]
    parents: Mapping[int, int | None]
    committed: Mapping[int, float]
    refs: Mapping[str, tuple[str, int]]

    @staticmethod
    def of(spark: SparkSession, table: str) -> Versions:
        """Reads the versions (Iceberg snapshots) of an existing table from its present metadata."""
        found = metadata_of(spark, table)
        return Versions(
            {each.snapshot_id: each.summary for each in found.snapshots},
            {each.snapshot_id: each.parent_snapshot_id for each in found.snapshots},
            {each.snapshot_id: each.timestamp_ms / 1000 for each in found.snapshots},
            {name: (each.type.upper(), each.snapshot_id) for name, each in found.references.items()},
        )

    def ancestors(self, ref: str = MAIN) -> Iterator[int]:
        """The Iceberg snapshot ids of a branch's versions, newest first.

        The oldest versions may be missing, because maintenance expires versions.
        """
        at: int | None = self.refs[ref][1] if ref in self.refs else None
        while at is not None and at in self.summaries:
            yield at
            at = self.parents[at]

    def rows(self, version: int | None = None) -> int:
        """The number of rows in a version (Iceberg snapshot); by default, in main's newest version."""
        at = next(self.ancestors(), None) if version is None else version
        return 0 if at is None else int(self.summaries[at].get("total-records", 0))

    def published(self) -> Iterator[Version]:
        """The versions (Iceberg snapshots) of main that are Holdfast snapshots, newest first.

        Each manifest has ``latest_at``, a time after which none of the Holdfast snapshot's checkpoints was taken.
        Versions that were built from the history table are left out.
        """
        line = list(self.ancestors())
        found = list(filter(None, map(self._version, line)))
        if line and self.parents[line[-1]] is not None:
            tagged = {at for name, (kind, at) in self.refs.items() if kind == "TAG" and name.startswith(SNAPSHOT_TAG)}
            older = (at for at in tagged if at in self.committed and self.committed[at] < self.committed[line[-1]])
            known = filter(None, map(self._version, sorted(older, key=self.committed.__getitem__, reverse=True)))
            found += [each for each in known if not each.manifest.from_history]
        ended = with_ends((each.manifest, each.committed_at) for each in found)
        return (replace(each, manifest=manifest) for each, manifest in zip(found, ended, strict=True))

    def snapshot(self, snapshot_id: str, ref: str = MAIN) -> Version | None:
        """The version (Iceberg snapshot) of a branch that is the Holdfast snapshot ``snapshot_id``; None if none is.

        For the branch main, tags are searched, too.
        """
        named = (at for at in self.ancestors(ref) if self.summaries[at].get(ID_PROPERTY) == snapshot_id)
        found = next(filter(None, map(self._version, named)), None)
        return self.tagged(snapshot_tag(snapshot_id)) if found is None and ref == MAIN else found

    def tagged(self, tag: str) -> Version | None:
        """The version with this tag; None if the tag does not exist, or if its version is no Holdfast snapshot."""
        kind, version = self.refs.get(tag, ("", 0))
        return self._version(version) if kind == "TAG" else None

    def _version(self, version: int) -> Version | None:
        text = self.summaries.get(version, {}).get(MANIFEST_PROPERTY)
        return None if text is None else Version(version, SnapshotManifest.decode(text), self.committed[version])

    def branches(self, prefix: str) -> list[str]:
        """The branches of the table whose names start with ``prefix``."""
        return [name for name, (kind, _) in self.refs.items() if kind == "BRANCH" and name.startswith(prefix)]


def branches_of(spark: SparkSession, table: str, prefix: str) -> list[str]:
    """The branches of a table whose names start with ``prefix``."""
    return Versions.of(spark, table).branches(prefix)


def new_branch(spark: SparkSession, table: str, snapshot_id: str, *, version: int | None = None) -> str:
    """Create a branch with a unique name, from main or from ``version`` (an Iceberg snapshot id); returns its name."""
    name = new_branch_name(snapshot_id, datetime.now(UTC))
    where = "" if version is None else f" AS OF VERSION {version}"
    spark.sql(f"ALTER TABLE {quoted(table)} CREATE BRANCH `{name}`{where}")
    return name


def branch_from(spark: SparkSession, table: str, snapshot_id: str, seen: Versions) -> str:
    """Create a branch with a unique name, from main's newest version (Iceberg snapshot) in ``seen``; returns its name.

    Main may have moved since ``seen`` was read. The branch does not start at main's present version. So if main has
    moved, publishing the branch fails, and the version of another run is not overwritten.

    Raises:
        TableMoved: The table had no version in ``seen``, but has one now.
    """
    head = next(seen.ancestors(), None)
    name = new_branch(spark, table, snapshot_id, version=head)
    if head is None and next(Versions.of(spark, table).ancestors(), None) is not None:
        drop_branches(spark, table, [name])
        raise moved(table)
    return name


def moved(table: str) -> TableMoved:
    """The error to raise if another run published a version (Iceberg snapshot) of the table at the same time."""
    return TableMoved(
        f"Another run published to table {table} after this one looked at it.",
        action="Run it again; it continues from the published version.",
        table=table,
    )


def branch_table(table: str, branch: str) -> str:
    """The quoted name of a branch, for SQL statements that write to the branch."""
    return f"{quoted(table)}.`branch_{branch}`"


def at_version(spark: SparkSession, table: str, ref: str | int) -> DataFrame:
    """The rows of a branch, a tag or a version (Iceberg snapshot id)."""
    shown = ref if isinstance(ref, int) else f"'{ref}'"
    return spark.sql(f"SELECT * FROM {quoted(table)} VERSION AS OF {shown}")


def fast_forward(spark: SparkSession, table: str, branch: str) -> None:
    """Publish a branch: main moves to the branch's newest version (Iceberg snapshot).

    Raises:
        TableMoved: Main has moved since the branch was created.
    """
    try:
        spark.sql(f"CALL {CATALOG}.system.fast_forward('{procedure_name(table)}', '{MAIN}', '{branch}')").collect()
    except Exception as failure:
        if not any(phrase in str(failure) for phrase in _MOVED):
            raise
        raise TableMoved(
            f"Another run published to table {table} while branch {branch} was written.",
            action="Run it again; it continues from the published version.",
            table=table,
            branch=branch,
        ) from failure


def set_tag(spark: SparkSession, table: str, tag: str, version: int) -> None:
    """Set a tag to a version (Iceberg snapshot id); an existing tag is moved."""
    spark.sql(f"ALTER TABLE {quoted(table)} CREATE OR REPLACE TAG `{tag}` AS OF VERSION {version}")


def drop_branches(spark: SparkSession, table: str, names: Iterable[str]) -> None:
    """Delete these branches of a table if they exist."""
    for name in names:
        spark.sql(f"ALTER TABLE {quoted(table)} DROP BRANCH IF EXISTS `{name}`")
