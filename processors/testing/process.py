"""The simulated processes that run applications on the in-memory cluster."""

from __future__ import annotations

from typing import Protocol

from holdfast.processors.testing.clock import VirtualClock


class Process(Protocol):
    """The interface of a simulated operating-system process, as the clients of the in-memory cluster use it."""

    @property
    def name(self) -> str:
        """The name of the process, used in traces and in ``Network.fate``."""

    def point(self, name: str) -> None:
        """Marks a point at which a simulation can switch, freeze or kill the process.

        Clients call this method before and after every effect on the cluster.
        """

    def sleep(self, seconds: float) -> None:
        """Lets this many seconds of virtual time pass."""

    @property
    def frozen(self) -> bool:
        """Whether the process is frozen. A frozen process sends no heartbeats."""


class InlineProcess:
    """A process that runs in the caller's thread. Its ``sleep`` advances the clock."""

    def __init__(self, clock: VirtualClock, name: str = "inline") -> None:
        self._clock = clock
        self.name = name
        #: Set to True to stop the heartbeats of the process.
        self.frozen = False

    def point(self, name: str) -> None:
        """Does nothing. A subclass can raise an exception here, to kill the process at this point."""

    def sleep(self, seconds: float) -> None:
        """Advances the clock by ``seconds``."""
        self._clock.advance_to(self._clock.monotonic() + max(seconds, 0.0))
