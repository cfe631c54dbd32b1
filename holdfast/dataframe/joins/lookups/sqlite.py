"""Lookups in SQLite, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.joins.enrichment.sqlite_lookup import (
    SQLiteLookup,
    SQLiteLookupField,
    SQLiteLookupQueryField,
)

__all__ = ["SQLiteLookup", "SQLiteLookupField", "SQLiteLookupQueryField"]
