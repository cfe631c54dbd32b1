"""Whether a broker really answers: a metadata request, not an open port.

Invariants:
    - Nothing is written to stderr while a broker is not there yet.
    - No topic is created by asking.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

_SILENT = logging.getLogger("holdfast.kafka.readiness")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def port_is_open(port: int) -> bool:
    """Whether something listens on this loopback port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def answers_metadata(bootstrap: str, *, timeout_s: float = 5.0) -> bool:
    """Whether a broker answers a metadata request in time, and names at least one broker and a controller."""
    client = AdminClient({"bootstrap.servers": bootstrap, "socket.connection.setup.timeout.ms": 2000}, logger=_SILENT)
    with suppress(KafkaException):
        metadata = client.list_topics(timeout=timeout_s)
        return bool(metadata.brokers) and metadata.controller_id >= 0
    return False
