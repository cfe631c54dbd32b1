"""The base classes of sources, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.sources.source import Source, StatefulSource

__all__ = ["Source", "StatefulSource"]
