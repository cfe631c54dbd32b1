"""Reads one version of a store's snapshot table without a JVM: its properties, and its keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from holdfast.infra.paths import Paths
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import load_table, snapshot_at

#: Maximum number of rows that ``pairs`` yields at once.
ROWS_AT_ONCE = 4_096


class VersionReader:
    """Reads one version (Iceberg snapshot) of a loaded table."""

    def __init__(self, table: Table, snapshot: Snapshot) -> None:
        self._table, self._snapshot = table, snapshot
        self.name = ".".join(table.name())

    def said(self, name: str, counts: Callable[[str], bool] = lambda text: True) -> tuple[str, bool] | None:
        """The newest value of a property in the summaries of this version and its ancestors; None if no summary has it.

        Returns the value, and whether this version itself has the property. Ancestors are searched, because versions
        that maintenance or other programs wrote lack Holdfast's properties. If maintenance deleted an ancestor, older
        tagged versions are searched, too. A value from another version is used only if ``counts(value)`` is True.
        """
        line = list(ancestors_of(self._snapshot, self._table.metadata))
        first = line[-1].sequence_number or 0
        refs = {ref.snapshot_id for ref in self._table.metadata.refs.values()}
        known = [each for each in self._table.metadata.snapshots if each.snapshot_id in refs]
        older = [each for each in known if (each.sequence_number or 0) < first]
        for snapshot in (*line, *sorted(older, key=lambda each: each.sequence_number or 0, reverse=True)):
            found = None if snapshot.summary is None else snapshot.summary.additional_properties.get(name)
            own = snapshot.snapshot_id == self._snapshot.snapshot_id
            if found is not None and (own or counts(found)):
                return found, own
        return None

    def pairs(self, partition: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the keys and values of one store partition, at most ``ROWS_AT_ONCE`` rows at a time.

        A null key or value becomes empty bytes.
        """
        scan = self._table.scan(
            row_filter=f"store_partition = {partition:d}",
            selected_fields=("key", "value"),
            snapshot_id=self._snapshot.snapshot_id,
        )
        for batch in scan.to_arrow_batch_reader():
            for begin in range(0, batch.num_rows, ROWS_AT_ONCE):
                piece = batch.slice(begin, ROWS_AT_ONCE)
                yield _column(piece, "key"), _column(piece, "value")


def table_version(where: Settings | Paths, namespace: str, table: str, *, tag: str | None = None) -> VersionReader:
    """A reader for the current version of a table, or for the version with ``tag``.

    Raises:
        TableUnknown: The table or the tag does not exist, or the table has no version yet.
    """
    loaded = load_table(where, namespace, table)
    return VersionReader(loaded, snapshot_at(loaded, tag))


def _column(piece: Any, name: str) -> list[bytes]:
    column = piece.column(name)
    found: list[bytes] = column.to_pylist()
    return found if not column.null_count else [b"" if each is None else each for each in found]
