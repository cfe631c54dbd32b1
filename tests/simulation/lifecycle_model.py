"""A model in plain Python of the state that must result from operator commands and input.

The module also has the faults that kill operators and workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import split_key
from holdfast.processors.lifecycle.plans.requests import Clear, Everything, Keys, Prefix, Selection
from holdfast.processors.lifecycle.plans.stages import ClearKeys
from tests.simulation.lifecycle_tables import Snapshot
from tests.simulation.lifecycle_world import LifecycleWorld
from tests.simulation.scheduler import SimulatedProcess
from tests.simulation.verifier import InvariantBroken
from tests.simulation.workload import GROUP, INPUT, Expected, Message, expect

#: Names of points (places in a call where a process may be killed). A fault waits for one of them, and kills the
#: operator or the worker there. An empty name stands for any point.
OPERATORS_AIMS = (
    "registry.journal.begin_apply:after",
    "registry.journal.note_stage:before",
    "registry.journal.note_stage:after",
    "registry.journal.end_apply:before",
    "registry.record_deployment",
    "http:/state/clear:after",
    "http:/maintenance",
    "deployer.apply:after",
    "deployer.start_program:after",
    "deployer.stop_program:before",
    "disk:move",
    "disk:delete",
    "create",
    "delete",
    "flush:half",
    "send_offsets:after",
    "commit:sent",
    "commit:after",
    "",
    "",
)
WORKERS_AIMS = ("commit:before", "commit:after", "disk:write", "disk:open", "replay", "disk:file", "", "")


class Fault:
    """Kills an operator or a worker at the n-th point whose name starts with ``aim``.

    A point is a place in a call where a simulated process may be killed.
    """

    def __init__(self, world: LifecycleWorld) -> None:
        random = world.random
        self.who = random.choice(["op", "op", "w"])
        self.aim = random.choice(OPERATORS_AIMS if self.who == "op" else WORKERS_AIMS)
        self.left = random.randint(1, 3) if self.aim else int(random.choice([10, 50, 300]) * random.random()) + 1
        self.struck = False

    def __call__(self, process: SimulatedProcess, name: str) -> bool:
        """Whether this process is killed at the point (place in a call) with this name."""
        if self.struck or not process.name.startswith(self.who) or not name.startswith(self.aim):
            return False
        self.left -= 1
        self.struck = self.left == 0
        return self.struck


class Model:
    """The state that must result from the input and the operator commands."""

    def __init__(self, world: LifecycleWorld) -> None:
        self._world = world
        self._names = world.workload.names
        self._partitions = range(world.schedule.partitions)
        #: The messages whose effect is in the state, by store and partition.
        self.effective: dict[tuple[str, int], list[Message]] = {
            (store, number): [] for store in self._names for number in self._partitions
        }
        self._consumed = [0 for _ in self._partitions]
        #: How often each message was processed.
        self.reads: Counter[tuple[int, int]] = Counter()
        #: Whether the processor should be up.
        self.up = False
        #: The requested restore from the warehouse: the snapshot, the restored stores, and the position from which
        #: input is read again.
        self.restoring: tuple[Snapshot, tuple[str, ...], str] | None = None
        self._armed: dict[Partition, int] | None = None
        #: Whether the input positions that the last restore has set (`_arm`) are known to be committed.
        self.certain = False
        world.setting_positions = self._arm

    def catch_up(self) -> None:
        """Count the messages that were consumed since the last call.

        If a partition's position has moved back, the partition was cleared and rewound, so its messages count again
        from 0.
        """
        group = self._world.cluster._broker.group(GROUP)
        if self._armed is not None:
            if group.pending:
                return  # the commit of the restore's positions is undecided, or not visible yet
            committed = self._world.cluster.committed_offsets(GROUP)
            if self.certain or all(committed.get(place) == at for place, at in self._armed.items()):
                self._restored(self._armed)
        for number in self._partitions:
            now = self._world.consumed(number)
            if now < self._consumed[number]:
                self._rewound(number)
            for message in self._world.workload.messages[number][self._consumed[number] : now]:
                self.reads[number, message.number] += 1
                for store in self._names:
                    self.effective[store, number].append(message)
            self._consumed[number] = now

    def cleared(self, stage: ClearKeys) -> None:
        """Record that a clear (the command that deletes keys) is done. Messages of deleted keys then no longer count.

        Raises:
            InvariantBroken: The input's position differs from the position that the clear had to set.
        """
        self.catch_up()
        # Kafka has answered the commit of the offsets that the clear has set, but may not have written its markers yet.
        undecided = self._world.cluster._broker.group(GROUP).pending
        for number in stage.positions.get(INPUT, {}):
            if self._consumed[number] and not undecided:
                raise InvariantBroken("state", f"{self._consumed[number]} messages of {number} are not read again")
        for store in stage.stores:
            for number in stage.partitions or self._partitions:
                kept = [each for each in self.effective[store, number] if not selects(stage.selection, each.key)]
                self.effective[store, number] = kept

    def _restored(self, positions: Mapping[Partition, int]) -> None:
        """Record that a restore from a snapshot is done.

        From now on, the messages in the snapshot count as processed, and input is read from the new positions.
        """
        assert self.restoring is not None
        taken, stores, _ = self.restoring
        for place, at in positions.items():
            self._consumed[place.number] = sum(offset < at for offset in self._world.offsets[place.number])
            for store in stores:
                self.effective[store, place.number] = list(taken.effective[store, place.number])
        self._armed, self.certain = None, False

    def _arm(self, offsets: Mapping[Partition, int]) -> None:
        """Record the input positions that a restore from a snapshot is about to commit, together with the state.

        No worker reads input until the commit is done.

        Raises:
            InvariantBroken: The positions differ from the requested ones.
        """
        assert self.restoring is not None
        taken, _, inputs = self.restoring
        committed = self._world.cluster.committed_offsets(GROUP)
        for place, at in offsets.items():
            wanted = {"stay": committed.get(place, 0), "earliest": 0}.get(inputs, taken.inputs.get(place.number, 0))
            if at != wanted:
                raise InvariantBroken("state", f"{place} is read on from {at}, not from {wanted} ({inputs})")
        self._armed, self.certain = dict(offsets), False

    def _rewound(self, number: int) -> None:
        self._consumed[number] = 0
        for store in self._names:
            self.effective[store, number] = []

    def expected(self) -> Expected:
        """The state of each store that results from the messages in ``effective``."""
        found = Expected()
        for store in self._names:
            counted = tuple(tuple(self.effective[store, number]) for number in self._partitions)
            states = expect(replace(self._world.workload, messages=counted)).states
            found.states.update({place: state for place, state in states.items() if place[0] == store})
        return found

    def count(self, request: Clear) -> int:
        """The number of keys that a clear deletes: the sum over stores and partitions."""
        states = self.expected().states
        return sum(
            len({key for key in map(message_key, states[store, number]) if selects(request.selection, key)})
            for store in request.stores or self._names
            for number in request.partitions or self._partitions
        )


def selects(selection: Selection, key: bytes) -> bool:
    """Whether a selection (the keys that a clear names) contains a message key."""
    match selection:
        case Keys(keys=keys):
            return key.decode() in keys
        case Prefix(prefix=prefix):
            return key.startswith(prefix.encode())
        case Everything():
            return True


def message_key(key: bytes) -> bytes:
    """The message key of a changelog key."""
    return split_key(key)[0]
