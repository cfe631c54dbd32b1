"""Sources, under the import path that Quix Streams uses: ``from holdfast.sources import Source``."""

from __future__ import annotations

from holdfast.processors.engine.sources.source import (
    ClientConnectFailureCallback,
    ClientConnectSuccessCallback,
    Source,
    StatefulSource,
)

__all__ = ["ClientConnectFailureCallback", "ClientConnectSuccessCallback", "Source", "StatefulSource"]
