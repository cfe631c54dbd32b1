"""Versions of any table and their rows, read without a JVM. State is filled and restored from them.

Invariants:
    - Nothing is created, not even an absent catalog.
    - A version keeps its rows while newer versions are published. Rows come in batches, never all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, Reference
from pyiceberg.table.snapshots import ancestors_of

from holdfast.infra.errors import HoldfastError
from holdfast.infra.settings import Settings
from holdfast.infra.warehouse.catalog import TableUnknown, open_catalog, prepare_catalog, refuse_lost

#: The branch that readers see.
MAIN = "main"


class TableUnreadable(HoldfastError):
    """The metadata or the files of an existing table can't be read. Fields: table."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table.

    Args:
        version: Iceberg's snapshot id.
        tags: The tags on this version.
        current: Whether readers get this version by default.
        written_at: Time of its commit, seconds since 1970.
        size_bytes: Size of its data files; None when its summary lacks it.
        summary: Properties that its writer set.
    """

    version: int
    tags: tuple[str, ...]
    current: bool
    written_at: float
    size_bytes: int | None
    summary: Mapping[str, str]


def existing_catalog(settings: Settings) -> Any:
    """The catalog of the settings; an absent catalog is not created.

    Raises:
        TableUnknown: There is no catalog, and no table.
        CatalogLost: The catalog is absent or empty, but the warehouse holds tables.
        CatalogUnavailable, CatalogUnusable: The catalog can't be opened.
    """
    if settings.catalog.startswith("sqlite:///") and not Path(settings.catalog.removeprefix("sqlite:///")).exists():
        refuse_lost(settings)
        raise TableUnknown(
            f"The catalog {settings.catalog} does not exist: the warehouse has no tables yet.",
            action="Materialise a snapshot first, or set `HOLDFAST_WAREHOUSE__CATALOG_URL` to a catalog with tables.",
        )
    prepare_catalog(settings)
    return open_catalog(settings)


def table_names(settings: Settings) -> tuple[str, ...]:
    """``namespace.table`` of every table in the catalog, sorted; empty when there is no catalog yet.

    Raises:
        CatalogUnavailable: The catalog can't be reached, or is locked.
        CatalogUnusable: The database is no catalog, or refuses this user.
        CatalogLost: The catalog is absent or empty, but the warehouse holds tables.
    """
    try:
        catalog = existing_catalog(settings)
    except TableUnknown:
        return ()
    with _readable("the catalog's tables"):
        return tuple(
            sorted(".".join(name) for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace))
        )


class StoredTables:
    """Reads the tables of a catalog.

    Args:
        catalog: Opens the catalog.
    """

    def __init__(self, catalog: Callable[[], Any]) -> None:
        self._catalog = catalog

    def versions(self, namespace: str, table: str) -> tuple[TableVersion, ...]:
        """The published versions, newest first: the ancestors of the current version, and every tagged version.

        Raises:
            TableUnknown: The catalog has no such table.
            TableUnreadable: The table's metadata can't be read.
        """
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
        """Column name -> type of the present schema.

        Raises:
            TableUnknown, TableUnreadable: As of ``versions``.
        """
        with _readable(f"{namespace}.{table}"):
            fields = self._load(namespace, table).schema().fields
            return {field.name: str(field.field_type) for field in fields}

    def read(
        self, table: tuple[str, str], version: int, columns: Sequence[str], equal: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        """Yield some columns of a version as Arrow record batches; only rows that have the values of ``equal``.

        Raises:
            TableUnknown, TableUnreadable: As of ``versions``; also between two batches.
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
            raise TableUnknown(
                f"The warehouse has no table {namespace}.{table}.",
                action="Correct the name, or materialise its snapshot asset first.",
                table=f"{namespace}.{table}",
            ) from failure


@contextmanager
def _readable(table: str) -> Iterator[None]:
    try:
        yield
    except HoldfastError:
        raise
    except Exception as failure:  # pyiceberg raises every error of its storage, parsers and database
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
