"""Reads facts about tables from the catalog and the metadata files, without a Spark query.

A query of a metadata table needs a Spark job, which takes half a second in a new session. Reading the metadata file
takes milliseconds.

Invariants:
    - All other Spark modules use this module to check whether a table exists. They also use it to read the table's
      versions (Iceberg snapshots), references (branches and tags) and properties.
    - Nothing is cached between two calls, so every result is current.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.infra.spark.failures import WarehouseFailed
from holdfast.infra.warehouse.errors import CatalogUnavailable, CatalogUnusable, StorageUnavailable
from holdfast.infra.warehouse.pointers import CatalogPointers
from holdfast.infra.warehouse.table_metadata import MetadataReader, TableMetadata

#: Spark session -> reader of its catalog's metadata.
_readers: WeakKeyDictionary[Any, MetadataReader] = WeakKeyDictionary()


def metadata_of(spark: Any, table: str) -> TableMetadata:
    """The metadata of a table; the name must include the catalog.

    Raises:
        TableUnknown: The table does not exist.
        WarehouseFailed: The catalog or the file cannot be read.
    """
    with _as_warehouse_failed():
        return _reader(spark).table(_within(table))


def exists(spark: Any, table: str) -> bool:
    """Whether the catalog has a table or a view with this name.

    Raises:
        WarehouseFailed: The catalog cannot be read.
    """
    with _as_warehouse_failed():
        return _reader(spark).pointers.find(_within(table)) is not None


def view_queries(spark: Any, view: str) -> frozenset[str]:
    """The query of a view in each of its SQL dialects; empty if the view does not exist.

    Raises:
        WarehouseFailed: The catalog or the file cannot be read.
    """
    with _as_warehouse_failed():
        return _reader(spark).view_queries(_within(view))


def pointers_of(spark: Any) -> CatalogPointers:
    """The catalog's pointers: the rows of the session's catalog that name the metadata file of each table."""
    return _reader(spark).pointers


def _reader(spark: Any) -> MetadataReader:
    if spark not in _readers:
        _readers[spark] = MetadataReader(spark.conf.getAll)
    return _readers[spark]


def _within(table: str) -> str:
    """A table's name without the catalog's name."""
    return table.partition(".")[2]


@contextmanager
def _as_warehouse_failed() -> Iterator[None]:
    """Converts errors of the catalog and its files to the error that a Spark query would raise."""
    try:
        yield
    except StorageUnavailable as failure:
        action = "Check that the catalog's database and the object store run and are reachable, then run it again"
        raise WarehouseFailed(failure.message, action=f"{action}; published versions stay intact.") from failure
    except (CatalogUnavailable, CatalogUnusable) as failure:
        raise WarehouseFailed(failure.message, action=failure.action or "") from failure
