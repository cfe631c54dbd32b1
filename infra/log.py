"""Structured logs: one event per fact, as text for people or as JSON lines for machines, on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

#: Fields whose values never reach a log.
_SECRET = ("password", "secret", "token", "sasl", "jaas")


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name in event:
        if any(part in name.lower() for part in _SECRET):
            event[name] = "***"
    return event


def _to_stderr(*_: Any) -> structlog.PrintLogger:
    """A logger on what is stderr now: it may have been exchanged, and closed, since logging was set up."""
    return structlog.PrintLogger(sys.stderr)


def configure_logging(level: str, form: str) -> None:
    """Set up structlog for this process.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
        form: ``text`` or ``json``.
    """
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0, sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _hide_secrets,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=_to_stderr,
        cache_logger_on_first_use=False,
    )
