"""What can be wrong with the warehouse's catalog, each with the way out."""

from __future__ import annotations

from holdfast.infra.errors import HoldfastError


class TableUnknown(HoldfastError):
    """There is no such table, or no such tag on it."""


class CatalogUnavailable(HoldfastError):
    """The catalog can't be reached, or is locked by another process; the same again may work later."""


class CatalogUnusable(HoldfastError):
    """The catalog is not one that this code can use: another format, no rights, no such database."""


class CatalogLost(HoldfastError):
    """The catalog knows no table, but the warehouse holds some."""


class StorageUnavailable(HoldfastError):
    """The tables' files can't be reached."""
