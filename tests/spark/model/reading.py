"""Reads the tables of a modelled store by pyiceberg, independently of the product.

Each version is read once, unless files may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import NoSuchTableError

from holdfast.processors.snapshots.manifest import MANIFEST_PROPERTY, SnapshotManifest

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """The versions (Iceberg snapshots), tags and branches of a table."""

    name: str
    head: int | None
    #: For each version: its parent, the time of its commit by the machine's clock, and its summary.
    versions: dict[int, tuple[int | None, float, dict[str, str]]]
    tags: dict[str, int]
    branches: dict[str, int]

    def manifest(self, version: int) -> SnapshotManifest | None:
        """Return the manifest of a version (Iceberg snapshot); None if the version is no Holdfast snapshot."""
        text = self.versions[version][2].get(MANIFEST_PROPERTY)
        return None if text is None else SnapshotManifest.decode(text)

    def published(self) -> tuple[int, SnapshotManifest] | None:
        """The newest version of the branch main that is a Holdfast snapshot, with its manifest."""
        at = self.head
        while at is not None and at in self.versions:
            manifest = self.manifest(at)
            if manifest is not None:
                return at, manifest
            at = self.versions[at][0]
        return None


class Tables:
    """The tables of one life (sequence of actions on a store), with a cache of the rows of each table version."""

    def __init__(self, catalog: Any, namespace: str) -> None:
        self._catalog, self._namespace = catalog, namespace
        self._rows: dict[tuple[str, int], list[Row]] = {}

    def forget(self) -> None:
        """Clear the cache, because files may have been deleted."""
        self._rows.clear()

    def seen(self, name: str) -> Seen | None:
        """Return the versions, tags and branches of a table, or None if the table does not exist."""
        try:
            metadata = self._load(name).metadata
        except NoSuchTableError:
            return None
        found = {
            each.snapshot_id: (
                each.parent_snapshot_id,
                each.timestamp_ms / 1000,
                dict(each.summary.additional_properties) if each.summary else {},
            )
            for each in metadata.snapshots
        }
        kinds: dict[str, dict[str, int]] = {"tag": {}, "branch": {}}
        for reference, each in metadata.refs.items():
            kinds[each.snapshot_ref_type.value][reference] = each.snapshot_id
        return Seen(name, metadata.current_snapshot_id, found, kinds["tag"], kinds["branch"])

    def rows(self, name: str, version: int | None) -> list[Row]:
        """All rows of a version (Iceberg snapshot), with the columns that the version had."""
        if version is None:
            return []
        if (name, version) not in self._rows:
            scan = self._load(name).scan(snapshot_id=version)
            self._rows[name, version] = scan.to_arrow().to_pylist()
        return self._rows[name, version]

    def main(self, name: str) -> list[Row]:
        """Return all rows of the branch main with the table's current columns, as a reader gets them."""
        return self._load(name).scan().to_arrow().to_pylist()  # type: ignore[no-any-return]

    def _load(self, name: str) -> Any:
        return self._catalog.load_table((self._namespace, name))
