"""Runs one course: a simulated sequence of operators' commands and faults, then a quiet period, then the checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import Partition
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.requests import Clear, Deploy, Erase, Provision, Request, Restore
from tests.simulation.erased import check_erased
from tests.simulation.letters import check_letters
from tests.simulation.lifecycle_operator import Shown
from tests.simulation.lifecycle_sequence import Sequence
from tests.simulation.operation_dagster import BROKEN_MODULE, WHOLE_MODULE
from tests.simulation.operation_judge import act, apart, carry_out, is_consumed, is_paused, judge
from tests.simulation.operation_proof import check_told
from tests.simulation.operation_sensor import Sensor
from tests.simulation.operation_steps import (
    FOR_EVER_S,
    Abandon,
    Arrive,
    Ask,
    Both,
    BreakModule,
    Configure,
    CopyRegistry,
    Course,
    Define,
    DeleteRun,
    Drift,
    End,
    ExpireOffsets,
    Feed,
    Intrude,
    KillWorker,
    Occupy,
    Pause,
    ReplaceRegistry,
    SetClock,
    Silent,
    Spoil,
    Step,
    Upgrade,
    Wait,
)
from tests.simulation.operation_watched import WatchedWorld
from tests.simulation.operation_webhook import Webhook
from tests.simulation.operation_world import OperationWorld, Person
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, INPUT

#: Points (places in a call where a process may be killed) after which the operator holds an apply (the execution of a
#: plan).
BEGINS = ("registry.journal.begin_apply:after", "registry.journal.claim_apply:after")
#: Virtual seconds from the last disturbance to the checks. They are enough for all attempts of recovery, and to report
#: an interrupted apply (execution of a plan).
QUIET_S, QUIET_MAX_S = 120.0, 1_500.0
#: In most seeds, the quiet period ends after this many seconds if the machine matches Holdfast's registry.
CALM_S = 30.0
#: The maximum number of actions that may be needed to repair the installation after a course (sequence of commands and
#: faults). Each action is the one that status names at that moment.
ACTIONS_MAX = 4


class Strike:
    """Sends a signal to one process, or to the first process whose name starts with ``who``."""

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
        """Send the signal; returns whether the process dies at once."""
        self.struck = where
        if self.end.signal == "SIGINT" and not process.name.startswith("w"):
            process.interrupt()
            return False
        return True


class CourseRun:
    """Runs one course (sequence of operators' commands and faults) on a separate simulated installation."""

    def __init__(self, world: WatchedWorld, course: Course) -> None:
        self.world, self.course = world, course
        self.told: list[str] = []
        self.sensor = Sensor(world, self.tell)
        self.webhook = Webhook(world, self.tell)
        self.acted = 0
        #: The virtual time at which the last temporary disturbance ends.
        self.silent_until = 0.0

    @property
    def writes_files(self) -> bool:
        """Whether a clear in this course (sequence of commands) writes an undo file: an export of the deleted keys."""
        return any(isinstance(each, Clear) and each.export for each in self._requests())

    def tell(self, text: str) -> None:
        """Add a line to the trace that people read."""
        self.told.append(f"{self.world.clock.monotonic():8.1f} s  {text}")

    def run(self) -> None:
        """Run the whole course (all commands and faults) and its checks.

        Raises:
            InvariantBroken: Status does not report how the machine differs from Holdfast's registry, or its action
                does not repair the machine.
        """
        for request in (Provision(GROUP), Deploy(GROUP)):
            act(self.world, lambda person, request=request: person.ask(request, lambda plan: None), str(request))
        self.world.erases = any(isinstance(each, Erase) for each in self._requests())
        self.sensor.begin()
        self.webhook.begin()
        for step in self.course:
            self.take(step)
        self.world.strikes.clear()
        self.feed(1.0)
        self.quiet()
        self.check_broken()
        self.follow()
        self.check_undo()
        check_told(self.world)
        check_erased(self.world)
        self.check_outside()
        if not any(isinstance(each, Clear | Erase) for each in self._requests()):
            self.check_state()

    def follow(self) -> None:
        """Carry out the actions that status names, until the machine matches Holdfast's registry.

        One command cannot repair two faults, for instance a hanging supervisor and an earlier interrupted command.
        Status may therefore name another action after the first one. It may not name an action again, because that
        action did not help.

        Raises:
            InvariantBroken: Status does not report how the machine differs from Holdfast's registry, or its actions
                do not repair the machine.
        """
        done: list[str] = []
        while True:
            verdict = judge(self.world)
            self.tell(f"judged: {list(verdict.apart) or 'as recorded'}; {verdict.answer.colour}: {verdict.answer.text}")
            self.webhook.check()
            if not verdict.apart and verdict.answer.colour != "red":
                break
            if verdict.action in done or len(done) == ACTIONS_MAX:
                raise InvariantBroken(
                    "mended", f"{list(verdict.apart)}; {verdict.answer.colour}: {verdict.answer.text}; done: {done}"
                )
            done.append(verdict.action)
            self.acted += 1
            self.tell(f"action: {carry_out(self.world, verdict)}")
            self.quiet()
            self.check_broken()
        if done and not verdict.answer.passed:
            raise InvariantBroken("mended", f"{verdict.answer.colour}: {verdict.answer.text}; done: {done}")

    def check_undo(self) -> None:
        """Check that the folders of the last two working releases exist, because a rollback needs the earlier one.

        Raises:
            InvariantBroken: A release was pruned.
        """
        book = self.world.registry.releases
        for name in self.world.worked[-2:]:
            release = book.find(GROUP, name)
            if release is None or release.folder is None or not Path(release.folder).is_dir():
                raise InvariantBroken("undo", f"release {name} is not there; worked: {self.world.worked}")

    def check_broken(self) -> None:
        """Raise the error that a check has found while the course (sequence of commands and faults) ran.

        Raises:
            InvariantBroken: A check failed.
        """
        if self.world.broken is not None:
            raise self.world.broken

    def check_outside(self) -> None:
        """Check what queries were answered, and the systems of durable calls and sinks.

        Raises:
            InvariantBroken: An answer was wrong, or a promise about calls or sinks is broken.
        """
        self.world.rest(2.0)
        self.world.asker.settle()
        if self.world.outside is not None:
            repeats = any(isinstance(each, Clear | Erase) for each in self._requests())
            repeats |= any(isinstance(each, ExpireOffsets) for each in self.course)
            self.world.outside.check(repeats=repeats, consumed=is_consumed(self.world))

    def check_state(self) -> None:
        """Check that no message is lost or counted twice.

        Raises:
            InvariantBroken: A message is lost or counted twice.
        """
        self.world.rest(2.0)
        places = {
            Partition(INPUT, number) for number in range(self.world.schedule.partitions) if self.world.sent[number]
        }
        if any(isinstance(each, ExpireOffsets) for each in self.course) and places - set(
            self.world.cluster.committed_offsets(GROUP)
        ):
            return  # the model knows by the offsets which input the state has
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
        """Carry out one step (a command or a fault) of the course."""
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
            case Arrive():
                self.arrive(step)
            case Wait():
                world.rest(step.seconds)
            case Define():
                self.tell(f"the project defines {step.version}.{step.revision}")
                world.define(step.version, step.revision)
            case Silent():
                self.silence(step)
            case Intrude():
                self.last(step.later_s, step.seconds, world.join_stranger, world.leave_strangers, str(step))
            case SetClock():
                ahead, right = partial(world.set_clock, step.ahead_s), partial(world.set_clock, 0.0)
                self.last(0.0, step.seconds, ahead, right, str(step))
            case BreakModule():
                breaks, mends = (partial(self.sensor.load, each) for each in (BROKEN_MODULE, WHOLE_MODULE))
                self.last(0.0, step.seconds, breaks, mends, str(step))
            case _:
                self.change(step)

    def change(self, step: Step) -> None:
        """Carry out one step (a command or a fault) that takes no virtual time."""
        world = self.world
        self.tell(str(step))
        match step:
            case Configure():
                world.environment["HOLDFAST_MEMORY_MAX_MB"] = step.memory_mb
            case Spoil():
                world.broken_slots.add(step.slot)
                self.strike(End("SIGKILL", after_s=0.0), f"w{step.slot}", None)
            case Pause():
                world.pause(step.slot)
            case DeleteRun():
                self.sensor.forget()
            case Occupy():
                self.sensor.queue.occupy(GROUP)
            case Upgrade():
                world.make_foreign()
            case Drift():
                world.drift()
            case ExpireOffsets():
                self.expire_offsets()
            case CopyRegistry():
                world.copy_of_registry()
            case ReplaceRegistry():
                world.until(lambda: world.is_at_rest, 3_000.0, "no command is under way")
                self.tell(f"the backup of the registry is put back: {world.put_registry_back()}")

    def expire_offsets(self) -> None:
        """Delete the committed offsets of the group, unless it has members: then offsets do not expire."""
        cluster = self.world.cluster
        members = cluster._broker.group(GROUP).members
        self.tell(f"the offsets {'stay, because workers run' if members else 'are deleted'}")
        if not members:
            cluster.reset_offsets(GROUP, dict.fromkeys(cluster.committed_offsets(GROUP)))

    def last(self, later_s: float, seconds: float, begin: Callable[[], Any], end: Callable[[], Any], what: str) -> None:
        """Start a disturbance ``later_s`` seconds from now.

        The disturbance lasts ``seconds``. If ``seconds`` is ``FOR_EVER_S``, it lasts until a person ends it.
        """
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
        """Let the broker or the supervisor answer nothing for a while."""
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
        """Produce this share of the remaining input of each partition, at once."""
        for number, messages in enumerate(self.world.workload.messages):
            sent = self.world.sent[number]
            self.world.feed(number, sent + round((len(messages) - sent) * share))

    def arrive(self, step: Arrive) -> None:
        """Produce input when a process passes a certain point (a place in a call where it may be killed)."""
        left = [step.share]

        def passed(process: SimulatedProcess, name: str) -> bool:
            if left and name.startswith(step.aim):
                self.tell(f"input arrives at {name} of {process.name}")
                self.feed(left.pop())
            return False

        self.world.strikes.append(passed)

    def ask(self, step: Ask) -> SimulatedProcess:
        """Start an operator who requests a verb (operator command)."""

        def work(person: Any) -> None:
            shown: Shown = person.ask(step.request, lambda plan: None)
            verdict = shown.plan.verdict
            how = "refused" if isinstance(verdict, Refused) else "resumed" if shown.resumed else "done"
            self.tell(f"{person.process.name}: {how}: {verdict.sentence}")

        return self._begin(str(step.request), work, step.end)

    def abandon(self, step: Abandon) -> SimulatedProcess:
        """Start an operator who abandons (closes without an undo) the open apply (execution of a plan)."""

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
        """Arrange a signal for a process: at a point (a place in a call that it makes), or after some seconds."""
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
        """Wait without new disturbances until the processor and recovery have nothing left to do."""
        self.world.idle_s = 5.0
        self.world.rest(max(0.0, self.silent_until - self.world.clock.monotonic()))
        self.world.rest(CALM_S)
        if self.world.schedule.seed % 8 and not apart(self.world) and not self.sensor.busy:
            return  # One seed in eight continues, and checks that the machine still matches after a longer time.
        self.world.rest(QUIET_S)
        until = self.world.clock.monotonic() + QUIET_MAX_S
        while self.world.clock.monotonic() < until:
            shared = self.world.shared_since is not None  # a worker of another installation has some partitions
            waits = shared or is_paused(self.world)
            busy = self.sensor.busy or (self._runs() and not waits and not is_consumed(self.world))
            if not busy:
                return
            self.world.rest(20.0)

    def _runs(self) -> bool:
        return any(each.alive for each in self.world.programs.values())
