"""A sink that is a list, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.engine.dataframe.list_sink import ListSink

__all__ = ["ListSink"]
