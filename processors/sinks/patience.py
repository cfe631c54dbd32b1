"""How long a sink waits for a system that does not answer, before the worker stops with an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.sinks.errors import SinkBackpressureError, SinkInvalid


class SinkSystemAway(HoldfastError):
    """The system behind a sink did not answer for a long time. Nothing since the last commit is committed."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a sink tries again while its system does not answer.

    Attributes:
        first_s: Seconds until the first new attempt. Each further wait is twice as long.
        longest_s: Maximum seconds between two attempts.
        give_up_s: Seconds without an answer after which the worker stops with an error.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    give_up_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.longest_s <= self.give_up_s:
            raise SinkInvalid(
                f"`retry` has the waits {self.first_s:g}, {self.longest_s:g} and {self.give_up_s:g} s; expected rising "
                "numbers above 0.",
                action="Write `retry=Patience(first_s=0.5, longest_s=30, give_up_s=600)`.",
            )


class Attempts:
    """Counts the failures of one system in a row.

    Args:
        patience: How often to try again.
        system: The name of the system in errors, without secrets.
        steady_s: A monotonic clock in seconds.
    """

    def __init__(self, patience: Patience, system: str, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._system, self._steady_s = patience, system, steady_s
        self._since: float | None = None
        self._wait_s = patience.first_s

    def succeeded(self) -> None:
        """Must be called after an answer."""
        self._since, self._wait_s = None, self._patience.first_s

    def failed(self, why: BaseException | str, retry_after: float | None = None) -> NoReturn:
        """Must be called if the system does not answer, or takes nothing now.

        Args:
            why: The error, or a sentence.
            retry_after: The seconds that the system asks for; None doubles the last wait.

        Raises:
            SinkBackpressureError: The worker tries again after some seconds.
            SinkSystemAway: The system has not answered for ``give_up_s`` seconds.
        """
        cause = why if isinstance(why, BaseException) else None
        now = self._steady_s()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._patience.give_up_s:
            since_s, self._since = now - self._since, None
            text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
            raise SinkSystemAway(
                f"{self._system} has taken nothing for {since_s:.0f} s: {' '.join(text.split())[:400]}",
                action=f"Check that {self._system} runs, and that this machine and user may reach it.",
                system=self._system,
            ) from cause
        wait_s = min(self._wait_s if retry_after is None else max(retry_after, 0.01), self._patience.longest_s)
        self._wait_s = min(self._wait_s * 2, self._patience.longest_s)
        raise SinkBackpressureError(wait_s) from cause
