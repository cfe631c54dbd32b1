"""Implements ``Application.clear_state``: empties every store of an application.

Neither Holdfast's registry (database) nor the supervisor is needed.

    no other group member? ──► a paused worker owns all partitions ──► ``clear`` in each subtopology
                           ──► delete the checkpoints ──► delete the local state

The worker deletes all keys in ordinary transactions, like ``holdfast apply clear``. It reads no input.

Invariants:
    - The changelogs are emptied before checkpoints and local state are deleted. If the run is interrupted, a restore
      from an old checkpoint replays the deletes of the changelog.
    - The run succeeds only if the worker owned all partitions all the time. No other group member can then have written
      state.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from holdfast.infra.kafka.records import Partition
from holdfast.infra.settings import Settings
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.processors.engine.checkpoints.retention import delete_all
from holdfast.processors.engine.commands.checks import check_settled, check_writable
from holdfast.processors.engine.commands.table import work_of
from holdfast.processors.engine.runtime.options import Start
from holdfast.processors.engine.runtime.owner_commands.commands import Clear, CommandFailed, CommandRefused, Position
from holdfast.processors.engine.runtime.owner_commands.owner import Owner
from holdfast.processors.engine.runtime.owner_commands.tickets import Ticket, Work
from holdfast.processors.engine.runtime.ports import Cluster
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.topology import Topology

_log = structlog.get_logger("clean_slate")

#: Maximum seconds to wait until the worker owns all partitions of the application's inputs.
OWN_ALL_S = 60.0
#: Seconds between two checks of the owned partitions.
LOOK_EVERY_S = 0.5


class CleanSlate:
    """Empties the stores of one application.

    The caller runs ``prepare``. If ``needs_worker`` is true, the caller then runs a worker with ``start``, ``settings``
    and ``errand``. At the end, the caller runs ``finish``. After an interruption, all steps must be repeated.
    """

    def __init__(
        self, topology: Topology, cluster: Cluster, state_dir: Path, settings: Settings, *, rewind: bool
    ) -> None:
        self._topology = topology
        self._cluster = cluster
        self._state_dir = state_dir
        kept = settings.checkpoints
        self._checkpoints = FsspecObjects(settings.checkpoint_store, kept.options) if kept.enabled else None
        self._rewind = rewind
        self._done = False
        #: Whether a worker must run. It must run if a changelog has records, or if input offsets must be moved.
        self.needs_worker = rewind
        #: Start options of the worker. ``begin_empty`` lets it start with changelogs that have never had a record.
        self.start = Start(paused=True, clears=True, begin_empty={spec.name: "" for spec in topology.stores})
        # Checkpoints are disabled, because the worker's last checkpoint would contain state that must be deleted.
        self.settings = settings.model_copy(update={"checkpoints": kept.model_copy(update={"enabled": False})})

    def prepare(self) -> None:
        """Check that no worker runs, here or on another host; delete the local state if no store has a changelog.

        Raises:
            CommandRefused: The consumer group has a live member.
            CommandWrong: A table is restored from its source topic. A restore would bring back its rows.
            StateFolderTaken: A running process has locked a slot on this machine.
        """
        if not self._rewind:
            check_writable(self._topology, [spec.name for spec in self._topology.stores], "clear")
        self._check_members(expected=0)
        for slot in StateFolder.slots(self._state_dir, self._topology.processor):
            StateFolder(self._state_dir, self._topology.processor, slot).release()
        if not self._topology.changelogs:
            # The local state is deleted here, because a worker would refuse state that does not match the committed
            # offsets.
            self._delete_local()
        topics, names = self._cluster.topics(), [spec.topic.name for spec in self._topology.changelogs]
        for name in topics.describe(names):
            self.needs_worker |= any(topics.end_offsets(name, committed=False).values())

    def errand(self, worker: Owner, ticket: Ticket) -> Work:
        """The command that the worker runs: empty every store, move the input offsets if ``rewind``, and stop."""
        yield from self._own_all(worker)
        partitions = {spec.name: self._partitions_of(spec.name) for spec in self._topology.inputs}
        try:
            for sub in self._topology.subtopologies:
                firsts = {topic: self._first_of(topic) for topic in sub.inputs} if self._rewind else {}
                if sub.stores:
                    yield from work_of(Clear(store=sub.stores, all=True, positions=firsts or None), worker, ticket)
                elif firsts:
                    yield from work_of(Position(positions=firsts), worker, ticket)
        except (CommandRefused, CommandFailed):
            self._check_members(expected=1)  # raises a clearer error if another group member has caused this one
            raise
        if not self._owns_all(worker) or partitions != {name: self._partitions_of(name) for name in partitions}:
            self._check_members(expected=1)
            raise CommandFailed(
                f"The partitions of {self._topology.processor} changed while its state was cleared.",
                action="Call `clear_state()` again.",
                done=ticket.done,
            )
        self._done = True
        worker.stop()
        return {}

    def finish(self) -> None:
        """Delete the checkpoints and the local state.

        Raises:
            CommandFailed: The worker was stopped before its command was complete.
        """
        processor = self._topology.processor
        if self.needs_worker and not self._done:
            raise CommandFailed(
                f"The worker that clears the state of {processor} was stopped before it was done.",
                action="Call `clear_state()` again: it continues where this stopped.",
                done=0,
            )
        if self._checkpoints is not None:
            delete_all(self._checkpoints, processor)
        self._delete_local()
        _log.info("state is cleared", processor=processor, stores=[spec.name for spec in self._topology.stores])

    def _first_of(self, topic: str) -> dict[int, int]:
        """Maps each partition of the topic to the offset from which the processor reads after a rewind.

        For a repartition topic, this is the end offset, because its present records were made before the rewind, and
        the processor will write them again.
        """
        topics = self._cluster.topics()
        if self._topology.is_repartition(topic):
            return topics.end_offsets(topic, committed=False)
        return topics.start_offsets(topic)

    def _own_all(self, worker: Owner) -> Work:
        """Wait until the worker runs the tasks of all partitions; fail if the consumer group has another member."""
        began = looked_at = worker.clock.monotonic()
        while True:
            worker.maintenance.waits = True
            yield
            now = worker.clock.monotonic()
            if not _is_settled(worker):
                began = now
            elif now - looked_at >= LOOK_EVERY_S:
                looked_at = now
                if self._owns_all(worker):
                    worker.maintenance.waits = False
                    return {}
                self._check_members(expected=1)
                if now - began > OWN_ALL_S:
                    raise CommandFailed(
                        f"The worker that clears {self._topology.processor} did not get all partitions of its inputs "
                        f"within {OWN_ALL_S:g} s.",
                        action="Check that no partitions are being added, then call `clear_state()` again.",
                        done=0,
                    )

    def _owns_all(self, worker: Owner) -> bool:
        return all(
            worker.assignment.running(Partition(spec.name, number)) is not None
            for spec in self._topology.inputs
            for number in range(self._partitions_of(spec.name))
        )

    def _partitions_of(self, topic: str) -> int:
        facts = self._cluster.topics().describe([topic])
        return facts[topic].partitions if topic in facts else 0

    def _check_members(self, *, expected: int) -> None:
        group = self._topology.processor
        members = self._cluster.topics().members(group) - expected
        if members > 0:
            raise CommandRefused(
                f"Group {group} has {members} live member{'' if members == 1 else 's'}, here or on another host; "
                "expected none, because a worker would continue from the state that is to be deleted.",
                action="Stop its workers. A killed one leaves the group after its session timeout.",
                processor=group,
                members=members,
            )

    def _delete_local(self) -> None:
        for slot in StateFolder.slots(self._state_dir, self._topology.processor):
            folder = StateFolder(self._state_dir, self._topology.processor, slot)
            try:
                folder.delete_state()
            finally:
                folder.release()


def _is_settled(worker: Owner) -> bool:
    try:
        check_settled(worker)
    except CommandRefused:
        return False
    return True
