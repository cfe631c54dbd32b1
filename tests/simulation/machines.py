"""Simulated machines. Each has a disk and at most one process, which the simulation restarts after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.infra.settings import Settings
from holdfast.processors.application.application import Application
from holdfast.processors.engine.state.databases.task_store import ASIDE_SUFFIX
from tests.simulation.disk import SimulatedDisk
from tests.simulation.scheduler import SimulatedProcess

if TYPE_CHECKING:
    from tests.simulation.world import World


class Machine:
    """One machine with a disk and at most one process. By default, the name is also the slot (place) of its worker."""

    def __init__(self, world: World, name: str, *, slot: str = "", settings: Settings | None = None) -> None:
        self.name = name
        self.slot = slot or name
        self._settings = settings or world.settings
        self.disk = SimulatedDisk()
        self.wanted = False
        self.process: SimulatedProcess | None = None
        self.app: Application | None = None
        #: Whether the machine's next process runs the version of the processor in which one task reads both inputs.
        self.joined = world.joined
        self._world = world
        self._lives = 0

    def start(self) -> None:
        """Start the processor, unless it is already running or should not run."""
        if not self.wanted or (self.process is not None and not (self.process.ended or self.process.crashed)):
            return
        self._lives += 1
        self.process = self._world.simulation.start(f"{self.name}.{self._lives}", self._live)

    def start_later(self, seconds: float) -> None:
        """Start the processor after this many virtual seconds."""
        self._world.clock.call_later(seconds, self.start)

    def stop(self) -> None:
        """Stop the processor gracefully, as SIGTERM does."""
        if self.app is not None:
            self.app.stop()

    @property
    def alive(self) -> SimulatedProcess | None:
        """The running process, or None if the process has ended or crashed."""
        process = self.process
        return None if process is None or process.ended or process.crashed else process

    def databases(self) -> list[tuple[str, Path, dict[bytes, bytes]]]:
        """The usable databases of this machine, each with machine name, path and content."""
        return [
            (self.name, path, self.disk.content(path))
            for path in self.disk.paths
            if not path.name.endswith((".corrupt", ASIDE_SUFFIX)) and not path.parent.name.startswith(".")
        ]

    def ask_for_checkpoints(self) -> None:
        """Request checkpoints from the worker, as its HTTP interface does."""
        worker = self.app._worker if self.app is not None else None
        if self.alive is not None and worker is not None and worker.assignment.checkpoints is not None:
            worker.assignment.checkpoints.ask_now(worker.assignment.tasks)

    def _live(self, process: SimulatedProcess) -> None:
        world = self._world
        self.app = app = world.application(self)
        try:
            self._run(app, process)
        except Exception as failure:
            world.exited(self, failure)
        else:
            world.exited(self, None)
        finally:
            if self.app is app:
                self.app = None

    def _run(self, app: Application, process: SimulatedProcess) -> None:
        world = self._world
        app.run_on(
            world.cluster.connect(process),
            self._settings,
            databases=self.disk.attach(process),
            storage=world.store.attach(process),
        )


class Operator(Machine):
    """An operator's machine. It clears all state and sets the input back, and retries until both are done."""

    def _run(self, app: Application, process: SimulatedProcess) -> None:
        view = self._world.cluster.connect(process)
        app.clear_state_on(view, self._settings, rewind="earliest")
        self.wanted = False
