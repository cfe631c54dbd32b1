"""A deterministic simulation: processes as greenlets, virtual time, and one seed that decides who goes on when.

A process runs production code; whatever it calls of its cluster and its disk passes through ``point``, where it goes
on, lets another process run, or dies. Only one process runs at a time, and time moves only when all of them sleep.

Invariants:
    - The same seed and the same decisions give the same trace, event for event.
    - A dead process has no effect any more: whatever its ``finally`` blocks call raises ``Crashed`` at once.
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

#: So many points without any virtual time going by: somebody spins.
POINTS_PER_INSTANT_MAX = 200_000


class Crashed(BaseException):
    """Thrown into a simulated process that is dead (SIGKILL); production code has no business to catch it."""


class SimulationStuck(HoldfastError):
    """What is waited for in a simulation did not come about."""


class Step(Enum):
    """What becomes of a process at a point."""

    GO_ON = "go on"
    YIELD = "yield"
    CRASH = "crash"


class SimulatedProcess:
    """One life of one simulated process (``processors.testing.process.Process``).

    Attributes:
        name: What traces and fates know it by.
        at: The last point that it passed.
        failure: What ended it; None while it runs, after a clean end, and after a crash.
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
        self._greenlet = greenlet(self._run)

    def point(self, name: str) -> None:
        """A moment at which this process can be switched, frozen or crashed.

        Raises:
            Crashed: It is dead.
        """
        if self._crashed:
            raise Crashed
        self.at = name
        self._simulation.pass_point(self, name)

    def sleep(self, seconds: float) -> None:
        """Let so much virtual time go by.

        Raises:
            Crashed: It is dead.
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

    @property
    def frozen(self) -> bool:
        """Whether it can't do anything, its heartbeats included: stopped by a signal, dead, or at its end."""
        return self._stopped or self._crashed or self._greenlet.dead

    @property
    def crashed(self) -> bool:
        """Whether it was killed."""
        return self._crashed

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return bool(self._greenlet.dead)

    @property
    def ready(self) -> bool:
        """Whether it can go on now."""
        return not (self._asleep or self._stopped or self._greenlet.dead)

    def freeze(self) -> None:
        """SIGSTOP."""
        self._stopped = True

    def thaw(self) -> None:
        """SIGCONT."""
        self._stopped = False

    def kill(self) -> None:
        """SIGKILL: from now on it has no effect; the scheduler takes it off at its next turn."""
        self._crashed = True

    def go_on(self) -> None:
        """Run it until it gives way; the scheduler's part."""
        if self._crashed:
            with suppress(Crashed):  # comes back here from a process that had not begun
                self._greenlet.throw(Crashed)
        else:
            self._greenlet.switch()

    def _wake(self) -> None:
        self._asleep = False

    def _run(self) -> None:
        try:
            self._main(self)
        except Crashed:
            return
        except Exception as failure:
            if not self._crashed:
                self.failure = failure


class Simulation:
    """The scheduler of some processes.

    Args:
        clock: The virtual clock; moved by ``run_until``.
        random: Decides who runs next.
        on_point: Decides about each process at each of its points.
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
        """Start a process; it runs from the next turn of the scheduler on."""
        process = SimulatedProcess(self, name, main)
        self.processes.append(process)
        self.note(name, "start")
        return process

    def note(self, who: str, what: str) -> None:
        """Put a fact into the trace."""
        self.trace.append((self.clock.monotonic(), who, what))

    def run_until(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Run all processes until ``done``, which is asked whenever time is about to move.

        Args:
            done: Whether it is enough.
            timeout_s: Virtual seconds from now.

        Raises:
            SimulationStuck: It is not done in time, somebody spins, or nothing will ever happen any more.
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
                    f"What was waited for did not come about within {timeout_s:g} virtual seconds.",
                    action="See the end of the trace.",
                    processes={process.name: process.at for process in self.processes},
                )
            self.clock.advance_to(following)

    def end(self) -> None:
        """Kill whatever still runs, so that no greenlet is left behind."""
        self._scheduler = getcurrent()
        for process in self.processes:
            process.kill()
            if not process.ended:
                process.go_on()
        self.processes.clear()

    def trace_lines(self, last: int = 0) -> list[str]:
        """The trace as text: all of it, or the ``last`` events."""
        return [f"{when:10.4f}  {who:<8} {what}" for when, who, what in self.trace[-last:]]

    @property
    def trace_hash(self) -> str:
        """Equal for equal traces."""
        return hashlib.sha256("\n".join(self.trace_lines()).encode()).hexdigest()

    # -- called by processes -----------------------------------------------------------------------------------

    def pass_point(self, process: SimulatedProcess, name: str) -> None:
        """Decide about one process at one point; on its greenlet."""
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
        """Let the scheduler go on; on the process's greenlet."""
        self._scheduler.switch()
        if process.crashed:
            raise Crashed

    def _run_one(self) -> bool:
        """Let one process run that can; False when none can."""
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
                action="See the end of the trace: somebody asks again without sleeping.",
            )


@contextmanager
def signals_kept() -> Iterator[None]:
    """Put the handlers of SIGTERM and SIGINT back that simulated processes replace, in whatever order they end."""
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
