"""Client configuration, and the client library's own log lines, made fit for a structured log.

Invariants:
    - Every client writes its library lines through one rate-limited logger; nothing floods stderr.
    - Secrets of the client configuration are never logged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

import structlog
from confluent_kafka.admin import AdminClient

from infra.kafka.errors import BrokerUnreachable
from infra.settings import Settings

_log = structlog.get_logger("kafka.client")

#: The same line of the client library is passed on at most once in so many seconds.
REPEAT_AFTER_S = 30.0

ClientConfig = dict[str, str | int | float | bool]


class _RateLimited(logging.Handler):
    """Passes each kind of library line on at most once in ``REPEAT_AFTER_S``, with a count of those held back."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log one line, or count it as held back."""
        text = record.getMessage()
        kind = text.split(" ", 1)[0]
        now = time.monotonic()
        if now - self._last.get(kind, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._last[kind] = now
        held = self._held.pop(kind, 0)
        log = _log.warning if record.levelno >= logging.WARNING else _log.debug
        log("client library", kind=kind, line=text[:300], held_back=held)


def library_logger() -> logging.Logger:
    """The logger to hand to every client of the library."""
    logger = logging.getLogger("holdfast.librdkafka")
    if not logger.handlers:
        logger.addHandler(_RateLimited())
        logger.propagate = False
        logger.setLevel(logging.INFO)
    return logger


def bootstrap_servers(settings: Settings) -> str:
    """Where Kafka is: the configured cluster, else the embedded broker of this home.

    Raises:
        BrokerUnreachable: Neither is there.
    """
    if settings.kafka.bootstrap_servers:
        return settings.kafka.bootstrap_servers
    address = settings.paths.broker_address
    try:
        return str(json.loads(address.read_text())["bootstrap"])
    except (OSError, ValueError, KeyError):
        raise BrokerUnreachable(
            f"No Kafka is configured and no embedded broker has written its address to {address}.",
            action="Start the embedded broker with `holdfast up`, or set HOLDFAST_KAFKA__BOOTSTRAP_SERVERS.",
            path=str(address),
        ) from None


def client_config(settings: Settings) -> ClientConfig:
    """What every client of this installation shares (security settings of the team)."""
    return dict(settings.kafka.client_config)


def admin_client(bootstrap: str, extra: Mapping[str, str | int | float | bool] | None = None) -> AdminClient:
    """An administrative client; short connection back-off, library lines through our log."""
    config: ClientConfig = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1000, **(extra or {})}
    return AdminClient(config, logger=library_logger())
