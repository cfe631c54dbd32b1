"""The processes that run applications on the in-memory cluster."""

from __future__ import annotations

from typing import Protocol

from holdfast.processors.testing.clock import VirtualClock


class Process(Protocol):
    """An operating-system process as the cluster's clients see it."""

    @property
    def name(self) -> str:
        """The process's name in traces and in ``Network.fate``."""

    def point(self, name: str) -> None:
        """A point at which the process can be switched, frozen or killed.

        Clients call it before and after every effect.
        """

    def sleep(self, seconds: float) -> None:
        """Lets virtual time pass."""

    @property
    def frozen(self) -> bool:
        """Whether the process is frozen, so that it sends no heartbeats."""


class InlineProcess:
    """A process in the caller's thread; its ``sleep`` moves the clock."""

    def __init__(self, clock: VirtualClock, name: str = "inline") -> None:
        self._clock = clock
        self.name = name
        #: Set to stop the heartbeats.
        self.frozen = False

    def point(self, name: str) -> None:
        """Does nothing; a subclass can raise here to kill the process at a point."""

    def sleep(self, seconds: float) -> None:
        """Moves the clock by ``seconds``."""
        self._clock.advance_to(self._clock.monotonic() + max(seconds, 0.0))
