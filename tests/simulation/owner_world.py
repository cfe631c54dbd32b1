"""A simulation in which the owner of a task gets commands (clear, adopt, set positions) while faults strike.

The expected state is computed from the input alone. For each store and partition, the test keeps a list of the messages
that the state must contain. A clear removes messages from this list. Setting the input positions back adds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import Settings
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta, encode_value, key_prefix
from holdfast.processors.engine.commands import content as contents
from holdfast.processors.engine.commands import sweep
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import (
    Adopt,
    Clear,
    Command,
    CommandRefused,
    CommandWrong,
    Position,
)
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, TicketPhase
from holdfast.processors.engine.runtime.phases import Phase
from holdfast.processors.engine.runtime.requests import Request
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from tests.simulation.faults import Faults
from tests.simulation.schedule import Schedule, plain_schedule
from tests.simulation.scheduler import signals_kept
from tests.simulation.small_portions import tuned
from tests.simulation.verifier import Content, Databases, FinalCheck, InvariantBroken
from tests.simulation.workload import GROUP, INPUT, Expected, Message, expect
from tests.simulation.world import RECOVERY_S, SETTLE_S, Machine, World

#: Virtual seconds within which a command must be done, whatever faults occur.
COMMAND_S = 900.0
ENDED = (TicketPhase.DONE, TicketPhase.FAILED)


class OwnerWorld(World):
    """A simulated installation that a test feeds, pauses and commands step by step."""

    def __init__(self, schedule: Schedule, folder: Path, settings: Settings) -> None:
        super().__init__(schedule, folder, settings)
        self.start_with = Start()
        self.effective: dict[tuple[str, int], list[Message]] = {
            (store, number): [] for store in self.workload.names for number in range(schedule.partitions)
        }
        #: The offset of each produced message, by partition and message number.
        self.offsets: list[dict[int, int]] = [{} for _ in range(schedule.partitions)]
        #: The number of messages that are already counted in ``effective``, by partition.
        self._counted = [0] * schedule.partitions
        self.asked = 0
        self.failed: list[str] = []

    def application(self, machine: Machine) -> Application:
        made = super().application(machine)
        made.with_run_overrides(slot=machine.slot, auto_create_topics=True, start=self.start_with)
        return made

    def feed_to(self, partition: int, upto: int) -> None:
        """Produce the messages of a partition up to this number, and record their offsets."""
        for number in range(self._sent[partition], upto):
            self.feed(partition, number + 1)
            self.offsets[partition][number] = self._ends[Partition(INPUT, partition)] - 1

    def settle(self) -> None:
        """Wait until the produced input is consumed, and add it to ``effective``."""
        self._until(self.fed_is_consumed, RECOVERY_S, "liveness")
        for partition, messages in enumerate(self.workload.messages):
            new = messages[self._counted[partition] : self._sent[partition]]
            self._counted[partition] = self._sent[partition]
            for store in self.workload.names:
                self.effective[store, partition] += new

    def fed_is_consumed(self) -> bool:
        """Whether the group has committed all produced input."""
        self._keep_up()
        committed = self.cluster.committed_offsets(GROUP)
        return self.broken is not None or all((committed.get(place) or 0) >= end for place, end in self._ends.items())

    def _keep_up(self) -> None:
        """Keep at least one machine running.

        Resume workers that started paused, or that were frozen during a resume.
        """
        if not any(machine.wanted for machine in self.machines):
            self.machines[0].wanted = True
            self.machines[0].start()
        for _, worker in self.workers():
            if worker.paused and not self.start_with.paused and not worker.requests:
                worker.requests.append(Request(worker.resume, only_reads=False))

    def expected(self) -> Expected:
        """The state of each store that the messages in ``effective`` lead to."""
        found = Expected()
        for store in self.workload.names:
            counted = tuple(tuple(self.effective[store, number]) for number in range(self.schedule.partitions))
            states = expect(replace(self.workload, messages=counted)).states
            found.states.update({place: state for place, state in states.items() if place[0] == store})
        return found

    # -- commands --------------------------------------------------------------------------------------------------

    def workers(self) -> Iterator[tuple[Machine, Worker]]:
        """The machines and workers that could answer a request now."""
        for machine in self.machines:
            worker = machine.app._worker if machine.app is not None else None
            process = machine.alive
            if worker is not None and process is not None and not process.frozen:
                yield machine, worker

    def owner(self, partition: int) -> Worker | None:
        """Return the worker that runs a partition's task now, according to the worker itself, or None."""
        for _, worker in self.workers():
            tasks = worker.assignment.tasks
            runs = any(task.partition == partition and task.phase is TaskPhase.RUNNING for task in tasks)
            if runs and worker.phase is Phase.RUNNING and not worker.assignment.busy:
                return worker
        return None

    def pause(self) -> None:
        """Pause all workers. Workers that start later start paused."""
        self.start_with = Start(paused=True)
        self._until(self._all_paused, RECOVERY_S, "liveness")

    def resume(self) -> None:
        """Resume all workers."""
        self.start_with = Start()
        self._keep_up()

    def _all_paused(self) -> bool:
        waiting = [worker for machine, worker in self.workers() if not worker.paused]
        for worker in waiting:
            if not worker.requests:
                worker.requests.append(Request(worker.pause, only_reads=False))
        self._keep_up()
        there = [machine for machine in self.machines if machine.alive is not None]
        starting = [machine for machine in there if machine.app is None or machine.app._worker is None]
        return not (waiting or starting or any(machine.process.frozen for machine in there if machine.process))

    def command(self, partition: int, command: Command) -> Ticket:
        """Send a command to the owner of a partition, repeatedly until it is done."""
        deadline = self.clock.monotonic() + COMMAND_S
        while self.clock.monotonic() < deadline:
            if self.start_with.paused:
                self.pause()
            self._until(lambda: self._keep_up() or self.owner(partition) is not None, RECOVERY_S, "liveness")
            worker = self.owner(partition)
            assert worker is not None
            ticket = self._ask(worker, command)
            if ticket is not None and ticket.phase is TicketPhase.DONE:
                return ticket
        raise InvariantBroken("liveness", f"{command} was not done in {COMMAND_S:g} s: {self.failed[-5:]}")

    def _ask(self, worker: Worker, command: Command) -> Ticket | None:
        begun: list[Ticket] = []
        refused: list[str] = []

        def work() -> None:
            try:
                begun.append(worker.maintenance.begin(command))
            except CommandRefused as failure:
                refused.append(failure.message)
            except CommandWrong as failure:
                self.fail(InvariantBroken("commands", f"{command}: {failure}"))

        self.asked += 1
        worker.requests.append(Request(work, only_reads=False))
        gone = self.clock.monotonic() + 100.0
        self.clock.call_at(gone, lambda: None)

        def over() -> bool:
            if all(one is not worker for _, one in self.workers()):
                return True
            return bool(refused) or (bool(begun) and begun[0].phase in ENDED) or self.clock.monotonic() >= gone

        self._until(over, COMMAND_S, "liveness")
        if begun and begun[0].error is not None:
            self.failed.append(begun[0].error["message"])
        self.failed += refused
        if not (begun and begun[0].phase in ENDED):
            self.rest(0.5)
        return begun[0] if begun else None

    def rest(self, seconds: float) -> None:
        """Run the simulation for this many virtual seconds."""
        until = self.clock.monotonic() + seconds
        self.clock.call_at(until, lambda: None)
        self._until(lambda: self.clock.monotonic() >= until, seconds + 60.0, "liveness")

    # -- the expected effect of a command ------------------------------------------------------------------------------

    def forget(self, partition: int, stores: tuple[str, ...], cleared: Callable[[bytes], bool]) -> None:
        """Record that messages with cleared keys no longer count."""
        for store in stores:
            kept = [message for message in self.effective[store, partition] if not cleared(message.key)]
            self.effective[store, partition] = kept

    def rewound(self, partition: int, number: int) -> None:
        """Record that the messages from this number on are processed again, and count again."""
        self._counted[partition] = number


def owner_schedule(seed: int, **chosen: Any) -> Schedule:
    """Return the schedule of a seed with fewer faults, so that every command can be done in time."""
    return replace(plain_schedule(seed), **chosen)


@contextmanager
def commanded(schedule: Schedule, folder: Path, *, entries_max: int) -> Iterator[OwnerWorld]:
    """A running installation with its faults. Commands work in batches of a few entries."""
    world = OwnerWorld(schedule, folder, Settings(home=folder))
    values = [(sweep, "ENTRIES_MAX", entries_max), (contents, "RECORDS_PER_STEP", 3), (contents, "LOOKS_MAX", 7)]
    former = [(module, name, getattr(module, name)) for module, name, _ in values]
    for module, name, value in values:
        setattr(module, name, value)
    try:
        with signals_kept(), tuned(schedule):
            Faults(world)
            for machine in world.machines[: schedule.processes]:
                machine.wanted = True
                machine.start()
            yield world
    finally:
        for module, name, value in former:
            setattr(module, name, value)
        world.simulation.end()


class OwnersCheck(FinalCheck):
    """The final check for commands, which change state without a change of input offsets.

    Therefore a database counts as up to date only if it has also reached the end of its changelogs.
    """

    def _at_the_end(self, databases: Databases) -> Iterator[tuple[str, Path, Content]]:
        for slot, path, content in super()._at_the_end(databases):
            stores, number = TaskMeta.decode(content[META_KEY]).stores, int(path.name.rsplit("-", 1)[1])
            places = {store: self._history.partition(store, number) for store in self._workload.names}
            if all(stores[store].offset > self._last(place) for store, place in places.items()):
                yield slot, path, content

    def _last(self, place: Partition) -> int:
        records = [record.offset for number, record in self._cluster.read(place.topic) if number == place.number]
        return max(records, default=-1)


def check_all(world: OwnerWorld) -> None:
    """Check that changelogs, the owners' databases and restores of all kinds hold exactly the expected state."""
    world.heal()
    world.settle()
    final = OwnersCheck(world.cluster, world.workload, world.expected(), world.history, world.others)
    world._until(lambda: not final.missing(world.databases()), RECOVERY_S, "liveness")
    world._stop_all()
    world.clock.advance_to(world.clock.monotonic() + SETTLE_S)
    for machine in world.machines:
        world.look_at(machine)
    world._raise()
    world.check.settle()
    world.history.observe()
    for store in world.workload.names:
        for partition in range(world.schedule.partitions):
            place = world.history.partition(store, partition)
            folded = world.history.fold(place, world.cluster.log_end(place))
            final._check_state("state", f"changelog {place}", store, partition, folded)
    final.check_databases("state", world.databases(), excused=set(range(world.schedule.partitions)))
    if world.checkpoints.manifests():
        world._audit(final, checkpoints=True)
    for topic in world.changelogs:  # all processes have ended, so none needs the tombstones
        for number in range(world.schedule.partitions):
            world.history.observe()
            world.cluster.compact(Partition(topic, number), drop_tombstones=True)
    world._audit(final, checkpoints=False)


def draw_command(world: OwnerWorld, random: Random, partition: int) -> Callable[[], None]:
    """Draw a command about a partition.

    The returned function carries the command out and records its expected effect.
    """
    keys = sorted({message.key for message in world.workload.messages[partition]})
    stores = tuple(random.sample(world.workload.names, random.randint(1, len(world.workload.names))))
    kind = random.choice(["keys", "prefix", "all", "all and position", "position", "adopt"])
    export = random.random() < 0.3
    if kind == "keys":
        chosen = random.sample(keys, random.randint(1, len(keys)))
        asked = Clear(store=stores, partitions=(partition,), keys=tuple(key.decode() for key in chosen), export=export)
        return lambda: _do(world, partition, asked, stores, chosen.__contains__)
    if kind in ("prefix", "all"):
        prefix = random.choice(["", "k", "k1", "x"]) if kind == "prefix" else None
        asked = Clear(store=stores, partitions=(partition,), prefix=prefix, all=prefix is None, export=export)
        return lambda: _do(world, partition, asked, stores, lambda key: key.startswith((prefix or "").encode()))
    sent = world._sent[partition]
    number = random.randint(0, sent)
    offset = world.offsets[partition][number] if number < sent else world._ends.get(Partition(INPUT, partition), 0)
    positions = {INPUT: {partition: offset}}
    if kind == "adopt":
        return draw_adoption(world, random, partition, number, positions if random.random() < 0.5 else None)
    if kind == "position":
        return lambda: _do(world, partition, Position(positions=positions), (), lambda key: False, number)
    everything = Clear(
        store=world.workload.names, partitions=(partition,), all=True, export=export, positions=positions
    )
    return lambda: _do(world, partition, everything, world.workload.names, lambda key: True, number)


def draw_adoption(
    world: OwnerWorld, random: Random, partition: int, number: int, positions: dict[str, dict[int, int]] | None
) -> Callable[[], None]:
    """Draw an adoption.

    In an adoption, a store takes over the content of a foreign changelog, which has some messages.
    """
    store = random.choice(world.workload.names)
    counted = [message for message in world.workload.messages[partition] if random.random() < 0.6]
    messages = tuple(tuple(counted if at == partition else ()) for at in range(world.schedule.partitions))
    content = expect(replace(world.workload, messages=messages)).states[store, partition]
    shadow = f"shadow-{world.asked}-{partition}"
    world.cluster.create_topic(shadow, world.schedule.partitions)

    def send(key: bytes, value: bytes | None) -> None:
        world.cluster.produce(shadow, value, key, partition=partition)

    for key in [key_prefix(b"gone") + b"total", *content]:
        if random.random() < 0.5:  # first write another value, which a later record of the same key replaces
            send(key, encode_value(-1, 0))
            send(META_KEY, ChangelogMeta({INPUT: 1}, 1, "").encode())
    send(key_prefix(b"gone") + b"total", None)
    for key, value in content.items():
        send(key, encode_value(value, 7))
    send(META_KEY, ChangelogMeta({INPUT: 5}, 2, "").encode())
    if random.random() < 0.5:
        world.cluster.compact(Partition(shadow, partition), drop_tombstones=random.random() < 0.5)
    upto = {partition: world.cluster.log_end(Partition(shadow, partition))}
    command = Adopt(store=store, changelog=shadow, upto=upto, positions=positions)

    def do() -> None:
        world.pause()
        ticket = world.command(partition, command)
        if ticket.result["inputs"] != {str(partition): {INPUT: 5}}:
            raise InvariantBroken("commands", f"{command} told {ticket.result}")
        world.rest(1.0)
        world.effective[store, partition] = list(counted)
        if positions is not None:
            world.rewound(partition, number)
        world.resume()

    return do


def _do(
    world: OwnerWorld,
    partition: int,
    command: Command,
    stores: tuple[str, ...],
    cleared: Callable[[bytes], bool],
    number: int | None = None,
) -> None:
    if number is not None:
        world.pause()
    world.command(partition, command)
    world.rest(1.0)  # wait until the command's transaction markers are written
    world.forget(partition, stores, cleared)
    if number is not None:
        world.rewound(partition, number)
        world.resume()
