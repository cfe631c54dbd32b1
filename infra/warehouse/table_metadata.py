"""The content of a table's or a view's newest metadata file, read without a JVM and without a query.

Invariants:
    - Nothing is kept between two calls: each reads the catalog's row and the file that it names.
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

#: The branch that readers see.
MAIN = "main"
_Kind = TypeVar("_Kind")


class Snapshot(msgspec.Struct, frozen=True, rename="kebab"):
    """One version of a table. The summary holds its operation, too."""

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    summary: Mapping[str, str] = {}


class Reference(msgspec.Struct, frozen=True, rename="kebab"):
    """A branch or a tag, with its version."""

    snapshot_id: int
    type: str


class Logged(msgspec.Struct, frozen=True, rename="kebab"):
    """A version that the main branch was at."""

    snapshot_id: int


class TableMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """The parts of a table's metadata that Holdfast reads."""

    snapshots: tuple[Snapshot, ...] = ()
    refs: Mapping[str, Reference] = {}
    properties: Mapping[str, str] = {}
    snapshot_log: tuple[Logged, ...] = ()
    current_snapshot_id: int | None = None

    @property
    def references(self) -> dict[str, Reference]:
        """Branches and tags; a writer of the first format names no branch, and has main alone."""
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
    """The metadata of the tables and views of one catalog.

    Names are ``namespace.table``. Every method raises CatalogUnavailable or CatalogUnusable when the catalog's database
    can't be used, and StorageUnavailable when the metadata file can't be read.

    Args:
        properties: The properties of a Spark session, such as ``spark.sql.catalog.holdfast.uri``.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.pointers = CatalogPointers(properties.get)
        self._files = PyArrowFileIO(files_of_session(properties))

    def table(self, name: str) -> TableMetadata:
        """The metadata of a table.

        Raises:
            TableUnknown: The catalog has no such table.
        """
        found = self._read(name, TableMetadata)
        if found is None:
            raise no_table(name)
        return found

    def view_queries(self, name: str) -> frozenset[str]:
        """The query of a view's present version, in each of its dialects; empty when the view does not exist."""
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
