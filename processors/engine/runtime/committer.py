"""Owns a worker's producer, and begins, commits and aborts its transactions. Finds the outcome of unanswered commits.

The module ``commit`` has the content of a commit and its five steps. This module handles the Kafka errors.

    CLOSED ──start──► IDLE ──first output or commit──► OPEN ──committed──► IDLE
                       ▲                                │
                       └──aborted, or outcome resolved──┘        any ──close──► CLOSED

Invariants:
    - After a commit without an answer, the producer is replaced before anything else is sent. Otherwise a delayed end
      request of the old transaction could end a new transaction.
    - If transaction markers of the last transaction may be missing, nothing is sent before ``unfinished`` has checked
      the partitions. An idle worker makes this check, too, because missing markers block readers.
    - Local state is written only after Kafka has confirmed the commit.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from enum import Enum

import structlog

from holdfast.infra.kafka.clients.producer import TRANSACTION_S
from holdfast.infra.kafka.errors import (
    BrokerUnreachable,
    KafkaFailed,
    MembershipLost,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from holdfast.infra.kafka.records import Member, Partition, worker_of
from holdfast.processors.engine.dataframe.sinks import deliver, publish
from holdfast.processors.engine.runtime import commit as commits
from holdfast.processors.engine.runtime.latency import LatencyHistogram
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.ownership.unfinished import Unfinished
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember, TransactionProducer
from holdfast.processors.engine.runtime.reading.watermark_writer import HEADERS
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.topology import Topology

_log = structlog.get_logger("runtime.committer")

#: Maximum consecutive aborts without a commit. At the next abort, the worker stops, because it makes no progress.
ABORTS_MAX = 20
#: Maximum number of times in a row that a worker is fenced. If it is fenced once more, the worker stops. Otherwise, two
#: processes with the same transactional id would fence each other forever.
FENCED_MAX = 3
#: A rival is another group member with this worker's client id. This is the maximum number of times that a worker is
#: fenced while a rival exists. If it is fenced once more, the worker stops. One rival is normal: the worker's previous
#: process, whose session has not timed out yet.
RIVALS_MAX = 1
#: Seconds. If no other rival (a group member with this worker's client id) was seen within this time, earlier rivals
#: are no longer counted.
RIVAL_COUNTS_S = 300.0
#: Timeout in seconds of the request for the group's members. The worker waits for the answer.
RIVALS_TIMEOUT_S = 5.0
#: ``LOOK_WITHOUT_WORK_S``: timeout of an idle worker's check for missing transaction markers. ``LOOK_AGAIN_S``: seconds
#: until the next check after a failure.
LOOK_WITHOUT_WORK_S = 1.0
LOOK_AGAIN_S = 5.0
#: Seconds between two checks for transactions that deleted workers left open.
LEFT_LOOK_S = 60.0


class Outcome(Enum):
    """The result of a commit."""

    NOTHING = "there was nothing to commit"
    DONE = "committed, here and in Kafka"
    DROPPED = "not committed: everything since the last commit is to be read again"


class OwnershipLost(Exception):
    """Another worker owns the tasks, or may own them. The caller must discard all work and join the group again."""


class Committer:
    """Sends the outputs of a worker's tasks and commits their work.

    The transactional id belongs to the worker's slot (its place on the machine), so a restart does not change it.
    """

    def __init__(
        self,
        topology: Topology,
        cluster: Cluster,
        options: RuntimeOptions,
        assignment: Assignment,
        transactional_id: str,
    ) -> None:
        self._topology = topology
        self._cluster = cluster
        self._clock = cluster.clock
        self._options = options
        self._assignment = assignment
        #: Whether commits use a transaction; False for at-least-once without changelogs and repartition topics.
        self._transactional = options.exactly_once or bool(topology.changelogs or topology.repartitions)
        self.transactional_id = transactional_id
        owners = assignment.standbys.owners
        owners.own, owners.on_wait = transactional_id, lambda: self.on_wait(None)
        own = [*(spec.topic.name for spec in topology.changelogs), *(spec.topic for spec in topology.repartitions)]
        written = topology.written() if options.exactly_once else own
        self._unfinished = owners.unfinished = Unfinished(cluster, written, options.group, options.broker_timeout_s)
        #: The producer's count of events after which markers may be missing (``doubts``), at the last check for missing
        #: markers. None if no check was made yet; ``begin`` must then check first.
        self._settled: int | None = None
        #: Monotonic seconds at which ``look_after`` checks for missing markers again, at the earliest.
        self._look_at = 0.0
        self._producer: TransactionProducer | None = None
        #: The producer that sends outputs. It is ``_producer``, or a second one without transactions (at-least-once).
        self._outputs: TransactionProducer | None = None
        self._open = False
        self._opened_at = 0.0
        self._aborts_in_a_row = 0
        self._fenced_in_a_row = 0
        self._rivals_seen, self._rival_seen_at = 0, 0.0
        self._member: GroupMember | None = None
        #: All member ids that this worker has had. After a broker crash, the group may still list an old one of them.
        self._own_ids: set[str] = set()
        #: A function that is called repeatedly while the worker waits for Kafka. Its argument is the monotonic time at
        #: which ``start`` began to wait, or None in later waits.
        self.on_wait: Callable[[float | None], None] = lambda since: None
        self.sent = 0
        self.count = 0
        self.aborts = 0
        self.last_at: float | None = None
        self.last_s: float | None = None
        self.latency = LatencyHistogram()

    @property
    def open(self) -> bool:
        """Whether a transaction is open."""
        return self._open

    @property
    def failing(self) -> bool:
        """Whether the last transaction was aborted, or its outcome is unknown."""
        return self._aborts_in_a_row > 0

    def join(self) -> GroupMember:
        """Create a new group member. Its client id begins with the transactional id, which names this worker."""
        self._member = self._cluster.group_consumer(self._options.group, self.transactional_id)
        return self._member

    def start(self) -> None:
        """Create the producers.

        The call also ends a transaction that an earlier process with this transactional id left open.

        Raises:
            BrokerUnreachable: Kafka did not answer in time.
            OwnershipLost: Another producer fenced this one, or the client library did not return in time. The caller
                joins the group again.
        """
        waiting_since = self._clock.monotonic()
        self._open = False
        batch = self._options.batch_bytes_max
        self._producer = self._cluster.producer(self.transactional_id if self._transactional else None, batch)
        self._producer.on_wait = lambda: self.on_wait(waiting_since)
        self._outputs = self._producer
        try:
            if self._transactional and not self._options.exactly_once:
                self._outputs = self._cluster.producer(None, batch)
                self._outputs.on_wait = lambda: self.on_wait(None)
            if self._transactional:
                self._settle(self._producer)
            self._producer.init(self._options.broker_timeout_s)
            if self._transactional:
                self._settle(self._producer)
        except ProducerFenced as fenced:
            self.close()
            self._fenced(fenced)
        except OutcomeUnknown as unknown:
            self.close()
            self._count_abort(unknown)
            raise OwnershipLost from unknown
        except BaseException:
            self.close()
            raise
        self._producer.on_wait = lambda: self.on_wait(None)

    def close(self) -> None:
        """Abort the open transaction and close the producers. A failed abort is only logged.

        A second call does nothing.
        """
        producer, outputs = self._producer, self._outputs
        self._producer = self._outputs = None
        if producer is None:
            return
        if outputs is not None and outputs is not producer:
            outputs.close()
        try:
            if self._open:
                producer.abort()
        except KafkaFailed as failure:
            _log.warning("the open transaction is not aborted; the broker will abort it", error=failure.message)
        finally:
            self._open = False
            producer.close()

    def send(self, task: Task) -> Outcome:
        """Queue a task's outputs in the producer. A later ``commit`` commits them.

        Returns DROPPED if the transaction was aborted, else NOTHING. Raises the same errors as ``commit``.
        """
        boxes = [box for box in task.outboxes.values() if box.values]
        if self._options.start.shadow:
            for box in boxes:
                box.clear()  # a shadow only rebuilds a store; the processor's own workers send the outputs
            task.watermarks.clear()
            return Outcome.NOTHING
        boxes = [box for box in boxes if box.to_kafka]  # results for sinks are not sent here: ``commit`` delivers them
        if not boxes and not task.watermarks:
            return Outcome.NOTHING
        try:
            for box in boxes:
                producer = self._producer_of(box.topic)
                producer.produce_all(box.topic, box.values, box.keys, timestamps=box.timestamps, headers=box.headers)
                self.sent += len(box.values)
                box.clear()
                producer.poll()
            for topic, number, value, time_ms in task.watermarks:  # a watermark must follow the messages that it covers
                producer = self._producer_of(topic)
                producer.produce(topic, value, None, partition=number, timestamp_ms=time_ms, headers=HEADERS)
            task.watermarks.clear()
        except TransactionAborted as aborted:
            self._abort(aborted)
            return Outcome.DROPPED
        except ProducerFenced as fenced:
            self._fenced(fenced)
        except OutcomeUnknown as unknown:  # no commit was requested yet, so the outcome needs no check
            _log.warning("a producer does not return; replacing it", error=unknown.message)
            self._replace_producer()
            self._count_abort(unknown)
            return Outcome.DROPPED
        return Outcome.NOTHING

    def _producer_of(self, topic: str) -> TransactionProducer:
        """Returns the producer for a topic.

        With at-least-once, only records of repartition topics are sent in the transaction.
        """
        own = self._transactional and topic in self._options.groupings
        producer = self._begun() if self._options.exactly_once or own else self._outputs
        assert producer is not None
        return producer

    def commit(self, member: GroupMember) -> Outcome:
        """Commit the work of all running tasks.

        Raises:
            OwnershipLost: Another member or producer fenced this worker. If the commit happened nevertheless, the next
                replay of the changelog restores its state.
            KafkaFailed: Kafka refused the commit, or a sink knows that another worker has a partition now.
            StateFailed: A read or write on the local disk failed, before the commit or after it.
        """
        pending = commits.prepare([task for task in self._assignment.tasks if task.phase is TaskPhase.RUNNING])
        if not pending.tasks:
            return Outcome.NOTHING
        boxes = [box for part in pending.tasks for box in part.task.outboxes.values()]
        if not deliver(boxes, self._clock, self._rest):
            self._end_open()
            return Outcome.DROPPED
        outcome = self._carry_out(pending, member, self._resolve)
        publish(boxes, self._clock)
        return outcome

    def _rest(self, seconds: float) -> None:
        self.on_wait(None)
        self._cluster.rest(seconds)

    def commit_apart(self, part: commits.TaskCommit, member: GroupMember) -> Outcome:
        """Commit a command's writes to one task in a separate transaction. Returns DONE, or DROPPED if it was aborted.

        A command may leave the offsets unchanged. The group's offsets then can't show whether the commit happened. If
        the commit gets no answer, the method raises OwnershipLost, caused by OutcomeUnknown, and the state is replayed.
        """
        assert not self._open, "a command's commit would include work of other tasks"
        return self._carry_out(commits.Commit([part]), member, self._replay)

    def _carry_out(
        self,
        pending: commits.Commit,
        member: GroupMember,
        resolve: Callable[[commits.Commit, GroupMember, OutcomeUnknown], None],
    ) -> Outcome:
        self._assignment.check_folder()
        started = self._clock.monotonic()
        complete_at = self._clock.time()  # read before the commit, during which the process may freeze
        try:
            self._send_commit(pending, member)
        except MembershipLost as lost:
            _log.warning("work is not committed; the next owner processes it again", error=lost.message)
            raise OwnershipLost from lost
        except TransactionAborted as aborted:
            self._abort(aborted)
            return Outcome.DROPPED
        except ProducerFenced as fenced:
            self._fenced(fenced)
        except OutcomeUnknown as unknown:
            resolve(pending, member, unknown)
            return Outcome.DROPPED
        self._open = False
        commits.write_local(pending, self._topology, self._assignment.topic_ids, complete_at)
        self._aborts_in_a_row = self._fenced_in_a_row = 0
        self.count += 1
        self.last_at = self._clock.time()
        self.last_s = self._clock.monotonic() - started
        self.latency.observe(self.last_s)
        return Outcome.DONE

    def _send_commit(self, pending: commits.Commit, member: GroupMember) -> None:
        if not self._options.exactly_once:
            assert self._outputs is not None
            self._outputs.flush(commits.FLUSH_TIMEOUT_S)  # before the changelogs, so that a commit loses no outputs
        if not self._transactional:
            commits.commit_offsets(pending, member)
            return
        producer = self._begun()
        ids, generation = self._assignment.topic_ids, self._options.start.generation
        commits.produce_changelogs(pending, self._topology, producer, ids, self.transactional_id, generation)
        commits.commit_transaction(pending, producer, member)

    def _begun(self) -> TransactionProducer:
        producer = self._producer
        assert producer is not None
        if not self._open:
            if self._settled != producer.doubts:
                self._settle(producer)
            try:
                producer.begin()
            except ProducerFenced as fenced:
                self._fenced(fenced)
            self._open = True
            self._opened_at = self._clock.monotonic()
            self._note_own_id()
        return producer

    def _note_own_id(self) -> None:
        known = None if self._member is None else self._member.member_id
        if known is not None:
            self._own_ids.add(known)

    def _settle(self, producer: TransactionProducer, timeout_s: float | None = None) -> None:
        """Check whether markers of this worker's last transaction are missing, and write the missing ones."""
        doubts = producer.doubts
        self._unfinished.settle(self.transactional_id, producer.on_wait, timeout_s=timeout_s)
        self._settled = doubts

    def look_after(self) -> None:
        """Write missing transaction markers while no transaction is open, because missing markers block readers.

        The call checks this worker's last transaction, and transactions of deleted workers whose transactional ids are
        no longer used. An error is only logged here; the next ``begin`` raises it.
        """
        now, producer = self._clock.monotonic(), self._producer
        if self._open or producer is None or now < self._look_at:
            return
        try:
            if self._settled != producer.doubts:
                self._settle(producer, LOOK_WITHOUT_WORK_S)
            else:
                self._look_at = now + LEFT_LOOK_S
                self._assignment.standbys.owners.end_left()
        except KafkaFailed as failed:
            _log.debug("the last transaction can't be looked at now", error=failed.message)
            self._look_at = now + LOOK_AGAIN_S

    def _abort(self, why: KafkaFailed) -> None:
        if why.fields.get("error") == "INVALID_TIMESTAMP":
            self._options.record_times.refused()
        self._settled = None
        self._count_abort(why)
        _log.warning(
            "transaction aborted; its messages will be processed again",
            error=why.message,
            in_a_row=self._aborts_in_a_row,
        )
        self._end_open()

    def _end_open(self) -> None:
        """Abort the open transaction, if there is one."""
        if self._open and self._producer is not None:
            try:
                self._producer.abort()
            except ProducerFenced as fenced:
                self._fenced(fenced)
            except KafkaFailed as refused:  # for example, if the transaction never began, because the topic is missing
                _log.warning("the abort failed; replacing the producer", error=refused.message)
                self._replace_producer()
        self._open = False

    def _count_abort(self, why: KafkaFailed) -> None:
        self.aborts += 1
        self._aborts_in_a_row += 1
        if self._aborts_in_a_row > ABORTS_MAX:
            raise why

    def _fenced(self, why: ProducerFenced) -> None:
        """Raise OwnershipLost: another producer fenced this one, or Kafka aborted the transaction after its timeout.

        Raise ProducerFenced instead if this happened more than ``FENCED_MAX`` times in a row. Also raise it after more
        than ``RIVALS_MAX`` times with a rival: another group member with this worker's client id.
        """
        open_s = self._clock.monotonic() - self._opened_at if self._open else 0.0
        self._open = False
        self._fenced_in_a_row += 1
        if open_s <= TRANSACTION_S and (rivals := self._rivals()):
            now = self._clock.monotonic()
            self._rivals_seen = 1 + (self._rivals_seen if now - self._rival_seen_at < RIVAL_COUNTS_S else 0)
            self._rival_seen_at = now
            why = _has_rivals(rivals, self.transactional_id, why)
        if self._fenced_in_a_row > FENCED_MAX or self._rivals_seen > RIVALS_MAX:
            raise _held_open(open_s, why) if open_s > TRANSACTION_S else why
        _log.warning("fenced by a newer producer; joining the group again", error=why.message, action=why.action)
        raise OwnershipLost from why

    def _rivals(self) -> list[Member]:
        """Rivals: other members of the group with this worker's client id; empty if the group can't be read."""
        self._note_own_id()
        try:
            members = self._cluster.topics(RIVALS_TIMEOUT_S).group_members(self._options.group)
        except KafkaFailed as failure:
            _log.warning("the worker that took over is not known", error=failure.message)
            return []
        others = [each for each in members if each.member_id not in self._own_ids]
        return [each for each in others if worker_of(each.client_id) == self.transactional_id]

    def _resolve(self, pending: commits.Commit, member: GroupMember, why: OutcomeUnknown) -> None:
        """Finds out whether a commit that got no answer has happened.

        Returns if it has not, otherwise raises OwnershipLost.

        If the group's offsets moved, either this commit happened, or a later owner committed other results of the same
        records. In both cases, the writes in memory are dropped, and a replay restores the state.
        """
        # A commit that only closes windows, without a message, leaves the offsets unchanged. The offsets then do not
        # show whether the commit happened.
        if pending.offsets == pending.before:
            self._replay(pending, member, why)
        _log.warning("a commit got no answer; reading the group's offsets to learn its outcome", error=why.message)
        self._replace_producer()
        actual = self._committed_now(member, list(pending.offsets))
        if actual != pending.before:
            _log.info("the commit, or one of a later owner, happened; state is replayed from the changelog")
            raise OwnershipLost
        _log.info("the commit did not happen; its messages will be processed again")
        self._count_abort(why)

    def _replay(self, pending: commits.Commit, member: GroupMember, why: OutcomeUnknown) -> None:
        """Raise OwnershipLost, so that the state is replayed: the offsets can't show whether the commit happened."""
        _log.warning("a commit got no answer; state is replayed from the changelog", error=why.message)
        self._replace_producer()
        raise OwnershipLost from why

    def _replace_producer(self) -> None:
        # The transaction is not aborted here, because the call might not return. The next ``init`` aborts it.
        self._open = False
        self.close()
        self.start()

    def _committed_now(self, member: GroupMember, partitions: list[Partition]) -> dict[Partition, int | None]:
        deadline = self._clock.monotonic() + self._options.broker_timeout_s
        while True:
            try:
                return member.committed(partitions)
            except BrokerUnreachable:
                if self._clock.monotonic() > deadline:
                    raise
                self.on_wait(None)


def _has_rivals(rivals: list[Member], transactional_id: str, why: ProducerFenced) -> ProducerFenced:
    listed = "; ".join(str(each) for each in rivals)
    here = f"process {os.getpid()} on host {socket.gethostname()}"
    return ProducerFenced(
        f"Another worker has the transactional id {transactional_id} of this one ({here}): {listed}. {why.message}",
        action="Stop that worker. If its state folder is a copy, move the copy away: its state is restored from the "
        "changelog, under an id of its own. Nothing is lost.",
        transactional_id=transactional_id,
        rivals=listed,
    )


def _held_open(open_s: float, why: ProducerFenced) -> ProducerFenced:
    return ProducerFenced(
        f"A transaction was open for {open_s:.0f} s; Kafka allows {TRANSACTION_S:g} s: {why.message}",
        action="A message takes longer than that to process: make its function faster, or use the guarantee "
        "`at-least-once`, which sends outputs outside of transactions.",
        seen=open_s,
        expected=TRANSACTION_S,
    )
