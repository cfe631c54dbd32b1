"""A deterministic simulation. Processes are greenlets, time is virtual, and one seed decides the schedule.

A process runs production code. Every call to its cluster and its disk passes a ``point``, where the process continues,
yields to another process, or dies. One process runs at a time. Time moves only while all processes sleep.

Invariants:
    - The same seed and the same decisions give the same trace, event for event.
    - A dead process has no effect: every call of its ``finally`` blocks raises ``Crashed``.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from random import Random

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from holdfast.infra.errors import HoldfastError
from holdfast.processors.testing.clock import VirtualClock

#: The number of points (places in calls) that all processes together may pass at one virtual time. After more points,
#: a process counts as looping without sleep, and the simulation fails.
POINTS_PER_INSTANT_MAX = 200_000


class Crashed(BaseException):
    """Raised in a simulated process that was killed (SIGKILL). Production code must not catch it."""


class SimulationStuck(HoldfastError):
    """A simulation did not reach its end in time, or a process loops without sleep."""


class Step(Enum):
    """The decision about a process at a point (a place in a call): continue, yield to another process, or crash."""

    GO_ON = "go on"
    YIELD = "yield"
    CRASH = "crash"


class SimulatedProcess:
    """One run of a simulated process, with the interface ``Process``.

    Attributes:
        name: Its name in traces and in ``Network.fate``.
        at: The name of the last point (place in a call) that it passed.
        failure: The exception that ended it; None while it runs, after a clean end, and after a crash.
    """

    def __init__(self, simulation: Simulation, name: str, main: Callable[[SimulatedProcess], None]) -> None:
        self.name = name
        self.at = "start"
        self.failure: Exception | None = None
        self._simulation = simulation
        self._main = main
        self._crashed = False
        self._stopped = False
        self._asleep = False
        self._interrupted = False
        self._greenlet = greenlet(self._run)

    def point(self, name: str) -> None:
        """Passes a point: a place in a call where the process may be switched, frozen, interrupted or killed.

        Raises:
            Crashed: The process was killed.
            KeyboardInterrupt: It was interrupted.
        """
        if self._crashed:
            raise Crashed
        self.at = name
        self._simulation.pass_point(self, name)
        self._heed()

    def sleep(self, seconds: float) -> None:
        """Lets virtual time pass.

        Raises:
            Crashed: The process was killed.
            KeyboardInterrupt: It was interrupted.
        """
        if self._crashed:
            raise Crashed
        self._asleep = True
        timer = self._simulation.clock.call_later(max(seconds, 0.0), self._wake)
        try:
            self._simulation.give_way(self)
        finally:
            timer.cancel()
            self._asleep = False
        self._heed()

    @property
    def frozen(self) -> bool:
        """Whether the process does nothing and sends no heartbeats: stopped, killed, or ended."""
        return self._stopped or self._crashed or self._greenlet.dead

    @property
    def crashed(self) -> bool:
        """Whether the process was killed."""
        return self._crashed

    @property
    def ended(self) -> bool:
        """Whether the process's greenlet has ended."""
        return bool(self._greenlet.dead)

    @property
    def ready(self) -> bool:
        """Whether the process can continue now."""
        return not (self._asleep or self._stopped or self._greenlet.dead)

    def freeze(self) -> None:
        """Freezes the process, as SIGSTOP does."""
        self._stopped = True

    def thaw(self) -> None:
        """Continues a frozen process, as SIGCONT does."""
        self._stopped = False

    def kill(self) -> None:
        """Kills the process, as SIGKILL does.

        The process has no further effect, and the scheduler removes it at its next turn.
        """
        self._crashed = True

    def interrupt(self) -> None:
        """Interrupts the process, as SIGINT does.

        A ``KeyboardInterrupt`` is raised where the process sleeps, or at its next point (place in a call).
        """
        self._interrupted, self._asleep = True, False

    def go_on(self) -> None:
        """Run the process until it yields. The scheduler calls this method."""
        if self._crashed:
            with suppress(Crashed):  # `throw` raises the error here if the process has not started yet
                self._greenlet.throw(Crashed)
        else:
            self._greenlet.switch()

    def _wake(self) -> None:
        self._asleep = False

    def _heed(self) -> None:
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _run(self) -> None:
        try:
            self._main(self)
        except Crashed:
            return
        except Exception as failure:
            if not self._crashed:
                self.failure = failure


class Simulation:
    """The scheduler of simulated processes.

    Args:
        clock: The virtual clock; ``run_until`` moves it.
        random: Chooses the next process to run.
        on_point: Decides about a process at each of its points (places in a call where it may be killed).
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        on_point: Callable[[SimulatedProcess, str], Step] | None = None,
    ) -> None:
        self.clock = clock
        self.points = 0
        self.processes: list[SimulatedProcess] = []
        self.trace: list[tuple[float, str, str]] = []
        self._random = random
        self._on_point = on_point or (lambda process, name: Step.YIELD)
        self._scheduler = getcurrent()
        self._instant = (-1.0, 0)

    def start(self, name: str, main: Callable[[SimulatedProcess], None]) -> SimulatedProcess:
        """Add a process. It begins to run when the scheduler first chooses it."""
        process = SimulatedProcess(self, name, main)
        self.processes.append(process)
        self.note(name, "start")
        return process

    def note(self, who: str, what: str) -> None:
        """Adds an event to the trace."""
        self.trace.append((self.clock.monotonic(), who, what))

    def run_until(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Runs all processes until ``done`` returns true. ``done`` is called before each move of time.

        Args:
            done: Returns whether to end.
            timeout_s: The limit, in virtual seconds from now.

        Raises:
            SimulationStuck: The time limit is reached, a process loops without sleep, or no event is left.
        """
        self._scheduler = getcurrent()
        deadline = self.clock.monotonic() + timeout_s
        while True:
            if self._run_one():
                continue
            if done():
                return
            following = self.clock.next_at
            if following is None or following > deadline:
                raise SimulationStuck(
                    f"The simulation did not end within {timeout_s:g} virtual seconds.",
                    action="Read the end of the trace (`trace_lines`).",
                    processes={process.name: process.at for process in self.processes},
                )
            self.clock.advance_to(following)

    def end(self) -> None:
        """Kills all running processes, so that no greenlet is left."""
        self._scheduler = getcurrent()
        for process in self.processes:
            process.kill()
            if not process.ended:
                process.go_on()
        self.processes.clear()

    def trace_lines(self, last: int = 0) -> list[str]:
        """Return the trace as text. With ``last``, only this many of its last events."""
        return [f"{when:10.4f}  {who:<8} {what}" for when, who, what in self.trace[-last:]]

    @property
    def trace_hash(self) -> str:
        """The SHA-256 of the trace, as hex."""
        return hashlib.sha256("\n".join(self.trace_lines()).encode()).hexdigest()

    # -- called by processes -----------------------------------------------------------------------------------

    def pass_point(self, process: SimulatedProcess, name: str) -> None:
        """Decide about a process at a point (a place in a call). Runs on the process's greenlet."""
        self.points += 1
        now = self.clock.monotonic()
        self.trace.append((now, process.name, name))
        step = self._on_point(process, name)
        if step is Step.CRASH:
            process.kill()
        if process.crashed:
            raise Crashed
        if step is Step.YIELD or process.frozen:
            self.give_way(process)

    def give_way(self, process: SimulatedProcess) -> None:
        """Yield to the scheduler. This runs on the process's greenlet."""
        self._scheduler.switch()
        if process.crashed:
            raise Crashed

    def _run_one(self) -> bool:
        """Run one process that is ready. Returns False if there is none."""
        doomed = next((process for process in self.processes if process.crashed), None)
        if doomed is not None:
            if not doomed.ended:
                doomed.go_on()
            self.processes.remove(doomed)
            self.note(doomed.name, f"dead after {doomed.at}")
            return True
        ready = [process for process in self.processes if process.ready]
        if not ready:
            self.processes = [process for process in self.processes if not process.ended]
            return False
        self._guard_instant()
        (ready[0] if len(ready) == 1 else self._random.choice(ready)).go_on()
        return True

    def _guard_instant(self) -> None:
        now = self.clock.monotonic()
        since, points = self._instant
        if now != since:
            self._instant = (now, self.points)
        elif self.points - points > POINTS_PER_INSTANT_MAX:
            raise SimulationStuck(
                f"{POINTS_PER_INSTANT_MAX} points passed while time stood still.",
                action="Read the end of the trace (`trace_lines`): a process retries without sleeping.",
            )


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restores the handlers of SIGTERM and SIGINT, which simulated processes replace and restore in any order."""
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
