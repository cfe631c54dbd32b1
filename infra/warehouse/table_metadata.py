"""Reads the newest metadata file of a table or view directly, without a JVM and without a query.

Invariants:
    - There is no cache: each call reads the catalog's row, and then the metadata file that the row names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from pyiceberg.io.pyarrow import PyArrowFileIO

from holdfast.infra.warehouse.errors import StorageUnavailable, no_table
from holdfast.infra.warehouse.pointers import CatalogPointers
from holdfast.infra.warehouse.properties import files_of_session
from holdfast.infra.warehouse.table_files import metadata_file, unreachable

#: Name of the branch that readers see by default.
MAIN = "main"
_Kind = TypeVar("_Kind")


class Snapshot(msgspec.Struct, frozen=True, rename="kebab"):
    """One version of a table (Iceberg snapshot). ``summary`` includes Iceberg's ``operation``."""

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    summary: Mapping[str, str] = {}


class Reference(msgspec.Struct, frozen=True, rename="kebab"):
    """A branch or a tag (``type``), and the id of its version."""

    snapshot_id: int
    type: str


class Logged(msgspec.Struct, frozen=True, rename="kebab"):
    """An entry of Iceberg's snapshot log: an Iceberg snapshot that was once the current one of the branch main."""

    snapshot_id: int


class TableMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """The fields of an Iceberg table's metadata that Holdfast needs; all others are ignored."""

    snapshots: tuple[Snapshot, ...] = ()
    refs: Mapping[str, Reference] = {}
    properties: Mapping[str, str] = {}
    snapshot_log: tuple[Logged, ...] = ()
    current_snapshot_id: int | None = None

    @property
    def references(self) -> dict[str, Reference]:
        """Name -> branch or tag. Adds ``main`` if it is missing, because Iceberg's format 1 does not list it."""
        known = any(each.snapshot_id == self.current_snapshot_id for each in self.snapshots)
        if MAIN in self.refs or not known or self.current_snapshot_id is None:
            return dict(self.refs)
        return {**self.refs, MAIN: Reference(self.current_snapshot_id, "branch")}


class _Representation(msgspec.Struct, frozen=True):
    sql: str = ""


class _ViewVersion(msgspec.Struct, frozen=True, rename="kebab"):
    version_id: int
    representations: tuple[_Representation, ...] = ()


class _ViewMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    current_version_id: int
    versions: tuple[_ViewVersion, ...] = ()


class MetadataReader:
    """Reads the metadata of tables and views in one catalog.

    Names are ``namespace.table``. Every method raises CatalogUnavailable or CatalogUnusable if the catalog's database
    can't be used, and StorageUnavailable if the metadata file can't be read.

    Args:
        properties: The properties of a Spark session, such as ``spark.sql.catalog.holdfast.uri``.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.pointers = CatalogPointers(properties.get)
        self._files = PyArrowFileIO(files_of_session(properties))

    def table(self, name: str) -> TableMetadata:
        """The metadata of the table in its present version.

        Raises:
            TableUnknown: The catalog lacks the table.
        """
        found = self._read(name, TableMetadata)
        if found is None:
            raise no_table(name)
        return found

    def view_queries(self, name: str) -> frozenset[str]:
        """The SQL texts of a view's present version, one for each SQL dialect; empty if the view does not exist."""
        found = self._read(name, _ViewMetadata)
        present = () if found is None else (x for x in found.versions if x.version_id == found.current_version_id)
        return frozenset(each.sql for version in present for each in version.representations)

    def _read(self, name: str, kind: type[_Kind]) -> _Kind | None:
        location = self.pointers.find(name)
        if location is None:
            return None
        try:
            return msgspec.json.decode(metadata_file(self._files, location), type=kind)
        except OSError as failure:
            raise unreachable(location, "read", failure) from failure
        except (msgspec.DecodeError, msgspec.ValidationError, EOFError) as failure:
            raise StorageUnavailable(
                f"The metadata {location} of {name} can't be read: {failure}.",
                action="Put the file back from a backup, or register an older metadata file of the table.",
                location=location,
            ) from failure
