"""Simulates the proof (trial run) of a version before a deploy. Production code gathers messages and judges the runs.

Two versions are special. One hangs on the newest messages, and one drops all messages, so that no step runs. From the
results of the runs, production code decides whether the version may replace the running one, and what it reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from holdfast.assets.checks.proven import results_of
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.stages import ProveVersion
from holdfast.processors.proof import gathering, refusal
from holdfast.processors.proof.documents import Material, Message, Outcome
from holdfast.processors.proof.prover import RUN_S, Prover
from tests.simulation.operation_steps import HANGS, MUTE
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, OUTPUT

if TYPE_CHECKING:
    from tests.simulation.operation_world import OperationWorld, Person

#: The virtual seconds of a trial run, also of a version that hangs: no other process acts during the run, so a longer
#: run would change nothing.
TAKES_S = 2.0
#: The hangs that proofs (trial runs) have observed, as (name of the process that ran the proof, release that hung).
Hung = set[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SimulatedProver(Prover):
    """A prover that simulates the runs of versions instead of starting processes."""

    person: Any
    stage: ProveVersion

    def _run(self, processor: str, release: str | None, material: Material) -> Outcome:
        world, process = self.person.world, self.person.process
        process.sleep(TAKES_S)
        version, number = world.version_of(release), refusal.places(material.messages)
        seen = process.name, self.stage.release_id
        if release == self.stage.former:
            if version == HANGS:
                # On the same messages, the running version hangs as well, so the hang is no fault of the new version.
                world.hung.discard(seen)
        elif version == HANGS:
            world.hung.add(seen)
        if version == HANGS:
            return Outcome(broken=refusal.hung(RUN_S, '  File "course_app.py", line 4 in total'))
        if version == MUTE:
            return Outcome(0, {OUTPUT: 0}, unreached=("the step `total`",))
        return Outcome(number, {OUTPUT: number})


def prove(person: Person, processor: str, stage: ProveVersion, tell: ProgressLog) -> Done:
    """Prove a version.

    A version that is not special passes without simulated runs. Such runs would add points (calls at which a process
    may be killed). All known courses (sequences of commands and faults) would then be different.
    """
    if person.world.version_of(stage.release_id) not in (HANGS, MUTE):
        return Done("proven")
    topics: Any = person.topics
    prover = SimulatedProver(
        topics=topics,
        client=person._client,
        slots=lambda name: (),  # the simulated runs need no state, so no checkpoint is made
        stores=lambda name: (),
        rollout=person._rollout,
        scratch=lambda name: person.world.paths.releases(name),
        person=person,
        stage=stage,
    )
    return prover(processor, stage, tell)


@contextmanager
def proofs_in_memory(world: OperationWorld) -> Iterator[None]:
    """While the block runs, a proof (trial run) reads messages from the simulated log."""

    def read(topics: Any, topic: str, number: int, start: int, end: int) -> Iterable[Message]:
        for place, record in world.cluster.read(topic):
            if place == number and start <= record.offset < end:
                yield Message(record.offset, record.key, record.value, record.timestamp_ms)

    with patch.object(gathering, "messages_of", read):
        yield


def check_started(world: OperationWorld, process: SimulatedProcess | None, release: str) -> None:
    """Check that no process starts a worker of a version that it has seen hang.

    The check is skipped if the running version hangs as well.
    """
    if process is not None and (process.name, release) in world.hung:
        said = f"{process.name} starts release {release}, which hung on the newest messages"
        world.broken = world.broken or InvariantBroken("proof", said)


def check_told(world: OperationWorld) -> None:
    """Check that a replay in which no message ran does not count as proof of a version.

    Raises:
        InvariantBroken: The running version counts as proven.
    """
    running = world.registry.releases.working(GROUP)
    if running is None or world.version_of(running.release_id) != MUTE:
        return
    results = results_of(world.registry.journal.applies(200, processor=GROUP), running.release_id)
    passed, sentence = refusal.judge_proven(results)
    if results and passed:
        raise InvariantBroken("proof", f"no message ran in {running.release_id}; the check `proven` passes: {sentence}")
