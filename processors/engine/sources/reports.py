"""Reports of sources: whether a source reaches its system, where it is, and what is left to read.

thread of the source: report, report_failure ──► the last report ──► worker's loop: figures, in the status
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.infra.clock import Clock
from holdfast.processors.engine.connectors import POSITION_MAX, SourceFigures, failure_text


class SourceReports(ABC):
    """The last report of one run of a source. A thread of the source replaces it as a whole.

    Args:
        clock: The worker's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._reported, self._time = SourceFigures(""), clock.time

    @abstractmethod
    def _present(self) -> dict[str, Any]:
        """The fields of the figures that the worker knows by itself: ``waiting``, ``runs``, ``failure`` of an error."""

    @property
    def figures(self) -> SourceFigures:
        """What the source has reported, and the number of its messages that are not committed."""
        return replace(self._reported, **self._present())

    def report(self, position: str, remaining: Mapping[str, int], within_s: float | None) -> None:
        """Keeps what the source reports, with the present time."""
        said = {str(name): int(count) for name, count in remaining.items()}
        now, position = self._time(), str(position)[:POSITION_MAX]
        self._reported = replace(self._reported, reported_at=now, position=position, remaining=said, within_s=within_s)

    def report_failure(self, error: BaseException | str) -> None:
        """Counts a failed attempt of the source."""
        known, text = self._reported, failure_text(error)
        self._reported = replace(known, failures=known.failures + 1, failure=text, failed_at=self._time())


class ReportingSource:
    """The part of ``Source`` that reports to Dagster. ``run`` calls its methods."""

    def _reports(self, called: str) -> SourceReports:
        """The reports of this run. Raises SourceNotRunning, which names the method ``called``."""
        raise NotImplementedError

    def report(
        self, position: str = "", remaining: Mapping[str, int] | None = None, within: float | None = None
    ) -> None:
        """Reports that the source has just reached its system. Dagster shows the report, and judges its age.

        Args:
            position: Where the source is in its system, as text without secrets.
            remaining: What is left to read, as numbers by unit, for example ``{"rows": 12}``; None if unknown.
            within: The next report comes within this many seconds; None promises nothing.

        Raises:
            SourceNotRunning: The source does not run.
        """
        self._reports("report").report(position, remaining or {}, within)

    def report_failure(self, error: BaseException | str) -> None:
        """Reports a failed attempt to reach the system, which the source repeats. The next ``report`` ends it.

        Raises:
            SourceNotRunning: The source does not run.
        """
        self._reports("report_failure").report_failure(error)
