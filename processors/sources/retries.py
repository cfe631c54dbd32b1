"""Repeats what another system refuses for a while, by the worker's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.sources.source import Source

_log = structlog.get_logger("sources")

#: Seconds before the first repetition, and at most before each further one.
_FIRST_S, _MOST_S = 0.5, 5.0

Result = TypeVar("Result")


def repeated(
    source: Source, attempt: Callable[[], Result], passing: type[HoldfastError], patience_s: float
) -> Result | None:
    """Calls ``attempt`` until it raises no ``passing`` error. Returns its result; None if the source should end.

    Raises:
        HoldfastError: The last ``passing`` error, after ``patience_s`` seconds of errors.
    """
    waited, pause = 0.0, _FIRST_S
    while True:
        try:
            return attempt()
        except passing as failure:
            source.report_failure(failure)
            if waited >= patience_s:
                raise
            if not waited:
                _log.warning("a source waits", source=source.name, error=failure.message, seconds=patience_s)
            pause = min(pause, patience_s - waited)
            if not source.sleep(pause):
                return None
            waited, pause = waited + pause, min(2 * pause, _MOST_S)
