"""Applies the faults of a schedule to a simulated cluster and its machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from holdfast.infra.kafka.errors import ProducerFenced
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.testing.network import Fate
from tests.simulation.checkpoint_store import damage, forge
from tests.simulation.disk import Damage
from tests.simulation.machines import Machine
from tests.simulation.schedule import AIM_PATIENCE, Fault, Kind
from tests.simulation.scheduler import SimulatedProcess, Step
from tests.simulation.workload import GROUP, INPUT
from tests.simulation.world import World

#: Requests that a fault may lose or delay. Commits are drawn most often.
REQUESTS = ("produce", "produce", "send_offsets", "commit", "commit", "commit", "abort", "commit_offsets")


class Faults:
    """Applies the faults of a simulation's schedule, one after the other.

    Args:
        world: The simulated cluster, machines and clients.

    Attributes:
        struck: How many faults of each kind were applied.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._faults = list(world.schedule.faults)
        self._waited = 0
        self._do: dict[Kind, Callable[[Machine], Step]] = {
            Kind.CRASH: self._crash,
            Kind.CRASH_ALL: self._crash_all,
            Kind.FREEZE: self._freeze,
            Kind.STOP: self._stop,
            Kind.SCALE: self._scale,
            Kind.REBALANCE: self._rebalance,
            Kind.BROKERS_DOWN: self._brokers_down,
            Kind.REQUEST: self._request,
            Kind.COMPACT: self._compact,
            Kind.FOREIGN: self._foreign,
            Kind.DISK_FULL: self._disk_full,
            Kind.SHORT_WRITE: self._short_write,
            Kind.CORRUPT: self._corrupt,
            Kind.SYNC: self._sync,
            Kind.WALL_CLOCK: self._wall_clock,
            Kind.DISK_LOST: self._disk_lost,
            Kind.CHECKPOINT: self._checkpoint,
            Kind.STORE_DOWN: self._store_down,
            Kind.STORE_DAMAGED: self._store_damaged,
            Kind.STORE_FORGED: self._store_forged,
        }
        self.struck: Counter[Kind] = Counter()
        world.strike = self

    def __call__(self, process: SimulatedProcess, name: str) -> Step:
        """Decide what a process does at a point (a place in one of its calls): continue, yield to another, or crash."""
        if self._faults:
            fault = self._faults[0]
            self._waited += 1
            if self._waited > fault.after and self._hits(fault, name):
                return self._strike(process)
        return Step.YIELD if self._random.random() < self._world.schedule.switching else Step.GO_ON

    def _hits(self, fault: Fault, name: str) -> bool:
        if fault.aim is None or fault.kind not in (
            Kind.CRASH,
            Kind.FREEZE,
            Kind.CRASH_ALL,
            Kind.REBALANCE,
            Kind.DISK_LOST,
            Kind.BROKERS_DOWN,
        ):
            return True
        return name.startswith(fault.aim) or self._waited > fault.after + AIM_PATIENCE

    def _strike(self, process: SimulatedProcess) -> Step:
        fault = self._faults.pop(0)
        self._waited = 0
        machines = [*self._world.machines, self._world.operator]
        machine = next((machine for machine in machines if machine.process is process), None)
        if machine is None:  # no machine runs this process, so the fault waits for another process
            self._faults.insert(0, fault)
            return Step.GO_ON
        self._world.simulation.note(machine.name, f"FAULT {fault.kind.value}")
        self.struck[fault.kind] += 1
        return self._do[fault.kind](machine)

    # -- processes -------------------------------------------------------------------------------------------------

    def _crash(self, machine: Machine) -> Step:
        self._dead(machine, power=self._random.random() < 0.4)
        machine.start_later(self._pick(0.1, 1.0, 5.0, 14.0, 30.0))
        return Step.CRASH

    def _crash_all(self, machine: Machine) -> Step:
        for other in self._world.machines:
            if other.alive is not None:
                other.alive.kill()
                self._dead(other, power=self._random.random() < 0.5)
                other.start_later(self._pick(0.1, 1.0, 12.0))
        return Step.CRASH

    def _dead(self, machine: Machine, *, power: bool) -> None:
        assert machine.process is not None
        machine.process.kill()
        machine.disk.release(machine.process)
        self._world.look_at(machine)
        lost = [path for path in machine.disk.paths if power or machine.disk.in_bulk(path)]
        for path in lost:
            machine.disk.lose_unsynced(path, self._random.randint(0, machine.disk.unsynced(path)))
        if lost:
            self._world.look_at(machine)

    def _freeze(self, machine: Machine) -> Step:
        process = machine.process
        assert process is not None
        process.freeze()
        self._later(self._pick(0.5, 4.0, 11.0, 18.0, 40.0), process.thaw)
        return Step.YIELD

    def _stop(self, machine: Machine) -> Step:
        machine.stop()
        return Step.GO_ON

    def _scale(self, machine: Machine) -> Step:
        other = self._random.choice(self._world.machines)
        other.wanted = not other.wanted
        if other.wanted:
            other.start()
        else:
            other.stop()
        return Step.GO_ON

    # -- the cluster -----------------------------------------------------------------------------------------------

    def _rebalance(self, machine: Machine) -> Step:
        self._world.cluster.rebalance(GROUP)
        if self._random.random() < 0.3:
            self._later(self._random.uniform(0.0, 2.0), lambda: self._world.cluster.rebalance(GROUP))
        return Step.YIELD

    def _brokers_down(self, machine: Machine) -> Step:
        network = self._world.network
        network.brokers_up = False

        def back() -> None:
            network.brokers_up = True

        self._later(self._pick(0.3, 3.0, 12.0, 35.0, 130.0), back)
        return Step.GO_ON

    def _request(self, machine: Machine) -> Step:
        assert machine.process is not None
        fate = self._random.choice([Fate.LOST, Fate.REPLY_LOST, Fate.DELAYED, Fate.DELAYED])
        request = self._random.choice(REQUESTS)
        if request == "commit_offsets" and fate is Fate.DELAYED:
            # Kafka accepts a commit_offsets that arrives late. It would set the group's offsets back forever, and no
            # check could pass. So this request is lost instead of delayed.
            fate = Fate.LOST
        # The delay ends before all timeouts, near the broker's timeout (15 s), or just after the client's timeout.
        shortest = self._random.choice([0.0, 13.0, self._world.schedule.patience_s, self._world.schedule.patience_s])
        self._world.network.delay_s = shortest + self._random.uniform(0.01, 2.0)
        self._world.network.armed.append((machine.process.name, request, fate))
        self._world.simulation.note(machine.name, f"{request} will be {fate.name}")
        return Step.GO_ON

    def _compact(self, machine: Machine) -> Step:
        self._world.compact(self._world.a_changelog())
        return Step.GO_ON

    def _foreign(self, machine: Machine) -> Step:
        """Let a foreign client hold a transaction open on a changelog or the input.

        Readers cannot read later records until the transaction ends.
        """
        world = self._world
        place = world.a_changelog() if self._random.random() < 0.7 else Partition(INPUT, 0)
        records = [(META_KEY if place.topic != INPUT else b"k0", b'{"version": 1}')]
        opened = world.cluster.open_foreign_transaction(place.topic, place.number, records)
        world.foreign.append(opened)

        def end() -> None:
            if opened in world.foreign and not world.network.brokers_up:
                self._later(1.0, end)
            elif opened in world.foreign:
                world.foreign.remove(opened)
                # If the transaction timed out while the brokers were down, it is aborted already, and this call fails.
                with suppress(ProducerFenced):
                    opened.abort()

        self._later(self._pick(0.05, 2.0, 4.0), end)
        if self._random.random() < 0.5:  # in half of all cases, a worker restores while the transaction is open
            kind = self._random.choice([Kind.CRASH, Kind.REBALANCE, Kind.STOP])
            self._faults.insert(0, Fault(kind, self._random.randint(5, 60), None))
        return Step.GO_ON

    # -- the disk --------------------------------------------------------------------------------------------------

    def _disk_full(self, machine: Machine) -> Step:
        machine.disk.full = True

        def room() -> None:
            machine.disk.full = False

        self._later(self._pick(0.01, 1.0, 6.0), room)
        return Step.GO_ON

    def _short_write(self, machine: Machine) -> Step:
        machine.disk.short_writes += 1
        return Step.GO_ON

    def _corrupt(self, machine: Machine) -> Step:
        paths = [path for _, path, _ in machine.databases()]
        if paths:
            machine.disk.corrupt(self._random.choice(paths), self._random.choice([Damage.AT_OPEN, Damage.AT_READ]))
        return Step.GO_ON

    def _sync(self, machine: Machine) -> Step:
        for path in machine.disk.paths:
            machine.disk.sync(path)
        return Step.GO_ON

    def _wall_clock(self, machine: Machine) -> Step:
        """Let the wall clock jump forward or back by at most 3 s.

        A larger jump would make tombstones seem older than they are. The engine decides by age alone whether a
        tombstone still exists.
        """
        self._world.clock.skew_s += self._random.choice([-1.0, 1.0]) * self._random.uniform(0.1, 3.0)
        return Step.GO_ON

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _disk_lost(self, machine: Machine) -> Step:
        """Let a machine die and lose its disk. A machine with an empty disk replaces it."""
        self._dead(machine, power=False)
        machine.disk.lose()
        machine.start_later(self._pick(0.1, 1.0, 5.0, 14.0))
        return Step.CRASH

    def _checkpoint(self, machine: Machine) -> Step:
        """Request checkpoints from all machines now."""
        for other in self._world.machines:
            other.ask_for_checkpoints()
        return Step.GO_ON

    def _store_down(self, machine: Machine) -> Step:
        """Let the checkpoint store fail: it is unreachable, denies access, is full or slow, or loses answers."""
        store = self._world.store
        how = self._random.choice(["away", "no rights", "full", "slow", "answers"])
        if how == "answers":
            store.lost_answers += self._random.randint(1, 3)
        elif how == "full":
            store.full = True
        elif how == "slow":
            store.step_s = self._pick(0.5, 3.0)
        else:
            store.refuses = how
        self._later(self._pick(0.2, 2.0, 8.0), self._world.heal_store)
        return Step.GO_ON

    def _store_damaged(self, machine: Machine) -> Step:
        damage(self._world.store, self._world.checkpoints, self._random)
        self._lose_a_disk_soon()
        return Step.GO_ON

    def _store_forged(self, machine: Machine) -> Step:
        forge(self._world.store, self._world.checkpoints, self._random, self.struck[Kind.STORE_FORGED])
        self._lose_a_disk_soon()
        return Step.GO_ON

    def _lose_a_disk_soon(self) -> None:
        """Often let a machine lose its disk next, so that a worker has to read the checkpoints."""
        if self._random.random() < 0.6:
            self._faults.insert(0, Fault(Kind.DISK_LOST, self._random.randint(5, 60), None))

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._world.clock.call_later(seconds, action)

    def _pick(self, *bounds: float) -> float:
        """Choose one of the bounds, and draw a random duration that differs from this bound by at most 20%.

        Callers pass bounds that are near a timeout of a client or of the broker.
        """
        return self._random.choice(bounds) * self._random.uniform(0.8, 1.2)
