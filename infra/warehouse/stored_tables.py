"""Reads versions of tables and their rows without a JVM. Backfill and restore fill state from these rows.

Invariants:
    - This module creates nothing, not even an absent catalog.
    - The rows of a version never change, even if newer versions are published during a read. Rows are read in batches,
      never all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, Reference
from pyiceberg.table.snapshots import ancestors_of

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import existing_catalog
from holdfast.infra.warehouse.errors import TableUnknown, no_table


class TableUnreadable(HoldfastError):
    """The table exists, but its metadata or its files can't be read. Fields: table."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table; ``version`` is Iceberg's snapshot id."""

    version: int
    tags: tuple[str, ...]
    #: Whether this is the current version, which readers get by default.
    current: bool
    #: Time of the version's commit, seconds since 1970.
    written_at: float
    #: Size of the version's data files; None if its summary lacks the size.
    size_bytes: int | None
    #: Properties that the version's writer stored in the Iceberg snapshot's summary.
    summary: Mapping[str, str]


def table_names(settings: Settings) -> tuple[str, ...]:
    """The names (``namespace.table``) of all tables in the catalog, sorted; empty if there is no catalog yet.

    Raises the errors of ``infra.warehouse.catalog.existing_catalog``, except TableUnknown.
    """
    try:
        catalog = existing_catalog(settings)
    except TableUnknown:
        return ()
    with _readable("the catalog's tables"):
        names = (name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace))
        return tuple(sorted(".".join(name) for name in names))


class StoredTables:
    """Reads tables; ``catalog`` is a function that opens the catalog.

    Every method raises TableUnknown if the catalog lacks the table, and TableUnreadable if the table's metadata or
    files can't be read. ``read`` may raise these errors between two batches, too.
    """

    def __init__(self, catalog: Callable[[], Any]) -> None:
        self._catalog = catalog

    def versions(self, namespace: str, table: str) -> tuple[TableVersion, ...]:
        """The published versions, newest first: the current version, its ancestors, and every tagged version."""
        with _readable(f"{namespace}.{table}"):
            metadata = self._load(namespace, table).metadata
            tags: dict[int, list[str]] = {}
            for name, reference in metadata.refs.items():
                if reference.snapshot_ref_type == "tag":
                    tags.setdefault(reference.snapshot_id, []).append(name)
            now = metadata.current_snapshot()
            published = {each.snapshot_id for each in ancestors_of(now, metadata)} | tags.keys()
            there = (each for each in metadata.snapshots if each.snapshot_id in published)
            found = [_version(each, tags, metadata.current_snapshot_id) for each in there]
        return tuple(sorted(found, key=lambda each: (each.written_at, each.current), reverse=True))

    def columns(self, namespace: str, table: str) -> dict[str, str]:
        """Column name -> type as text, in the table's present schema."""
        with _readable(f"{namespace}.{table}"):
            fields = self._load(namespace, table).schema().fields
            return {field.name: str(field.field_type) for field in fields}

    def read(
        self, table: tuple[str, str], version: int, columns: Sequence[str], equal: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        """Yield the rows of a version as Arrow record batches with these columns.

        ``equal`` maps a column to a value; only rows with these values are read.
        """
        where: BooleanExpression = AlwaysTrue()
        for name, value in (equal or {}).items():
            where = where & EqualTo(term=Reference(name), value=value)
        with _readable(".".join(table)):
            scan = self._load(*table).scan(row_filter=where, selected_fields=tuple(columns), snapshot_id=version)
            yield from scan.to_arrow_batch_reader()

    def _load(self, namespace: str, table: str) -> Any:
        try:
            return self._catalog().load_table((namespace, table))
        except (NoSuchTableError, NoSuchNamespaceError) as failure:
            raise no_table(f"{namespace}.{table}") from failure


@contextmanager
def _readable(table: str) -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        raise
    # Every type of exception is caught, because pyiceberg passes on errors of storage, parsers and databases.
    except Exception as failure:
        lines = str(failure).strip().splitlines()
        raise TableUnreadable(
            f"Table {table} can't be read: {type(failure).__name__}: {lines[0][:300] if lines else 'no reason given'}.",
            action="Check that the warehouse's files exist and may be read, or choose an older version.",
            table=table,
        ) from failure


def _version(snapshot: Any, tags: Mapping[int, Sequence[str]], current: int | None) -> TableVersion:
    summary = {} if snapshot.summary is None else {**snapshot.summary.additional_properties}
    size = summary.get("total-files-size", "")
    return TableVersion(
        snapshot.snapshot_id,
        tuple(sorted(tags.get(snapshot.snapshot_id, ()))),
        snapshot.snapshot_id == current,
        snapshot.timestamp_ms / 1000,
        int(size) if size.isdecimal() else None,
        summary,
    )
