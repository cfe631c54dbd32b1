"""Errors of the warehouse."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError


class TableUnknown(HoldfastError):
    """The catalog has no such table, or the table has no such tag."""


class CatalogUnavailable(HoldfastError):
    """The catalog can't be reached, or another process locks it; a retry may succeed."""


class CatalogUnusable(HoldfastError):
    """The catalog has another format, refuses this user, or its database does not exist."""


class CatalogLost(HoldfastError):
    """The catalog is empty, but the warehouse holds tables."""


class StorageUnavailable(HoldfastError):
    """The files of the tables can't be reached."""


def no_table(name: str) -> TableUnknown:
    """The error for a table that the catalog lacks."""
    return TableUnknown(
        f"The warehouse has no table {name}.",
        action="Correct the name, or materialise its snapshot asset first.",
        table=name,
    )
