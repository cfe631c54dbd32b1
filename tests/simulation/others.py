"""Actors of the simulation beside the processors: operators, foreign group members, and deletions of topics.

An operator clears all state, or deploys the version in which tasks are joined or separated again. All processes are
stopped before a clear or a deployment. For a deployment, the product's own plan demands this stop (``compatibility``).
Input that must not be late is also produced while all processes are stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.infra.kafka.records import Record
from holdfast.processors.lifecycle.plans.facts.shape import shape_of
from holdfast.processors.lifecycle.verbs.releases import compatibility
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.workload import DEAD, GROUP, INPUT, JOINT, OUTPUT

if TYPE_CHECKING:
    from tests.simulation.machines import Machine
    from tests.simulation.world import World


class Others:
    """The other actors of a simulation.

    Attributes:
        cleared: Whether outputs may be repeated, because a clear has set the input back.
        busy: Whether all processes are stopped now for a clear, a deployment or the rest of the input.
        seen: The records that consumers had read from topics before these were deleted.
        intruders: The number of foreign members in the consumer group now.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.cleared = self.busy = False
        self.seen: dict[str, list[tuple[int, Record]]] = {}
        self.intruders = 0

    def call_at_their_times(self) -> None:
        """Schedule each action at the time that the simulation's schedule gives for it."""
        world, schedule = self._world, self._world.schedule
        # A worker may create a deleted output topic again. The topic's configuration then accepts all timestamps.
        deletable = [DEAD] if schedule.past == "refused" else [OUTPUT, DEAD]
        for at in schedule.clears_at:
            world.clock.call_at(at * schedule.horizon_s, self.clear)
        for at in schedule.deletes_at:
            topic = world.random.choice(deletable)
            world.clock.call_at(at * schedule.horizon_s, partial(self.delete, topic))
        for at in schedule.intruders_at:
            world.clock.call_at(at * schedule.horizon_s, self.intrude)
        for at in schedule.regroups_at:
            world.clock.call_at(at * schedule.horizon_s, self.regroup)
        if world.workload.rest_at is not None:
            world.clock.call_at(world.workload.rest_at * schedule.horizon_s, self.feed_rest)

    def feed_rest(self) -> None:
        """Produce the rest of the input while no process runs."""
        if self.busy:
            self._world.clock.call_later(0.5, self.feed_rest)
        else:
            self._stop_all_for(self._fed)

    def _fed(self) -> bool:
        for partition, messages in enumerate(self._world.workload.messages):
            self._world.feed(partition, len(messages))
        return True

    def clear(self) -> None:
        """Stop all processes, as an operator does. When no process is left, clear all state."""
        if self.busy:
            return
        self.cleared = self._world.operator.wanted = True
        self._stop_all_for(self._cleared)

    def _cleared(self) -> bool:
        self._world.operator.start()
        return not self._world.operator.wanted

    def regroup(self) -> None:
        """An operator deploys the other of the processor's two versions.

        One version has an additional store, which both inputs feed. So its tasks read both inputs of a partition. In
        the version without this store, each task reads one input.
        """
        if self.busy:
            return
        world = self._world
        partitions = dict.fromkeys(world.workload.inputs, world.schedule.partitions)
        versions = [world.workload.application(joined=joined, state_backend="memory") for joined in (False, True)]
        shapes = [shape_of(version.topology(), partitions) for version in versions]
        before, after = shapes if not world.joined else reversed(shapes)
        verdicts = compatibility.compare(GROUP, before, after, dropped=[JOINT], left={})
        if any(verdict.change == "regrouped" for verdict in verdicts):
            self._stop_all_for(world.deploy_other)
        elif world.deploy_other(at_once=False):
            for number, machine in enumerate((*world.machines, world.operator)):
                world.clock.call_later(5.0 * number, partial(self._restart, machine, joined=world.joined))

    def _restart(self, machine: Machine, *, joined: bool) -> None:
        machine.joined = joined
        machine.stop()

    def _stop_all_for(self, act: Callable[[], bool]) -> None:
        """Stop all processes, and repeat an action until it is done. Then restart the machines that ran before."""
        self.busy = True
        machines = self._world.machines
        self._act_alone([machine for machine in machines if machine.wanted] or machines[:1], act)

    def _act_alone(self, running: Sequence[Machine], act: Callable[[], bool]) -> None:
        for machine in self._world.machines:
            machine.wanted = False
            machine.stop()
        alone = self._world.operator.alive is None and not any(machine.alive for machine in self._world.machines)
        if alone and act():
            self.busy = False
            for machine in running:
                machine.wanted = True
                machine.start()
        else:
            self._world.clock.call_later(0.5, lambda: self._act_alone(running, act))

    def delete(self, topic: str) -> None:
        """Delete a topic and create it again later. The deleted records that consumers have read still count."""
        if self._world.strike is None:
            return
        known = self._world.cluster._broker.topics.get(topic)
        if known is None or any(log.last_stable < log.end for log in known.logs):
            self._world.clock.call_later(0.05, lambda: self.delete(topic))
            return
        self._world.simulation.note("world", f"delete {topic}")
        self.seen.setdefault(topic, []).extend(self._world.cluster.read(topic))
        self._world.cluster.delete_topic(topic)
        self._world.clock.call_later(self._world.random.choice([0.05, 2.0]), lambda: self._world.create(topic))

    def read(self, topic: str) -> list[tuple[int, Record]]:
        """All records of a topic that consumers have read, including those before a deletion."""
        return self.seen.get(topic, []) + self._world.cluster.read(topic)

    def extent(self, topic: str) -> object:
        """A value that changes whenever the result of `read` changes.

        The value is cheap to compute, so it can be checked at each move of time.
        """
        broker = self._world.cluster._broker
        logs = broker.topics[topic].logs if topic in broker.topics else ()
        return len(self.seen.get(topic, ())), tuple((log, log.start, log.end, log.last_stable) for log in logs)

    def intrude(self) -> None:
        """A foreign group member reads one of two inputs for a while. So no worker gets both inputs of a partition."""
        self.intruders += 1
        self._world.simulation.start(f"intruder.{self.intruders}", self._read_one_input)

    def _read_one_input(self, process: SimulatedProcess) -> None:
        member = self._world.cluster.connect(process).group_consumer(GROUP, "intruder")
        try:
            member.subscribe([INPUT], *(lambda partitions: None,) * 3)
            until = self._world.clock.monotonic() + 4.0
            while self._world.clock.monotonic() < until:
                member.poll(1, 0.2)
            member.close()
        finally:
            self.intruders -= 1
