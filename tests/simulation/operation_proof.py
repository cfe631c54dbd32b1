"""The proof in a course of operation: production gathers and judges, what a version does with the messages is drawn.

Two versions are special. One hangs on the newest messages, the other one lets no message through, so that nothing runs.
Whether they may replace the running version, and what is told about it, production decides from these facts.
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

#: How long a run of a version takes here, seconds: also one that hangs, as nothing happens meanwhile but time.
TAKES_S = 2.0
#: A version that hangs was seen so: the name of the process that saw it, and the release.
Hung = set[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class SimulatedProver(Prover):
    """The prover, whose versions run in no processes of their own."""

    person: Any
    stage: ProveVersion

    def _run(self, processor: str, release: str | None, material: Material) -> Outcome:
        world, process = self.person.world, self.person.process
        process.sleep(TAKES_S)
        version, number = world.version_of(release), refusal.places(material.messages)
        seen = process.name, self.stage.release_id
        if release == self.stage.former:
            if version == HANGS:
                world.hung.discard(seen)  # it hangs, too, and says nothing about the new version
        elif version == HANGS:
            world.hung.add(seen)
        if version == HANGS:
            return Outcome(broken=refusal.hung(RUN_S, '  File "course_app.py", line 4 in total'))
        if version == MUTE:
            return Outcome(0, {OUTPUT: 0}, unreached=("the step `total`",))
        return Outcome(number, {OUTPUT: number})


def prove(person: Person, processor: str, stage: ProveVersion, tell: ProgressLog) -> Done:
    """Prove a version; one that is not special passes without a look, as looks of operators are points of courses."""
    if person.world.version_of(stage.release_id) not in (HANGS, MUTE):
        return Done("proven")
    topics: Any = person.topics
    prover = SimulatedProver(
        topics=topics,
        client=person._client,
        slots=lambda name: (),  # the runs need no state: nobody makes a checkpoint
        stores=lambda name: (),
        rollout=person._rollout,
        scratch=lambda name: person.world.paths.releases(name),
        person=person,
        stage=stage,
    )
    return prover(processor, stage, tell)


@contextmanager
def proofs_in_memory(world: OperationWorld) -> Iterator[None]:
    """Who proves a version reads the messages in the world's log."""

    def read(topics: Any, topic: str, number: int, start: int, end: int) -> Iterable[Message]:
        for place, record in world.cluster.read(topic):
            if place == number and start <= record.offset < end:
                yield Message(record.offset, record.key, record.value, record.timestamp_ms)

    with patch.object(gathering, "messages_of", read):
        yield


def check_started(world: OperationWorld, process: SimulatedProcess | None, release: str) -> None:
    """Who saw a version hang where the running one does not, starts no worker of it."""
    if process is not None and (process.name, release) in world.hung:
        said = f"{process.name} starts release {release}, which hung on the newest messages"
        world.broken = world.broken or InvariantBroken("proof", said)


def check_told(world: OperationWorld) -> None:
    """A replay in which nothing ran is no proof.

    Raises:
        InvariantBroken: The version that runs counts as proven.
    """
    running = world.registry.releases.working(GROUP)
    if running is None or world.version_of(running.release_id) != MUTE:
        return
    results = results_of(world.registry.journal.applies(200, processor=GROUP), running.release_id)
    passed, sentence = refusal.judge_proven(results)
    if results and passed:
        raise InvariantBroken("proof", f"no message ran in {running.release_id}; the check `proven` passes: {sentence}")
