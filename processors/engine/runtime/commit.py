"""The commit cycle: what turns an overlay and pending outputs into committed state.

In order, and what is true if we die after each step:
    1. produce each dirty key once, and one meta record for each changelog   - nothing is committed
    2. flush                                                                  - nothing is committed
    3. send the inputs' next offsets, with group metadata read now            - nothing is committed
    4. commit the transaction                                                 - committed; the replay writes it locally
    5. write overlay and offsets to RocksDB in one batch, offsets last        - committed and local
At-least-once does the same, except that outputs go past the transaction, by a producer of their own: readers see them
at once, and a message that is processed again sends them again. They are flushed before step 1, because whoever replays
the changelog takes what it stands for as done. State is exact at both guarantees, and fenced. Where there is no
changelog, the offsets alone are committed, without a transaction.

Invariants:
    - RocksDB never holds an uncommitted write.
    - Every transaction carries offsets, so that the group's generation fences it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.changelog.format import META_KEY, ChangelogMeta
from holdfast.processors.engine.runtime.ports import GroupMember, TransactionProducer
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.state.store import Writes
from holdfast.processors.engine.state.task_store import StoreOffset
from holdfast.processors.engine.topology import Topology

#: How long records may take to be acknowledged before the outcome counts as unknown, in seconds.
FLUSH_TIMEOUT_S = 30.0


@dataclass(slots=True)
class TaskCommit:
    """One task's part of a commit: next input offsets, and by store the next changelog offset once known."""

    task: Task
    inputs: dict[str, int]
    transaction: int
    changelog_ends: dict[str, int] = field(default_factory=dict)
    #: By store, as sent to the changelogs; full keys are made only once.
    writes: dict[str, Writes] = field(default_factory=dict)
    #: Neither a meta record nor anything local: more is to come before the changelog tells of it.
    records_only: bool = False


@dataclass(slots=True)
class Commit:
    """A commit under way."""

    tasks: list[TaskCommit]

    @property
    def offsets(self) -> dict[Partition, int]:
        """The inputs' next offsets, all tasks together."""
        return {
            Partition(topic, part.task.partition): offset
            for part in self.tasks
            for topic, offset in part.inputs.items()
        }

    @property
    def before(self) -> dict[Partition, int | None]:
        """What the group had committed before."""
        return {
            Partition(topic, part.task.partition): part.task.committed.get(topic)
            for part in self.tasks
            for topic in part.inputs
        }


def prepare(tasks: Sequence[Task]) -> Commit:
    """Freeze what is to be committed of those tasks that have progressed.

    Raises:
        StateFailed: The disk refused a read since the last commit: results may rest on it.
    """
    for task in tasks:
        if task.store is not None and task.store.failure is not None:
            raise task.store.failure
    return Commit(
        [TaskCommit(task, dict(task.positions), task.meta.transaction + 1) for task in tasks if task.progressed]
    )


def flush_outputs(producer: TransactionProducer) -> None:
    """At-least-once, before step 1: nothing that is committed may lack its outputs.

    Raises:
        OutcomeUnknown, KafkaFailed: As the producer says.
    """
    producer.flush(FLUSH_TIMEOUT_S)


def produce_changelogs(
    commit: Commit, topology: Topology, producer: TransactionProducer, topic_ids: Mapping[str, str], owner: str
) -> None:
    """Step 1: the overlay and the meta records, which name their ``owner``, into the changelogs."""
    for part in commit.tasks:
        meta = ChangelogMeta(
            part.inputs, part.transaction, topology.code_version, _ids_of(part.inputs, topic_ids), owner
        ).encode()
        for name, state in part.task.states.items():
            if name not in part.writes:  # they are given where a command changes the state
                part.writes[name] = state.writes()
            changelog = topology.changelog_of(name)
            if changelog is None:
                continue
            topic, partition, writes = changelog.name, part.task.partition, part.writes[name]
            producer.produce_all(topic, writes.values, writes.keys, partition=partition)
            if part.records_only:
                continue
            producer.produce(topic, meta, META_KEY, partition=partition, on_delivered=_remember(part, name))
        producer.poll()


def commit_transaction(commit: Commit, producer: TransactionProducer, member: GroupMember) -> None:
    """Steps 2 to 4.

    Raises:
        TransactionAborted, ProducerFenced, OutcomeUnknown, KafkaFailed: As the producer says.
    """
    producer.flush(FLUSH_TIMEOUT_S)
    producer.send_offsets(commit.offsets, member.group_metadata())
    producer.commit()


def commit_offsets(commit: Commit, member: GroupMember) -> None:
    """At-least-once without changelogs: there is no state that offsets could part from.

    Raises:
        MembershipLost, OutcomeUnknown, KafkaFailed: As the member says.
    """
    for part in commit.tasks:
        for name, state in part.task.states.items():
            if name not in part.writes:
                part.writes[name] = state.writes()
    member.commit(commit.offsets)


def write_local(commit: Commit, topology: Topology, topic_ids: Mapping[str, str], complete_at: float) -> None:
    """Step 5; ``complete_at`` is the wall-clock time before the commit was sent, in seconds since 1970.

    Raises:
        StateDiskFailed: The disk refused; the changelog has everything.
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
            task.meta = replace(
                task.meta,
                inputs=part.inputs,
                stores=stores,
                transaction=part.transaction,
                restoring=False,
                sources=_ids_of(part.inputs, topic_ids),
                complete_at=complete_at,
            )
            changes = [task.states[name].rocks_changes(writes) for name, writes in part.writes.items()]
            task.store.write(chain.from_iterable(changes), task.meta)
            for state in task.states.values():
                state.committed()
        task.committed = dict(part.inputs)
        task.begun_empty = frozenset()


def _ids_of(inputs: Mapping[str, int], topic_ids: Mapping[str, str]) -> dict[str, str]:
    return {topic: topic_ids[topic] for topic in inputs}


def _remember(part: TaskCommit, store: str) -> Callable[[int], None]:
    def delivered(offset: int) -> None:
        part.changelog_ends[store] = offset + 1

    return delivered
