"""Clients outside of streams, under the import path that Quix Streams uses. ``app.get_consumer()`` makes one."""

from __future__ import annotations

from holdfast.kafka.configuration import ConnectionConfig
from holdfast.processors.application.clients import Producer
from holdfast.processors.application.consumer import Consumer

__all__ = ["ConnectionConfig", "Consumer", "Producer"]
