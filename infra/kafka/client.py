"""Client configuration, and the client library's own log lines, made fit for a structured log.

Invariants:
    - Every client writes its library lines through one rate-limited logger; nothing floods stderr.
    - Secrets of the client configuration are never logged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from holdfast.infra.kafka.errors import BrokerUnreachable, ClientSettingsInvalid
from holdfast.infra.settings import Settings

_log = structlog.get_logger("kafka.client")

#: The same line of the client library is passed on at most once in so many seconds.
REPEAT_AFTER_S = 30.0

ClientConfig = dict[str, str | int | float | bool]

#: What exactly-once rests on is not to be chosen: the values that may be given, and why no others.
RESERVED: dict[str, tuple[tuple[str, ...], str]] = {
    "isolation.level": (("read_committed",), "the engine reads only what is committed"),
    "enable.auto.commit": (("false",), "the engine commits offsets together with state"),
    "enable.auto.offset.store": (("false",), "the engine commits offsets together with state"),
    "auto.offset.reset": ((), "the engine chooses where to begin: see auto_offset_reset of Application"),
    "group.id": ((), "it is the consumer_group of Application"),
    "transactional.id": ((), "it is made of the consumer group, the machine and the slot"),
    "enable.idempotence": (("true",), "records must arrive once, in order"),
    "acks": (("all", "-1"), "a record counts when all replicas in sync have it"),
    "retry.backoff.ms": ((), "how slow a request must be to have been sent twice is known from it"),
    "bootstrap.servers": ((), "it is broker_address of Application, or HOLDFAST_KAFKA__BOOTSTRAP_SERVERS"),
}


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


_SILENT = logging.getLogger("holdfast.librdkafka.check")
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())


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


def check_settings(where: str, config: Mapping[str, Any], client: type[Consumer] | type[Producer]) -> None:
    """Refuse settings that the client library does not know, or that the engine owns.

    Args:
        where: How the user calls these settings.
        config: The settings.
        client: What they are for.

    Raises:
        ClientSettingsInvalid: There is such a setting.
    """
    for name, value in config.items():
        allowed, why = RESERVED.get(name, ((str(value).lower(),), ""))
        if str(value).lower() not in allowed:
            raise ClientSettingsInvalid(
                f"{where} set {name} to {value!r}, which can't be chosen: {why}.",
                action=f"Take {name} out.",
                setting=name,
                seen=str(value),
            )
    if not config:
        return
    group = {"group.id": "holdfast-check"} if client is Consumer else {}
    try:
        client({**group, **config, "bootstrap.servers": ""}, logger=_SILENT)
    except (KafkaException, TypeError, ValueError) as failure:
        said = failure.args[0].str() if isinstance(failure, KafkaException) else str(failure)
        raise ClientSettingsInvalid(
            f"{where} can't be used: {said}.",
            action="Correct them; the names are those of librdkafka, and files have to be there.",
            settings=", ".join(sorted(config)),
        ) from failure


def admin_client(
    bootstrap: str,
    extra: Mapping[str, str | int | float | bool] | None = None,
    *,
    on_error: Callable[[KafkaError], None] | None = None,
) -> AdminClient:
    """An administrative client; short connection back-off, library lines through our log.

    ``on_error`` is called with what happens to connections, when the client is polled.
    """
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1000, **(extra or {})}
    if on_error is not None:
        config["error_cb"] = on_error
    return AdminClient(config, logger=library_logger())
