"""The worker: one thread that polls, processes, commits, restores and answers requests, in turns.

    STARTING ──► JOINING ──► RESTORING ⇄ RUNNING ──► STOPPING
                    any of them ──► WAITING (no broker) ──► back
                    any of them ──► FAILED

Invariants:
    - Only this thread touches Kafka clients and RocksDB.
    - Nothing is restored inside a rebalance callback; partitions stay paused until their task runs.
    - On revoke, work is committed or dropped before the callback returns; on loss it is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import structlog

from infra.kafka.errors import (
    BrokerUnreachable,
    KafkaFailed,
    OutcomeUnknown,
    TransactionAborted,
)
from infra.kafka.records import Batch, Partition
from processors.changelog.format import FormatUnknown
from processors.dataframe.dataframe import StreamingDataFrame
from processors.runtime import commit as commits
from processors.runtime.assignment import Assignment
from processors.runtime.failures import FailurePolicy
from processors.runtime.options import OVERLAY_BYTES_MAX, RECORDS_PER_POLL, RECORDS_PER_SLICE, RuntimeOptions
from processors.runtime.ports import Cluster, GroupMember
from processors.runtime.task import Task, TaskPhase
from processors.state.errors import StateFailed
from processors.topology import Topology

_log = structlog.get_logger("runtime.loop")

#: So many aborts in a row without a commit between them stop the worker: it would never get further.
ABORTS_MAX = 20


class Phase(Enum):
    """Where the worker is; see the module."""

    STARTING = "starting"
    JOINING = "joining"
    RESTORING = "restoring"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPING = "stopping"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """Work for the worker's thread; what ``only_reads`` is also done while Kafka is being waited for."""

    work: Callable[[], None]
    only_reads: bool


class _OwnershipLost(Exception):
    """The group went on without us; join anew."""


class Worker:
    """Runs one topology in one slot until it is stopped.

    Args:
        topology: What to run.
        frames: The streams by input topic.
        cluster: Makes Kafka clients.
        options: How to run.
        failures: Decides about failed messages.
        assignment: Tasks and their stores.
    """

    def __init__(
        self,
        topology: Topology,
        frames: Mapping[str, StreamingDataFrame],
        cluster: Cluster,
        options: RuntimeOptions,
        failures: FailurePolicy,
        assignment: Assignment,
        transactional_id: str,
    ) -> None:
        self.topology = topology
        self.options = options
        self.failures = failures
        self.assignment = assignment
        self.phase = Phase.STARTING
        self.started_at = time.time()
        self.heartbeat_at = time.time()
        self.processed = 0
        self.sent = 0
        self.commit_count = 0
        self.commit_last_at: float | None = None
        self.commit_last_s: float | None = None
        self.requests: list[Request] = []
        self._frames = frames
        self._cluster = cluster
        self._transactional_id = transactional_id if options.exactly_once else None
        self._stop = False
        self._in_transaction = False
        self._aborts = 0
        self._rewinds = 0
        self._processed_open = 0
        self._broken: Exception | None = None
        self._commit_due_at = 0.0
        self._uncommitted = 0
        self._message_at = time.monotonic()

    @property
    def member(self) -> GroupMember | None:
        """The membership of the group; None before the first."""
        return getattr(self, "_member", None)

    def stop(self) -> None:
        """Ask the worker to finish; safe from signal handlers and other threads."""
        self._stop = True

    def run(self, *, count: int = 0, timeout_s: float = 0.0) -> None:
        """Work until stopped.

        Args:
            count: Stop after so many messages; 0 for no bound.
            timeout_s: Stop when no message came for so long; 0 for never.

        Raises:
            HoldfastError: What stopped the worker; everything before it is committed.
        """
        self._message_at = time.monotonic()
        try:
            while not self._finished(count, timeout_s):
                try:
                    self._session(count, timeout_s)
                except _OwnershipLost:
                    _log.warning("ownership lost; joining the group anew", group=self.options.group)
            self.phase = Phase.STOPPING
        except BaseException:
            self.phase = Phase.FAILED
            raise

    def _finished(self, count: int, timeout_s: float) -> bool:
        if self._stop or (count and self.processed >= count):
            return True
        busy = self.phase in (Phase.RESTORING, Phase.WAITING, Phase.STARTING)
        return bool(timeout_s) and not busy and time.monotonic() - self._message_at > timeout_s

    def commit_now(self) -> None:
        """Commit what there is; on the worker's thread only. A failure also ends the worker's session."""
        try:
            self._commit()
        except Exception as failure:
            self._broken = failure
            raise

    # -- one membership of the group -----------------------------------------------------------------------------

    def _session(self, count: int, timeout_s: float) -> None:
        self._start_producer()
        self._member = self._cluster.group_consumer(self.options.group, self.options.offset_reset)
        self._in_transaction = False
        self._lost = False
        self._leaving = False
        self._uncommitted = 0
        self.processed -= self._processed_open
        self._processed_open = 0
        failed = True
        try:
            self._member.subscribe(
                [spec.name for spec in self.topology.inputs], self._assigned, self._revoked, self._dropped
            )
            self.phase = Phase.JOINING
            while True:
                while not self._finished(count, timeout_s):
                    self._turn(count)
                self._commit()
                if self._finished(count, timeout_s):
                    break  # else the last commit was aborted: its messages are processed again
            self.phase = Phase.STOPPING
            failed = False
        except (_OwnershipLost, KafkaFailed, StateFailed, FormatUnknown):
            raise  # what is in memory may be ahead of what was sent: it is dropped, and read again
        except Exception:
            self._commit_before_failure()
            raise
        finally:
            self._leave(failed)

    def _leave(self, failed: bool) -> None:
        if failed and self._in_transaction:
            try:
                self._producer.abort()
            except KafkaFailed as failure:
                _log.warning("the open transaction is left to the broker to abort", error=failure.message)
        self._in_transaction = False
        for task in self.assignment.tasks:
            task.drop()
        self._leaving = True  # closing the membership calls back; what was to be committed is
        try:
            self._member.close()
        finally:
            self.assignment.close_all()
            self._producer.close()

    def _turn(self, count: int) -> None:
        self.heartbeat_at = time.time()
        if self._lost:
            raise _OwnershipLost
        while self.requests:
            self.requests.pop(0).work()
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken
        restoring = bool(self.assignment.pending or self.assignment.restoring)
        if restoring:
            for task in self.assignment.advance(self._member, self._frames):
                self._member.resume([Partition(topic, task.partition) for topic in task.inputs])
        room = RECORDS_PER_POLL if not count else max(1, min(RECORDS_PER_POLL, count - self.processed))
        batches = self._member.poll(room, 0.0 if restoring else self._patience())
        self._process_all(batches)
        self._update_phase()
        if self._commit_is_due():
            self._commit()

    def _patience(self) -> float:
        if not self._uncommitted:
            return 0.1
        return min(0.1, max(0.0, self._commit_due_at - time.monotonic()))

    def _update_phase(self) -> None:
        down = self._member.brokers_down_s
        if down > self.options.broker_timeout_s:
            raise BrokerUnreachable(
                f"No broker was reachable for {down:.0f} s.",
                action="Check the brokers; restart the processor when they are back. Nothing is lost.",
                bootstrap=self._cluster.bootstrap,
            )
        if down > 5.0:
            self.phase = Phase.WAITING
        elif self.assignment.pending or self.assignment.restoring:
            self.phase = Phase.RESTORING
        elif self.assignment.joined:
            self.phase = Phase.RUNNING
        else:
            self.phase = Phase.JOINING
        if self.phase in (Phase.RESTORING, Phase.WAITING):
            self._message_at = time.monotonic()

    # -- processing ----------------------------------------------------------------------------------------------

    def _process_all(self, batches: list[Batch]) -> None:
        for batch in batches:  # so that whatever is in hand can be read again after a rewind
            task = self.assignment.running(batch.partition)
            if task is not None:
                task.first_seen.setdefault(batch.partition.topic, batch.offsets[0])
        rewinds = self._rewinds
        for batch in batches:
            self._process(batch)
            if self._rewinds != rewinds:
                return  # every batch in hand is read again

    def _process(self, batch: Batch) -> None:
        task = self.assignment.running(batch.partition)
        if task is None:
            return  # taken away while this batch was on its way; the next owner reads it again
        self._message_at = time.monotonic()
        for first in range(0, len(batch.offsets), RECORDS_PER_SLICE):
            if task.phase is not TaskPhase.RUNNING or self._stop:
                return
            self._show_life()
            if not self._uncommitted:
                self._commit_due_at = time.monotonic() + self.options.commit_interval_s
            rewinds = self._rewinds
            last = min(first + RECORDS_PER_SLICE, len(batch.offsets))
            before = task.positions.get(batch.partition.topic, -1)
            try:
                done = task.process(batch, first, last, self.failures)
            except Exception:
                self._send(task)
                raise
            if task.positions.get(batch.partition.topic, -1) != before:
                self._uncommitted += max(done, 1)
            self.processed += done
            self._processed_open += done
            self._send(task)
            if self._commit_is_due():
                self._commit()
                if self._rewinds != rewinds:
                    return  # the rest of this batch is read again

    def _send(self, task: Task) -> None:
        if not task.outputs:
            return
        self._begin()
        produce = self._producer.produce
        for output in task.outputs:
            produce(output.topic, output.value, output.key, timestamp_ms=output.timestamp_ms, headers=output.headers)
        self.sent += len(task.outputs)
        task.outputs.clear()
        self._producer.poll()

    def _begin(self) -> None:
        if self.options.exactly_once and not self._in_transaction:
            self._producer.begin()
            self._in_transaction = True

    # -- commit --------------------------------------------------------------------------------------------------

    def _commit_is_due(self) -> bool:
        if not self._uncommitted:
            return False
        if self.options.commit_every and self._uncommitted >= self.options.commit_every:
            return True
        if time.monotonic() >= self._commit_due_at:
            return True
        return sum(task.dirty_bytes() for task in self.assignment.tasks) > OVERLAY_BYTES_MAX

    def _commit(self) -> None:
        pending = commits.prepare([task for task in self.assignment.tasks if task.phase is TaskPhase.RUNNING])
        if not pending.tasks:
            self._uncommitted = 0
            return
        started = time.monotonic()
        try:
            self._begin()
            commits.produce_changelogs(pending, self.topology, self._producer)
            if self.options.exactly_once:
                commits.commit_exactly_once(pending, self._producer, self._member)
            else:
                commits.commit_at_least_once(pending, self._producer, self._member)
        except TransactionAborted as aborted:
            self._abort(aborted)
            return
        except OutcomeUnknown as unknown:
            if not self._resolve(pending, unknown):
                return
        self._in_transaction = False
        commits.write_local(pending, self.topology, self.assignment.topic_ids)
        self._uncommitted = 0
        self._processed_open = 0
        self._aborts = 0
        self.commit_count += 1
        self.commit_last_at = time.time()
        self.commit_last_s = time.monotonic() - started

    def _abort(self, why: KafkaFailed) -> None:
        """Drop everything uncommitted and read it again."""
        self._aborts += 1
        _log.warning("transaction aborted; its messages are processed again", error=why.message, in_a_row=self._aborts)
        if self._aborts > ABORTS_MAX:
            raise why
        if self._in_transaction:
            try:
                self._producer.abort()
            except OutcomeUnknown:
                self._replace_producer()
        self._in_transaction = False
        self._rewind()

    def _resolve(self, pending: commits.Commit, why: OutcomeUnknown) -> bool:
        """Find out whether a commit without an answer happened; True when it did.

        Raises:
            _OwnershipLost: The offsets are neither the old nor the new ones.
        """
        _log.warning("a commit got no answer; asking Kafka what became of it", error=why.message)
        self._replace_producer()
        self._in_transaction = False
        actual = self._committed_now(list(pending.offsets))
        if actual == pending.offsets and all(
            len(part.changelog_ends) == len(part.task.states) or not self.topology.changelogs for part in pending.tasks
        ):
            _log.info("the commit had happened", offsets=len(actual))
            return True
        if actual == pending.before:
            _log.info("the commit had not happened; its messages are processed again")
            self._aborts += 1
            self._rewind()
            return False
        raise _OwnershipLost

    def _replace_producer(self) -> None:
        self._producer.close()
        self._start_producer()

    def _start_producer(self) -> None:
        self._producer = self._cluster.producer(self._transactional_id)
        waiting_since = time.monotonic()
        self._producer.on_wait = lambda: self._while_waiting(waiting_since)
        self._producer.init(self.options.broker_timeout_s)
        self._producer.on_wait = lambda: self._while_waiting(None)

    def _while_waiting(self, since: float | None) -> None:
        """A request to Kafka waits for its answer: show that the worker lives, and answer what only reads."""
        if since is None or time.monotonic() - since > 2.0:
            self.phase = Phase.WAITING
        self._show_life()

    def _show_life(self) -> None:
        """Between polls of long turns: the heartbeat, and answers to what only reads."""
        self.heartbeat_at = time.time()
        for request in [request for request in self.requests if request.only_reads]:
            self.requests.remove(request)
            request.work()

    def _committed_now(self, partitions: list[Partition]) -> dict[Partition, int | None]:
        deadline = time.monotonic() + self.options.broker_timeout_s
        while True:
            try:
                return self._member.committed(partitions)
            except BrokerUnreachable:
                if time.monotonic() > deadline:
                    raise
                self._while_waiting(None)

    def _rewind(self) -> None:
        self._rewinds += 1
        self._uncommitted = 0
        self.processed -= self._processed_open
        self._processed_open = 0
        self._message_at = time.monotonic()
        for task in self.assignment.tasks:
            if task.phase is TaskPhase.RUNNING:
                for topic, offset in task.drop().items():
                    self._member.seek(Partition(topic, task.partition), offset)

    def _commit_before_failure(self) -> None:
        """A message stopped the worker: commit what came before it, so that nothing is processed twice."""
        try:
            self._commit()
        except Exception as failure:
            _log.warning("work before the failure is not committed; it is processed again", error=str(failure))

    # -- rebalance callbacks: on the polling thread, inside poll ---------------------------------------------------

    def _assigned(self, partitions: list[Partition]) -> None:
        _log.info("partitions assigned", partitions=[f"{part.topic}[{part.number}]" for part in partitions])
        self.assignment.assigned(partitions)

    def _revoked(self, partitions: list[Partition]) -> None:
        _log.info("partitions revoked", count=len(partitions))
        try:
            if not self._leaving:
                self._commit()
        except KafkaFailed as failure:
            _log.warning("work is not committed before the rebalance; its next owner redoes it", error=failure.message)
            if self._in_transaction:
                self._lost = True
        self.assignment.revoked(partitions)

    def _dropped(self, partitions: list[Partition]) -> None:
        _log.warning("partitions lost", count=len(partitions))
        self.assignment.revoked(partitions)
        self._lost = True
