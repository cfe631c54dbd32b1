"""The clients for use outside of streams, under the import path that Quix Streams uses.

Use ``app.get_consumer()`` and ``app.get_producer()`` to create clients.
"""

from __future__ import annotations

from holdfast.kafka.configuration import ConnectionConfig
from holdfast.processors.application.clients import Producer
from holdfast.processors.application.consumer import Consumer

__all__ = ["ConnectionConfig", "Consumer", "Producer"]
