"""Structured logs on stderr: one event for each fact, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from holdfast.infra.masking import MASK, masked_data

#: A field whose name contains one of these is logged as ``***``.
_SECRET = ("password", "secret", "token", "sasl", "jaas")


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask every text of a line, the traceback included, and each field with a secret name."""
    for name, value in event.items():
        hidden = value is not None and any(part in name.lower() for part in _SECRET)
        event[name] = MASK if hidden else masked_data(value)
    return event


def _to_stderr(*_: Any) -> structlog.PrintLogger:
    """A logger on the present stderr: the one of set-up time may have been replaced and closed."""
    return structlog.PrintLogger(sys.stderr)


def configure_level(level: str, form: str) -> None:
    """Set the lowest level to log, like ``configure_logging``; other logging configuration of the process stays."""
    if structlog.is_configured():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)))
    else:
        configure_logging(level, form)


def configure_logging(level: str, form: str) -> None:
    """Set up structlog for this process: the lowest level that is logged, and the form ``text`` or ``json``."""
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
