"""Courses of operation: drawn as plain steps, so that a course can be shown, cut down and run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Literal

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import (
    Clear,
    Compact,
    Deploy,
    Provision,
    Replay,
    Request,
    Restart,
    Restore,
    Rollback,
    Scale,
    Stop,
)
from tests.simulation.letters import check_letters
from tests.simulation.lifecycle_model import OPERATORS_AIMS, WORKERS_AIMS
from tests.simulation.lifecycle_sequence import Sequence
from tests.simulation.lifecycle_world import Shown
from tests.simulation.operation_judge import act, apart, carry_out, is_consumed, judge
from tests.simulation.operation_world import OperationWorld, Person, Sensor
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP

Signal = Literal["SIGINT", "SIGHUP", "SIGKILL"]
#: Where an operator is ended; some several times, as they are what differs between half and done.
AIMS = (
    *OPERATORS_AIMS,
    "deployer.apply",
    "deployer.start_program",
    "deployer.start_program",
    "deployer.stop_program",
    "deployer.stop_program",
    "deployer.programs",
    "http:/status",
    "http:/status",
    "registry.",
)
#: From here on an operator holds an apply.
BEGINS = ("registry.journal.begin_apply:after", "registry.journal.claim_apply:after")
SILENT: tuple[Literal["broker", "supervisor"], ...] = ("broker", "supervisor")
#: Where a change of workers is half done.
HALF = ("deployer.start_program:after", "deployer.stop_program:before", "deployer.stop_program:after", "deployer.apply")
#: Seconds of what stays until a person ends it.
FOR_EVER_S = 1e6
#: From the last disturbance to the judgement, seconds: an interrupted apply is told, and recovery has had its attempts.
QUIET_S, QUIET_MAX_S = 120.0, 1_500.0
#: A world that is as recorded for so long, seconds, is not watched longer in most seeds.
CALM_S = 30.0


@dataclass(frozen=True, slots=True)
class End:
    """A process gets a signal at the n-th point whose name begins so, or so many seconds after it began."""

    signal: Signal
    aim: str = ""
    count: int = 1
    after_s: float | None = None
    #: Whether points and seconds count from the begin of an operator's apply: most of his points are its planning.
    begun: bool = False

    def __str__(self) -> str:
        where = f"after {self.after_s:g} s" if self.after_s is not None else f"at point {self.count} of {self.aim!r}"
        return f"{self.signal} {where}{' of the apply' * self.begun}"


@dataclass(frozen=True, slots=True)
class Ask:
    """An operator asks for a verb; he is gone before it ends, or it runs to its end."""

    request: Request
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Both:
    """Two operators ask, the second so many seconds later."""

    first: Ask
    second: Ask
    later_s: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """An operator ends the open apply, if there is one."""

    end: End | None = None


@dataclass(frozen=True, slots=True)
class KillWorker:
    """The worker of a slot, or a recovery run, is killed at a point."""

    who: str
    end: End


@dataclass(frozen=True, slots=True)
class Feed:
    """Input arrives: this share of what is left."""

    share: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Time goes by."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Define:
    """The project's file defines this version."""

    version: str


@dataclass(frozen=True, slots=True)
class Silent:
    """The broker or the supervisor answers nothing, from so many seconds later for so many seconds."""

    who: Literal["broker", "supervisor"]
    later_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Configure:
    """The settings of workers are changed where operators and Dagster are."""

    memory_mb: str


@dataclass(frozen=True, slots=True)
class Spoil:
    """The configuration of one slot is wrong: its worker is killed, and each later one ends at its start."""

    slot: str


@dataclass(frozen=True, slots=True)
class Intrude:
    """A worker of another installation joins the group so many seconds later, for so many seconds."""

    later_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SetClock:
    """The machine's clock is ahead by so many seconds, for so many seconds."""

    ahead_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Somebody deletes the first recovery run of each incident in Dagster."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Another version of Holdfast wrote the plan of the open apply."""


Step = (
    Ask
    | Both
    | Abandon
    | KillWorker
    | Feed
    | Wait
    | Define
    | Silent
    | Configure
    | Spoil
    | Intrude
    | SetClock
    | DeleteRun
    | Upgrade
)
Course = tuple[Step, ...]


def draw_course(seed: int) -> Course:
    """The steps of a seed."""
    random = Random(f"course {seed}")
    steps: list[Step] = [Feed(random.choice([0.2, 0.5]))]
    for _ in range(random.randint(1, 3)):
        drawn = random.random()
        if drawn < 0.2:
            steps += _draw_half(random)
        elif drawn < 0.45:
            steps += _draw_surprise(random)
        if drawn >= 0.2:
            steps += _draw_verb(random)
        if has_letters(seed) and random.random() < 0.7:
            steps.append(Ask(Replay(GROUP), _draw_end(random, AIMS) if random.random() < 0.7 else None))
        if random.random() < 0.4:
            steps.append(Feed(random.choice([0.2, 0.5])))
        if random.random() < 0.2:
            steps.append(KillWorker(random.choice(["w", "run"]), _draw_end(random, WORKERS_AIMS)))
        if random.random() < 0.7:
            steps.append(Wait(random.choice([0.5, 5.0, 20.0, 62.0])))
    if random.random() < 0.4:
        # on another machine only a minute of silence tells that an operator is gone
        steps += [Wait(62.0), Abandon()]
    return tuple(steps)


def has_letters(seed: int) -> bool:
    """Whether messages that fail become dead letters, which can be sent again."""
    return seed % 8 == 5


def _draw_half(random: Random) -> list[Step]:
    """A change of workers that ends half done, and is abandoned."""
    scaled = Scale(GROUP, random.randint(1, 3), warm_s=0.0)
    request = random.choice([Deploy(GROUP), Deploy(GROUP), scaled, scaled, Restore(GROUP), Restart(GROUP)])
    steps: list[Step] = []
    if isinstance(request, Deploy):
        steps.append(random.choice([Define("v2"), Define("v3"), Configure("256")]))
    if isinstance(request, Scale) and random.random() < 0.5:
        steps.append(Ask(Scale(GROUP, 3, warm_s=0.0)))
    signal: Signal = random.choice(["SIGINT", "SIGHUP", "SIGKILL"])
    steps.append(Ask(request, End(signal, random.choice(HALF), random.choice([1, 1, 2]), begun=True)))
    if random.random() < 0.2:
        steps.append(Upgrade())
    return [*steps, Wait(62.0), Abandon()]


def _draw_surprise(random: Random) -> list[Step]:
    """Something happens that no command asked for."""
    drawn = random.random()
    worker = random.choice(["w", "w0", "w1"])
    killed = KillWorker(worker, End("SIGKILL", after_s=random.choice([0.5, 5.0])))
    if drawn < 0.2:
        return [Configure(random.choice(["256", "512", "768"])), killed, Wait(20.0)]
    if drawn < 0.4:
        others = KillWorker(random.choice(["w0", "w1"]), End("SIGKILL", after_s=random.choice([0.5, 3.0, 40.0])))
        return [Spoil(random.choice(["0", "1"])), others, Wait(random.choice([5.0, 62.0]))]
    if drawn < 0.6:
        stays = random.choice([20.0, 90.0, FOR_EVER_S])
        return [Intrude(random.choice([0.0, 3.0]), stays), Wait(random.choice([5.0, 20.0])), killed, Wait(20.0)]
    if drawn < 0.8:
        ahead = SetClock(random.choice([21_600.0, 600.0, -1_800.0]), random.choice([5.0, 40.0, 90.0]))
        return [ahead, killed, Wait(random.choice([5.0, 62.0])), killed]
    if drawn < 0.9:
        return [Silent("supervisor", 0.5, FOR_EVER_S), killed, Wait(20.0)]
    runs = KillWorker("run", End("SIGKILL", random.choice(["deployer.", "registry.", ""]), random.choice([1, 5])))
    return [killed, runs, Wait(62.0), runs, Wait(62.0), DeleteRun(), Wait(5.0)]


def _draw_verb(random: Random) -> list[Step]:
    """An operator's verb, with what is changed before it, what goes wrong meanwhile, and who tidies up after it."""
    first, second = (
        Ask(_draw_request(random), _draw_end(random, AIMS) if random.random() < share else None) for share in (0.8, 0.4)
    )
    steps: list[Step] = []
    if random.random() < (0.8 if isinstance(first.request, Deploy) else 0.1):
        steps.append(Define(random.choice(["v1", "v2", "v3"])))
    if random.random() < 0.15:
        steps.append(Silent(random.choice(SILENT), random.choice([0.0, 0.5, 3.0]), random.choice([3.0, 20.0, 90.0])))
    if random.random() < 0.2:
        steps.append(KillWorker(random.choice(["w", "w0", "w1"]), _draw_end(random, WORKERS_AIMS)))
    if random.random() < 0.2:
        steps.append(Both(first, second, random.choice([0.0, 0.5, 3.0, 20.0])))
    else:
        steps.append(first)
    drawn = random.random()
    if drawn < 0.2:
        steps += [Wait(random.choice([5.0, 62.0])), Abandon(_draw_end(random, AIMS) if random.random() < 0.3 else None)]
    elif drawn < 0.3:
        steps += [Wait(random.choice([0.5, 62.0])), Ask(first.request)]
    return steps


def _draw_request(random: Random) -> Request:
    verbs: list[Request] = [Restart(GROUP), Stop(GROUP), Rollback(GROUP), Compact(GROUP), Restore(GROUP)]
    cleared = Clear(GROUP, rewind="earliest", export=False)
    scaled = Scale(GROUP, random.randint(1, 3), warm_s=0.0)
    return random.choice([Deploy(GROUP), Deploy(GROUP), Deploy(GROUP), scaled, scaled, scaled, *verbs, cleared])


def _draw_end(random: Random, aims: tuple[str, ...]) -> End:
    """Mostly soon enough: an apply passes some ten to a hundred points, and takes seconds."""
    signal: Signal = random.choice(["SIGINT", "SIGHUP", "SIGKILL"])
    drawn, begun = random.random(), aims is AIMS and random.random() < 0.7
    if drawn < 0.25:
        return End(signal, after_s=round(8.0 * random.random() ** 2, 2))
    if drawn < 0.7:
        return End(signal, "", round(80 ** random.random()), begun=begun)
    return End(signal, random.choice(aims), random.choice([1, 1, 1, 2, 3]))


class Strike:
    """Gives a signal to one process, or to the first whose name begins so."""

    def __init__(self, world: OperationWorld, end: End, who: str) -> None:
        self.world, self.end, self.who = world, end, who
        self.left, self.struck, self.waits = end.count, "", end.begun

    def __call__(self, process: SimulatedProcess, name: str) -> bool:
        if self.struck or not process.name.startswith(self.who):
            return False
        if self.waits:
            self.waits = name not in BEGINS
            return False
        if not name.startswith(self.end.aim):
            return False
        self.left -= 1
        if self.left:
            return False
        return self.hit(process, name)

    def hit(self, process: SimulatedProcess, where: str) -> bool:
        """Give the signal; returns whether the process is dead at once."""
        self.struck = where
        if self.end.signal == "SIGINT" and not process.name.startswith("w"):
            process.interrupt()
            return False
        return True


class CourseRun:
    """One course in its world."""

    def __init__(self, world: OperationWorld, course: Course) -> None:
        self.world, self.course = world, course
        self.told: list[str] = []
        self.sensor = Sensor(world, self.tell)
        self.acted = 0
        #: When the last silence is over.
        self.silent_until = 0.0

    def tell(self, text: str) -> None:
        """Add a line to the trace that people read."""
        self.told.append(f"{self.world.clock.monotonic():8.1f} s  {text}")

    def run(self) -> None:
        """All of it.

        Raises:
            InvariantBroken: What is not as recorded is not told, or its action does not mend it.
        """
        for request in (Provision(GROUP), Deploy(GROUP)):
            act(self.world, lambda person, request=request: person.ask(request, lambda plan: None), str(request))
        self.sensor.begin()
        for step in self.course:
            self.take(step)
        self.world.strikes.clear()
        self.feed(1.0)
        self.quiet()
        self.check_broken()
        verdict = judge(self.world)
        self.tell(f"judged: {list(verdict.apart) or 'as recorded'}; {verdict.answer.colour}: {verdict.answer.text}")
        if verdict.apart or verdict.answer.colour == "red":
            self.acted += 1
            self.tell(f"action: {carry_out(self.world, verdict)}")
            self.quiet()
            self.check_broken()
            again = judge(self.world)
            if again.apart or not again.answer.passed:
                raise InvariantBroken("mended", f"{list(again.apart)}; {again.answer.colour}: {again.answer.text}")
        if not any(isinstance(each, Clear) for each in self._requests()):
            self.check_state()

    def check_broken(self) -> None:
        """What was seen on the way.

        Raises:
            InvariantBroken: It must not be.
        """
        if self.world.broken is not None:
            raise self.world.broken

    def check_state(self) -> None:
        """Nothing is lost, and nothing is counted twice.

        Raises:
            InvariantBroken: Something is.
        """
        self.world.rest(2.0)
        sequence = Sequence(self.world)
        sequence.model.catch_up()
        for place, store, number in sequence.places():
            sequence.check_state(f"changelog {place}", store, number, sequence.folded(place))
        sequence.check_outputs()
        if not any(isinstance(each, Restore) for each in self._requests()):
            check_letters(self.world)

    def _requests(self) -> list[Request]:
        asked = [each for each in self.course if isinstance(each, Ask)]
        both = [each for each in self.course if isinstance(each, Both)]
        return [each.request for each in (*asked, *(one for each in both for one in (each.first, each.second)))]

    def take(self, step: Step) -> None:
        """One step."""
        world = self.world
        match step:
            case Ask():
                world.until(self._ended([self.ask(step)]), 3_000.0, "the command ends")
            case Both():
                first = self.ask(step.first)
                world.rest(step.later_s)
                world.until(self._ended([first, self.ask(step.second)]), 3_000.0, "the commands end")
            case Abandon():
                world.until(self._ended([self.abandon(step)]), 3_000.0, "the command ends")
            case KillWorker():
                self.tell(f"{step.who}: {step.end}")
                self.strike(step.end, step.who, None)
            case Feed():
                self.feed(step.share)
            case Wait():
                world.rest(step.seconds)
            case Define():
                self.tell(f"the project defines {step.version}")
                world.define(step.version)
            case Silent():
                self.silence(step)
            case Intrude():
                self.last(step.later_s, step.seconds, world.join_stranger, world.leave_strangers, str(step))
            case SetClock():
                ahead, right = partial(world.set_clock, step.ahead_s), partial(world.set_clock, 0.0)
                self.last(0.0, step.seconds, ahead, right, str(step))
            case _:
                self.change(step)

    def change(self, step: Step) -> None:
        """A step that takes no time."""
        world = self.world
        self.tell(str(step))
        match step:
            case Configure():
                world.environment["HOLDFAST_MEMORY_MAX_MB"] = step.memory_mb
            case Spoil():
                world.broken_slots.add(step.slot)
                self.strike(End("SIGKILL", after_s=0.0), f"w{step.slot}", None)
            case DeleteRun():
                self.sensor.forget()
            case Upgrade():
                world.make_foreign()

    def last(self, later_s: float, seconds: float, begin: Callable[[], Any], end: Callable[[], Any], what: str) -> None:
        """Something begins later and ends by itself, unless it stays until a person ends it."""
        clock = self.world.clock

        def begun() -> None:
            self.tell(what)
            begin()
            if seconds < FOR_EVER_S:
                clock.call_later(seconds, end)

        self._lasts(later_s + seconds * (seconds < FOR_EVER_S))
        clock.call_later(later_s, begun)

    def _lasts(self, seconds: float) -> None:
        self.silent_until = max(self.silent_until, self.world.clock.monotonic() + seconds)

    def silence(self, step: Silent) -> None:
        """The broker or the supervisor is silent for a while."""
        world, network = self.world, self.world.network
        self._lasts(step.later_s + step.seconds * (step.seconds < FOR_EVER_S))

        def begin() -> None:
            self.tell(f"the {step.who} is silent for {step.seconds:g} s")
            if step.who == "supervisor":
                world.silent_until = world.clock.monotonic() + step.seconds
            else:
                network.brokers_up = False
                world.clock.call_later(step.seconds, lambda: setattr(network, "brokers_up", True))

        world.clock.call_later(step.later_s, begin)

    def feed(self, share: float) -> None:
        """Input arrives."""
        for number, messages in enumerate(self.world.workload.messages):
            sent = self.world.sent[number]
            self.world.feed(number, sent + round((len(messages) - sent) * share))

    def ask(self, step: Ask) -> SimulatedProcess:
        """An operator begins a verb."""

        def work(person: Any) -> None:
            shown: Shown = person.ask(step.request, lambda plan: None)
            verdict = shown.plan.verdict
            how = "refused" if isinstance(verdict, Refused) else "resumed" if shown.resumed else "done"
            self.tell(f"{person.process.name}: {how}: {verdict.sentence}")

        return self._begin(str(step.request), work, step.end)

    def abandon(self, step: Abandon) -> SimulatedProcess:
        """An operator begins to end the open apply."""

        def work(person: Person) -> None:
            for record in person.journal.applies(1, processor=GROUP, open_only=True):
                self.tell(f"{person.process.name}: abandoned apply {record.id}: {person.abandon(record.id)}")

        return self._begin("abandon", work, step.end)

    def _begin(self, what: str, work: Any, end: End | None) -> SimulatedProcess:
        def live(person: Any) -> None:
            try:
                work(person)
            except HoldfastError as failed:
                self.tell(f"{person.process.name}: {type(failed).__name__}: {failed.message}")
            except KeyboardInterrupt:
                self.tell(f"{person.process.name}: interrupted")

        process = self.world.begin(live)
        self.tell(f"{process.name}: {what}" + (f", {end}" if end else ""))
        if end is not None:
            self.strike(end, process.name, process)
        return process

    def strike(self, end: End, who: str, process: SimulatedProcess | None) -> None:
        """A signal is to come."""
        strike = Strike(self.world, end, who)
        if end.after_s is None:
            self.world.strikes.append(strike)
            return

        def hit() -> None:
            for each in [process] if process else list(self.world.simulation.processes):
                if each.name.startswith(who) and not (each.ended or each.crashed):
                    if strike.hit(each, f"after {end.after_s} s"):
                        self.world.kill(each)
                    return

        self.world.clock.call_later(end.after_s, hit)

    def _ended(self, processes: list[SimulatedProcess]) -> Any:
        def ended() -> bool:
            for each in processes:
                if each.failure is not None:
                    raise InvariantBroken("operator", f"{each.name}: {each.failure!r}") from each.failure
            return all(each.ended or each.crashed for each in processes)

        self.world.clock.call_later(3_000.0, lambda: None)
        return ended

    def quiet(self) -> None:
        """Nothing happens from outside, until nothing moves."""
        self.world.idle_s = 5.0
        self.world.rest(max(0.0, self.silent_until - self.world.clock.monotonic()))
        self.world.rest(CALM_S)
        if self.world.schedule.seed % 4 and not apart(self.world) and not self.sensor.busy:
            return  # the other seeds see that it stays so
        self.world.rest(QUIET_S)
        until = self.world.clock.monotonic() + QUIET_MAX_S
        while self.world.clock.monotonic() < until:
            shared = self.world.shared_since is not None  # others have some partitions
            busy = self.sensor.busy or (self._runs() and not shared and not is_consumed(self.world))
            if not busy:
                return
            self.world.rest(20.0)

    def _runs(self) -> bool:
        return any(each.alive for each in self.world.programs.values())
