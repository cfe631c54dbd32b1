"""Random sequences of lifecycle verbs (operator commands), input, crashes and damage, with these checks:

explain    a plan names exactly the keys that its execution deletes; a refused or empty plan changes nothing
state      after every verb, changelogs and the workers' databases equal the model of input and clears in plain Python
resume     an execution whose operator or workers died reaches the same state when it is requested again
restore    after full compaction and without checkpoints, a new disk is restored to the same state
outputs    every message is processed once, and again only if a clear has rewound the input
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.explanation import explain
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Refused
from holdfast.processors.lifecycle.plans.requests import (
    Adopt,
    Backfill,
    Clear,
    Compact,
    Deploy,
    Everything,
    Keys,
    Prefix,
    Provision,
    Replay,
    Request,
    Restart,
    Restore,
    Rollback,
    Scale,
    Selection,
    Stop,
)
from holdfast.processors.lifecycle.plans.stages import ClearKeys, SetPositions
from holdfast.processors.testing.log import PartitionLog
from holdfast.processors.testing.process import InlineProcess
from tests.simulation.letters import check_letters
from tests.simulation.lifecycle_judge import LifecycleJudge
from tests.simulation.lifecycle_model import Fault
from tests.simulation.lifecycle_operator import Operator, Shown
from tests.simulation.lifecycle_world import LifecycleWorld
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, INPUT, OUTPUT

#: ``ATTEMPTS``: after this many attempts a request counts as stuck. Operators and workers are killed only in the first
#: ``FAULTY`` attempts.
ATTEMPTS, FAULTY = 14, 4
#: Virtual seconds within which the workers must consume all input.
SETTLED_S = 400.0


class Sequence(LifecycleJudge):
    """The sequence of verbs (operator commands) and events of one seed."""

    def __init__(self, world: LifecycleWorld) -> None:
        super().__init__(world)
        self.random = world.random
        self.struck = 0
        #: Whether a verb (operator command) has set the input back. Then a failed message may have several dead
        #: letters, one for each time that it was processed.
        self.rewound = False

    def run(self) -> None:
        """Run the whole sequence.

        Raises:
            InvariantBroken: A check failed.
        """
        self.do(Provision(GROUP))
        self.do(Deploy(GROUP))
        for _ in range(self.random.randint(3, 8)):
            self.step()
        self.finish()

    def step(self) -> None:
        """Take one random step: mostly add input, otherwise a verb (operator command) or some damage."""
        random, up = self.random, self.model.up
        if random.random() < 0.8:
            self.feed()
        others = [self.clear, self.clear, self.restore, self.clean, lambda: self.do(Compact(GROUP))]
        others += [self.put_back_registry, self.intrude, self.roll_back, lambda: self.do(Restart(GROUP))]
        others += [self.snapshot, self.snapshot, self.restore_from_table, self.restore_from_table]
        if up:
            others += [lambda: self.do(Stop(GROUP)), lambda: self.do(Stop(GROUP)), lambda: self.do(Deploy(GROUP))]
        else:
            others += [self.clear, lambda: self.do(Deploy(GROUP)), lambda: self.do(Stop(GROUP)), self.lose, self.drift]
            others += [self.lose_output]
        others += [self.spoil, self.spoil]
        if self.world.workload.dead_letters:
            others += [lambda: self.do(Replay(GROUP))] * 3
        random.choice(others)()
        if self.world.schedule.seed % 4 == 3 and self.model.up and random.random() < 0.4:
            self.do(Scale(GROUP, random.randint(1, 3), warm_s=0.0))

    def feed(self) -> None:
        """Produce some input. Running workers process it."""
        for number, messages in enumerate(self.world.workload.messages):
            self.world.feed(number, self.random.randint(self.world.sent[number], len(messages)))
        self.settle()

    def clear(self) -> None:
        """Request a random clear (deletion of keys). Many clears are refused while the processor is running."""
        random, workload = self.random, self.world.workload
        keys = sorted({message.key.decode() for messages in workload.messages for message in messages})
        selection: Selection = random.choice(
            [
                Keys(tuple(random.sample(keys, random.randint(1, len(keys))))),
                Prefix(random.choice(["k", "k1", "k2", "x"])),
                Everything(),
            ]
        )
        if isinstance(selection, Everything) and random.random() < 0.5:
            self.do(Clear(GROUP, rewind=random.choice(["stay", "earliest", "earliest"]), export=random.random() < 0.3))
            return
        stores = tuple(random.sample(workload.names, random.randint(0, len(workload.names))))
        numbers = range(self.world.schedule.partitions)
        partitions = tuple(random.sample(numbers, random.randint(0, len(numbers) - 1)))
        self.do(Clear(GROUP, stores, selection, partitions, export=random.random() < 0.3))

    def restore(self) -> None:
        """Request a random restore."""
        numbers = range(self.world.schedule.partitions)
        partitions = tuple(self.random.sample(numbers, self.random.randint(0, len(numbers) - 1)))
        self.do(Restore(GROUP, partitions, self.random.choice(["newest", "changelog"])))

    def snapshot(self) -> None:
        """Write the current content of all stores to the warehouse."""
        contents = {(store, number): self.folded(place) for place, store, number in self.places()}
        self.world.tables.take(contents, self.model.effective)
        self.told.append(f"snapshot {len(self.world.tables.taken)}")

    def restore_from_table(self) -> None:
        """Restore a random snapshot, with a random choice of stores and of the position of the input."""
        random, names = self.random, self.world.workload.names
        if not self.world.tables.taken:
            self.snapshot()
        taken = random.choice(self.world.tables.taken)
        newest = taken is self.world.tables.taken[-1] and random.random() < 0.5
        inputs: Any = random.choice(["snapshot", "snapshot", "snapshot", "copied", "earliest", "stay"])
        known = self.world.cluster.committed_offsets(GROUP)
        if inputs == "stay" and len(known) < self.world.schedule.partitions:
            inputs = "snapshot"  # "stay" needs a committed offset of each partition
        stores = tuple(random.sample(names, random.randint(0, len(names))))
        self.model.catch_up()
        wanted = (stores or tuple(names)) if inputs == "stay" else tuple(names)
        self.model.restoring = taken, wanted, inputs
        self.do(Restore(GROUP, stores=stores, at="latest" if newest else f"s{taken.number}", inputs=inputs))
        self.model.restoring = None

    def clean(self) -> None:
        """Compact the changelogs. Tombstones stay."""
        for place in self.changelogs():
            self.world.cluster.compact(place, drop_tombstones=False)
        self.told.append("cleaner")

    def lose(self) -> None:
        """Lose a disk, or all checkpoints."""
        if self.random.random() < 0.5:
            self.world.disk.lose()
        else:
            self.world.store.objects.clear()
        self.told.append("something is lost")

    def drift(self) -> None:
        """Change a changelog's configuration outside of Holdfast. The command `provision` must repair it."""
        topic = changelog_topic(GROUP, self.random.choice(self.world.workload.names))
        self.world.cluster._broker.topics[topic].config["cleanup.policy"] = "delete"
        self.do(Provision(GROUP))
        found = self.world.cluster._broker.topics[topic].config["cleanup.policy"]
        if found != "compact":
            raise InvariantBroken("provision", f"{topic} has cleanup.policy {found}")

    def spoil(self) -> None:
        """Truncate, widen or delete a changelog. Then rebuild it from local state, or from the input.

        With two workers, a task may run on a worker without its state on disk. Then the changelog is rebuilt from the
        input.
        """
        found = self.world.registry.deployment(GROUP)
        slots, partitions = len(found.slots if found else ()), self.world.schedule.partitions
        whole = len({number for _, number, _ in self.current()}) == partitions
        if self.model.up and not (whole and slots == 1):
            return
        store = self.random.choice(self.world.workload.names)
        name = changelog_topic(GROUP, store)
        how = self.random.choice(["cut", "widened"] if self.model.up else ["cut", "widened", "gone"])
        lost = not self.model.up and self.random.random() < 0.5
        topic = self.world.cluster._broker.topics[name]
        if how == "gone":
            self.world.cluster.delete_topic(name)
        elif how == "widened":
            topic.logs.append(PartitionLog())
        else:
            for log in topic.logs:
                log.truncate(start=log.end, end=None)
        self.told.append(f"the changelog of {store} is {how}{', and the disk is lost' * lost}")
        backfill = Backfill(GROUP, store, "local")
        if whole and slots == 1 and not lost:
            self.do(backfill)
            return
        if lost:
            self.world.disk.lose()
            self.world.store.objects.clear()
            outcome = self.ask(backfill, None, calm=True)
            if not isinstance(outcome, Shown) or not isinstance(outcome.plan.verdict, Refused):
                raise InvariantBroken("explain", f"a changelog is filled from a disk that is lost: {outcome}")
        self.do(Clear(GROUP, rewind="earliest", export=False))

    def lose_output(self) -> None:
        """Delete the output topic. A deploy creates it again, and every later output must be in it."""
        self.gone += self.outputs()
        self.world.cluster.delete_topic(OUTPUT)
        self.told.append("the outputs are gone")
        self.do(Deploy(GROUP))

    def put_back_registry(self) -> None:
        """Put back an older copy of Holdfast's registry. No worker may start or stop before an operator accepts it."""
        copy = self.world.copy_registry()
        for _ in range(self.random.randint(1, 2)):
            self.do(Stop(GROUP) if self.model.up else Deploy(GROUP))
        self.settle()
        self.world.replace_registry(copy)
        self.told.append("an older copy of the registry")
        before = self.sight()
        self.revive()
        for request in (Stop(GROUP), Deploy(GROUP), Restore(GROUP)):
            self.refused(request, "older than")
        self.check_untouched(Adopt(GROUP), before)
        self.do(Adopt(GROUP))

    def roll_back(self) -> None:
        """Roll back to an earlier release. It has the same code as the current release, so its state fits."""
        book = self.world.registry.releases
        now = book.working(GROUP)
        assert now is not None
        earlier, when = f"{now.code_version}-{len(self.told)}", self.world.clock.time()
        columns = {"code_version": now.code_version, "target": now.target, "shape": now.shape}
        book.record(GROUP, earlier, folder=str(self.world.state_dir), **columns, now=datetime.fromtimestamp(when, UTC))
        book.works(GROUP, earlier, datetime.fromtimestamp(when - 1e6, UTC))
        self.do(Rollback(GROUP, earlier))
        if (ran := book.working(GROUP)) is None or ran.release_id != earlier:
            raise InvariantBroken("deployment", f"{earlier} was to run, {ran} does")

    def intrude(self) -> None:
        """A worker of another installation joins the consumer group. Until it leaves, no command may start workers."""
        group = self.world.cluster._broker.group(GROUP)
        stranger = InlineProcess(self.world.clock)
        member = group.join(stranger, (INPUT,), "holdfast-of-others")
        before = self.sight()
        for request in (Deploy(GROUP), Restore(GROUP)):
            self.refused(request, "holdfast-of-others")
        self.check_untouched(Deploy(GROUP), before)
        group.leave(member)
        self.told.append("a stranger came and went")
        self.world.rest(1.0)

    def refused(self, request: Request, words: str) -> None:
        """Request a verb (operator command), and check that it is refused with an error that contains these words."""
        outcome = self.ask(request, None, calm=False)
        verdict = outcome.plan.verdict if isinstance(outcome, Shown) else outcome
        if not isinstance(verdict, Refused) or words not in verdict.sentence:
            raise InvariantBroken("refusal", f"{request} is not refused with {words!r}: {verdict}")

    # -- one verb --------------------------------------------------------------------------------------------------

    def do(self, request: Request) -> None:
        """Request a verb (operator command) repeatedly, while operators or workers are killed, until it is done.

        Then check the installation.
        """
        before, calm = self.sight(), True
        self.rewound |= isinstance(request, Clear | Restore | Backfill)
        known = len(self.world.registry.journal.applies(1_000))
        for attempt in range(ATTEMPTS):
            fault = Fault(self.world) if attempt < FAULTY and self.random.random() < 0.5 else None
            outcome = self.ask(request, fault, calm=calm)
            struck = fault is not None and fault.struck
            self.struck += struck
            self.model.catch_up()
            is_hasty = isinstance(outcome, Shown) and self.is_hasty(request, outcome)
            if isinstance(outcome, Shown) and (not is_hasty or self.is_done(request, known)) and not self.is_held():
                self.note(request, attempt, outcome)
                if outcome.applied is None and calm and not struck:
                    self.check_untouched(request, before)
                break
            # If an apply (execution of a plan) fails, its error tells the operator to start the stopped workers.
            if isinstance(outcome, ApplyFailed):
                self.ask(Deploy(GROUP), None, calm=False)
            self.told.append(f"{request}: {outcome}, {fault.who + ' ' + fault.aim if fault and struck else 'no fault'}")
            calm = False
            if self.random.random() < 0.7:
                self.recover()
            pause_s = self.random.choice([0.5, 5.0, 20.0, 62.0])
            # An operator on another machine counts as dead only after a minute without a heartbeat.
            self.world.rest(pause_s if attempt < ATTEMPTS // 2 else 62.0)
            self.model.catch_up()
        else:
            raise InvariantBroken("resume", f"{request} is not through after {ATTEMPTS} tries: {self.told[-3:]}")
        if isinstance(request, Deploy | Stop | Restart | Rollback) and not isinstance(outcome.plan.verdict, Refused):
            self.model.up = not isinstance(request, Stop)
        self.check()

    def ask(self, request: Request, fault: Fault | None, *, calm: bool) -> Shown | HoldfastError | None:
        """Request a verb (operator command) once. Returns None if the operator was killed."""
        outcome: list[Shown | HoldfastError] = []

        def shown(plan: Plan) -> None:
            explain(plan)
            if calm and isinstance(request, Clear) and plan.keys is not None:
                wanted = self.model.count(request)
                if plan.keys != wanted:
                    raise InvariantBroken("explain", f"{request}: {plan.keys} keys are named, there are {wanted}")
            if isinstance(plan.verdict, NothingToDo) and isinstance(request, Clear) and self.model.count(request):
                raise InvariantBroken("explain", f"{request}: {plan.verdict.sentence}")

        def work(operator: Operator) -> None:
            operator.on_stage = self.carried_out
            try:
                outcome.append(operator.ask(request, shown))
            except HoldfastError as failure:
                outcome.append(failure)

        self.world.strike = fault
        process = self.world.operate(work)
        self.world.strike = None
        if process.failure is not None:
            if isinstance(process.failure, InvariantBroken):
                raise process.failure
            raise InvariantBroken("operator", f"{request}: {process.failure!r}") from process.failure
        return outcome[0] if outcome and not process.crashed else None

    def carried_out(self, stage: object) -> None:
        """Tell the model that a stage (step of a plan) is done. The registry's journal records the stage afterwards."""
        if isinstance(stage, ClearKeys):
            self.model.cleared(stage)
        if isinstance(stage, SetPositions):
            self.model.certain = True
            self.model.catch_up()

    def is_hasty(self, request: Request, outcome: Shown) -> bool:
        """Whether a refusal is temporary, so that the command can be requested again.

        The cause is then the group session of a dead worker, or a worker that still restores its state.
        """
        if not isinstance(outcome.plan.verdict, Refused):
            return False
        if isinstance(request, Clear) and self.model.up:
            return not isinstance(request.selection, Everything)
        return self.model.up or not isinstance(request, Compact)

    def is_done(self, request: Request, known: int) -> bool:
        """Whether the apply (execution of a plan) is done although its operator died.

        In that case, the registry's journal (list of applies) has a new apply that is done.
        """
        for record in self.world.registry.journal.applies(1_000)[: -known or None]:
            if record.outcome == "done" and plans.decode(record.plan).request == request:
                return True
        return False

    def is_held(self) -> bool:
        """Whether a dead operator still holds an open apply (execution of a plan).

        Another operator may take over this apply only after a minute without a heartbeat.
        """
        return bool(self.world.registry.journal.applies(1, open_only=True))

    def note(self, request: Request, attempt: int, outcome: Shown) -> None:
        """Add the outcome to the trace. Check that a clear deleted exactly as many keys as its plan named."""
        verdict = type(outcome.plan.verdict).__name__
        self.told.append(f"{request}: {verdict} {'resumed' * outcome.resumed} after {attempt + 1} tries")
        applied, plan = outcome.applied, outcome.plan
        if applied is None or applied.id is None or outcome.resumed or not isinstance(request, Clear):
            return
        if plan.keys is None:
            return
        gone = sum(int(each.units) for each in applied.notes if each.stage == "clear_keys")
        if gone != plan.keys:
            raise InvariantBroken("explain", f"{request}: {plan.keys} keys were named, {gone} were deleted")

    def recover(self) -> None:
        """Run recovery, and let the workers that it starts process the input."""
        self.revive()
        programs = list(self.world.programs.values())
        if any(each.alive and "--paused" not in each.spec.command for each in programs):
            self.world.clock.call_later(60.0, lambda: None)
            until = self.world.clock.monotonic() + 60.0
            self.world.until(
                lambda: self.is_consumed() or self.world.clock.monotonic() >= until, 120.0, "what recovery started"
            )

    def revive(self) -> None:
        """Run recovery once, which restarts the dead workers of a processor that should run."""
        failure = self.world.operate(lambda operator: operator.recover()).failure
        if failure is not None:
            raise InvariantBroken("operator", f"recovery failed: {failure!r}") from failure

    def settle(self) -> None:
        """If the processor should run, wait until its workers have processed all input.

        Then wait until the last transaction markers have arrived.
        """
        if self.model.up:
            if not all(program.alive for program in self.world.programs.values()):
                self.revive()
            self.world.clock.call_later(SETTLED_S, lambda: None)
            self.world.until(self.is_consumed, SETTLED_S, f"the input is consumed: {self.told[-3:]}")
        self.world.rest(2.0)
        self.model.catch_up()

    def finish(self) -> None:
        """Process and check the rest of the input.

        Then restore state on a new disk from compacted changelogs, without checkpoints.
        """
        self.do(Deploy(GROUP))
        for number, messages in enumerate(self.world.workload.messages):
            self.world.feed(number, len(messages))
        self.check()
        self.check_outputs()
        if not self.rewound:
            check_letters(self.world)
        self.do(Stop(GROUP))
        for place in self.changelogs():
            self.world.cluster.compact(place, drop_tombstones=True)
        self.world.disk.lose()
        self.world.store.objects.clear()
        self.do(Deploy(GROUP))
        self.do(Stop(GROUP))
