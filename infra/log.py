"""Configures structured logging to stderr, as text or as JSON lines.

To import structlog takes 90 ms of CPU, and most commands log nothing. So modules that commands import take their logger
from ``get_logger``, and ``configure_logging`` waits until something imports structlog.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from holdfast.infra.masking import MASK, masked_data

#: A field whose name contains one of these words is logged as ``***``.
_SECRET = ("password", "secret", "token", "sasl", "jaas")

#: Logging method -> its level. If a higher level is configured, the messages of the method are not logged.
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def _ignore(*_: Any, **__: Any) -> None:
    """Does nothing. Replaces a logger's method if the configured level hides its messages."""


class Logger:
    """A logger with structlog's methods. It imports structlog only when a message is really logged."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        waiting = _waiting()
        if waiting is not None and _LEVELS.get(method, logging.CRITICAL) < getattr(logging, waiting.level):
            return _ignore
        import structlog  # imported late, because the import takes 90 ms of CPU

        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> Any:
    """A logger that logs as ``configure_logging`` says.

    structlog is imported and configured with the logger's first message, if it was not imported before.
    """
    return Logger(name)


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Structlog processor that masks secrets in all texts of an event, and all values of fields with a secret name."""
    for name, value in event.items():
        hidden = value is not None and any(part in name.lower() for part in _SECRET)
        event[name] = MASK if hidden else masked_data(value)
    return event


class _WhenImported(MetaPathFinder, Loader):
    """Configures structlog as soon as any module imports it, for example the project's own code."""

    def __init__(self, level: str, form: str) -> None:
        self.level, self.form = level, form
        self._loader: Loader | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The specification of structlog with this object as its loader; None for all other modules."""
        if name != "structlog":
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is not None:
            self._loader, found.loader = found.loader, self
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Import structlog, and configure it."""
        sys.meta_path.remove(self)
        assert self._loader is not None
        module.__spec__.loader = module.__loader__ = self._loader  # type: ignore[union-attr]  # an imported module has one
        self._loader.exec_module(module)
        _configure(self.level, self.form)


def _waiting() -> _WhenImported | None:
    return next((each for each in sys.meta_path if isinstance(each, _WhenImported)), None)


def is_configured() -> bool:
    """Whether ``configure_logging`` was called in this process, or structlog was configured in another way."""
    loaded = sys.modules.get("structlog")
    return _waiting() is not None or (loaded is not None and bool(loaded.is_configured()))


def configure_level(level: str, form: str) -> None:
    """Set the lowest level to log. If structlog is already configured in this process, only its level is changed."""
    if (waiting := _waiting()) is not None:
        waiting.level = level
    elif is_configured():
        import structlog

        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)))
    else:
        configure_logging(level, form)


def configure_logging(level: str, form: str) -> None:
    """Configure structlog for this process: ``level`` is the lowest level to log, ``form`` is ``text`` or ``json``.

    Before structlog is imported, the configuration waits for its import.
    """
    if "structlog" in sys.modules:
        _configure(level, form)
    elif (waiting := _waiting()) is not None:
        waiting.level, waiting.form = level, form
    else:
        sys.meta_path.insert(0, _WhenImported(level, form))


def _configure(level: str, form: str) -> None:
    import structlog

    def to_stderr(*_: Any) -> structlog.PrintLogger:
        """Creates a logger for the present ``sys.stderr``; the stream at configuration time may be closed by now."""
        return structlog.PrintLogger(sys.stderr)

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
        logger_factory=to_stderr,
        cache_logger_on_first_use=False,
    )
