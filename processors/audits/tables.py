"""A store's table as an audit takes it: which snapshot its content is said to be, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.infra.errors import HoldfastError
from holdfast.processors.audits.comparison import Copy, Place
from holdfast.processors.audits.copies import TableCopy
from holdfast.processors.audits.repair import Subject
from holdfast.processors.snapshots.manifest import MANIFEST_PROPERTY, SnapshotManifest
from holdfast.processors.snapshots.names import table_name

if TYPE_CHECKING:
    from holdfast.infra.paths import Paths
    from holdfast.infra.settings import Settings
    from holdfast.infra.warehouse.versions import TableVersion


class SnapshotUnknown(HoldfastError):
    """A table does not say which snapshot its content is."""


@dataclass(frozen=True, slots=True)
class Tabled:
    """A store's table: the snapshot that its content is said to be, and its partitions.

    ``untouched`` says that the version is the snapshot's own, and not one that came after it.
    """

    manifest: SnapshotManifest
    copy: Callable[[int], Copy]
    untouched: bool = True

    def place(self, partition: int) -> Place | None:
        """Where a partition of the table is in the changelog; None when it has no such partition."""
        found = [part for part in self.manifest.partitions if part.partition == partition]
        return Place(found[0].topic_id, found[0].end) if found else None


def tabled(where: Settings | Paths, processor: str, store: str, *, tag: str | None = None) -> Tabled:
    """A store's table as its readers see it now; with ``tag``, as of that snapshot.

    What is compared is the content, whoever wrote it last: the snapshot only says at which offsets it should be.

    Raises:
        TableUnknown: There is no such table or tag.
        CatalogUnavailable, CatalogUnusable: The catalog can't be used.
        SnapshotUnknown: None of the table's versions is a snapshot's.
        ManifestDamaged, FormatUnknown: What is said of the snapshot can't be read.
    """
    from holdfast.infra.warehouse.versions import table_version  # the warehouse is for runs, not for loading

    _, namespace, table = table_name(processor, store).split(".")
    version = table_version(where, namespace, table, tag=tag)
    said = version.said(MANIFEST_PROPERTY)
    if said is None:
        raise SnapshotUnknown(
            f"Table {version.name} has no snapshot in its history that says at which offsets it is.",
            action="Take a full snapshot; this version of Holdfast writes them into the table.",
            table=version.name,
        )
    manifest = SnapshotManifest.decode(said[0])
    return Tabled(manifest, lambda partition: TableCopy(_Rows(version, partition)), untouched=said[1])


def subject_of(processor: str, store: str, changelog: str) -> Subject:
    """What is audited, in the words of a repair plan."""
    asset = f"warehouse/{processor}/{store}_snapshot"
    return Subject(
        processor, store, changelog, f"Take a full snapshot: materialise {asset} with the config `source: full`"
    )


class _Rows:
    """The rows of one partition, read anew each time they are gone through."""

    def __init__(self, version: TableVersion, partition: int) -> None:
        self._version, self._partition = version, partition

    def __iter__(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        return self._version.pairs(self._partition)
