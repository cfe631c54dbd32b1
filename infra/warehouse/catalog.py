"""The Iceberg catalog for readers without a JVM: pyiceberg on the same SQL catalog that Spark writes."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from infra.errors import HoldfastError
from infra.paths import Paths

#: Must be the name that Spark uses: the catalog's rows carry it.
CATALOG = "holdfast"


class TableUnknown(HoldfastError):
    """There is no such table, or no such tag on it."""


def open_catalog(paths: Paths) -> SqlCatalog:
    """The catalog of a home folder."""
    return SqlCatalog(CATALOG, uri=f"sqlite:///{paths.catalog}", warehouse=f"file://{paths.warehouse}/data")


def read_table(paths: Paths, namespace: str, table: str, *, tag: str | None = None) -> Any:
    """A table's content as a ``pyarrow.Table``; with ``tag``, as of that snapshot.

    Raises:
        TableUnknown: The table or the tag is not there.
    """
    name = f"{namespace}.{table}"
    if not paths.catalog.exists():
        raise TableUnknown(
            f"The warehouse below {paths.warehouse} has no tables yet, so no {name}.",
            action="Materialise its snapshot asset first.",
            table=name,
        )
    try:
        loaded = open_catalog(paths).load_table((namespace, table))
    except NoSuchTableError as failure:
        raise TableUnknown(
            f"The warehouse has no table {name}.", action="Materialise its snapshot asset first.", table=name
        ) from failure
    if tag is None:
        return loaded.scan().to_arrow()
    reference = loaded.metadata.refs.get(tag)
    if reference is None:
        raise TableUnknown(
            f"Table {name} has no tag {tag}; it has {', '.join(sorted(loaded.metadata.refs))}.",
            action="Name one of its tags.",
            table=name,
            tag=tag,
        )
    return loaded.scan(snapshot_id=reference.snapshot_id).to_arrow()
