"""Reads facts about tables from the warehouse of this installation. Implements ``warehouse_facts.Tables``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.plans.facts.warehouse import OtherTable, Rows, StoreTable, StoreVersion
from holdfast.processors.snapshots.manifest import MANIFEST_PROPERTY, SnapshotManifest
from holdfast.processors.snapshots.names import CATALOG, table_name

if TYPE_CHECKING:
    from holdfast.infra.warehouse.stored_tables import StoredTables, TableVersion


class WarehouseTables:
    """Reads tables of the Iceberg catalog. Implements ``warehouse_facts.Tables``, which describes the methods.

    Args:
        opens: Function that opens the catalog; called at the first read, because the import of the table library is
            slow.
    """

    def __init__(self, opens: Callable[[], StoredTables]) -> None:
        self._opens = opens
        self._opened: StoredTables | None = None

    @property
    def _stored(self) -> StoredTables:
        if self._opened is None:
            self._opened = self._opens()
        return self._opened

    def store_table(self, processor: str, store: str) -> StoreTable:
        table = table_name(processor, store)
        try:
            versions = self._stored.versions(*_place(table))
        except HoldfastError as failure:
            return StoreTable(table, problem=failure.message, action=failure.action)
        return StoreTable(table, tuple(store_version(each) for each in versions))

    def other_table(self, name: str) -> OtherTable:
        try:
            place = _place(name)
            versions = self._stored.versions(*place)
            columns = self._stored.columns(*place)
        except HoldfastError as failure:
            return OtherTable(name, problem=failure.message, action=failure.action)
        now = next((each for each in versions if each.current), None)
        if now is None:
            return OtherTable(name, columns=columns)
        rows = now.summary.get("total-records", "")
        count = int(rows) if rows.isdecimal() else None
        return OtherTable(name, now.version, columns, count, now.size_bytes, now.written_at)

    def store_rows(self, table: str, version: int, partition: int) -> Iterator[Rows]:
        for batch in self._stored.read(_place(table), version, ("key", "value"), {"store_partition": partition}):
            yield batch.column("key").to_pylist(), batch.column("value").to_pylist()

    def other_rows(self, name: str, version: int, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        for batch in self._stored.read(_place(name), version, columns):
            yield batch.to_pylist()


def store_version(version: TableVersion) -> StoreVersion:
    """Converts an Iceberg snapshot of a store's table to a ``StoreVersion``, with the manifest from its summary."""
    manifest, problem = None, ""
    raw = version.summary.get(MANIFEST_PROPERTY)
    if raw is None:
        problem = "it has no manifest, so another program than a snapshot wrote it"
    else:
        try:
            manifest = SnapshotManifest.decode(raw)
        except HoldfastError as failure:
            problem = failure.message
    return StoreVersion(
        version.version, version.tags, version.current, version.written_at, version.size_bytes, manifest, problem
    )


def _place(table: str) -> tuple[str, str]:
    """Splits a table name, with or without the catalog's prefix, into namespace and table."""
    words = table.split(".")
    if len(words) == 3 and words[0] == CATALOG:
        words = words[1:]
    if len(words) != 2 or not all(words):
        raise HoldfastError(
            f"{table!r} is not a table name.",
            action=f"Use `namespace.table` or `{CATALOG}.namespace.table`.",
            table=table,
        )
    return words[0], words[1]
