"""Facts of the warehouse: snapshots of stores, other tables, and their rows.

Invariants:
    - A table or version that cannot be used has a ``problem``; it is never left out, so that a refusal can name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.processors.snapshots.manifest import SnapshotManifest

#: Keys and values of a changelog, in one order.
Rows = tuple[list[bytes], list[bytes]]
#: The state key of a row from a table; functions read it as ``state.get("row")``.
ROW = "row"


class StoreVersion(msgspec.Struct, frozen=True):
    """One version of a store's table; ``manifest`` is None when it is no snapshot, and ``problem`` has the reason."""

    version: int
    tags: tuple[str, ...] = ()
    current: bool = False
    written_at: float = 0.0
    size_bytes: int | None = None
    manifest: SnapshotManifest | None = None
    problem: str = ""

    def answers(self, at: str) -> bool:
        """Whether ``at`` names this version, by a tag, a snapshot's id or the version's number."""
        return at in self.tags or at == str(self.version) or (self.manifest is not None and self.is_snapshot(at))

    def is_snapshot(self, at: str) -> bool:
        """Whether this version is the snapshot with this id."""
        return self.manifest is not None and self.manifest.snapshot_id == at


class StoreTable(msgspec.Struct, frozen=True):
    """A store's table, versions newest first; ``problem`` and ``action`` when it cannot be read."""

    table: str
    versions: tuple[StoreVersion, ...] = ()
    problem: str = ""
    action: str = ""


class OtherTable(msgspec.Struct, frozen=True):
    """The present version of any table of the catalog.

    Args:
        table: Its name.
        version: The table's current version; None when it was never written.
        columns: Column -> type.
        rows: Number of rows; None when the catalog does not record it.
        size_bytes: Size of its files.
        written_at: When the version was written, seconds since 1970.
        problem: Why it cannot be read; empty when it can.
        action: What to do about the problem.
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
    """The warehouse, read only."""

    def store_table(self, processor: str, store: str) -> StoreTable:
        """The snapshots of a store."""

    def other_table(self, name: str) -> OtherTable:
        """A table by its name, ``namespace.table``."""

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[Rows]:
        """Keys and values of one changelog partition in a version, in batches.

        Raises:
            HoldfastError: It can't be read.
        """

    def other_rows(self, name: str, version: int, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """Rows of a table, in batches.

        Raises:
            HoldfastError: It can't be read.
        """
