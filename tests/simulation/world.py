"""One simulated installation: a cluster, machines with disks, processors on them, and the faults of a schedule.

Every process runs the production engine, started by its production constructor. Everything else is simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from holdfast.infra.kafka.errors import KafkaFailed, ProducerFenced, TransactionAborted
from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import CheckpointSettings, Settings
from holdfast.processors.application.application import Application
from holdfast.processors.engine.changelog.names import changelog_topic
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import CommandFailed, CommandRefused
from holdfast.processors.engine.state.errors import (
    InputsParted,
    StateCorrupt,
    StateDiskFailed,
    StateFolderTaken,
    StateIncoherent,
)
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import ForeignTransaction, InMemoryCluster
from holdfast.processors.testing.network import Fate, Network
from holdfast.processors.testing.producer import ClientRaised
from tests.simulation.checkpoint_store import CheckpointCheck
from tests.simulation.disk import Damage
from tests.simulation.machines import Machine, Operator
from tests.simulation.objects import SimulatedObjects
from tests.simulation.others import Others
from tests.simulation.schedule import Schedule
from tests.simulation.scheduler import SimulatedProcess, Simulation, SimulationStuck, Step, signals_kept
from tests.simulation.small_portions import tuned
from tests.simulation.verifier import DatabaseCheck, FinalCheck, InvariantBroken
from tests.simulation.work import final_check, history_of, workload_of
from tests.simulation.workload import DEAD, GROUP, INPUT, JOINT, OUTPUT

#: Virtual seconds within which the rest of the input is processed after all faults are healed.
RECOVERY_S = 400.0
#: Virtual seconds within which the last transaction markers are written.
SETTLE_S = 5.0
#: The largest age of a record, in milliseconds, that a limited output topic accepts.
PAST_MAX_MS = 86_400_000
#: With more exits than this, the processors of a simulation count as not recovering.
EXITS_MAX = 60
#: Errors that may end a processor. It is then restarted, as a supervisor would do.
EXPECTED_EXITS = (KafkaFailed, StateDiskFailed, StateCorrupt, ClientRaised)


class SimulatedNetwork(Network):
    """A network that loses or delays single requests."""

    def __init__(self, may_leave_out: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.armed: list[tuple[str, str, Fate]] = []
        self._may_leave_out = may_leave_out

    def leaves_out(self, place: str) -> bool:
        """Whether a transaction marker is never written (KAFKA-20734). Happens only while the brokers are down."""
        return not self.brokers_up and self._may_leave_out()

    def fate(self, process: str, request: str) -> Fate:
        """Return the fate that a fault has set for this request of this process. Each fate applies once."""
        for index, (who, what, fate) in enumerate(self.armed):
            if who == process and request == what:
                del self.armed[index]
                return fate
        return Fate.OK


class World:
    """Runs one schedule and checks the invariants.

    Args:
        schedule: The settings of the processors, and the faults.
        folder: For the processors' lock files; later simulations may use it again.
        settings: The settings of every processor.
    """

    def __init__(self, schedule: Schedule, folder: Path, settings: Settings) -> None:
        self.schedule = schedule
        self.random = Random(f"run of {schedule.seed}")
        checkpoints = CheckpointSettings(every_s=schedule.checkpoint_s, stop_wait_s=1.0)
        self.settings = settings.model_copy(update={"checkpoints": checkpoints})
        self.clock = VirtualClock()
        self.store = SimulatedObjects(self.clock)
        self.store.step_s = schedule.store_step_s
        self.network = SimulatedNetwork(self._leaves_out)
        self.network.marker_delay_s = schedule.marker_delay_s
        self.cluster = InMemoryCluster(clock=self.clock, network=self.network)
        self.cluster.assignor = schedule.assignor
        self.workload = workload_of(schedule, self.random)
        #: Whether the version with a store of both inputs is deployed, and the topic id of that store's changelog.
        self.joined = False
        self._begun_with = ""
        slots = ["m0", "m0", "m2"] if schedule.twins else ["m0", "m1", "m2"]
        self.machines = [Machine(self, f"m{number}", slot=slot) for number, slot in enumerate(slots)]
        self.operator = Operator(self, "operator", settings=self._without_checkpoints())
        self.others = Others(self)
        self.simulation = Simulation(self.clock, self.random, self._on_point)
        self.exits: list[Exception] = []
        self.broken: InvariantBroken | None = None
        self.strike: Callable[[SimulatedProcess, str], Step] | None = None
        #: Open transactions of foreign clients.
        self.foreign: list[ForeignTransaction] = []
        #: The wall-clock and virtual times at which each changelog partition was compacted.
        self._cleaned: dict[Partition, list[tuple[float, float]]] = {}
        self._folder = folder
        self._sent = [0] * schedule.partitions
        self._ends: dict[Partition, int] = {}
        for topic in (*self.workload.inputs, OUTPUT, DEAD):
            self.create(topic)
        for store in self.workload.changelogged:
            self._create_changelog(store)
        self.history = history_of(self.cluster, self.workload)
        self.check = DatabaseCheck(self.history, self.workload, in_pieces=bool(schedule.pieces))
        self.checkpoints = CheckpointCheck(self.store, self.check.look, self.fail)

    @property
    def changelogs(self) -> list[str]:
        """The changelog topics that exist."""
        topics = [changelog_topic(GROUP, store) for store in self.workload.all_names]
        return [topic for topic in topics if topic in self.cluster._broker.topics]

    def _create_changelog(self, store: str) -> None:
        retention_ms = str(int(self.schedule.retention_s * 1000))
        config = {"cleanup.policy": "compact", "delete.retention.ms": retention_ms}
        self.cluster.create_topic(changelog_topic(GROUP, store), self.schedule.partitions, config)

    def deploy_other(self, *, at_once: bool = True) -> bool:
        """Deploy the processor's other version for processes that start later; returns whether that was possible.

        The joined version begins with an empty store, because `deploy --drop` has deleted its former content.
        """
        if not self.joined:
            topic, topics = changelog_topic(GROUP, JOINT), self.cluster._broker.topics
            if topic in topics and any(log.last_stable < log.end for log in topics[topic].logs):
                return False
            self.cluster.delete_topic(topic)
            self._cleaned = {place: passes for place, passes in self._cleaned.items() if place.topic != topic}
            self.history.forget(JOINT)
            self._create_changelog(JOINT)
            self._begun_with = topics[topic].topic_id
        self.joined = not self.joined
        for machine in (*self.machines, self.operator) if at_once else ():
            machine.joined = self.joined
        self.simulation.note("world", f"deploy joined={self.joined}")
        return True

    def _without_checkpoints(self) -> Settings:
        chosen = self.settings.checkpoints.model_copy(update={"enabled": False})
        return self.settings.model_copy(update={"checkpoints": chosen})

    def create(self, topic: str) -> None:
        """Create a topic of the simulation, unless it exists."""
        config = dict(self.workload.input_config) if topic in self.workload.inputs else {}
        if topic == OUTPUT and self.schedule.past == "refused":
            config = {"message.timestamp.before.max.ms": str(PAST_MAX_MS)}
        self.cluster.create_topic(topic, self.schedule.partitions, config)

    def application(self, machine: Machine) -> Application:
        """Return the application that a machine's next worker runs."""
        app = self.workload.application(
            joined=machine.joined,
            state_dir=self._folder / machine.name if self.schedule.twins else self._folder,
            slot=machine.slot,
            commit_every=self.schedule.commit_every,
            commit_interval=self.schedule.commit_interval_s,
            commit_interval_min=self.schedule.commit_interval_min_s,
            **self._keeping(machine),
        )
        if machine.joined:
            start = Start(begin_empty={JOINT: self._begun_with})
            app.with_run_overrides(slot=machine.slot, auto_create_topics=True, start=start)
        return app

    def _keeping(self, machine: Machine) -> dict[str, Any]:
        """Options about state. The operator keeps state in memory, because real files would outlive the simulation."""
        if machine is self.operator:
            return {"state_backend": "memory"}
        return {"standby_replicas": self.schedule.standby_replicas}

    def exited(self, machine: Machine, failure: Exception | None) -> None:
        """Record that a processor has ended, and restart it as a supervisor does."""
        self.simulation.note(machine.name, f"exit {type(failure).__name__ if failure is not None else 'clean'}")
        if failure is not None and not isinstance(failure, (CommandRefused, StateFolderTaken)):
            self.exits.append(failure)
            if not self._is_expected(failure):
                why = f"{machine.name} stopped: {type(failure).__name__}: {failure}"
                self.fail(InvariantBroken("exits", why), failure)
            elif len(self.exits) > EXITS_MAX:
                self.fail(InvariantBroken("liveness", f"{EXITS_MAX} exits, the last: {failure}"), failure)
        self.look_at(machine)
        if machine is not self.operator:
            machine.start_later(self.random.uniform(0.2, 3.0))

    def _is_expected(self, failure: Exception) -> bool:
        if isinstance(failure, CommandFailed):  # an operator's command failed; the operator repeats it
            return True
        if isinstance(failure, InputsParted):
            return bool(self.schedule.intruders_at)
        if isinstance(failure, StateIncoherent):  # a frozen restore took longer than tombstones stay in the changelog
            return "longer than deletes stay" in failure.message and self.schedule.retention_s < 3600.0
        # No schedule has enough consecutive aborts to end a processor.
        return isinstance(failure, EXPECTED_EXITS) and not isinstance(failure, (TransactionAborted, ProducerFenced))

    def fail(self, broken: InvariantBroken, cause: BaseException | None = None) -> None:
        """Remember the first broken invariant. The scheduler raises it."""
        if self.broken is None:
            self.broken = broken
            broken.__cause__ = cause

    def look_at(self, machine: Machine) -> None:
        """Check every database of a machine."""
        try:
            for slot, path, content in machine.databases():
                self.check.look(slot, path, content)
        except InvariantBroken as broken:
            self.fail(broken)

    def feed(self, partition: int, upto: int) -> None:
        """Produce the messages of a partition up to a number."""
        for message in self.workload.messages[partition][self._sent[partition] : upto]:
            time_ms, encoded = message.time_ms(self.clock.time()), message.encode(partition)
            place = Partition(self.workload.topic_of(message), partition)
            offset = self.cluster.produce(*place[:1], encoded, message.key, partition=partition, timestamp_ms=time_ms)
            self._ends[place] = offset + 1
        self._sent[partition] = max(self._sent[partition], upto)

    def a_changelog(self) -> Partition:
        """A random changelog partition; without changelogs, a partition of the input."""
        return Partition(
            self.random.choice(self.changelogs or [INPUT]), self.random.randrange(self.schedule.partitions)
        )

    def compact(self, partition: Partition) -> None:
        """Compact a partition; tombstones are removed `delete.retention.ms` after they were first compacted.

        The first pass already removes the values that a tombstone deletes, so a later reader never sees them.
        """
        self.history.observe()
        deletes = [
            record.timestamp_ms
            for number, record in self.cluster.read(partition.topic)
            if number == partition.number and record.value is None
        ]
        newest_s = max(deletes, default=0) / 1000
        passes = self._cleaned.setdefault(partition, [])
        first = min((since for at, since in passes if at >= newest_s), default=None)
        drop = first is not None and self.clock.monotonic() - first > self.schedule.retention_s
        passes.append((self.clock.time(), self.clock.monotonic()))
        self.simulation.note("world", f"compact {partition.topic}[{partition.number}] drop={drop}")
        self.cluster.compact(partition, drop_tombstones=drop)

    def run(self) -> None:
        """Run the whole schedule, and check the invariants.

        Raises:
            InvariantBroken: An invariant does not hold.
        """
        try:
            with signals_kept(), tuned(self.schedule):
                self._run()
        finally:
            self.simulation.end()

    def _run(self) -> None:
        for partition_number, messages in enumerate(self.workload.messages):
            if self.workload.at_first is not None:  # the rest comes later, while no process runs, so that none is late
                self.feed(partition_number, self.workload.at_first[partition_number])
                continue
            if self.workload.moments:
                for index, at_s in enumerate(self.workload.moments[partition_number], start=1):
                    self.clock.call_at(at_s, partial(self.feed, partition_number, index))
                continue
            for _ in range(self.random.randint(1, 4)):
                upto = self.random.randint(0, len(messages))
                self.clock.call_later(
                    self.random.uniform(0.0, self.schedule.horizon_s), partial(self.feed, partition_number, upto)
                )
            self.clock.call_later(
                self.schedule.horizon_s * self.random.random(), partial(self.feed, partition_number, len(messages))
            )
        for _ in range(3 if self.schedule.retention_s < 60.0 else 0):
            late_s = self.schedule.retention_s * self.random.uniform(1.0, 3.0)
            self.clock.call_at(late_s, lambda: self.compact(self.a_changelog()))
        for at_s in self.schedule.client_raises_at_s:
            self.clock.call_at(at_s, self._let_a_client_raise)
        horizon_s = self.schedule.horizon_s
        self.others.call_at_their_times()
        self.clock.call_at(self.schedule.horizon_s, lambda: None)  # `_until` needs a later event, so add one
        for machine in self.machines[: self.schedule.processes]:
            machine.wanted = True
            machine.start()
        self._until(lambda: self.clock.monotonic() >= horizon_s, horizon_s + 60.0, "liveness")
        self.heal()
        often = 0.9 if self.schedule.standby_replicas else 0.5
        absent = self._take_away() if self.schedule.retention_s < 60.0 and self.random.random() < often else None
        self._until(self.consumed, RECOVERY_S, "liveness")
        final = final_check(self.cluster, self.workload, self.history, self.others)
        self._until_settled(final)
        if absent is not None:
            self._come_back(absent, final)
        damaged = {
            path
            for machine in self.machines
            for path in machine.disk.paths
            if machine.disk.damage(path) is not Damage.NONE
        }
        self._stop_all()
        self.clock.advance_to(self.clock.monotonic() + SETTLE_S)
        for machine in self.machines:
            self.look_at(machine)
        self._raise()
        self.checkpoints.check_all()
        self.check.settle()
        # A worker's last checkpoint may notice that its database is damaged. Then the worker has moved it aside.
        final.run(self.databases(), excused={int(path.name.rsplit("-", 1)[1].split(".")[0]) for path in damaged})
        self._audit(final, checkpoints=False)
        if self.checkpoints.manifests():
            self._audit(final, checkpoints=True)

    def _let_a_client_raise(self) -> None:
        alive = [machine.alive for machine in self.machines if machine.alive is not None]
        if alive:
            self.network.armed.append((alive[0].name, "queue", Fate.RAISES))

    def _leaves_out(self) -> bool:
        """Whether a marker is never written. False while a foreign transaction is open: nothing else would end it."""
        return self.schedule.markers_left_out and not self.foreign and self.random.random() < 0.5

    def _take_away(self) -> Machine:
        """Switch one machine off, for longer than tombstones stay in the changelogs."""
        absent = self.random.choice(self.machines)
        absent.wanted = False
        absent.stop()
        other = self.random.choice([machine for machine in self.machines if machine is not absent])
        other.wanted = True
        other.start()
        return absent

    def _come_back(self, absent: Machine, final: FinalCheck) -> None:
        """Restart the machine alone, with old state, after tombstones are gone and often without checkpoints."""
        for topic in self.changelogs:
            for number in range(self.schedule.partitions):
                self.compact(Partition(topic, number))
        self.clock.call_later(self.schedule.retention_s * 1.1, lambda: None)
        until = self.clock.monotonic() + self.schedule.retention_s * 1.1
        self._until(lambda: self.clock.monotonic() >= until, 2 * self.schedule.retention_s, "liveness")
        for topic in self.changelogs:
            for number in range(self.schedule.partitions):
                self.compact(Partition(topic, number))
        if self.random.random() < 0.8:
            self.store.refuses = "it is away"
        if self.schedule.standby_replicas:  # let the machine be a standby for a while, before it takes over all tasks
            absent.wanted = True
            absent.start()
            until = self.clock.monotonic() + 8.0
            self.clock.call_at(until, lambda: None)
            self._until(lambda: self.clock.monotonic() >= until, 60.0, "liveness")
        for machine in self.machines:
            machine.wanted = machine is absent
            machine.stop()
        absent.start()
        self._until(lambda: not final.missing(absent.databases()), RECOVERY_S, "liveness")
        self.heal_store()

    def _audit(self, final: FinalCheck, *, checkpoints: bool) -> None:
        """A new machine restores everything, from changelogs alone or from checkpoints and changelogs."""
        settings = self.settings if checkpoints else self._without_checkpoints()
        auditor = Machine(self, "rescue" if checkpoints else "audit", settings=settings)
        auditor.wanted = True
        self.machines = [auditor]
        auditor.start()
        self._until(lambda: not final.missing(self.databases()), RECOVERY_S, "restore")
        self._stop_all()
        if self.schedule.grouped:  # the commits of the machine's last watermarks may not be visible yet
            self.clock.advance_to(self.clock.monotonic() + SETTLE_S)
        self._raise()
        final.check_databases("restore", auditor.databases())

    def _owners(self) -> list[tuple[str, str]]:
        """The worker and the name of each running task."""
        return [
            (machine.alive.name, task.name)
            for machine in self.machines
            if machine.alive is not None and machine.app is not None and machine.app._worker is not None
            for task in machine.app._worker.assignment.tasks
            if task.running
        ]

    def _is_owned(self, owners: list[tuple[str, str]]) -> bool:
        """Whether each partition has a running task and no rebalance runs.

        A stop during a rebalance would leave databases that are complete, but not marked as complete.
        """
        group = self.cluster._broker.groups.get(GROUP)
        alive = sum(machine.alive is not None for machine in self.machines)
        if group is None or group.preparing or len(group.members) < alive:
            return False
        if any(member.given is not None for member in group.members):  # a member must still learn its partitions
            return False
        groups = 2 if self.schedule.grouped or (self.workload.apart and not self.joined) else 1
        groups += getattr(self.workload, "joins", False)
        return len(owners) >= groups * self.schedule.partitions

    def databases(self) -> list[tuple[str, Path, dict[bytes, bytes]]]:
        """The usable databases of all machines."""
        return [database for machine in self.machines for database in machine.databases()]

    def consumed(self) -> bool:
        """Whether the group has committed the whole input."""
        if self.broken is not None:
            return True
        committed = self.cluster.committed_offsets(GROUP)
        sent = all(sent == len(of) for sent, of in zip(self._sent, self.workload.messages, strict=True))
        idle = not self.others.busy and not self.others.intruders
        return sent and idle and all((committed.get(place) or 0) >= end for place, end in self._ends.items())

    def heal(self) -> None:
        """End all faults and repair what is broken. Frozen processes thaw at their own time."""
        self.strike = None
        self.simulation.note("world", "heal")
        self.network.brokers_up = True
        self.network.armed.clear()
        for topic in (OUTPUT, DEAD):
            self.create(topic)
        for transaction in self.foreign:
            with suppress(ProducerFenced):  # the transaction may have timed out; then it is aborted already
                transaction.abort()
        self.foreign.clear()
        self.heal_store()
        for machine in self.machines:
            machine.disk.full = False
            machine.disk.short_writes = 0
        if not any(machine.wanted for machine in self.machines) and not self.others.busy:
            self.machines[0].wanted = True
        for machine in self.machines:
            machine.start()

    def heal_store(self) -> None:
        """Let the checkpoint store answer again. Damaged objects stay damaged."""
        self.store.refuses, self.store.full, self.store.lost_answers = None, False, 0
        self.store.step_s = self.schedule.store_step_s

    def _stop_all(self) -> None:
        for machine in self.machines:
            machine.wanted = False
            machine.stop()
            if machine.process is not None:
                machine.process.thaw()
        self._until(lambda: not any(machine.alive for machine in self.machines), 120.0, "liveness")

    def _until_settled(self, final: FinalCheck) -> None:
        # Add time for group_by: each record may have its own commit, and a worker waits for the markers of each commit.
        waits_s = self.workload.records_behind * self.schedule.marker_delay_s
        # Idle workers keep writing watermarks, so check each partition by itself; if task owners change, start again.
        everywhere = set(range(self.schedule.partitions))
        moving, known = set(everywhere), list[tuple[str, str]]()

        def settled() -> bool:
            owners = self._owners()
            if owners != known:
                known[:] = owners
                moving.update(everywhere)
            if not (self._is_owned(owners) and final.settled()):
                return False
            moving.intersection_update(final.missing(self.databases()))
            return not moving

        try:
            self._until(settled, RECOVERY_S + waits_s, "liveness")
        except InvariantBroken:
            if not final.settled():  # raise the error about missing outputs, which is more precise than the timeout
                final.check_outputs()
            raise

    def _until(self, done: Callable[[], bool], timeout_s: float, invariant: str) -> None:
        try:
            self.simulation.run_until(lambda: self.broken is not None or done(), timeout_s)
        except SimulationStuck as stuck:
            self._raise()
            raise InvariantBroken(invariant, f"{stuck.message} {stuck.fields}") from stuck
        self._raise()

    def _raise(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _on_point(self, process: SimulatedProcess, name: str) -> Step:
        if self.strike is not None:
            return self.strike(process, name)
        return Step.YIELD if self.random.random() < self.schedule.switching else Step.GO_ON
