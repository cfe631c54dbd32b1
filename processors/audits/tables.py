"""Reads a store's table for an audit: the manifest of its newest snapshot, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.infra.errors import HoldfastError
from holdfast.processors.audits.comparison import Copy, Place
from holdfast.processors.audits.copies import TableCopy
from holdfast.processors.audits.repair import Subject
from holdfast.processors.engine.topology import SourceLog
from holdfast.processors.snapshots.manifest import MANIFEST_PROPERTY, SnapshotManifest
from holdfast.processors.snapshots.names import table_name

if TYPE_CHECKING:
    from holdfast.infra.paths import Paths
    from holdfast.infra.settings import Settings
    from holdfast.infra.warehouse.versions import VersionReader


class SnapshotUnknown(HoldfastError):
    """No version (Iceberg snapshot) of the table was published by Holdfast, so none has Holdfast's manifest."""


@dataclass(frozen=True, slots=True)
class Tabled:
    """A store's table: the manifest of its newest published snapshot, and a function that reads a partition.

    ``untouched`` is true if the rows are read from the table version (Iceberg snapshot) of that manifest. It is false
    if another program wrote a later version, which is then read.
    """

    manifest: SnapshotManifest
    copy: Callable[[int], Copy]
    untouched: bool = True

    def place(self, partition: int) -> Place | None:
        """The changelog's topic id, and the offset up to which the table has a partition's state.

        None if the snapshot lacks the partition.
        """
        found = [part for part in self.manifest.partitions if part.partition == partition]
        return Place(found[0].topic_id, found[0].end) if found else None


def tabled(where: Settings | Paths, processor: str, store: str, *, tag: str | None = None) -> Tabled:
    """Returns a store's table at its current version, or at the version of ``tag``.

    The rows are read from that version (Iceberg snapshot), even if another program wrote the version. The offsets come
    from the manifest of the newest published snapshot.

    Raises:
        TableUnknown: The table or the tag does not exist.
        CatalogUnavailable, CatalogUnusable: The catalog cannot be used.
        SnapshotUnknown: No version of the table was published by Holdfast.
        ManifestDamaged, FormatUnknown: The manifest cannot be read.
    """
    # imported here, because the import is slow and not needed to load definitions
    from holdfast.infra.warehouse.versions import table_version

    _, namespace, table = table_name(processor, store).split(".")
    version = table_version(where, namespace, table, tag=tag)
    said = version.said(MANIFEST_PROPERTY, lambda text: not SnapshotManifest.decode(text).from_history)
    if said is None:
        raise SnapshotUnknown(
            f"Table {version.name} has no snapshot in its history that says at which offsets it is.",
            action="Materialise the store's snapshot asset with the config `source: full`, which records the offsets.",
            table=version.name,
        )
    manifest = SnapshotManifest.decode(said[0])
    return Tabled(manifest, lambda partition: TableCopy(_Rows(version, partition)), untouched=said[1])


def subject_of(processor: str, store: str, changelog: str, log: SourceLog | None = None) -> Subject:
    """Returns the names and texts about one store that a repair plan needs.

    ``log`` is the source topic that restores a table; None for other stores.
    """
    full = f"Take a full snapshot: materialise warehouse/{processor}/{store}_snapshot with the config `source: full`"
    return Subject(processor, store, changelog, full, log)


class _Rows:
    """The keys and values of one partition; each iteration reads them again."""

    def __init__(self, version: VersionReader, partition: int) -> None:
        self._version, self._partition = version, partition

    def __iter__(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        return self._version.pairs(self._partition)
