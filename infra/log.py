"""Configures structured logging to stderr, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from holdfast.infra.masking import MASK, masked_data

#: A field whose name contains one of these words is logged as ``***``.
_SECRET = ("password", "secret", "token", "sasl", "jaas")


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Structlog processor that masks secrets in all texts of an event, and all values of fields with a secret name."""
    for name, value in event.items():
        hidden = value is not None and any(part in name.lower() for part in _SECRET)
        event[name] = MASK if hidden else masked_data(value)
    return event


def _to_stderr(*_: Any) -> structlog.PrintLogger:
    """Creates a logger for the present ``sys.stderr``; the stream at configuration time may be closed by now."""
    return structlog.PrintLogger(sys.stderr)


def configure_level(level: str, form: str) -> None:
    """Set the lowest level to log. If structlog is already configured in this process, only its level is changed."""
    if structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)))
    else:
        configure_logging(level, form)


def configure_logging(level: str, form: str) -> None:
    """Configure structlog for this process: ``level`` is the lowest level to log, ``form`` is ``text`` or ``json``."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0, sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _hide_secrets,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=_to_stderr,
        cache_logger_on_first_use=False,
    )
