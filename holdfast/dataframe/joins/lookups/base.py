"""Base classes of lookups, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.joins.enrichment.lookup_classes import BaseField, BaseLookup

__all__ = ["BaseField", "BaseLookup"]
