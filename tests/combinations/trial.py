"""One run of a topology under a schedule: a simulated cluster, machines with disks, workers and faults."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import ProducerFenced
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.infra.settings import CheckpointSettings, Settings
from holdfast.processors.application.application import Application
from holdfast.processors.engine.runtime.loop import Worker
from holdfast.processors.engine.runtime.requests import Request
from holdfast.processors.testing.broker import Broker
from holdfast.processors.testing.clock import VirtualClock
from holdfast.processors.testing.cluster import ForeignTransaction, InMemoryCluster
from holdfast.processors.testing.consumers import InMemoryMember
from holdfast.processors.testing.process import Process
from tests.combinations.added_sources import CHARGES, FED, POSTS, Posts
from tests.combinations.changes import SOURCES, changed_by
from tests.combinations.judge import Result, Wrong, held, result_of
from tests.combinations.lake import LAKES, Lake
from tests.combinations.schedules import Kill, Schedule
from tests.combinations.switches import switched
from tests.combinations.topology import Topology
from tests.simulation.faults import Faults
from tests.simulation.machines import Machine
from tests.simulation.objects import SimulatedObjects
from tests.simulation.scheduler import SimulatedProcess, Simulation, SimulationStuck, Step, signals_kept
from tests.simulation.workload import GROUP
from tests.simulation.world import EXPECTED_EXITS, SimulatedNetwork

#: Virtual seconds within which the rest of the input is processed after all faults are healed.
RECOVERY_S = 400.0
#: Faults end this many virtual seconds after the whole input has arrived.
FAULTS_S = 20.0
#: A fault that has not struck this many virtual seconds after the whole input is processed is dropped.
PATIENCE_S = 2.0
#: After ``QUIET_S`` virtual seconds without a change, the result is final; ``GROUPED_S`` more for each grouping, at
#: most for three.
QUIET_S, GROUPED_S = 3.0, 2.5
#: Additional seconds if windows close when their inputs are silent. The last messages are 6 s younger than all others.
#: If a step drops them before `set_timestamp`, they do not move stream time, so windows close only after a silence.
SILENT_S = 9.0
#: The input starts this many milliseconds before now. All messages lie in the past, so the worker's clock never limits
#: stream time.
PAST_MS = 3_600_000


class OneMachine(Machine):
    """A machine whose worker keeps its state on the simulated disk or in memory."""

    def _run(self, app: Application, process: SimulatedProcess) -> None:
        trial: Any = self._world
        on_disk = trial.schedule.backend == "disk"
        view = trial.cluster.connect(process)
        if trial.schedule.turns:
            view.group_consumer = partial(_Turned, trial.cluster._broker, process, trial.random)
        app.run_on(
            view,
            self._settings,
            databases=self.disk.attach(process) if on_disk else None,
            storage=trial.store.attach(process) if on_disk else None,
        )


class _Turned(InMemoryMember):
    """A consumer group member that polls its partitions in a random order."""

    def __init__(self, broker: Broker, process: Process, random: Random, group: str, client_id: str) -> None:
        super().__init__(broker, process, group, client_id)
        self._random = random

    def _fetch(self, records_max: int) -> list[Batch]:
        self._next = self._random.randrange(64)
        return super()._fetch(records_max)


class Trial:
    """Runs a topology; it has the attributes that the simulation's machines and faults need.

    Args:
        topology: The topology to run.
        schedule: How it runs.
        folder: For the workers' lock files.
        expected: The result of the reference; None for the reference itself.
    """

    def __init__(self, topology: Topology, schedule: Schedule, folder: Path, expected: Result | None = None) -> None:
        LAKES[-1], POSTS[-1] = Lake(), Posts()
        topology = changed_by(topology, schedule.changes, schedule.seed)
        self.topology, self.schedule, self._folder, self._expected = topology, schedule, folder, expected
        self.random = Random(schedule.seed)
        enabled = schedule.backend == "disk"
        checkpoints = CheckpointSettings(enabled=enabled, every_s=schedule.checkpoint_s, stop_wait_s=1.0)
        self.settings = _SETTINGS.model_copy(update={"checkpoints": checkpoints})
        self.clock = VirtualClock()
        self.store = SimulatedObjects(self.clock)
        self.network = SimulatedNetwork()
        self.cluster = InMemoryCluster(clock=self.clock, network=self.network)
        topology.create_topics(self.cluster)
        self.joined = False
        self.simulation = Simulation(self.clock, self.random, self._on_point)
        self.machines: list[Machine] = [OneMachine(self, f"m{number}") for number in range(3)]  # type: ignore[arg-type]
        self.operator = Machine(self, "operator")  # type: ignore[arg-type]
        self.strike: Callable[[SimulatedProcess, str], Step] | None = None
        self.foreign: list[ForeignTransaction] = []
        self.broken: Wrong | None = None
        self._first_ms = int(self.clock.time() * 1000) - PAST_MS
        self._fed = 0
        self._ends: dict[Partition, int] = {}
        self._seen: tuple[int, ...] = ()
        self._seen_at = self._judge_at = 0.0
        self._wait_s = 0.25
        self._rests_since = 0.0
        self._described = topology.described()
        # Behind group_by, watermarks are repeated without end. So tasks write their stores' stream time again and
        # again, and the ends of these changelogs never stop moving.
        self._stores_that_rest = () if self._described.repartitions else tuple(self._described.changelogs.values())
        self.result: Result | None = None

    # -- called by machines and faults -----------------------------------------------------------------------------

    def application(self, machine: Machine) -> Application:
        """Return the application that a machine's next worker runs."""
        return self.topology.build(
            consumer_group=GROUP,
            auto_offset_reset="earliest",
            loglevel=None,
            state_dir=self._folder,
            slot=machine.slot,
            state_backend="rocksdb" if self.schedule.backend == "disk" else "memory",
            commit_every=self.schedule.commit_every,
            commit_interval=self.schedule.commit_interval_s,
            standby_replicas=self.schedule.standbys if self.schedule.backend == "disk" else 0,
            processing_guarantee="exactly-once" if self.schedule.exactly_once else "at-least-once",
        )

    def exited(self, machine: Machine, failure: Exception | None) -> None:
        """Record that a worker has ended, and restart it as a supervisor does."""
        self.simulation.note(machine.name, f"exit {type(failure).__name__ if failure is not None else 'clean'}")
        if failure is not None and not isinstance(failure, EXPECTED_EXITS) and self.broken is None:
            self.broken = Wrong("exits", f"{machine.name} stopped: {type(failure).__name__}: {failure}")
            self.broken.__cause__ = failure
        machine.start_later(self.random.uniform(0.2, 3.0))

    def look_at(self, machine: Machine) -> None:
        """Does nothing here. In the simulation's own tests, this method checks the databases of a machine."""

    def heal_store(self) -> None:
        """Let the checkpoint store answer again."""
        self.store.refuses, self.store.full, self.store.lost_answers = None, False, 0

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Runs the topology until its result is final.

        Raises:
            Wrong: A worker stopped with an error, or the input was not processed in time.
        """
        faults = Faults(self) if self.schedule.faults else None  # type: ignore[arg-type]
        if faults is None:
            self.strike = None
        try:
            with signals_kept(), switched(self.schedule):
                self._run()
        finally:
            self.simulation.end()
        if self.broken is not None:
            raise self.broken
        assert self.result is not None
        if SOURCES.intersection(self.schedule.changes):
            self._check_source()
        self._check_lake()
        return self.result

    def _check_lake(self) -> None:
        """Raises Wrong unless readers of each staging sink see what its topic has, and nothing twice.

        The last answers of commits may be on their way: what they staged is in the list of the committed state.
        """
        lake = LAKES[-1]
        for sink in (each for each in ("lake", CHARGES) if f"sink-{each}" in self._described.changelogs):
            topic = [json.dumps(json.loads(each.value or b"null")) for _, each in self.cluster.read(f"{sink}-copy")]
            last = max((at for task, at in lake.last.items() if f"-{sink}-" in task), default=0)
            waiting = [
                row
                for (_, name), record in held(self.cluster, f"sink-{sink}", self._described).items()
                if name == f"__holdfast/sinks/{sink}"
                for sequence, content in record["staged"]
                if sequence > last
                for part in content
                for row in lake.staged[part]
            ]
            shown, wanted = Counter([*lake.seen.get(sink, ()), *waiting]), Counter(topic)
            if not self.schedule.exactly_once:
                wanted = Counter({row: min(count, shown[row]) for row, count in wanted.items()})
            if shown != wanted:
                raise Wrong("sink", f"missing {(wanted - shown).most_common(2)}, new {(shown - wanted).most_common(2)}")

    def _check_source(self) -> None:
        """Raises Wrong unless each message of the added source, and each result of such a message, was sent once."""
        for topic in ("source__fed", "fed-out"):
            found = [json.loads(record.value or b"null") for _, record in self.cluster.read(topic)]
            found = [each if topic == "source__fed" else each[0] for each in found]
            numbers = sorted(each["number"] if isinstance(each, dict) else each for each in found)
            if not self.schedule.exactly_once:
                numbers = sorted(set(numbers))
            if numbers != list(range(FED)):
                raise Wrong("source", f"{topic} has {numbers}")
        if "charged" in self.schedule.changes and self.schedule.exactly_once:
            self._check_charges()
        if POSTS[-1].wrong:
            raise Wrong("source", f"requests were answered with {POSTS[-1].wrong[:3]}")

    def _check_charges(self) -> None:
        """Raises Wrong unless each result has an answer to its own message, and no answer is left in the store."""
        charged = LAKES[-1].charged
        results = [json.loads(each.value or b"") for _, each in self.cluster.read("fed-out")]
        wrong = [(number, answer) for number, answer in results if charged[answer - 1] != number]
        if wrong or (self._described.changelogs and held(self.cluster, "charges", self._described)):
            raise Wrong("calls", f"answers of other messages: {wrong[:3]}, or answers are left")

    def _run(self) -> None:
        messages = self.topology.messages
        everywhere = [index for index, each in enumerate(messages) if self._is_global(each.topic)]
        for index in everywhere:
            self._produce(index)
        ends = [*self._cuts(), len(messages)]
        if self.schedule.feed == "live":
            self._feed_live()
        else:
            self._feed_to(ends[0])
        self._start()
        for end in [] if self.schedule.feed == "live" else ends[1:]:
            self._until(self._consumed)
            self._interrupted(end)
        horizon = self.clock.monotonic() + FAULTS_S + self.schedule.live_s
        self.clock.call_at(horizon, lambda: None)
        self._until(lambda: self._rests() or self._now >= horizon)
        self._heal()
        self._until(self._consumed)
        self._seen_at = self._now
        self.clock.call_later(10 * RECOVERY_S, lambda: None)
        self._until(self._settled)

    @property
    def _now(self) -> float:
        return self.clock.monotonic()

    def _rests(self) -> bool:
        """Whether the input is processed, and no fault is left or none has struck for a while."""
        if not self._consumed():
            self._rests_since = self._now
            return False
        left = isinstance(self.strike, Faults) and bool(self.strike._faults)
        return not left or self._now - self._rests_since > PATIENCE_S

    def _is_global(self, topic: str) -> bool:
        return topic not in self._described.inputs

    def _produce(self, index: int) -> None:
        each = self.topology.messages[index]
        at_ms = self._first_ms + each.at
        place = self.cluster._broker.partition_for(each.topic, each.key)
        headers = list(each.headers) or None
        offset = self.cluster.produce(each.topic, each.value, each.key, timestamp_ms=at_ms, headers=headers)
        if each.topic in self._described.inputs:
            self._ends[place] = offset + 1

    def _feed_to(self, end: int) -> None:
        for index in range(self._fed, end):
            if not self._is_global(self.topology.messages[index].topic):
                self._produce(index)
        self._fed = max(self._fed, end)

    def _feed_live(self) -> None:
        count = len(self.topology.messages)
        times = [each.at for each in self.topology.messages]
        first, last = min(times, default=0), max(times, default=0)
        latest = first
        for index, at in enumerate(times):
            latest = max(latest, at)
            share = (latest - first) / (last - first or 1)
            self.clock.call_later(share * self.schedule.live_s, partial(self._feed_to, index + 1))
        self.clock.call_later(self.schedule.live_s, partial(self._feed_to, count))
        for kill in self.schedule.kills:
            self.clock.call_later(kill.share * self.schedule.live_s, partial(self._kill, kill))

    def _kill(self, kill: Kill) -> None:
        """Kill or freeze a worker for a while; the others continue."""
        machine = self.machines[kill.worker % self.schedule.workers]
        process = machine.alive
        if process is None:
            return
        self.simulation.note(machine.name, f"KILL {kill}")
        if kill.frozen:
            process.freeze()
            self.clock.call_later(kill.away_s, process.thaw)
        else:
            process.kill()
            machine.disk.release(process)
            machine.start_later(kill.away_s)

    def _cuts(self) -> list[int]:
        """The ends of the input's parts.

        If a task reads several topics, each part has only younger messages than the part before.
        """
        messages, found = self.topology.messages, []
        for share in self.schedule.parts if self.schedule.feed in ("parts", "paused") else ():
            index = int(share * len(messages))
            while 0 < index < len(messages) and not self._may_cut(index):
                index += 1
            found.append(index)
        return sorted({each for each in found if 0 < each < len(messages)})

    def _may_cut(self, index: int) -> bool:
        if "alone" in self.topology.rules:
            return True
        times = [each.at for each in self.topology.messages]
        return max(times[:index]) < min(times[index:])

    def _interrupted(self, end: int) -> None:
        """Produce the next part of the input while workers are stopped or paused."""
        if self.schedule.feed == "parts":
            self._stop()
            self._feed_to(end)
            self._start()
            return
        self._until(self._all_are_paused)
        self._feed_to(end)
        for worker in self._workers():
            worker.requests.append(Request(worker.resume, only_reads=False))

    def _workers(self) -> list[Worker]:
        apps = [machine.app for machine in self.machines if machine.alive is not None]
        return [app._worker for app in apps if app is not None and app._worker is not None]

    def _all_are_paused(self) -> bool:
        waiting = [worker for worker in self._workers() if not worker.paused]
        for worker in waiting:
            if not worker.requests:
                worker.requests.append(Request(worker.pause, only_reads=False))
        return not waiting

    def _start(self) -> None:
        for machine in self.machines[: self.schedule.workers]:
            machine.wanted = True
            machine.start()

    def _stop(self) -> None:
        for machine in self.machines:
            machine.wanted = False
            machine.stop()
            if machine.process is not None:
                machine.process.thaw()
        self._until(self._all_stopped)

    def _all_stopped(self) -> bool:
        """Whether no worker runs; stops a worker that a fault has started meanwhile."""
        alive = [machine for machine in self.machines if machine.alive is not None]
        for machine in alive:
            if machine.wanted:
                machine.wanted = False
                machine.stop()
        return not alive

    def _heal(self) -> None:
        self.strike = None
        self.simulation.note("world", "heal")
        self.network.brokers_up = True
        self.network.armed.clear()
        for transaction in self.foreign:
            with suppress(ProducerFenced):
                transaction.abort()
        self.heal_store()
        for machine in self.machines:
            machine.disk.full, machine.disk.short_writes = False, 0
        if not any(machine.wanted for machine in self.machines):
            self.machines[0].wanted = True
        for machine in self.machines:
            machine.start()
        for worker in self._workers():
            if worker.paused:
                worker.requests.append(Request(worker.resume, only_reads=False))

    def _consumed(self) -> bool:
        """Whether all input is produced and the group has committed it."""
        if self.broken is not None:
            return True
        if not any(machine.wanted for machine in self.machines):  # a fault has stopped the last worker: start one
            self.machines[0].wanted = True
            self.machines[0].start()
        if self.schedule.feed == "live" and self._fed < len(self.topology.messages):
            return False
        committed = self.cluster.committed_offsets(GROUP)
        if SOURCES.intersection(self.schedule.changes) and not self._source_is_done(committed):
            return False
        return all((committed.get(place) or 0) >= end for place, end in self._ends.items())

    def _source_is_done(self, committed: Mapping[Partition, int]) -> bool:
        """Whether the added source has sent all of its messages, and the group has committed them."""
        if "source__fed" not in self.cluster._broker.topics:
            return False
        records = [record for _, record in self.cluster.read("source__fed")]
        if len({record.value for record in records}) < FED:
            return False
        return committed.get(Partition("source__fed", 0), 0) > max(record.offset for record in records)

    def _settled(self) -> bool:
        """Whether the result is final: it equals the reference's, or nothing has changed for a long time."""
        if self.broken is not None:
            return True
        seen = tuple(
            log.end
            for name in (*self.topology.outputs, *self._stores_that_rest)
            if name in self.cluster._broker.topics
            for log in self.cluster._broker.topics[name].logs
        )
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._now
        quiet = self._now - self._seen_at
        if self._expected is None:
            silent_s = SILENT_S if self.topology.closes_when_idle else 0.0
            if quiet < QUIET_S + silent_s + GROUPED_S * min(3, len(self._described.repartitions)):
                return False
            self.result = result_of(self.cluster, self.topology)
            return True
        if quiet < 0.3 or self._now < self._judge_at:
            return False
        self._wait_s = min(2 * self._wait_s, 10.0)
        self._judge_at = self._now + self._wait_s
        self.result = result_of(self.cluster, self.topology)
        return self._expected.differs(self.result, self.schedule) is None or quiet > 10 * (QUIET_S + GROUPED_S)

    def _until(self, done: Callable[[], bool]) -> None:
        try:
            self.simulation.run_until(lambda: self.broken is not None or done(), RECOVERY_S)
        except SimulationStuck as stuck:
            if self.broken is None:
                failures = [each.process.failure for each in self.machines if each.process is not None]
                self.broken = Wrong("liveness", f"{stuck.message} {stuck.fields} {[each for each in failures if each]}")
        except HoldfastError as failure:
            self.broken = Wrong("exits", f"{type(failure).__name__}: {failure}")
        if self.broken is not None:
            raise self.broken

    def _on_point(self, process: SimulatedProcess, name: str) -> Step:
        if self.strike is not None:
            return self.strike(process, name)
        return Step.YIELD if self.random.random() < self.schedule.switching else Step.GO_ON


_SETTINGS = Settings()
