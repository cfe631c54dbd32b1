"""Whether a broker is ready: it answers a metadata request; an open port is not enough.

Invariants:
    - Nothing is written to stderr while the broker is not ready.
    - The request creates no topic.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

_SILENT = logging.getLogger("holdfast.kafka.readiness")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def answers_metadata(bootstrap: str, *, timeout_s: float = 5.0) -> bool:
    """Whether a broker answers a metadata request within ``timeout_s``, and names a broker and a controller."""
    client = AdminClient({"bootstrap.servers": bootstrap, "socket.connection.setup.timeout.ms": 2000}, logger=_SILENT)
    with suppress(KafkaException):
        metadata = client.list_topics(timeout=timeout_s)
        return bool(metadata.brokers) and metadata.controller_id >= 0
    return False
