"""A model of the holds (exclusive claims) on a processor. Applies, recovery runs and abandons compete for it.

Each actor runs production code of applies and recovery in a greenlet, on a real registry database. It yields before and
after each call of Holdfast's registry. So a schedule is one order of the actors' transactions. Between two turns, the
database's clock advances, a host's clock jumps, or an actor is frozen, thawed or killed. The judge derives the present
holder from the registry's answers, and checks that each later answer agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import greenlet
from sqlalchemy import delete, func, select

from holdfast.infra.database import tables
from holdfast.infra.database.errors import HeldByRecovery, HoldLost
from holdfast.infra.database.lease_times import BEAT_S, SILENT_S
from holdfast.infra.database.leases import Fence
from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.infra.paths import Paths
from holdfast.processors.lifecycle.plans.apply import Applied, Applier, Done, Holder, ProgressLog
from holdfast.processors.lifecycle.plans.holding import DEPLOYER, Hold, fenced
from holdfast.processors.lifecycle.plans.plan import Plan, Ready
from holdfast.processors.lifecycle.plans.requests import Clear, Compact
from holdfast.processors.lifecycle.plans.stages import CompactStores, Stage, StopProcessor
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery import attempt as recovery
from holdfast.processors.lifecycle.recovery import incidents
from tests.simulation.verifier import InvariantBroken

PROCESSOR = "orders"
START = datetime(2027, 1, 1, tzinfo=UTC)
#: The number of turns with faults. Afterwards all actors run to their end.
TURNS = 120
#: The number of turns without faults within which all actors must end.
TURNS_MAX = 2_000
#: Offsets and jumps of a host's clock, in seconds.
SKEWS_S = (-61.0, 0.0, 61.0)
STEPS_S = (-3_600.0, -61.0, 61.0, 3_600.0)

#: Writes that need the holder's token. They return whether they took effect.
HELD_WRITES = ("beat_apply", "note_stage", "beat_incident")
#: Methods of ``Registry.fenced``, which write for one holder (process with the hold). They fail if the hold is lost.
FENCED_WRITES = ("record_action", "note_incident", "begin_attempt")


_APPLY, _INCIDENT = tables.applies.c, tables.incidents.c
#: An SQL query for the number of open applies (executions of plans) and of open incidents that have a holder.
HOLDS = select(
    select(func.count())
    .select_from(tables.applies)
    .where(_APPLY.finished_at.is_(None), _APPLY.holder.is_not(None))
    .scalar_subquery(),
    select(func.count())
    .select_from(tables.incidents)
    .where(_INCIDENT.closed_at.is_(None), _INCIDENT.claimed_by.is_not(None))
    .scalar_subquery(),
)


class Killed(BaseException):
    """Raised in an actor whose process is killed."""


@dataclass
class Judge:
    """Tracks the holder of the processor from the answers of Holdfast's registry.

    Raises InvariantBroken at the first answer that contradicts the record.
    """

    clock: Callable[[], float]
    holder: str | None = None
    token: int = 0
    beaten_s: float = 0.0
    #: Killed holders whose death the other actors can see, because all actors are on one machine.
    gone: set[str] = field(default_factory=set)
    #: The stages (steps of plans) that are recorded as done, as (apply, stage): both are numbers.
    noted: set[tuple[int, int]] = field(default_factory=set)

    def took(self, actor: str, token: int) -> None:
        """Holdfast's registry has answered that an actor now holds the processor."""
        silent_s = self.clock() - self.beaten_s
        if self.holder not in (None, actor) and self.holder not in self.gone and silent_s <= SILENT_S:
            raise InvariantBroken("one holder", f"{actor} took from {self.holder}, silent for {silent_s} s")
        if token <= self.token:
            raise InvariantBroken("token", f"{actor} got {token}, after {self.token}")
        self.holder, self.token, self.beaten_s = actor, token, self.clock()

    def wrote(self, actor: str, what: str) -> None:
        """Holdfast's registry has answered that a write of this actor took effect. Only a holder may write it."""
        if self.holder != actor:
            raise InvariantBroken("former holder", f"{what} by {actor} took effect; {self.holder} holds")
        self.beaten_s = self.clock() if what in ("beat", "note_stage") else self.beaten_s

    def gave_back(self, actor: str, what: str) -> None:
        """Holdfast's registry has answered that an actor has ended its hold (claim) on the processor."""
        self.wrote(actor, what)
        self.holder = None

    def acted(self, actor: str, what: str) -> None:
        """The actor has changed something outside Holdfast's registry, through the deployer."""
        if self.holder != actor:
            raise InvariantBroken("effect", f"{what} by {actor}; {self.holder} holds")


class Actor:
    """One simulated process. It runs until it yields, and can be frozen, thawed or killed."""

    def __init__(self, model: Model, name: str, live: Callable[[Actor], None]) -> None:
        self.model, self.name, self.frozen = model, name, False
        self.clock_s = model.random.choice(SKEWS_S)
        self.hold: ModelHold | None = None
        self.failure: BaseException | None = None
        self._greenlet = greenlet.greenlet(lambda: self._run(live))
        self._greenlet.actor = self

    @staticmethod
    def current() -> Actor:
        """The actor that runs now."""
        actor: Actor = greenlet.getcurrent().actor
        return actor

    def _run(self, live: Callable[[Actor], None]) -> None:
        try:
            live(self)
        except (HoldfastError, Killed):
            pass
        except BaseException as failure:  # an error that ends the actor; `turn` raises it again
            self.failure = failure

    @property
    def ended(self) -> bool:
        return bool(self._greenlet.dead)

    def turn(self) -> None:
        """Run the actor until it yields, which it does before and after each call of the registry."""
        self._greenlet.switch()
        if self.failure is not None:
            raise self.failure

    def kill(self) -> None:
        with suppress(Killed):  # `throw` raises the error here if the actor's greenlet has not started yet
            self._greenlet.throw(Killed)

    def point(self) -> None:
        self.model.hub.switch()

    def now(self) -> datetime:
        """The present time by the clock of this actor's host."""
        return START + timedelta(seconds=self.model.database_s + self.clock_s)


class Turns:
    """Holdfast's registry for one actor. The actor yields before and after each call. The judge gets each answer."""

    def __init__(self, of: Any, actor: Actor, *, held: bool = False) -> None:
        self._of, self._actor, self._held = of, actor, held

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        if not callable(value):
            return Turns(value, self._actor, held=self._held)
        if name == "fenced":
            return lambda fence: Turns(value(fence), self._actor, held=True)

        def call(*arguments: Any, **named: Any) -> Any:
            self._actor.point()
            answer = value(*arguments, **named)
            self._hear(name, arguments, answer)
            self._actor.point()
            return answer

        return call

    def _hear(self, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        judge, actor = self._actor.model.judge, self._actor.name
        ends = ("end_apply", "let_go_of_apply", "release_incident", "close_incident")
        if name == "begin_apply" and answer[1]:
            judge.took(actor, answer[0].token)
        elif name in ("claim_apply", "claim_incident") and answer is not None:
            judge.took(actor, answer)
        elif name in ends and answer:
            judge.gave_back(actor, name)
        elif (name in HELD_WRITES and answer) or (self._held and name in FENCED_WRITES):
            judge.wrote(actor, name)
        if name == "note_stage" and answer:
            stage = (arguments[0], arguments[2].number)
            if stage in judge.noted:
                raise InvariantBroken("each effect once", f"stage {stage} is noted twice")
            judge.noted.add(stage)
        self._actor.model.look()


class ModelHold(Hold):
    """A hold (exclusive claim on the processor) that is renewed by the model's clock instead of by a thread."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor, self.is_beating = actor, False
        actor.hold = self

    def take(self, fence: Fence, beat: Callable[[], bool]) -> None:
        # The renewal does not yield. So no process is frozen between the registry's answer and the change after it.
        registry = self.actor.model.registry
        beats = {"apply": registry.journal.beat_apply, "incident": registry.beat_incident}

        def heard() -> bool:
            answer = beats[fence.of](fence.id, fence.token)
            if answer:
                self.actor.model.judge.wrote(self.actor.name, "beat")
            return answer

        super().take(fence, heard)

    @contextmanager
    def beating(self) -> Iterator[None]:
        self.is_beating = True
        try:
            yield
        finally:
            self.is_beating = False


class Effects:
    """A deployer that reports each change to the judge."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def stop_program(self, name: str) -> None:
        self._actor.model.judge.acted(self._actor.name, f"stop {name}")


class Model:
    """The actors, clocks and faults of one schedule.

    Args:
        registry: A migrated registry whose clock is this model's ``database_s``; all its rows are deleted.
        seed: Draws the schedule.
        actors: The number of actors, 2 to 5.
        set_clock: Sets the database's clock, in seconds.
    """

    def __init__(self, registry: Registry, seed: int, actors: int, set_clock: Callable[[float], None]) -> None:
        self.registry, self.random, self.set_clock = registry, Random(seed), set_clock
        self.database_s = 1_000.0
        self.next_beat_s = self.database_s + BEAT_S
        self.set_clock(self.database_s)
        with registry._database.writing() as connection:
            for table in reversed(tables.metadata.sorted_tables):
                connection.execute(delete(table))
        self.judge = Judge(lambda: self.database_s)
        #: Whether all actors run on one machine. They then see at once that another actor was killed.
        self.one_machine = self.random.random() < 0.5
        self.hub = greenlet.getcurrent()
        self.incident = registry.open_incident(PROCESSOR, "dead", {}, START)[0].id
        lives = [self._apply, self._recover, self._apply_twice, self._recover_again, self._abandon]
        chosen = [*lives[:2], *self.random.choices(lives, k=3)][:actors]
        self.actors = [Actor(self, f"{live.__name__[1:]} {number}", live) for number, live in enumerate(chosen)]

    def run(self) -> None:
        """Run the schedule.

        Raises:
            InvariantBroken: An invariant failed; the error names it.
        """
        for _ in range(TURNS):
            self._one()
        for actor in self.actors:
            actor.frozen = False
        for _ in range(TURNS_MAX):
            waiting = [actor for actor in self.actors if not actor.ended]
            if not waiting:
                break
            self.random.choice(waiting).turn()
            self._advance(1.0)
        else:
            raise InvariantBroken("liveness", f"not through: {[actor.name for actor in waiting]}")
        self._advance(SILENT_S + 1.0)
        self._finish()

    def look(self) -> None:
        """Check the registry: never two applies (executions) have a holder, and never an apply and an incident."""
        ((held, claimed),) = self.registry._database.rows(HOLDS)
        if held and claimed:
            raise InvariantBroken("never both", f"{held} apply and {claimed} incident have a holder")
        if held > 1:
            raise InvariantBroken("one holder", f"{held} applies have a holder")

    # -- what happens ----------------------------------------------------------------------------------------------

    def _one(self) -> None:
        drawn, alive = self.random.random(), [actor for actor in self.actors if not actor.ended]
        if not alive:
            return
        actor = self.random.choice(alive)
        if drawn < 0.70:
            if not actor.frozen:
                actor.turn()
        elif drawn < 0.80:
            self._advance(self.random.choice([1.0, 5.0, 30.0, 61.0]))
        elif drawn < 0.88:
            actor.frozen = True
            if self.random.random() < 0.5:
                self._advance(SILENT_S + 1.0)
        elif drawn < 0.96:
            actor.frozen = False
        elif drawn < 0.97:
            actor.kill()
            if self.one_machine:
                self.judge.gone.add(actor.name)
        else:
            actor.clock_s += self.random.choice(STEPS_S)

    def _advance(self, seconds: float) -> None:
        """Advance the database's clock. Living actors renew their holds meanwhile."""
        until = self.database_s + seconds
        while self.database_s < until:
            self.database_s = min(until, self.next_beat_s)
            self.set_clock(self.database_s)
            if self.database_s < self.next_beat_s:
                return
            self.next_beat_s += BEAT_S
            for actor in self.actors:
                if not (actor.ended or actor.frozen) and actor.hold is not None and actor.hold.is_beating:
                    with suppress(HoldLost):
                        actor.hold.check()

    def _finish(self) -> None:
        """Check that one more actor, without faults, can end every open apply (execution of a plan) and incident."""

        def live(actor: Actor) -> None:
            self._abandon(actor)
            self._recover(actor)

        last = Actor(self, "last", live)
        while not last.ended:
            last.turn()
        if self.registry.journal.applies(open_only=True) or self.registry.open_incidents():
            raise InvariantBroken("liveness", "an apply or an incident stays open")

    # -- the actors ------------------------------------------------------------------------------------------------

    def _applier(self, actor: Actor) -> Applier:
        registry: Any = Turns(self.registry, actor)
        hold = ModelHold(actor)
        deployer: Any = fenced(Effects(actor), DEPLOYER, hold)
        own: Any = registry.fenced(lambda: hold.fence)

        def execute(processor: str, stage: Stage, tell: ProgressLog) -> Done:
            for part in ("one", "two"):
                tell(f"{stage.says}: {part}")
                deployer.stop_program(part)
                actor.point()
            own.record_action("stop", processor, actor.name, "", "done", START, START)
            return Done(stage.says)

        holder = Holder(actor.name, lambda name: self.one_machine and name in self.judge.gone)
        return Applier(execute, registry.journal, actor.name, holder, lambda text: None, actor.now, hold)

    def _apply(self, actor: Actor) -> Applied:
        goes_on = self.random.random() < 0.5
        request = Clear(PROCESSOR) if goes_on else Compact(PROCESSOR)
        stages: tuple[Stage, ...] = (StopProcessor("stop", for_good=False), CompactStores("compact"))
        after_kill: Any = "go on" if goes_on else "plan anew"
        plan = Plan(request=request, verdict=Ready("."), stages=stages, after_kill=after_kill)
        return self._applier(actor).apply(plan)

    def _apply_twice(self, actor: Actor) -> None:
        for _ in range(2):
            with suppress(HoldfastError):
                self._apply(actor)

    def _recover(self, actor: Actor) -> None:
        registry: Any = Turns(self.registry, actor)
        world = World(Effects(actor), _no_status, registry, Paths(START.isoformat()), actor.now)  # type: ignore[arg-type]
        recovery.recover(self.incident, _Rollout(), world, run_id=actor.name)  # type: ignore[arg-type]

    def _recover_again(self, actor: Actor) -> None:
        for _ in range(2):
            self._recover(actor)

    def _abandon(self, actor: Actor) -> None:
        registry: Any = Turns(self.registry, actor)
        for record in registry.journal.applies(1, open_only=True):
            with suppress(HoldfastError, HeldByRecovery):
                self._applier(actor).abandon(record, "not needed")


class _Rollout:
    processor = PROCESSOR


def _no_status(processor: str, slot: str) -> Any:
    raise AssertionError("no worker is asked here")


class _Work:
    """Replaces ``recovery._Recovery``, because this model does not test the diagnosis of workers."""

    def __init__(self, incident: Any, rollout: Any, world: World, *rest: Any) -> None:
        self._incident, self._world, self.attempts = incident, world, 0

    def run(self, hold: Hold) -> tuple[str, str]:
        self.attempts = self._world.registry.begin_attempt(self._incident.id)
        for part in ("fence", "restart"):
            hold.check()
            self._world.deployer.stop_program(part)
            self._world.registry.note_incident(self._incident.id, part, "done", START)
        return "resolved", "it works"


@contextmanager
def parts_of_the_model(patch: Any) -> Iterator[None]:
    """While the block runs, recovery uses the model's holds, `_Work`, and the model's view of dead processes."""
    with patch.context() as here:
        here.setattr(recovery, "Hold", lambda: ModelHold(Actor.current()))
        here.setattr(recovery, "_Recovery", _Work)
        here.setattr(incidents, "is_gone", _seen_gone)
        yield


def _seen_gone(name: str) -> bool:
    """Whether the running actor can see that a holder was killed."""
    model = Actor.current().model
    return model.one_machine and name in model.judge.gone


def first_broken(
    registry: Registry, seeds: range, set_clock: Callable[[float], None]
) -> tuple[int, InvariantBroken] | None:
    """The first seed that breaks an invariant, with the error; None if no seed breaks one."""
    for seed in seeds:
        try:
            Model(registry, seed, 2 + seed % 4, set_clock).run()
        except InvariantBroken as broken:
            return seed, broken
    return None
