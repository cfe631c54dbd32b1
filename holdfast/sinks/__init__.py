"""Sinks, under the import path that Quix Streams uses: ``from holdfast.sinks import BatchingSink``."""

from __future__ import annotations

from holdfast.processors.engine.dataframe.sinks import (
    BaseSink,
    BatchingSink,
    SinkBackpressureError,
    SinkBatch,
    SinkItem,
)

__all__ = ["BaseSink", "BatchingSink", "SinkBackpressureError", "SinkBatch", "SinkItem"]
