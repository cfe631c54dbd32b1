"""The content of one commit, and its five steps. The module ``committer`` has the producer and the open transaction.

The steps, and the situation if the worker dies after each step:
    1. produce each changed key once, and one meta record per changelog nothing is committed; the broker aborts
    2. flush: the broker has acknowledged every record                  nothing is committed; the broker aborts
    3. send the inputs' next offsets, with group metadata read now      nothing is committed; the broker aborts
    4. commit the transaction                                           committed; a restore replays it into RocksDB
    5. write changes and offsets to RocksDB in one batch, offsets last  committed and local; nothing to replay

At-least-once runs the same steps, but a second producer sends the outputs outside of the transaction. Readers see these
outputs at once, and a message that is processed again sends its outputs again. The outputs are flushed before step 1,
because messages whose state is in the changelog are not processed again after a restore. With exactly-once and with
at-least-once, each message changes the state once, and an old process is fenced. A meta record contains the input
offsets of the commit. Messages to a repartition topic are always in the transaction. Without changelogs and repartition
topics, only the offsets are committed, without a transaction.

Invariants:
    - RocksDB never holds an uncommitted write.
    - Every transaction contains offsets, so that Kafka can fence it by the generation of the consumer group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from holdfast.infra.kafka.records import NotedOffset, Partition
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta, Commands, with_command
from holdfast.processors.engine.dataframe.sinks import staged_of
from holdfast.processors.engine.runtime.ports import GroupMember, TransactionProducer
from holdfast.processors.engine.runtime.task.arrivals import Counts
from holdfast.processors.engine.runtime.task.noted_time import note_of
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.databases.task_meta import StoreOffset
from holdfast.processors.engine.state.store import Writes
from holdfast.processors.engine.steps.meaning import keys_of
from holdfast.processors.engine.topology import Topology, codecs_of

#: Maximum seconds to wait for the broker's acknowledgements. After this timeout, it is unknown whether the records were
#: written.
FLUSH_TIMEOUT_S = 30.0


@dataclass(slots=True)
class TaskCommit:
    """One task's part of a commit: its next input offsets, the changes of its stores, and its changelogs' end offsets.

    ``changelog_ends`` (by store) is filled when the broker acknowledges the meta records, the last records of a commit.
    """

    task: Task
    inputs: dict[str, int]
    transaction: int
    changelog_ends: dict[str, int] = field(default_factory=dict)
    #: The changes of each store, for the changelog and for RocksDB. They are computed only once, because this takes
    #: long.
    writes: dict[str, Writes] = field(default_factory=dict)
    #: Whether this commit sends only data records, no meta record. A later commit of the same owner command then sends
    #: the meta record and writes the local state.
    records_only: bool = False
    #: Stores that this commit empties only in RocksDB. Their changelog is a source topic, into which the worker must
    #: not write tombstones.
    emptied: tuple[str, ...] = ()
    #: Text that Kafka stores as metadata of the committed offsets. It has the task's stream time and message counts
    #: (module ``noted_time``).
    note: str = ""
    #: The message counts in ``note``; None if this part of the commit has no note.
    arrivals: Counts | None = None
    #: The name (``once``) of the owner command, for example a ``clear``, that this commit completes; empty for other
    #: commits.
    command: str = ""

    @property
    def commands(self) -> Commands:
        """The names (``once``) of the last owner commands that changed this task, including this commit's command."""
        return with_command(self.task.meta.commands, self.command)


@dataclass(slots=True)
class Commit:
    """The content of one commit: one part for each task whose positions or state have changed."""

    tasks: list[TaskCommit]

    @property
    def offsets(self) -> dict[Partition, int]:
        """Maps each input partition to the next offset to commit.

        The offset's metadata is the task's note (its stream time and message counts).
        """
        return {
            Partition(topic, part.task.partition): NotedOffset(offset, part.note) if part.note else offset
            for part in self.tasks
            for topic, offset in part.inputs.items()
        }

    @property
    def before(self) -> dict[Partition, int | None]:
        """Maps each input partition to the group's committed offset before this commit; None if there is none."""
        return {
            Partition(topic, part.task.partition): part.task.committed.get(topic)
            for part in self.tasks
            for topic in part.inputs
        }


def prepare(tasks: Sequence[Task]) -> Commit:
    """Returns the commit of all tasks that have progressed since their last commit.

    Raises StateFailed if a read from the disk failed since the last commit, because results may depend on that read.
    """
    for task in tasks:
        if task.store is not None and task.store.failure is not None:
            raise task.store.failure
    return Commit(
        [noted(TaskCommit(task, dict(task.positions), task.meta.transaction + 1)) for task in tasks if task.progressed]
    )


def noted(part: TaskCommit, *, back: bool = False) -> TaskCommit:
    """Adds the task's note (a text with stream time and message counts) to its part of a commit. Returns the part.

    ``back`` is True if the commit sets positions back to earlier offsets. The note then has no stream time, so that
    stream time starts again.
    """
    task = part.task
    part.arrivals = task.arrivals.counts()
    part.note = note_of(task, part.arrivals, timed=not back)
    return part


def produce_changelogs(
    commit: Commit,
    topology: Topology,
    producer: TransactionProducer,
    topic_ids: Mapping[str, str],
    owner: str,
    generation: int,
) -> None:
    """Step 1: writes each store's changes to its changelog, then a meta record (the commit's input offsets).

    The meta record also has ``owner`` (this worker's transactional id) and ``generation`` (of the deployment).
    """
    for part in commit.tasks:
        meta = ChangelogMeta(
            inputs=part.inputs,
            transaction=part.transaction,
            code_version=topology.code_version,
            sources=_ids_of(part.inputs, topic_ids),
            owner=owner,
            processor=topology.processor,
            generation=generation,
            commands=part.commands,
        )
        plain, keys, codecs = meta.encode(), keys_of(topology), codecs_of(topology)
        for name, state in part.task.states.items():
            if name not in part.writes:  # an owner command may have set ``writes`` already
                part.writes[name] = state.writes()
            changelog = topology.changelog_of(name)
            if changelog is None:
                continue
            topic, partition, writes = changelog.name, part.task.partition, part.writes[name]
            producer.produce_all(topic, writes.values, writes.keys, partition=partition)
            if part.records_only:
                continue
            told = plain
            if name in keys or name in codecs:
                unset = msgspec.UNSET
                told = msgspec.structs.replace(meta, keys=keys.get(name, unset), codec=codecs.get(name, unset)).encode()
            producer.produce(topic, told, META_KEY, partition=partition, on_delivered=_remember(part, name))
        producer.poll()


def commit_transaction(commit: Commit, producer: TransactionProducer, member: GroupMember) -> None:
    """Steps 2 to 4: flush, send the offsets, commit the transaction."""
    producer.flush(FLUSH_TIMEOUT_S)
    producer.send_offsets(commit.offsets, member.group_metadata())
    producer.commit()


def commit_offsets(commit: Commit, member: GroupMember) -> None:
    """Commit only offsets, without a transaction; for at-least-once without changelogs and repartition topics."""
    for part in commit.tasks:
        for name, state in part.task.states.items():
            if name not in part.writes:
                part.writes[name] = state.writes()
    member.commit(commit.offsets)


def write_local(commit: Commit, topology: Topology, topic_ids: Mapping[str, str], complete_at: float) -> None:
    """Step 5: writes changes and offsets to RocksDB.

    ``complete_at`` is the wall-clock time before step 1, in seconds since 1970. It is stored with the offsets: the
    local state contains all changes up to this time.
    """
    for part in commit.tasks:
        task = part.task
        if part.records_only:
            continue
        if task.store is not None:
            stores = {}
            for name in task.states:
                changelog = topology.changelog_of(name)
                if changelog is not None:
                    stores[name] = StoreOffset(
                        changelog.name, topic_ids[changelog.name], part.changelog_ends[name], part.inputs
                    )
                elif (log := topology.source_log_of(name)) is not None:
                    stores[name] = StoreOffset(log.topic, topic_ids[log.topic], part.inputs[log.topic], part.inputs)
            for name in part.emptied:
                task.store.empty(name)
            changes = [task.states[name].rocks_changes(writes) for name, writes in part.writes.items()]
            task.write(
                chain.from_iterable(changes),
                inputs=part.inputs,
                stores=stores,
                transaction=part.transaction,
                restoring=False,
                sources=_ids_of(part.inputs, topic_ids),
                complete_at=complete_at,
                commands=part.commands,
                keys={name: lines for name, lines in keys_of(topology).items() if name in task.states},
            )
            for state in task.states.values():
                state.committed()
        task.committed_as(part.inputs)
        if part.arrivals is not None:
            task.arrivals.committed(part.arrivals)
        for each in (*task.keepers, *staged_of(task.outboxes.values())):
            each.committed()


def _ids_of(inputs: Mapping[str, int], topic_ids: Mapping[str, str]) -> dict[str, str]:
    return {topic: topic_ids[topic] for topic in inputs}


def _remember(part: TaskCommit, store: str) -> Callable[[int], None]:
    def delivered(offset: int) -> None:
        part.changelog_ends[store] = offset + 1

    return delivered
