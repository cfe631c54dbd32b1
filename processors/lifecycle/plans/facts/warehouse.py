"""Data classes about tables of the warehouse, and the protocol for reading them.

A version is an Iceberg snapshot of a table.

Invariants:
    - A table or version that cannot be used has a ``problem``. It is never left out, because the refusal of a plan must
      name the problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.processors.snapshots.manifest import SnapshotManifest

#: Keys and values of changelog records: two lists of equal length.
Rows = tuple[list[bytes], list[bytes]]
#: The state key under which a row of a table is stored; functions read it with ``state.get("row")``.
ROW = "row"


class StoreVersion(msgspec.Struct, frozen=True):
    """One version of a store's table.

    If Holdfast did not publish the version as a snapshot, ``manifest`` is None and ``problem`` has the reason.
    """

    version: int
    tags: tuple[str, ...] = ()
    current: bool = False
    written_at: float = 0.0
    size_bytes: int | None = None
    manifest: SnapshotManifest | None = None
    problem: str = ""

    def answers(self, at: str) -> bool:
        """Whether the user's text ``at`` is one of this version's tags, its Holdfast snapshot id, or its number."""
        return at in self.tags or at == str(self.version) or (self.manifest is not None and self.is_snapshot(at))

    def is_snapshot(self, at: str) -> bool:
        """Whether this version is the Holdfast snapshot with the id ``at``."""
        return self.manifest is not None and self.manifest.snapshot_id == at


class StoreTable(msgspec.Struct, frozen=True):
    """A store's table with its versions, newest first; ``problem`` and ``action`` are set if it is unreadable."""

    table: str
    versions: tuple[StoreVersion, ...] = ()
    problem: str = ""
    action: str = ""


class OtherTable(msgspec.Struct, frozen=True):
    """The present version of any table of the catalog; a program other than Holdfast may have written it.

    Args:
        table: Name of the table.
        version: The table's current version; None if the table was never written.
        columns: Column -> type.
        rows: Number of rows; None if the catalog does not record it.
        size_bytes: Bytes of the table's files.
        written_at: When the version was written, seconds since 1970.
        problem: The reason why the table cannot be read; empty if it can.
        action: The action that solves the problem.
    """

    table: str
    version: int | None = None
    columns: dict[str, str] = {}
    rows: int | None = None
    size_bytes: int | None = None
    written_at: float = 0.0
    problem: str = ""
    action: str = ""


class Tables(Protocol):
    """Reads the warehouse; changes nothing."""

    def store_table(self, processor: str, store: str) -> StoreTable:
        """The table of a store, with its snapshots."""

    def other_table(self, name: str) -> OtherTable:
        """The facts of a table, whose name is ``namespace.table``."""

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[Rows]:
        """Keys and values of one changelog partition in a table version, in batches.

        Raises:
            HoldfastError: The table cannot be read.
        """

    def other_rows(self, name: str, version: int, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """Rows of a table, in batches.

        Raises:
            HoldfastError: The table cannot be read.
        """
