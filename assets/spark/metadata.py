"""Facts about the tables of a session, read from the catalog and the metadata file, without a Spark query.

A query of a metadata table needs a Spark job and, in a cold session, half a second; reading the file needs
milliseconds.

Invariants:
    - All questions about versions, references, properties and the existence of a table are answered here.
    - Nothing is kept between two questions, so no answer is older than the question.
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

#: Session -> the reader of its catalog. A session's catalog does not change.
_readers: WeakKeyDictionary[Any, MetadataReader] = WeakKeyDictionary()


def metadata_of(spark: Any, table: str) -> TableMetadata:
    """The metadata of a table, named with its catalog.

    Raises:
        TableUnknown: The table does not exist.
        WarehouseFailed: The catalog or the file can't be read.
    """
    with _as_warehouse_failed():
        return _reader(spark).table(_within(table))


def exists(spark: Any, table: str) -> bool:
    """Whether the catalog has a table or a view of this name.

    Raises:
        WarehouseFailed: The catalog can't be read.
    """
    with _as_warehouse_failed():
        return _reader(spark).pointers.find(_within(table)) is not None


def view_queries(spark: Any, view: str) -> frozenset[str]:
    """The query of a view in each of its dialects; empty when the view does not exist.

    Raises:
        WarehouseFailed: The catalog or the file can't be read.
    """
    with _as_warehouse_failed():
        return _reader(spark).view_queries(_within(view))


def pointers_of(spark: Any) -> CatalogPointers:
    """The rows of the session's catalog."""
    return _reader(spark).pointers


def _reader(spark: Any) -> MetadataReader:
    if spark not in _readers:
        _readers[spark] = MetadataReader(spark.conf.getAll)
    return _readers[spark]


def _within(table: str) -> str:
    """A table's name without the catalog."""
    return table.partition(".")[2]


@contextmanager
def _as_warehouse_failed() -> Iterator[None]:
    """Turns faults of the catalog and its files into the error that a Spark query raises."""
    try:
        yield
    except StorageUnavailable as failure:
        action = "Check that the catalog's database and the object store run and are reachable, then run it again"
        raise WarehouseFailed(failure.message, action=f"{action}; published versions stay intact.") from failure
    except (CatalogUnavailable, CatalogUnusable) as failure:
        raise WarehouseFailed(failure.message, action=failure.action or "") from failure
