"""The tasks of one worker. They are opened, restored and closed when the group assigns and revokes their partitions.

A restore starts from a checkpoint of the object store (``checkpoints.decision``), from the local RocksDB, or at the
first changelog record (``state.keep_or_restore``). These steps must run in this order, otherwise the restore could miss
the last commit of the previous owner:
    1. The group assigns the partition.
    2. Read the committed offsets; the broker answers only when no transaction has pending offsets.
    3. Read the targets of the restore: the changelogs' high watermarks. For a table that is restored from its source
       topic, the target is the committed offset.
    4. Replay the changelogs up to the targets.
    5. The *coherence guard* (the checks in ``state.coherence``) compares the state with the committed offsets.

Invariants:
    - A task runs only after the coherence guard has accepted it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import structlog

from holdfast.infra.kafka.errors import BrokerUnreachable, CoordinatorMoving
from holdfast.infra.kafka.records import Partition
from holdfast.processors.engine.checkpoints.decision import Refusal, Wanted, worth_looking
from holdfast.processors.engine.checkpoints.fetch import CheckpointSearch, Fetched
from holdfast.processors.engine.checkpoints.keeper import CheckpointKeeper
from holdfast.processors.engine.dataframe.dataframe import StreamingDataFrame
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.ownership import first_start
from holdfast.processors.engine.runtime.ownership.changelog_facts import facts_of_task, read_changelogs
from holdfast.processors.engine.runtime.ownership.changelog_replay import HELD_S, Restorer, TaskRestore, is_for_bulk
from holdfast.processors.engine.runtime.ownership.checks.partitions_ours import check_still_ours, check_together
from holdfast.processors.engine.runtime.ownership.checks.same_meaning import check_meaning
from holdfast.processors.engine.runtime.ownership.fencing import LOOK_EVERY_S
from holdfast.processors.engine.runtime.ownership.freshness import Freshness
from holdfast.processors.engine.runtime.ownership.reseeds import Reseeds
from holdfast.processors.engine.runtime.ownership.standby import Standbys
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember
from holdfast.processors.engine.runtime.reading.misplaced_keys import key_places
from holdfast.processors.engine.runtime.reading.watermark_writer import Groups
from holdfast.processors.engine.runtime.task.facts import TaskPhase
from holdfast.processors.engine.runtime.task.inputs_in_order import order_of
from holdfast.processors.engine.runtime.task.noted_time import Noted, noted
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import (
    ChangelogFacts,
    check_inputs,
    check_restore_age,
    check_source,
    check_sources_same,
    not_to_wipe,
    source_missing,
)
from holdfast.processors.engine.state.databases.database import Databases
from holdfast.processors.engine.state.databases.scratch import ScratchFolder
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.state.keep_or_restore import RestorePlan, may_begin_empty, plan_restore, without_emptied
from holdfast.processors.engine.topology import Topology

_log = structlog.get_logger("runtime.assignment")


class Assignment:
    """Opens, restores and closes the tasks of one worker. ``checkpoints`` is None without an object store."""

    def __init__(
        self,
        topology: Topology,
        cluster: Cluster,
        folder: StateFolder,
        databases: Databases,
        options: RuntimeOptions,
        checkpoints: CheckpointKeeper | None = None,
    ) -> None:
        self._topology = topology
        self._cluster = cluster
        self._folder = folder
        self._databases = databases
        self.options = options
        self._restorer = Restorer(cluster)
        self.scratch = ScratchFolder(databases, folder.path)
        self.reseeds = Reseeds(options.start.reseed)
        self.checkpoints = checkpoints
        #: The worker's standbys: copies of tasks that run in other processes.
        self.standbys = Standbys(topology, cluster, folder, databases, options, checkpoints)
        self._tasks: dict[str, Task] = {}
        self._by_partition, self._starts = dict[Partition, Task](), dict[Partition, int]()
        self.freshness, self.pending = Freshness(cluster.session_s), list[Task]()
        #: Seconds for which the loop may wait for records before it calls ``advance`` again.
        self.rest_s = 0.0
        self._fetching: dict[str, tuple[Task, CheckpointSearch]] = {}
        self._fetched: dict[str, Fetched] = {}
        #: For each task that is being opened: the stream time and the message counts from the metadata of its committed
        #: offsets.
        self._noted: dict[str, Noted] = {}
        #: Maps topics (sources and changelogs) to their topic ids, as read at the last assignment.
        self.topic_ids: dict[str, str] = {}
        # `latest` applies only to source topics. A repartition topic is always read from its first offset.
        skipping = () if options.offset_reset == "earliest" else (spec.name for spec in topology.sources)
        self._first_start = first_start.look(cluster.topics(), options.group, skipping)

    @property
    def tasks(self) -> Sequence[Task]:
        """All tasks that are assigned to this worker now, including tasks that do not run yet."""
        return list(self._tasks.values())

    @property
    def ordered(self) -> Sequence[Task]:
        """The running tasks that read several inputs in a common order."""
        return [task for task in self._tasks.values() if task.order is not None and task.phase is TaskPhase.RUNNING]

    @property
    def restoring(self) -> Mapping[str, TaskRestore]:
        """The running restores, by task name."""
        return self._restorer.active

    @property
    def busy(self) -> bool:
        """Whether a task that is assigned to this worker does not run yet."""
        return bool(self.pending or self._fetching or self._restorer.active or self.reseeds.busy)

    def checkpoint_of(self, task: str) -> Mapping[str, object] | None:
        """Returns facts about a task's checkpoint for the status page; None if no checkpoint was searched for.

        The result has the progress of a running download, or the checkpoint that was used, or the reasons why no
        checkpoint was used.
        """
        if task in self._fetching:
            return {"fetching": dict(self._fetching[task][1].job.progress)}
        fetched = self._fetched.get(task)
        return None if fetched is None else fetched.told()

    def running(self, partition: Partition) -> Task | None:
        """Returns the running task that reads this partition; None if the task does not run on this worker."""
        task = self._by_partition.get(partition)
        return task if task is not None and task.phase is TaskPhase.RUNNING else None

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """Note newly assigned partitions during a rebalance callback.

        ``advance`` opens their tasks after the callback.
        """
        self.freshness.assigned()
        self.standbys.look_soon()
        for partition in partitions:
            subtopology = self._topology.subtopology_of(partition.topic)
            name = f"{subtopology.name}-{partition.number}"
            task = self._tasks.get(name)
            if task is None:
                task = Task(name, subtopology.name, partition.number, ())
                self._tasks[name] = task
                self.pending.append(task)
            task.reads(partition.topic)
            self._by_partition[partition] = task

    def check_folder(self) -> None:
        """Raise StateDiskFailed if the state folder was deleted or replaced while the worker runs."""
        self._folder.check_held()

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """Close the tasks of these partitions, and discard their uncommitted work."""
        for partition in partitions:
            self._starts.pop(partition, None)
            task = self._by_partition.pop(partition, None)
            if task is None or task.name not in self._tasks:
                continue
            self._restorer.forget(task)
            self.reseeds.forget(task.name)
            self._forget_fetch(task.name)
            if task in self.pending:
                self.pending.remove(task)
            task.close()
            del self._tasks[task.name]
        self._share_cache()

    def _share_cache(self) -> None:
        """Divide the memory for cached values equally among all stores of this worker's tasks."""
        states = [state for task in self._tasks.values() for state in task.states.values()]
        for state in states:
            state.bound_cache(self.options.state_cache_bytes // len(states))

    def advance(self, member: GroupMember, frames: Mapping[str, StreamingDataFrame]) -> list[Task]:
        """Open pending tasks, replay some changelog records, and return the tasks that began to run during this call.

        Raises StateIncoherent if a task's state does not match the committed offsets.
        """
        self.rest_s = 0.0
        self._look_at_fetches()
        if self.pending:
            try:
                self._open_pending(member)
            except (BrokerUnreachable, CoordinatorMoving) as away:
                _log.warning("tasks wait for the broker", error=away.message)
                if member.brokers_down_s == 0:
                    self.standbys.owners.end_left()
                return []
        if member.brokers_down_s > 0:
            self._restorer.excuse()
        if self._restorer.waits_s > HELD_S:
            self.standbys.owners.end_left()
        if self._fetching and self.checkpoints is not None and not self._restorer.active:
            self.checkpoints.wait(0.05)
        started = []
        for restore in [*self.reseeds.take_ready(), *self._restorer.step(0.01 if self._fetching else 0.05)]:
            if self.reseeds.hold(restore):
                continue
            try:
                self._finish(restore, frames)
            except StateIncoherent:
                of = restore.task.partition
                check_still_ours(member, {Partition(topic, of): at for topic, at in restore.committed.items()})
                raise
            started.append(restore.task)
        if started:
            self._share_cache()
        return started

    def follow(self, member: GroupMember, *, idle: bool) -> None:
        """Replay changelog records into the standbys for a short time."""
        self.standbys.step(member, self._tasks, idle=idle)

    def close_all(self) -> None:
        """Close all tasks, all standbys, and the consumer of the restores. A second call does nothing."""
        self.freshness.left()
        self._restorer.close()
        self.standbys.close()
        for name in list(self._tasks):
            self._forget_fetch(name)
            self.reseeds.forget(name)
            self._tasks[name].close()
        self._tasks.clear()
        self._by_partition.clear()
        self._starts.clear()
        self.pending.clear()

    def _open_pending(self, member: GroupMember) -> None:
        tasks = list(self.pending)
        inputs = [Partition(topic, task.partition) for task in tasks for topic in task.inputs]
        # Read before the requests: if the process freezes during a request, the facts are only as new as this time.
        looked_at = self._cluster.clock.time()
        if not self._fence_former_owners(tasks):
            self.rest_s = LOOK_EVERY_S
            return
        found = member.committed(inputs)
        for task in tasks:
            of_task = [found[Partition(topic, task.partition)] for topic in task.inputs]
            found_noted = self._noted[task.name] = noted(task.name, of_task)
            task.arrivals.recall(found_noted.arrivals)
        committed = {place: None if offset is None else int(offset) for place, offset in found.items()}
        try:
            self._look_at_sources(inputs, committed)
            stores, topics = {name for task in tasks for name in self._stores(task)}, self._cluster.topics()
            changelogs = read_changelogs(topics, self._topology, stores, committed, looked_at)
            self.topic_ids.update({at.topic: at.topic_id for found in changelogs.values() for at in found.values()})
            member.broker_answered()
            for task in tasks:
                by_topic = {topic: committed[Partition(topic, task.partition)] for topic in task.inputs}
                self._open(task, facts_of_task(changelogs, self._stores(task), task.partition), by_topic, looked_at)
                self.pending.remove(task)
        except StateIncoherent:
            check_still_ours(member, committed)
            raise

    def _fence_former_owners(self, tasks: Sequence[Task]) -> bool:
        topics = {spec.store: spec.topic.name for spec in self._topology.changelogs}
        changelogs = {task.name: [topics[name] for name in self._stores(task) if name in topics] for task in tasks}
        return self.standbys.owners.fence({task.name: task.partition for task in tasks}, changelogs)

    def _look_at_sources(self, inputs: Sequence[Partition], committed: Mapping[Partition, int | None]) -> None:
        """Check the input topics, and choose the start offset of partitions without a committed offset."""
        topics = self._cluster.topics()
        names = sorted({partition.topic for partition in inputs})
        described = topics.describe(names)
        check_together(self.options.group, self._topology, self.pending, topics)
        for task in self.pending:
            task.arrivals.judge_places(key_places(self._topology, task.inputs, task.partition, described))
        for name in names:
            if name not in described:
                raise source_missing(name)
            self.topic_ids[name] = described[name].topic_id
            starts, ends = topics.start_offsets(name), topics.end_offsets(name, committed=False)
            for partition in (each for each in inputs if each.topic == name):
                start, end = starts.get(partition.number, 0), ends.get(partition.number, 0)
                check_source(name, partition.number, committed[partition], start, end)
                self._starts[partition] = end if self._first_start.begins_at_end(partition) else start

    def _open(
        self, task: Task, facts: Mapping[str, ChangelogFacts], committed: Mapping[str, int | None], looked_at: float
    ) -> None:
        """Open the store of a task and start its replay, or start to fetch a checkpoint for it."""
        store = None
        if self._stores(task):
            self.standbys.release(task.name)
            self._install(task)
            store = TaskStore(self._databases, self._folder.task(task.name), self._tail_in_bulk(task, facts))
        try:
            if store is not None:
                self._check_installed(task, store)
            facts = self.reseeds.decide(task.name, store, facts, committed)
            decided = self._plan(task, store, facts, committed, looked_at)
            anew = self.reseeds.stores_of(task.name)
            if anew and decided.wipe is not None:
                raise not_to_wipe(task.name, anew, decided.wipe)
            if store is not None and not anew and self._fetch_first(task, facts, decided, committed, looked_at):
                if decided.aside:
                    store.wipe(aside=True)  # The state is renamed, because the checkpoint will replace it.
                store.close()
                return
        except BaseException:
            if store is not None:
                store.close()
            raise
        changelogs_of = {spec.store: spec.topic.name for spec in self._topology.changelogs}
        task.open(store, self._stores(task), changelogs_of, self.options.record_bytes_max, self.options.record_times)
        empty = may_begin_empty(self.options.start.begin_empty, facts)
        task.correct(without_emptied(task.meta, empty, facts) or task.meta)
        self._restorer.begin(task, decided, facts, committed, looked_at)

    def _plan(
        self,
        task: Task,
        store: TaskStore | None,
        facts: Mapping[str, ChangelogFacts],
        committed: Mapping[str, int | None],
        looked_at: float,
    ) -> RestorePlan:
        meta = None if store is None else store.meta()
        if meta == TaskMeta():
            meta = None
        empty = may_begin_empty(self.options.start.begin_empty, facts)
        meta = without_emptied(meta, empty, facts)
        decided = plan_restore(task.name, meta, facts, looked_at, committed)
        unknown = [name for name in facts if meta is None or name not in meta.stores]
        held = [] if store is None else [name for name in unknown if store.holds_data(name)]
        if held:
            kept = [name for name in held if name not in empty and facts[name].source is None]
            if kept and meta is not None and meta.inputs and not meta.restoring:
                raise not_to_wipe(task.name, kept, "its changelog was turned on after the data was written")
            # The age of this data is unknown, so the data is dropped. It may have keys that were deleted in Kafka long
            # ago, so that no tombstone is left to replay.
            whole = plan_restore(task.name, None, facts, looked_at)
            why = "its first write was interrupted" if kept else "the former state of a store was dropped"
            # The folder is renamed instead of deleted, because the data of its other stores may be complete although
            # their changelogs are not.
            decided = replace(whole, wipe=f"it holds data without offsets: {why}", aside=meta is not None)
        return decided

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _fetch_first(
        self,
        task: Task,
        facts: Mapping[str, ChangelogFacts],
        decided: RestorePlan,
        committed: Mapping[str, int | None],
        looked_at: float,
    ) -> bool:
        """Start to fetch a checkpoint if this makes the replay much shorter. Returns whether a fetch was started.

        When the fetch has ended, the task is opened again.
        """
        replay = sum(known.end - decided.starts[name] for name, known in facts.items())
        if self.checkpoints is None or task.name in self._fetched or not worth_looking(replay):
            return False
        if self.options.start.from_changelog:
            return False
        wanted = Wanted(task.name, self.checkpoints.database, facts, committed, dict(self.topic_ids), looked_at, replay)
        self._fetching[task.name] = task, self.checkpoints.fetch(wanted)
        return True

    def _look_at_fetches(self) -> None:
        """Makes tasks pending again whose checkpoint fetch has ended. The fetch may have ended without a checkpoint."""
        now = self._cluster.clock.monotonic()
        for name, (task, fetching) in list(self._fetching.items()):
            found = fetching.ended(now)
            if found is not None:
                del self._fetching[name]
                self._fetched[name] = found
                self.pending.append(task)

    def _install(self, task: Task) -> None:
        """Move a fetched checkpoint into the folder of the task's RocksDB.

        Does nothing without a fetched checkpoint.
        """
        fetched = self._fetched.get(task.name)
        if fetched is None or fetched.manifest is None or fetched.path is None:
            return
        path = self._folder.task(task.name)
        try:
            if self._databases.exists(path):
                self._databases.delete(path)
            self._databases.move(fetched.path, path)
        except OSError as failure:
            self._refuse(task, fetched, f"it could not be moved into place: {failure}")
            return
        manifest = fetched.manifest
        _log.info(
            "state begins with a checkpoint",
            task=task.name,
            checkpoint=manifest.checkpoint_id,
            bytes=manifest.size,
            stores={name: at.offset for name, at in manifest.meta.stores.items()},
        )

    def _tail_in_bulk(self, task: Task, facts: Mapping[str, ChangelogFacts]) -> int | None:
        """Returns the number of offsets to replay after the task's checkpoint.

        Returns None without a checkpoint, or if the number is too small for bulk mode (RocksDB with faster writes).
        """
        fetched = self._fetched.get(task.name)
        if fetched is None or fetched.manifest is None:
            return None
        held = fetched.manifest.meta.stores
        tail = sum(known.end - (held[name].offset if name in held else known.start) for name, known in facts.items())
        return tail if is_for_bulk(tail) else None

    def _check_installed(self, task: Task, store: TaskStore) -> None:
        """Delete an installed checkpoint if its RocksDB contains other offsets than the checkpoint's manifest says."""
        fetched = self._fetched.get(task.name)
        if fetched is not None and fetched.manifest is not None and store.meta() != fetched.manifest.meta:
            self._refuse(task, fetched, "its database has other offsets than its manifest")
            store.wipe()

    def _refuse(self, task: Task, fetched: Fetched, why: str) -> None:
        assert fetched.manifest is not None
        refused = Refusal(fetched.manifest.checkpoint_id, why)
        _log.warning("a checkpoint is not used", task=task.name, checkpoint=refused.checkpoint_id, why=why)
        self._fetched[task.name] = Fetched(None, fetched.path, (*fetched.refused, refused))

    def _forget_fetch(self, task: str) -> None:
        found = self._fetched.pop(task, None)
        if task in self._fetching:
            found = self._fetching.pop(task)[1].give_up() or found
        if found is not None and self.checkpoints is not None:
            self.checkpoints.discard(found)  # ``discard`` does not delete installed files

    def _finish(self, restore: TaskRestore, frames: Mapping[str, StreamingDataFrame]) -> None:
        task = restore.task
        age_s = self._cluster.clock.time() - restore.complete_at
        if restore.records:
            check_restore_age(task.name, age_s, restore.facts)
        check_sources_same(task.name, restore.sources, self.topic_ids)
        if not self.options.start.clears:
            check_meaning(task, self._topology, restore.keys)
        committed = {topic: offset for topic, offset in restore.committed.items() if offset is not None}
        begun_empty = task.begun_empty
        if restore.replays:
            begun_empty = restore.never_written(may_begin_empty(self.options.start.begin_empty, restore.facts))
            held = {name: at for name, at in restore.state_inputs().items() if name not in begun_empty}
            fed_by = {name: self._topology.inputs_of(name) for name in held}
            chained = [name for name in held if len(self._topology.chain_of(name)) > 1]
            own = [spec.name for spec in self._topology.stores if not spec.follows_input]
            resume = check_inputs(task.name, held, restore.committed, fed_by, chained, own)
        else:
            resume = committed
            self._check_local_only(task, resume)
        if task.store is not None:
            stores = {**task.meta.stores, **restore.begun(begun_empty, committed)}
            task.write(inputs=resume, stores=stores, restoring=False, complete_at=restore.target_at)
            task.store.forget_aside()
        began = {topic: resume.get(topic, self._starts[Partition(topic, task.partition)]) for topic in task.inputs}
        task.restored_by(restore.records, self._cluster.clock.monotonic() - restore.started_at, begun_empty)
        groups = Groups(self.options.groupings, self._cluster.clock.monotonic, self.options.start.shadow)
        task.start(frames, committed, began, groups)
        then = self._noted.pop(task.name, None)
        if task.time is not None and then is not None and then.time is not None and began == committed:
            task.time.recall(then.time)
        task.order = order_of(task, self._topology.subtopology(task.subtopology).inputs, frames, self.options, groups)
        progress = restore.progress(self._cluster.clock.monotonic())
        fetched = self._fetched.get(task.name)
        used = None if fetched is None or fetched.manifest is None else fetched.manifest.checkpoint_id
        _log.info("task runs", task=task.name, committed=committed, reads_from=began, checkpoint=used, **progress)

    def _check_local_only(self, task: Task, committed: Mapping[str, int]) -> None:
        """Checks a task without changelogs. Raises StateIncoherent unless its state is at the committed offsets.

        Without a changelog, state at other offsets can't be repaired.
        """
        if task.store is None or task.meta.inputs == committed:
            return
        if task.meta == TaskMeta():
            _log.warning("the store keeps no changelog and starts empty", task=task.name, inputs=dict(committed))
            return
        raise StateIncoherent(
            f"Task {task.name}: its state holds the inputs up to {dict(task.meta.inputs)}, but the group committed "
            f"{dict(committed)}. The store has no changelog to repair it from.",
            action='Call `clear_state(rewind="earliest")` to rebuild the state; turn changelogs on.',
            cause="offsets-reset",
            task=task.name,
        )

    def _stores(self, task: Task) -> tuple[str, ...]:
        return self._topology.subtopology(task.subtopology).stores
