"""Errors of the warehouse (the Iceberg catalog and the files of its tables)."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError


class TableUnknown(HoldfastError):
    """The catalog lacks the requested table, or the table lacks the requested tag."""


class CatalogUnavailable(HoldfastError):
    """The catalog's database can't be reached, or another process locks it; a retry may succeed."""


class CatalogUnusable(HoldfastError):
    """The catalog's database does not exist, has another format, or refuses this user."""


class CatalogLost(HoldfastError):
    """The catalog is empty, but the warehouse has files of tables, so the catalog was probably lost."""


class StorageUnavailable(HoldfastError):
    """The files of the warehouse's tables can't be listed, read or deleted."""


def no_table(name: str) -> TableUnknown:
    """The error for a table that the catalog lacks."""
    return TableUnknown(
        f"The warehouse has no table {name}.",
        action="Correct the name, or materialise its snapshot asset first.",
        table=name,
    )
