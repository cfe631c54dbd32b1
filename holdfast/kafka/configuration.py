"""The connection to Kafka, under the import path that Quix Streams uses."""

from __future__ import annotations

from holdfast.processors.application.connection import ConnectionConfig

__all__ = ["ConnectionConfig"]
