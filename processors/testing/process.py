"""Who runs an application on the in-memory cluster."""

from __future__ import annotations

from typing import Protocol

from holdfast.processors.testing.clock import VirtualClock


class Process(Protocol):
    """An operating-system process as the cluster's clients see it."""

    @property
    def name(self) -> str:
        """What traces and fates know it by."""
        ...

    def point(self, name: str) -> None:
        """A moment at which the process can be switched, frozen or crashed; clients pass one before and after
        everything that has an effect."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let so much virtual time go by."""
        ...

    @property
    def frozen(self) -> bool:
        """Whether it can't do anything, its heartbeats included."""
        ...


class InlineProcess:
    """Runs in the caller's thread; sleeping moves the clock."""

    def __init__(self, clock: VirtualClock, name: str = "inline") -> None:
        self._clock = clock
        self.name = name
        #: The process has left: its heartbeats stop.
        self.frozen = False

    def point(self, name: str) -> None:
        """See ``Process.point``: nothing happens."""

    def sleep(self, seconds: float) -> None:
        """See ``Process.sleep``."""
        self._clock.advance_to(self._clock.monotonic() + max(seconds, 0.0))
