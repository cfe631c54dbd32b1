"""The state machine: what may happen to a store, drawn by hypothesis, with all promises checked after each step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.schema.types import INFERRED
from holdfast.processors.snapshots.coverage import NotCovered
from holdfast.processors.snapshots.plan import ChangelogMoved, SnapshotImpossible, Wanted
from tests.spark.model import drawn
from tests.spark.model.changelog import OffsetsLost
from tests.spark.model.checks import PromiseBroken, check, require
from tests.spark.model.life import STORE, Life, World
from tests.spark.model.owner import DELETED, PARTITIONS
from tests.spark.model.restores import Inputs, restore
from tests.spark.model.runs import Run, alone, together
from tests.spark.model.seams import Killed
from tests.spark.model.upkeep import check_upkeep, kept_names

#: Lives of one case, and cases of one file: each file may go to another test process, and has a JVM there.
SEQUENCES, CASES_OF_A_FILE = 50, 10
#: Things that happen to one store after its first snapshot.
STEPS = 4
#: A snapshot makes about this many commits to tables.
COMMITS = 22


@dataclass(frozen=True, slots=True)
class Failure:
    """A life that broke a promise, or in which the product failed: which, how, and what had happened."""

    sequence: int
    promise: str
    detail: str
    told: tuple[str, ...]

    def text(self) -> str:
        """For people."""
        return "\n".join([f"sequence {self.sequence} broke {self.promise!r}: {self.detail}", *self.told])


class Ended(Exception):
    """The first failure ends the run."""


def stop() -> None:
    """End the run. Hypothesis repeats what failed; it raises here again, so hypothesis finds it the same."""
    raise Ended


def step(does: Callable[..., None]) -> Callable[..., None]:
    """A rule that notes what it was called with, and whose failure ends this life, not the run."""

    @functools.wraps(does)
    def run(self: StoreMachine, **given: Any) -> None:
        if self.failures and self.ends_at_first:
            stop()
        if self.failed:
            return
        self.tell(f"{does.__name__} {given}")
        try:
            does(self, **given)
        except Exception as failure:
            self.failed = True
            broken = failure.promise if isinstance(failure, PromiseBroken) else type(failure).__name__
            self.failures.append(Failure(self.world.lives, broken, str(failure), tuple(self.told)))
        if self.failures and self.ends_at_first:
            stop()

    return run


class StoreMachine(RuleBasedStateMachine):
    """A store's life. The class variables are set by ``run``."""

    world: ClassVar[World]
    failures: ClassVar[list[Failure]]
    ends_at_first: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.failed = False
        self.life: Life

    def tell(self, line: str) -> None:
        self.told.append(line)

    @initialize(inferred=st.booleans(), booked=st.sampled_from([True] + 9 * [False]), first=drawn.changes(),
                second=drawn.changes())  # fmt: skip
    @step
    def begin(self, inferred: bool, booked: bool, first: Any, second: Any) -> None:
        self.life = Life(self.world, INFERRED if inferred else None, self.tell)
        self.world.seams.booked = booked
        self.life.owner.commit(0, first)
        self.life.owner.commit(1, second)
        self.checkpoints(0.0, first)
        self.snapshot(Wanted.AUTO)

    # -- what happens to the store -----------------------------------------------------------------------------------

    @rule(first=drawn.changes(), second=drawn.changes(), event=drawn.events, pause=drawn.pauses)
    @step
    def live(self, first: Any, second: Any, event: str, pause: float) -> None:
        self.life.owner.commit(0, first)
        self.life.clock.advance(pause)
        self.happen(event)
        self.life.owner.commit(1, second)

    def happen(self, event: str) -> None:
        """Something that the owner does not notice, or that it goes through."""
        life = self.life
        match event:
            case "clean":
                for log in life.log.logs:
                    log.clean(life.clock.time())
            case "truncate":
                log = life.log.logs[0]
                log.truncate(log.end - 1)
            case "rebuild":
                life.owner.rebuild()
            case "clear":
                life.owner.rebuild({})
            case "lose files":
                life.owner.lose_files()
            case "abort":
                life.owner.commit(0, [(0, {"a": "aborted"}, 0), (1, {"a": "aborted"}, 0)], commit=False)

    def checkpoints(self, apart: float, between: Any) -> None:
        """A checkpoint of each partition; with a time between them in which both go on."""
        life = self.life
        life.checkpoint(0)
        if apart:
            life.clock.advance(apart / 2)
            life.owner.commit(0, between)
            life.owner.commit(1, between)
            life.clock.advance(apart / 2)
        life.checkpoint(1)

    # -- what Holdfast does ------------------------------------------------------------------------------------------

    @rule(changes=drawn.changes(), wanted=drawn.wanted, apart=drawn.apart, tag=st.booleans())
    @step
    def work(self, changes: Any, wanted: Wanted, apart: float, tag: bool) -> None:
        self.life.owner.commit(len(changes) % PARTITIONS, changes)
        self.checkpoints(apart, changes)
        self.snapshot(wanted)
        if tag:
            self.life.tag_time()

    @rule(changes=drawn.changes(), event=drawn.events, pause=drawn.pauses, between=st.booleans())
    @step
    def stale(self, changes: Any, event: str, pause: float, between: bool) -> None:
        """A snapshot of checkpoints that are old by then; the changelog changed since, or ``between`` them."""
        life = self.life
        life.owner.commit(1, changes)
        life.checkpoint(0)
        if not between:
            life.checkpoint(1)
        life.clock.advance(pause)
        life.owner.commit(0, changes)
        self.happen(event)
        if between:
            life.owner.commit(1, changes)
            life.checkpoint(1)
        self.snapshot(Wanted.AUTO, sure=False)

    @rule(number=st.integers(0, 4), values=st.permutations([{"a": 1}, {"a": 2}, DELETED]))
    @step
    def mend(self, number: int, values: Any) -> None:
        """A database is mended by hand, twice: no record says so, so a snapshot corrects the history at one offset."""
        life = self.life
        for value in values[:2]:
            life.owner.mend(0, number, value, drawn.USUAL_MS)
            self.checkpoints(0.0, [])
            self.snapshot(Wanted.CHECKPOINT)
        life.owner.rebuild()

    @rule(changes=drawn.changes(), event=drawn.events, pause=drawn.pauses)
    @step
    def meddled(self, changes: Any, event: str, pause: float) -> None:
        """Things happen between the plan of a snapshot and its writing."""
        self.life.owner.commit(0, changes)
        self.checkpoints(0.0, changes)

        def meanwhile() -> None:
            self.life.clock.advance(pause)
            self.life.owner.commit(1, changes)
            self.happen(event)

        self.snapshot(Wanted.AUTO, sure=False, meanwhile=meanwhile)

    @rule(changes=drawn.changes(), wanted=drawn.wanted, dies_at=st.integers(1, COMMITS), again=st.booleans())
    @step
    def crash(self, changes: Any, wanted: Wanted, dies_at: int, again: bool) -> None:
        self.life.owner.commit(0, changes)
        self.checkpoints(0.0, changes)
        self.snapshot(wanted, dies_at=dies_at)
        if again:
            self.snapshot(Wanted.AUTO)

    def snapshot(
        self,
        wanted: Wanted,
        *,
        sure: bool = True,
        dies_at: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """A snapshot of the newest checkpoints. It must not be refused if these are ``sure`` to be fresh."""
        life = self.life
        try:
            plan = life.plan(wanted)
        except SnapshotImpossible as refused:
            self.tell(f"  refused: {refused.message}")
            require("never stuck", not sure or wanted is not Wanted.AUTO, refused.message)
            return
        require("kept", "is unknown" not in plan.why, plan.why)
        if meanwhile is not None:
            meanwhile()
        one = alone(life.world.seams, Run(lambda: life.write(plan), dies_at))
        life.shape_known = one.failure is None
        if one.died:
            self.tell(f"  died before {one.died_before}")
        elif isinstance(one.failure, ChangelogMoved | OffsetsLost) and meanwhile is not None:
            self.tell(f"  refused: {one.failure}")
        elif one.failure is not None:
            raise one.failure
        else:
            require("published", life.published() == plan.snapshot_id, f"{life.published()}, not {plan.snapshot_id}")
        life.settle()
        check(life, every_tag=False)

    @rule(other=st.sampled_from(["the same", "newer", "maintenance", "past"]), changes=drawn.changes(),
          turns=st.lists(st.integers(1, 6), min_size=2, max_size=5), dies_at=st.none() | st.integers(1, COMMITS),
          keep=drawn.keeps)  # fmt: skip
    @step
    def race(self, other: str, changes: Any, turns: list[int], dies_at: int | None, keep: Any) -> None:
        """Two runs beside each other."""
        life = self.life
        life.owner.commit(0, changes)
        self.checkpoints(0.0, changes)
        plan = newer = life.plan(Wanted.AUTO)
        if other == "newer":
            life.owner.commit(1, changes)
            self.checkpoints(0.0, changes)
            newer = life.plan(Wanted.AUTO)
        seen = life.tables.seen(STORE)
        kept = kept_names(life, seen, keep) if seen is not None else set()
        at = life.clock.time() - 0.001
        second: Callable[[], object] = {
            "maintenance": lambda: life.maintain(keep, beside=True),
            "past": lambda: life.write_past(at, beside=True),
        }.get(other, lambda: life.write(newer, beside=True))
        runs = [Run(lambda: life.write(plan), dies_at), Run(second)]
        together(life.world.seams, runs, turns)
        life.shape_known = False
        for run in runs:
            self.tell(f"  ended: {run.failure!r} after {run.commits} commits")
            if run.failure is not None and not isinstance(run.failure, HoldfastError | Killed):
                raise run.failure
        alive = [run for run in runs if not run.died]
        before = life.newest
        life.settle()
        able = [run for run in alive if not isinstance(run.failure, NotCovered)]
        refused = [str(run.failure) for run in able if run.failure is not None]
        done = life.newest != before or len(refused) < len(able) or not able
        require("two runs", done and (other != "past" or runs[1] not in able or not runs[1].failure), refused)
        if other == "maintenance" and seen is not None:
            check_upkeep(life, seen, kept & seen.tags.keys(), exactly=False)
        check(life, every_tag=other == "maintenance")

    @rule(back=st.floats(0, 1), offset=st.sampled_from([0.0, 0.0005, -0.0005]), dies_at=st.none() | st.integers(1, 8))
    @step
    def past(self, back: float, offset: float, dies_at: int | None) -> None:
        life = self.life
        moments = sorted({each.at for commits in life.owner.past for each in commits})
        at = round(moments[int(back * (len(moments) - 1))] + offset, 4)
        one = alone(life.world.seams, Run(lambda: life.write_past(at), dies_at))
        if one.failure is not None:
            self.tell(f"  past {at}: {one.failure}")
            if not isinstance(one.failure, NotCovered | Killed):
                raise one.failure
        check(life, every_tag=False)

    @rule(age=drawn.pauses, keep=drawn.keeps, dies_at=st.none() | st.integers(1, 8), tag=st.booleans())
    @step
    def maintain(self, age: float, keep: Any, dies_at: int | None, tag: bool) -> None:
        life = self.life
        life.clock.advance(age)
        if tag:  # of a store that was quiet since
            life.tag_time()
        seen = life.tables.seen(STORE)
        if seen is None:
            return
        kept = kept_names(life, seen, keep)
        one = alone(life.world.seams, Run(lambda: life.maintain(keep), dies_at))
        if one.failure is not None and not one.died:
            raise one.failure
        check_upkeep(life, seen, kept, exactly=not one.died)
        check(life, every_tag=True)

    @rule(at=st.integers(0, 5), inputs=st.sampled_from(["snapshot", "snapshot", "stay"]),
          then=st.sampled_from(["nothing", "unfinished", "done", "done"]))  # fmt: skip
    @step
    def restore(self, at: int, inputs: Inputs, then: str) -> None:
        """A restore of the newest snapshot or of a tag; the store goes on from it, or the restore stays unfinished."""
        life = self.life
        seen = life.tables.seen(STORE)
        if seen is None:
            return
        tags = sorted(seen.tags, key=seen.tags.__getitem__)
        named = "latest" if at >= len(tags) else tags[at]
        found = restore(life, named, inputs)
        self.tell(f"  restore {named}: {'refused' if found is None else 'possible'}")
        if found is None or then == "nothing":
            return
        content, positions, version = found
        life.needed = {version} if then == "unfinished" else set()
        if then == "done":
            life.owner.rebuild(content, positions)

    def teardown(self) -> None:
        if hasattr(self, "life"):
            try:
                self.end()
            finally:
                self.life.forget()

    @step
    def end(self) -> None:
        """Whatever happened, the next snapshot of fresh checkpoints is published."""
        self.life.owner.commit(1, [(0, {"a": 1}, drawn.USUAL_MS)])
        self.checkpoints(0.0, [])
        self.snapshot(Wanted.AUTO)
        check(self.life, every_tag=True)


def run(world: World, number: int, sequences: int, *, ends_at_first: bool = False) -> list[Failure]:
    """The failures among so many lives from a seed."""

    class Machine(StoreMachine):
        pass

    Machine.world, Machine.failures, Machine.ends_at_first = world, [], ends_at_first
    limits = settings(
        max_examples=sequences,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    with suppress(Ended, Flaky):
        run_state_machine_as_test(seed(number)(Machine), settings=limits)
    return Machine.failures
