"""Settings of Kafka clients, and a log handler that passes librdkafka's log lines on: rate-limited, without secrets."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from holdfast.infra.kafka.clients.reserved import contradiction
from holdfast.infra.kafka.errors import BrokerUnreachable, ClientSettingsInvalid
from holdfast.infra.kafka.records import ClientConfig
from holdfast.infra.log import get_logger
from holdfast.infra.masking import masked

if TYPE_CHECKING:
    from holdfast.infra.settings import Settings

_log = get_logger("kafka.client")

#: Minimum seconds between two log lines of librdkafka of the same kind.
REPEAT_AFTER_S = 30.0

#: Error codes that mean that no broker answers.
AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT)


class _RateLimited(logging.Handler):
    """Log handler for librdkafka: logs each kind of line at most once in ``REPEAT_AFTER_S``.

    The number of lines suppressed in between is logged with the next line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line. If a line of the same kind was logged in the last ``REPEAT_AFTER_S`` seconds, only count it."""
        text = record.getMessage()
        kind = text.split(" ", 1)[0]
        now = time.monotonic()
        if now - self._last.get(kind, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        self._last[kind] = now
        held = self._held.pop(kind, 0)
        log = _log.warning if record.levelno >= logging.WARNING else _log.debug
        log("client library", kind=kind, line=masked(text)[:300], held_back=held)


_SILENT = logging.getLogger("holdfast.librdkafka.check")
_SILENT.propagate = False
_SILENT.addHandler(logging.NullHandler())


def library_logger() -> logging.Logger:
    """Returns the logger that every librdkafka client must use; its handler limits the rate of log lines."""
    logger = logging.getLogger("holdfast.librdkafka")
    if not logger.handlers:
        logger.addHandler(_RateLimited())
        logger.propagate = False
        logger.setLevel(logging.INFO)
    return logger


def bootstrap_servers(settings: Settings) -> str:
    """Bootstrap addresses of the configured cluster; if none is configured, of this home folder's embedded broker.

    Raises:
        BrokerUnreachable: No cluster is configured, and no embedded broker has started.
    """
    if settings.kafka.bootstrap_servers:
        return settings.kafka.bootstrap_servers
    address = settings.paths.broker_address
    try:
        return str(json.loads(address.read_text())["bootstrap"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BrokerUnreachable(
            f"No Kafka is configured, and there is no address of an embedded broker in {address}.",
            action="Start the embedded broker with `holdfast up`, or set `HOLDFAST_KAFKA__BOOTSTRAP_SERVERS`.",
            path=str(address),
        ) from None


def client_config(settings: Settings) -> ClientConfig:
    """The settings for all Kafka clients (``HOLDFAST_KAFKA__CLIENT_CONFIG``), mostly about security."""
    return dict(settings.kafka.client_config)


def check_settings(where: str, config: Mapping[str, Any], client: type[Consumer] | type[Producer]) -> None:
    """Refuse settings that librdkafka does not know, or that the engine sets itself.

    ``where`` says where the settings come from, for use in an error, for example ``the consumer's settings``.

    Raises:
        ClientSettingsInvalid: A setting is unknown, reserved, or names a file that can't be read.
    """
    for name, value in config.items():
        why = contradiction(name, value)
        if why is not None:
            raise ClientSettingsInvalid(
                f"{where[0].upper()}{where[1:]} set {name} to {value!r}, but this setting is reserved: {why}.",
                action=f"Remove `{name}`.",
                setting=name,
                seen=str(value),
            )
    if not config:
        return
    group = {"group.id": "holdfast-check"} if client is Consumer else {}
    try:
        client({**group, **config, "bootstrap.servers": ""}, logger=_SILENT)
    except (KafkaException, TypeError, ValueError) as failure:
        reason = failure.args[0].str() if isinstance(failure, KafkaException) else str(failure)
        raise ClientSettingsInvalid(
            f"librdkafka refuses {where}: {reason}.",
            action="Correct these settings: use the names and values of librdkafka, and files that exist.",
            settings=", ".join(sorted(config)),
        ) from failure


def listening_at(bootstrap: str) -> str | None:
    """The first bootstrap address at which a program accepts connections, even if it is no broker; otherwise None."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return address.strip()
    return None


def admin_client(
    bootstrap: str, extra: ClientConfig | None = None, *, on_error: Callable[[KafkaError], None] | None = None
) -> AdminClient:
    """A new Kafka admin client; ``on_error`` is called with connection errors while the client is polled."""
    config: dict[str, Any] = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 1000, **(extra or {})}
    if on_error is not None:
        config["error_cb"] = on_error
    return AdminClient(config, logger=library_logger())
