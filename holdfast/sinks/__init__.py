"""Sinks, under the import path that Quix Streams uses: ``from holdfast.sinks import BatchingSink``.

The sinks that ship with Holdfast are imported at their first use, with the library of their system.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.processors.engine.connectors import ExternalSystem
from holdfast.processors.engine.sinks.errors import SinkBackpressureError, SinkFenced, SinkRowsRefused
from holdfast.processors.engine.sinks.sink import BaseSink, BatchingSink, SinkBatch, SinkItem
from holdfast.processors.engine.sinks.staging import SinkTask, StagedPart, StagingSink
from holdfast.processors.sinks.patience import Patience

if TYPE_CHECKING:
    from holdfast.processors.sinks.files import FileSink, JsonLinesSink, ParquetSink
    from holdfast.processors.sinks.http import HttpSink
    from holdfast.processors.sinks.iceberg import IcebergSink
    from holdfast.processors.sinks.redis import RedisSink
    from holdfast.processors.sinks.sql import SqlSink

__all__ = [
    "BaseSink",
    "BatchingSink",
    "ExternalSystem",
    "FileSink",
    "HttpSink",
    "IcebergSink",
    "JsonLinesSink",
    "ParquetSink",
    "Patience",
    "RedisSink",
    "SinkBackpressureError",
    "SinkBatch",
    "SinkFenced",
    "SinkItem",
    "SinkRowsRefused",
    "SinkTask",
    "SqlSink",
    "StagedPart",
    "StagingSink",
]

_HOMES = {
    "FileSink": "files",
    "HttpSink": "http",
    "IcebergSink": "iceberg",
    "JsonLinesSink": "files",
    "ParquetSink": "files",
    "RedisSink": "redis",
    "SqlSink": "sql",
}


def __getattr__(name: str) -> Any:
    """Imports a sink at its first use."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"holdfast.processors.sinks.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
