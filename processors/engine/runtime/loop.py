"""The worker's main loop: one thread that polls, processes, commits, restores state and answers requests.

    STARTING ──► (WARMING, during a planned change of workers) ──► JOINING ──► RESTORING ⇄ RUNNING ──► STOPPING
                    any phase ──► WAITING (no broker is reachable) ──► the phase before
                    any phase ──► FAILED

Invariants:
    - Only this thread uses Kafka clients and RocksDB.
    - State is never restored inside a rebalance callback; partitions stay paused until their task runs.
    - Before a callback returns, work on revoked partitions is committed or discarded. Work on lost ones is discarded.
    - After ``ProcessingFailed``, the messages before the failed message are committed. Other errors discard all work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import structlog

from holdfast.infra.kafka.errors import KafkaFailed, MembershipLost
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.change_of_workers import warm_up
from holdfast.processors.engine.runtime.commit_pace import slice_size
from holdfast.processors.engine.runtime.committer import Committer, Outcome, OwnershipLost
from holdfast.processors.engine.runtime.global_tables import GlobalTables
from holdfast.processors.engine.runtime.idle import IdleTime, active, more_is_due, running, slots_are_due, timed
from holdfast.processors.engine.runtime.open_work import OpenWork
from holdfast.processors.engine.runtime.options import RECORDS_PER_POLL, RECORDS_PER_SLICE, RuntimeOptions
from holdfast.processors.engine.runtime.owner_commands.maintenance import Maintenance
from holdfast.processors.engine.runtime.owner_commands.owner import CommandTable
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.ownership.checks.same_changelogs import SameChangelogs
from holdfast.processors.engine.runtime.ownership.past_markers import PastMarkers
from holdfast.processors.engine.runtime.phases import Phase, check_brokers
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember
from holdfast.processors.engine.runtime.purge import Purge
from holdfast.processors.engine.runtime.reading.interleaved import InterleavedRun, Run
from holdfast.processors.engine.runtime.reading.read_bounds import ReadBounds
from holdfast.processors.engine.runtime.reading.turns import in_turn
from holdfast.processors.engine.runtime.requests import Request
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.failure_policy import FailurePolicy, ProcessingFailed
from holdfast.processors.engine.runtime.task.inputs_in_order import InputsInOrder, NextRuns, has_messages, in_one_batch
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.errors import StateCorrupt
from holdfast.processors.engine.topology import Topology

_log = structlog.get_logger("runtime.loop")

#: Corrupt state is restored at most this many times in a row without a commit. Then the worker stops.
DAMAGES_MAX = 3


class Worker:
    """A worker: reads the input topics of a processor, processes the messages and commits, until it is stopped."""

    def __init__(  # tidy: allow-wide because only the application creates a worker, in one place
        self,
        topology: Topology,
        frames: Mapping[str, StreamingDataFrame],
        cluster: Cluster,
        options: RuntimeOptions,
        failures: FailurePolicy,
        assignment: Assignment,
        transactional_id: str,
        commands: CommandTable,
    ) -> None:
        self.topology, self.options, self.failures, self.assignment = topology, options, failures, assignment
        self.phase = Phase.STARTING
        self.member: GroupMember | None = None
        self.committer = Committer(topology, cluster, options, assignment, transactional_id)
        self.committer.on_wait = self.while_waiting
        self.started_at = self.heartbeat_at = cluster.clock.time()
        self.processed, self.paused = 0, options.start.paused
        self.requests: list[Request] = []
        self.maintenance = Maintenance(self, cluster, commands)
        self.reach = ReadBounds(bounded=options.start.shadow)
        #: Checks that no changelog was deleted or created again; None in tests with simulated time.
        self.same_changelogs: SameChangelogs | None = None
        self.frames, self._cluster, self.clock = frames, cluster, cluster.clock
        self.global_tables = GlobalTables(cluster)
        self.warnings: tuple[str, ...] = ()  # warnings about tables that may lose rows, for `/status`
        self.stopping = self._lost = self._leaving = False
        self._damages_in_a_row = self._rewinds = 0
        self._broken: Exception | None = None
        self._open, self._order = OpenWork(options, self._commit_is_due), InputsInOrder(self.reach, cluster)
        self._idle, self._purge, self._past = IdleTime(cluster), Purge(topology, cluster), PastMarkers(cluster.clock)
        self._slice, self._message_at = RECORDS_PER_SLICE, cluster.clock.monotonic()

    def stop(self) -> None:
        """Ask the worker to stop; may be called from signal handlers and other threads."""
        self.stopping = True

    def run(self, *, count: int = 0, timeout_s: float = 0.0) -> None:
        """Poll, process and commit until stopped.

        Args:
            count: Stop after this many messages, and after the windows and timers that they make due; 0 for no limit.
            timeout_s: Stop after this many seconds without a message; 0 for no limit.

        Raises:
            HoldfastError: The error that stopped the worker. If a message failed, all messages before it are committed.
        """
        try:
            warm_up(self.options.change, self.committer.transactional_id, self.assignment.standbys, self._warming)
            self.global_tables.load(partial(self._warming, Phase.RESTORING))
            self._message_at = self.clock.monotonic()
            while not self._finished(count, timeout_s):
                try:
                    self._session(count, timeout_s)
                except (OwnershipLost, MembershipLost):
                    _log.warning("ownership lost; joining the group again", group=self.options.group)
                    self._message_at = self.clock.monotonic()
                except StateCorrupt as damage:
                    self._damages_in_a_row += 1
                    if self._damages_in_a_row > DAMAGES_MAX:
                        raise
                    _log.error("state is damaged; joining the group again to restore it", error=damage.message)
                    self._message_at = self.clock.monotonic()
            self.phase = Phase.STOPPING
            if self.assignment.checkpoints is not None:
                self.assignment.checkpoints.finish()
        except BaseException:
            self.phase = Phase.FAILED
            raise

    def _warming(self, phase: Phase = Phase.WARMING) -> bool:
        self.phase = phase
        self._show_life()
        return not self.stopping

    def _finished(self, count: int, timeout_s: float) -> bool:
        if self.stopping or (count and self.processed >= count):
            return True
        busy = self.phase in (Phase.STARTING, Phase.JOINING, Phase.RESTORING, Phase.WAITING)
        over_s = self.clock.monotonic() - max(self._message_at, self._order.moved_at) - timeout_s
        return bool(timeout_s) and not busy and over_s > 0 and over_s > self._order.waits_s(self.assignment.tasks)

    def commit_now(self) -> None:
        """Commit all uncommitted work. Call it on the worker's thread only. A failure also stops the worker's loop."""
        try:
            self._commit()
        except Exception as failure:
            self._broken = failure
            raise

    def pause(self) -> None:
        """Pause the inputs; the worker stays in its group. Call it on the worker's thread only."""
        self.paused = True
        self.flow(lambda member, partitions: member.pause(partitions))

    def resume(self) -> None:
        """Resume the inputs; call it on the worker's thread only."""
        self.paused = False
        self._open.commit_in(0.0, self.clock.monotonic())  # a commit closes due windows and fires due timers
        if not self.maintenance.holds:
            self.flow(lambda member, partitions: member.resume(partitions))

    def commit_all(self, *, due: bool = False) -> bool:
        """Commit all uncommitted work; returns False if the transaction was aborted. Part of the port ``Owner``."""
        rewinds = self._rewinds
        self._commit(due=due)
        return self._rewinds == rewinds

    def compact(self) -> None:
        """Commit; rewrite RocksDB's files, also of standbys, without deleted entries. Inputs are paused meanwhile."""
        self.commit_now()
        flowing = not self.paused
        self.pause()
        try:
            for task in self.assignment.tasks:
                if task.phase is TaskPhase.RUNNING and task.store is not None:
                    task.store.compact(self._stay_a_member)
            for store in [task.store for task in self.assignment.standbys.tasks if task.store is not None]:
                store.compact(self._show_life)
        finally:
            if flowing:
                self.resume()

    def _stay_a_member(self) -> None:
        self._show_life()
        if self.member is not None and not self._lost:
            self._process_all(self.member.poll(1, 0.0))

    def flow(self, change: Callable[[GroupMember, list[Partition]], None]) -> None:
        """Call ``change``, which pauses or resumes partitions, with the input partitions of all running tasks."""
        if self.member is not None:
            tasks = running(self.assignment.tasks)
            change(self.member, [Partition(topic, task.partition) for task in tasks for topic in task.inputs])
            for order in [task.order for task in tasks if task.order is not None]:
                order.flows()

    # -- one membership of the group -----------------------------------------------------------------------------

    def _session(self, count: int, timeout_s: float) -> None:
        self._lost, self._leaving, self._broken = False, False, None
        self.processed -= self._open.clear()
        self.member = member = self.committer.join()
        try:
            member.subscribe([spec.name for spec in self.topology.inputs], self._assigned, self._revoked, self._dropped)
            self.committer.start()  # ends old transactions while the client joins in the background
            self.phase = Phase.JOINING
            while True:
                while not self._finished(count, timeout_s):
                    self._turn(member, count)
                sources_rest = self.paused or self._idle.sources.end(self.assignment.tasks)
                self._commit()
                rest = self.stopping or self.paused or not more_is_due(self.assignment.tasks)
                if self._finished(count, timeout_s) and rest and sources_rest:
                    break  # otherwise the loop goes on: the commit was aborted, or windows are still due
            self.phase = Phase.STOPPING
            if self.assignment.checkpoints is not None:
                self.assignment.checkpoints.take_all(self.assignment.tasks)
        except ProcessingFailed:
            # After other failures, memory may have changes that were not sent, so the work is discarded and read again.
            self._commit_before_failure()
            raise
        finally:
            self._leave(member)

    def _leave(self, member: GroupMember) -> None:
        """Leave the group, and close tasks and clients. If one step fails, the other steps are still done."""
        self._leaving = True  # closing the group member calls _revoked, which must not commit again
        with ExitStack() as steps:
            clients = member.close, self.committer.close
            for close in (self.assignment.close_all, *clients, self.maintenance.interrupt, self._idle.close):
                steps.callback(close)
            for task in self.assignment.tasks:
                task.drop()

    def _turn(self, member: GroupMember, count: int) -> None:
        self.heartbeat_at = self.clock.time()
        while self.requests:
            self.requests.pop(0).work()
        self._raise_what_failed()
        if restoring := self.assignment.busy:
            self._let_flow(member, self.assignment.advance(member, self.frames))
        self.maintenance.step()
        self._check_changelogs()
        self.global_tables.follow()
        if self._idle.sinks.step(self.assignment.tasks, member, flows=not (self.paused or self.maintenance.holds)):
            self._message_at = self.clock.monotonic()
        room = RECORDS_PER_POLL if not count else max(1, min(RECORDS_PER_POLL, count - self.processed))
        batches = member.poll(room, self.assignment.rest_s if restoring else self._patience())
        self._raise_what_failed()
        self.assignment.freshness.turn(self.assignment.tasks, self._open, self.clock.monotonic())
        self._open.polled(sum(len(batch.offsets) for batch in batches), room)
        self._process_all(batches, count)
        if not restoring:
            self.assignment.follow(member, idle=not batches)
            live, tasks, now = self._live, active(self.assignment.tasks), self.clock.monotonic()
            if live and self._idle.sources.pending(tasks):
                self._open.commit_in(self.options.commits.shortest_s, now)
            if live and (self._idle.step(tasks, silent=not batches) | self._order.watermarks_move(tasks, member)):
                self._open.commit_in(0.0, self.clock.monotonic())
            self._past.rest(self.assignment.tasks if live else (), member, self._open)
        self._update_phase(member)
        if self._open.is_due(self.clock.monotonic()):
            self._commit()
        self.committer.look_after()
        self._purge.step(self.assignment.tasks)
        if self.assignment.checkpoints is not None:
            self.assignment.checkpoints.tend(self.assignment.tasks)

    @property
    def _live(self) -> bool:
        return not (self.paused or self.maintenance.holds or self.reach.bounded)

    def _commit_is_due(self) -> bool:
        tasks = self.assignment.tasks
        return self._live and (slots_are_due(tasks, self.clock) | self._idle.sources.look(tasks))

    def _raise_what_failed(self) -> None:
        """Raise an error that a rebalance callback or a request stored earlier."""
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken
        if self._lost:
            raise OwnershipLost

    def _let_flow(self, member: GroupMember, tasks: list[Task]) -> None:
        self.seek(tasks)
        if tasks and not (self.paused or self.maintenance.holds):
            # One call with all partitions, because each call sets up all partitions again.
            member.resume([Partition(topic, task.partition) for task in tasks for topic in task.inputs])
        for task in tasks:
            self._pin(task)

    def seek(self, tasks: Sequence[Task]) -> None:
        """Seek the inputs of these tasks to the tasks' positions."""
        assert self.member is not None
        for task in tasks:
            if task.order is not None:
                task.order.clear()
            for topic, offset in task.positions.items():
                self.member.seek(Partition(topic, task.partition), offset)

    def _patience(self) -> float:
        if self.maintenance.busy:
            return 0.0
        longest = self._idle.sources.patience_s(self.assignment.tasks, self.assignment.standbys.patience_s)
        return min(self._idle.sinks.patience_s(longest), max(0.0, self._open.remaining_s(self.clock.monotonic())))

    def _update_phase(self, member: GroupMember) -> None:
        before = self.phase
        if check_brokers(member.brokers_down_s, self.options.broker_timeout_s, self._cluster.bootstrap):
            self.phase = Phase.WAITING
        elif self.assignment.busy:
            self.phase = Phase.RESTORING
        else:
            self.phase = Phase.RUNNING if self.assignment.freshness.joined else Phase.JOINING
        # The turn that ends a restore may have taken longer than a run's timeout, and its messages are not read yet.
        if {before, self.phase} & {Phase.JOINING, Phase.RESTORING, Phase.WAITING}:
            self._message_at = self.clock.monotonic()

    # -- processing ----------------------------------------------------------------------------------------------

    def _process_all(self, batches: list[Batch], count: int = 0) -> None:
        rewinds = self._rewinds
        for batch in batches:
            task = self.assignment.running(batch.partition)
            if task is None:
                continue  # the partition was revoked after the fetch; its next owner processes these records
            self._message_at = self.clock.monotonic() if has_messages(task, batch) else self._message_at
            within = self.reach.within(batch)
            if within < len(batch.offsets) and self.member is not None:
                self.member.pause([batch.partition])  # or records behind the read limit are fetched again and again
            if task.order is not None:
                task.order.add(batch, within)
                continue
            self._process(task, partial(in_one_batch, task, batch, within))
            if self._rewinds != rewinds:
                return  # the transaction was aborted: all these batches will be polled again
        if not (self.paused or self.maintenance.holds):
            self._process_in_order(count)

    def _process_in_order(self, count: int) -> None:
        """Process the buffered messages of tasks with several inputs, until each of these tasks waits for an input."""
        member, rewinds = self.member, self._rewinds
        assert member is not None

        def next_runs(task: Task, most: int) -> Sequence[Run | InterleavedRun]:
            return self._order.next_runs(task, member, count - self.processed if count else None, most)

        for task in (tasks := self.assignment.ordered):
            self._process(task, partial(next_runs, task))
            if self._rewinds != rewinds:
                return
            self._order.pause_full(task, member, tasks)

    def _process(self, task: Task, next_runs: NextRuns) -> None:
        """Process the records that ``next_runs`` returns, in a loop that ends when ``next_runs`` returns no records."""
        while task.phase is TaskPhase.RUNNING and not self.stopping:
            began = self.clock.monotonic()
            if task.awaits and not self._open.has_time_for_calls(began) and not self.commit_all():
                return
            runs = next_runs(self._open.room(self.failures.on_processed.room(self._slice)))
            if not runs:
                return
            self._show_life()
            self._open.begin(began)
            self._process_runs(task, runs)
            if not self._send(task):
                return  # the transaction was aborted: all batches will be polled again
            now = self.clock.monotonic()
            self._slice = self._slice if task.awaits else slice_size(self._slice, now - began, RECORDS_PER_SLICE)
            if (task.must_commit or self._open.is_due(now)) and not self.commit_all():
                return  # the commit was aborted: the remaining records will be polled again

    def _process_runs(self, task: Task, runs: Sequence[Run | InterleavedRun]) -> None:
        for run in in_turn(runs, task):
            before = dict(task.positions)
            try:
                done = task.take(run, self.failures)
                self.failures.on_processed(run, before, task.positions)
            except ProcessingFailed as failed:
                self._send_before(failed, task)
                raise
            if task.positions != before:
                self._open.add(task.name, done, task.dirty_bytes())
            self.processed += done
            self._message_at = self.clock.monotonic() if done else self._message_at  # a watermark is no message

    def _send_before(self, failed: ProcessingFailed, task: Task) -> None:
        """Send the outputs of the messages that were processed before a message failed.

        Raises:
            Exception: The outputs can't be sent. Its cause is the error of the failed message, so that both are shown.
        """
        try:
            self._send(task)
        except Exception as failure:
            raise failure from failed

    def _send(self, task: Task) -> bool:
        """Send a task's outputs; returns False if the transaction was aborted, so that its messages are read again."""
        if self.committer.send(task) is Outcome.DROPPED:
            self._rewind()
            return False
        return True

    # -- commit --------------------------------------------------------------------------------------------------

    def _commit(self, *, due: bool = False) -> None:
        for task in timed(self.assignment.tasks):
            task.before_commit(self.failures, due=due or not self.paused)
            if not self._send(task):
                return
        self._finish_commit()

    def _finish_commit(self) -> None:
        assert self.member is not None
        self._past.move(self.assignment.tasks, self.member, bounded=self.reach.bounded)
        if (outcome := self.committer.commit(self.member)) is Outcome.DROPPED:
            self._rewind()
            return
        if self._open.clear() and self.topology.repartitions:  # records sent to repartition topics arrive as input
            self._message_at = self.clock.monotonic()
        if outcome is Outcome.DONE:
            self._damages_in_a_row = 0
            self._open.committed(self.committer.last_s)
        if not self.paused and more_is_due(self.assignment.tasks):
            self._message_at = self.clock.monotonic()
            self._open.commit_in(0.0, self._message_at)

    def _rewind(self) -> None:
        """Discard all uncommitted work, and seek the inputs back to the last commit."""
        assert self.member is not None
        self._rewinds += 1
        self.processed -= self._open.clear()
        self._message_at = self.clock.monotonic()
        for task in running(self.assignment.tasks):
            for topic, offset in task.drop().items():
                self.member.seek(Partition(topic, task.partition), offset)
            self._pin(task)
        if self.reach.bounded and not self.paused:
            self.flow(lambda member, partitions: member.resume(partitions))  # inputs were paused at their read limits

    def _pin(self, task: Task) -> None:
        """Schedule an early commit if there is something to commit, for example the start offset of a new input."""
        if task.progressed or (more_is_due([task]) and not self.paused):
            self._open.commit_in(min(0.1, self.options.commits.longest_s), self.clock.monotonic())

    def while_waiting(self, since: float | None) -> None:
        """Update the heartbeat and answer read-only requests, while the worker waits for an answer of Kafka."""
        if since is None or self.clock.monotonic() - since > 2.0:
            self.phase = Phase.WAITING
        self._show_life()
        self._check_changelogs()

    def _check_changelogs(self) -> None:
        if self.same_changelogs is not None and not (self.paused or self.maintenance.busy or self.maintenance.holds):
            self.same_changelogs.check(self.assignment.tasks, failing=self.committer.failing)
            self.global_tables.compare(self.same_changelogs.seen, self.same_changelogs.widths)

    def _show_life(self) -> None:
        """Update the heartbeat and answer read-only requests. Called repeatedly while the loop is busy."""
        self.heartbeat_at = self.clock.time()
        for request in [request for request in self.requests if request.only_reads]:
            self.requests.remove(request)
            request.work()

    def _commit_before_failure(self) -> None:
        """Commit the messages before the failed message, so that a restart does not process them again."""
        try:
            for task in timed(self.assignment.tasks):
                task.keep_time()  # no window closes, because a window's function may have failed
                self._send(task)
            self._finish_commit()
        except Exception as failure:
            _log.warning("work before the failure is not committed; it will be processed again", error=str(failure))

    # -- rebalance callbacks: they run inside poll, so they store errors for _raise_what_failed --------------------

    def _assigned(self, partitions: list[Partition]) -> None:
        _log.info("partitions assigned", partitions=[f"{part.topic}[{part.number}]" for part in partitions])
        self.assignment.assigned(partitions)

    def _revoked(self, partitions: list[Partition]) -> None:
        _log.info("partitions revoked", count=len(partitions))
        try:
            if not self._leaving:
                self._idle.sources.end_of([] if self.paused else partitions, self.assignment.tasks, self._commit)
                self._commit()
        except OwnershipLost:
            self._lost = True
        except KafkaFailed as failure:
            _log.warning("work is not committed before the rebalance; its next owner redoes it", error=failure.message)
            self._lost = True
        except Exception as failure:
            self._broken = failure
        self.assignment.revoked(partitions)

    def _dropped(self, partitions: list[Partition]) -> None:
        _log.warning("partitions lost", count=len(partitions))
        self.assignment.revoked(partitions)
        self._lost = True
