"""The machine of a course, with the systems of calls and sinks outside of it, and with clients that ask for state."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from holdfast.processors.engine.queries.held_state import Read
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.plans.certificates import decode
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys
from tests.simulation.erased import KEYS
from tests.simulation.operation_outside import Outside, outside_workload, parts_of
from tests.simulation.operation_world import OperationWorld
from tests.simulation.questions import Asker, Content
from tests.simulation.scheduler import SimulatedProcess, Step
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, Workload

#: The probability that a point (a place in a call of a process) has a query.
ASKED = 0.02


class WatchedWorld(OperationWorld):
    """A machine whose workers are asked for their state, and may have calls and sinks."""

    outside: Outside | None = None

    def __init__(self, schedule: Any, folder: Path, template: Path) -> None:
        self._asker: Asker | None = None
        #: Whether the course erases a key.
        self.erases = False
        super().__init__(schedule, folder, template)
        random = Random(f"questions of course {schedule.seed}")
        self._asker = Asker(
            self.cluster, self.workload.names, self._asked_workers, self._wrong, random, passive=True, share=ASKED
        )
        self._asker.checks.append(self._check_erased)

    @property
    def asker(self) -> Asker:
        """What asks the workers."""
        assert self._asker is not None
        return self._asker

    def workload_of(self, drawn: Workload, folder: Path) -> Workload:
        """The workload, with the systems outside of it."""
        if parts := parts_of(self.schedule.seed):
            self.standby_replicas = Random(f"standbys of course {self.schedule.seed}").choice([0, 1])
            self.outside, self._batches = Outside(self, folder, parts), Random(f"batches of {self.schedule.seed}")
            return outside_workload(drawn, self.schedule.seed, self.outside)
        return drawn

    def commit_every(self) -> int:
        """The number of messages after which the next worker commits.

        With systems outside, it is another one for each worker. So messages that are read again come in other batches.
        """
        return super().commit_every() if self.outside is None else self._batches.choice([1, 3, 7, 20])

    def _asked_workers(self) -> list[tuple[str, Worker]]:
        found = ((program.spec.command, program.worker) for program in self.programs.values())
        return [(command[command.index("--slot") + 1], worker) for command, worker in found if worker is not None]

    def _wrong(self, broken: InvariantBroken) -> None:
        self.broken = self.broken or broken

    def _on_point(self, process: SimulatedProcess, name: str) -> Step:
        if self._asker is not None:
            self._asker.passed()
        return super()._on_point(process, name)

    def _check_erased(self, store: str, number: int, read: Read, content: Content) -> None:
        """Check that no answer has a value of an erased key from before the deletes, once it is certified."""
        if not self.erases:
            return
        marks = None
        for record in self.registry.erasures.of(GROUP):
            certificate = decode(record.document) if record.document else None
            if certificate is None or not certificate.proven:
                continue
            if marks is None:
                erased = ErasedKeys.of(self.registry, self.paths, GROUP)
                marks = {erased.mark(key.encode()): key for key in KEYS}
            at, entries = read.view.meta.stores.get(store), KeyEntries(marks[record.mark])
            end = 0 if at is None else certificate.ends.get(at.topic, {}).get(number, 0)
            if at is not None and at.offset < end and (found := [key for key in content if entries.has(key)]):
                said = f"{store}[{number}] at {at.offset} of its changelog, before {end}, has {found}: {certificate}"
                raise InvariantBroken("queries", f"an answer shows what is certified as erased: {said}")
