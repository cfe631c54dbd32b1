"""Base classes of sinks, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.sinks import BaseSink, BatchingSink, SinkBackpressureError, SinkBatch, SinkItem

__all__ = ["BaseSink", "BatchingSink", "SinkBackpressureError", "SinkBatch", "SinkItem"]
