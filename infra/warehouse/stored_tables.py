"""The versions of tables, and their rows, read without a JVM: what the way back into a processor reads.

Invariants:
    - Reading only: nothing is created, neither tables nor the catalog's own.
    - A version is read as it was written, whatever is published meanwhile; rows come in batches, never all at once.
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

MAIN = "main"


class TableUnreadable(HoldfastError):
    """A table is there, but what it says of itself, or its files, can't be read. Fields: table."""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table.

    Args:
        version: Its id in the table.
        tags: The tags on it.
        current: Whether it is what readers get who ask for nothing else.
        written_at: When it was committed, seconds since 1970.
        size_bytes: Of its data files; None where it does not say.
        summary: What its writer said of it.
    """

    version: int
    tags: tuple[str, ...]
    current: bool
    written_at: float
    size_bytes: int | None
    summary: Mapping[str, str]


def existing_catalog(settings: Settings) -> Any:
    """The catalog of the settings, if there is one; a file that is not there is not made by looking.

    Raises:
        TableUnknown: There is none.
        CatalogLost: There is none, or it knows nothing, but the warehouse holds tables.
        HoldfastError: It can't be opened.
    """
    if settings.catalog.startswith("sqlite:///") and not Path(settings.catalog.removeprefix("sqlite:///")).exists():
        refuse_lost(settings)
        raise TableUnknown(
            f"There is no catalog {settings.catalog}: the warehouse has no tables yet.",
            action="Materialise a snapshot first, or set the warehouse that has some.",
        )
    prepare_catalog(settings)
    return open_catalog(settings)


def table_names(settings: Settings) -> tuple[str, ...]:
    """``namespace.table`` of every table that the catalog knows; none where there is no catalog yet.

    Raises:
        CatalogUnavailable: It can't be reached, or is locked.
        CatalogUnusable: It is no catalog, or refuses this user.
        CatalogLost: There is none, or it knows nothing, but the warehouse holds tables.
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
    """The tables of a catalog.

    Args:
        catalog: Opens it.
    """

    def __init__(self, catalog: Callable[[], Any]) -> None:
        self._catalog = catalog

    def versions(self, namespace: str, table: str) -> tuple[TableVersion, ...]:
        """The versions that were published, newest first: what the table was at a time, and what has a tag.

        Raises:
            TableUnknown: There is no such table.
            TableUnreadable: It can't be read.
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
        """The columns as they are now, with their types.

        Raises:
            TableUnknown, TableUnreadable: As of ``versions``.
        """
        with _readable(f"{namespace}.{table}"):
            fields = self._load(namespace, table).schema().fields
            return {field.name: str(field.field_type) for field in fields}

    def read(
        self, table: tuple[str, str], version: int, columns: Sequence[str], equal: Mapping[str, Any] | None = None
    ) -> Iterator[Any]:
        """Some columns of a version, as Arrow record batches; of rows only whose columns have the values of ``equal``.

        Raises:
            TableUnknown, TableUnreadable: As of ``versions``; also in the middle.
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
    except Exception as failure:  # pyiceberg lets through whatever its storage, its parsers and its database raise
        said = str(failure).strip().splitlines()
        raise TableUnreadable(
            f"Table {table} can't be read: {type(failure).__name__}: {said[0][:300] if said else 'no reason given'}.",
            action="See that the warehouse's files are all there and may be read; older versions may be whole.",
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
