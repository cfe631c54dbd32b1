"""What the lifecycle needs of the warehouse: the snapshots that stores have there, other tables, and their rows.

Invariants:
    - What can't be used says why; it is never left out, so that a refusal can name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.processors.snapshots.manifest import SnapshotManifest

#: Keys and values of a changelog, in one order.
Rows = tuple[list[bytes], list[bytes]]
#: The state key of a row that comes from a table; functions read it as ``state.get("row")``.
ROW = "row"


class StoreVersion(msgspec.Struct, frozen=True):
    """One version of a store's table; ``manifest`` None where it is no snapshot of ours, ``problem`` then says why."""

    version: int
    tags: tuple[str, ...] = ()
    current: bool = False
    written_at: float = 0.0
    size_bytes: int | None = None
    manifest: SnapshotManifest | None = None
    problem: str = ""

    def answers(self, at: str) -> bool:
        """Whether this is what ``at`` names: a tag, the id of a snapshot, or the version's own number."""
        return at in self.tags or at == str(self.version) or (self.manifest is not None and self.is_snapshot(at))

    def is_snapshot(self, at: str) -> bool:
        """Whether it is the snapshot of this id."""
        return self.manifest is not None and self.manifest.snapshot_id == at


class StoreTable(msgspec.Struct, frozen=True):
    """A store's table, versions newest first; ``problem`` and ``action`` where it can't be read."""

    table: str
    versions: tuple[StoreVersion, ...] = ()
    problem: str = ""
    action: str = ""


class OtherTable(msgspec.Struct, frozen=True):
    """Any table of the catalog, as it is now.

    Args:
        table: Its name.
        version: Its current version; None when nothing was ever written.
        columns: With their types.
        rows: How many; None where it does not say.
        size_bytes: Of its files.
        written_at: When the version was written, seconds since 1970.
        problem: Why it can't be read; empty when it can.
        action: What to do about that.
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
        ...

    def other_table(self, name: str) -> OtherTable:
        """A table by its name, ``namespace.table``."""
        ...

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[Rows]:
        """What a version holds of one changelog partition, in batches.

        Raises:
            HoldfastError: It can't be read.
        """
        ...

    def other_rows(self, name: str, version: int, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """Rows of a table, in batches.

        Raises:
            HoldfastError: It can't be read.
        """
        ...


class NoTables:
    """A machine without a warehouse."""

    def store_table(self, processor: str, store: str) -> StoreTable:
        """See ``Tables``."""
        return StoreTable(
            f"{processor}.{store}", problem="There is no warehouse here.", action="Take a snapshot first."
        )

    def other_table(self, name: str) -> OtherTable:
        """See ``Tables``."""
        return OtherTable(name, problem="There is no warehouse here.", action="Write the table first.")

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[Rows]:
        """See ``Tables``."""
        return iter(())

    def other_rows(self, name: str, version: int, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        """See ``Tables``."""
        return iter(())
