"""Lookups of rows of other systems, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.joins.enrichment.lookup_classes import BaseField, BaseLookup
from holdfast.processors.engine.joins.enrichment.sqlite_lookup import (
    SQLiteLookup,
    SQLiteLookupField,
    SQLiteLookupQueryField,
)

__all__ = ["BaseField", "BaseLookup", "SQLiteLookup", "SQLiteLookupField", "SQLiteLookupQueryField"]
