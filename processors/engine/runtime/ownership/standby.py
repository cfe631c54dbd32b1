"""Standbys: local copies of tasks that run in other processes, kept current from the tasks' changelogs.

    WAITING ──opened──► BEHIND ──end reached──► FOLLOWING ──task assigned here, or no longer heir──► (removed)
       ▲                   └───────failed──────────┴──► WAITING (retried later)

A standby without local state first fetches a checkpoint (``first_checkpoint``), then replays only the later records.

An heir is a worker that gets the task if its owner leaves. A standby repeats the same replay: it reads the end offsets
of the changelogs, and replays the records up to these offsets, like a restore. If the task is assigned to this worker,
the standby is closed, and the task opens the same folder and restores the rest.

Invariants:
    - A RocksDB is open in a standby or in a task, never in both: the standby closes it before the task opens it.
    - The state is complete up to the time ``complete_at``, which is the time just before the end offsets were read. The
      value is updated only when the replay has reached these offsets.
    - A failure of a standby is logged, shown in the status and retried; it never stops running tasks.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import GroupShares, Partition, TopicFacts
from holdfast.processors.engine.checkpoints.keeper import CheckpointKeeper
from holdfast.processors.engine.runtime.change_of_workers import Change, Newcomer
from holdfast.processors.engine.runtime.options import RuntimeOptions
from holdfast.processors.engine.runtime.ownership.changelog_facts import facts_of_source, young_from
from holdfast.processors.engine.runtime.ownership.changelog_replay import Restorer, TaskRestore
from holdfast.processors.engine.runtime.ownership.fencing import FormerOwners
from holdfast.processors.engine.runtime.ownership.first_checkpoint import FirstCheckpoints
from holdfast.processors.engine.runtime.ownership.heirs import inherited_by, shares_after
from holdfast.processors.engine.runtime.ownership.store_replay import note_whole
from holdfast.processors.engine.runtime.ports import Cluster, GroupMember, TopicView
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import (
    ChangelogFacts,
    check_restore_age,
    delete_retention_s,
    not_to_wipe,
    topic_missing,
)
from holdfast.processors.engine.state.databases.database import Databases
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.errors import StateIncoherent
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.state.keep_or_restore import RestorePlan, plan_restore
from holdfast.processors.engine.topology import SourceLog, Topology

_log = structlog.get_logger("runtime.standby")

#: ``LOOK_EVERY_S``: seconds between two requests for the group's members. ``LOOK_AGAIN_S``: seconds until the next
#: request after a failed one.
LOOK_EVERY_S, LOOK_AGAIN_S = 3.0, 15.0
#: ``PATIENCE_S``: maximum seconds for which a poll waits for records. ``BUSY_PATIENCE_S``: the same while changelog
#: records wait to be replayed.
PATIENCE_S, BUSY_PATIENCE_S = 0.1, 0.002
#: Seconds between two checks for a planned change of workers.
CHANGE_EVERY_S = 0.5
#: ``LAP_EVERY_S``: seconds between the starts of two replays. ``LAP_PATIENCE_S``: maximum seconds by which a start is
#: delayed while an earlier replay is still running.
LAP_EVERY_S, LAP_PATIENCE_S = 1.0, 10.0
#: Seconds after which topic ids, first offsets and retention of the changelogs are requested again.
FACTS_EVERY_S = 10.0
#: Maximum fraction of the main loop's time that standbys may use while the worker has input.
TIME_SHARE = 0.2
#: Maximum number of records that one step replays, so that it takes only a few milliseconds.
RECORDS_PER_STEP = 2_000
#: Maximum seconds until a failed standby is retried. The first retries come after 1, 2, 4, ... seconds.
RETRY_S_MAX = 60.0
#: Timeout of one request about the group or a topic, in seconds. The worker's main loop waits for the answer.
REQUEST_TIMEOUT_S = 2.0


class StandbyPhase(Enum):
    """The phases of a standby; the module's docstring shows the transitions."""

    WAITING = "waiting"
    BEHIND = "behind"
    FOLLOWING = "following"


@dataclass(slots=True)
class _Standby:
    name: str
    subtopology: str
    partition: int
    stores: tuple[str, ...]
    task: Task | None = None
    phase: StandbyPhase = StandbyPhase.WAITING
    facts: Mapping[str, ChangelogFacts] = field(default_factory=dict)
    #: Number of replayed records, summed over the standby's finished replays.
    records: int = 0
    failures: int = 0
    retry_at: float = 0.0
    error: str | None = None
    #: Whether the replay of each store has ended with the last record of a commit.
    whole: dict[str, bool] = field(default_factory=dict)


#: The facts about a changelog topic, and the first offset of each of its partitions.
_Changelog = tuple[TopicFacts, Mapping[int, int]]


class Standbys:
    """The standbys of one worker: copies of tasks that run in other processes.

    If ``options.standby_replicas`` is 0, a worker has standbys only during a planned change of workers.
    """

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
        self._clock = cluster.clock
        self._folder = folder
        self._databases = databases
        self._options = options
        self._restorer = Restorer(cluster, RECORDS_PER_STEP)
        self._first = FirstCheckpoints(checkpoints, folder, databases, cluster.clock)
        self._standbys: dict[str, _Standby] = {}
        self.owners = FormerOwners(cluster)
        self._topics: TopicView | None = None
        self._changelogs: dict[str, _Changelog] = {}
        #: For source topics of tables: the offsets from which on Kafka has kept all tombstones (``young_from``). They
        #: are cached for ``FACTS_EVERY_S`` seconds.
        self._young: dict[str, Mapping[int, int]] = {}
        self._changelogs_until = self._look_at = self._lap_at = self._rest_until = 0.0
        #: Whether the last step replayed records. More records are then probably available now.
        self.busy = False
        self._change: Change | None = None
        self._change_at = 0.0
        #: Names of the tasks with state that this worker will own after the planned change. None if the group was not
        #: read yet; empty if the assignment can't be computed.
        self._forecast: frozenset[str] | None = None

    def step(self, member: GroupMember | Newcomer, taken: Container[str], *, idle: bool) -> None:
        """Replay changelog records for a short time; called between polls.

        ``taken`` has the names of this worker's own tasks. ``idle`` is True if the last poll returned no records.
        """
        self.busy = False
        began = self._clock.monotonic()
        if began >= self._change_at:
            self._change_at = began + CHANGE_EVERY_S
            change = self._options.change()
            if change != self._change:
                self._change, self._look_at, self._forecast = change, 0.0, None
        if not (self._options.standby_replicas or self._change or self._standbys) or member.brokers_down_s > 0:
            self._restorer.excuse()
            return
        if began >= self._look_at:
            self._look(member, taken, began)
        if not idle and began < self._rest_until:
            return
        self._begin_laps(began)
        self._replay()
        now = self._clock.monotonic()
        self._rest_until = now + (now - began) * (1 / TIME_SHARE - 1)

    @property
    def patience_s(self) -> float:
        """Maximum seconds for which a poll waits for records. Short while changelog records wait to be replayed."""
        return BUSY_PATIENCE_S if self.busy else PATIENCE_S

    def look_soon(self) -> None:
        """Makes the next step request the group's members again. Must be called after a rebalance."""
        self._look_at = 0.0

    def release(self, name: str) -> None:
        """Remove the standby of a task, if there is one, so that the task can open the same folder."""
        standby = self._standbys.pop(name, None)
        self._first.forget(name)
        if standby is not None:
            self._shut(standby)

    def close(self) -> None:
        """Close all standbys, and drop all facts about the group. A second call does nothing."""
        for name in list(self._standbys):
            self.release(name)
            self.owners.forget(name)
        self._restorer.close()
        self._topics = None
        self._changelogs.clear()
        self._look_at = self._lap_at = self._rest_until = 0.0
        self.busy = False

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the standbys that have a database. Other threads may read it."""
        return [each.task for each in list(self._standbys.values()) if each.task is not None]

    def told(self) -> list[dict[str, Any]]:
        """Returns the status of all standbys for the status page. Positions and lags are offsets.

        ``complete_at`` is in seconds since 1970.
        """
        return [self._told(standby) for _, standby in sorted(self._standbys.items())]

    # -- choice of tasks -------------------------------------------------------------------------------------------

    def _look(self, member: GroupMember | Newcomer, taken: Container[str], now: float) -> None:
        """Reads the group's members, and adds and removes standbys (copies of other workers' tasks).

        This worker needs a standby of each task that it gets if the task's owner leaves. If Kafka does not answer,
        nothing changes.
        """
        self._look_at = now + LOOK_EVERY_S
        own = member.member_id
        try:
            group = self._view().group_shares(self._options.group)
        except Exception as failure:
            self._look_at = self._clock.monotonic() + LOOK_AGAIN_S
            _log.warning("standbys stay as they are: the members of the group can't be read", error=_said(failure))
            return
        if group is None or own is None or (own not in group.members and not isinstance(member, Newcomer)):
            return
        heir = inherited_by(own, group, self._options.standby_replicas)
        wanted = self._tasks_of(heir | self._due(own, group))
        for name in [name for name in self._standbys if name not in wanted or name in taken]:
            self.release(name)
            if name not in taken:
                self.owners.forget(name)
        for name, standby in wanted.items():
            if name not in self._standbys and name not in taken:
                _log.info("standby", task=name)
                self._standbys[name] = standby

    def _due(self, own: str, group: GroupShares) -> set[Partition]:
        """Returns the partitions that this worker will own after the planned change.

        Stores their tasks in ``_forecast``.
        """
        change = self._change
        shares = None if change is None else shares_after(group, change.known, change.expected)
        due = set() if shares is None else set(shares.get(own, ()))
        self._forecast = None if change is None else frozenset(self._tasks_of(due))
        return due

    def prepared(self, taken: Container[str]) -> bool | None:
        """Whether this worker has the state of all tasks that it will own after the planned change.

        Returns None if no change is in progress.
        """
        if self._change is None:
            return None
        return self._forecast is not None and all(
            name in taken or (name in self._standbys and self._standbys[name].phase is StandbyPhase.FOLLOWING)
            for name in self._forecast
        )

    def _tasks_of(self, partitions: set[Partition]) -> dict[str, _Standby]:
        found: dict[str, _Standby] = {}
        known = {topic for subtopology in self._topology.subtopologies for topic in subtopology.inputs}
        # During a deployment, members with another version of the processor may read topics that this version does not
        # know.
        for partition in sorted(partition for partition in partitions if partition.topic in known):
            subtopology = self._topology.subtopology_of(partition.topic)
            stores = tuple(name for name in subtopology.stores if name in self._topology.logged)
            if stores:
                name = f"{subtopology.name}-{partition.number}"
                found[name] = _Standby(name, subtopology.name, partition.number, stores)
        return found

    # -- replays ---------------------------------------------------------------------------------------------------

    def _begin_laps(self, now: float) -> None:
        """Read the end offsets of the changelogs, and start the next replay of each standby that is not replaying."""
        if now < self._lap_at or (self._restorer.active and now < self._lap_at + LAP_PATIENCE_S):
            return
        ready = [
            standby
            for standby in self._standbys.values()
            if standby.name not in self._restorer.active
            and now >= standby.retry_at
            and not self._first.waits(standby.name)
        ]
        if not ready:
            return
        self._lap_at = now + LAP_EVERY_S
        looked_at = self._clock.time()
        ends: dict[str, Mapping[int, int]] = {}
        for standby in ready:
            try:
                self._begin_lap(standby, self._facts_of(standby, ends), looked_at)
            except Exception as failure:
                self._put_off(standby, failure)

    def _begin_lap(self, standby: _Standby, facts: Mapping[str, ChangelogFacts], looked_at: float) -> None:
        task = standby.task
        if task is None:
            if self._first.seek(standby.name, facts, looked_at):
                return  # a checkpoint is fetched first; the replay of the later records follows
            standby.task = task = Task(standby.name, standby.subtopology, standby.partition, ())
            task.open(TaskStore(self._databases, self._folder.task(standby.name)), standby.stores)
            standby.phase = StandbyPhase.BEHIND
        assert task.store is not None
        standby.facts = facts
        decided = _plan(task, task.store, facts, looked_at)
        if decided.wipe is not None:
            self._begin_anew(standby, task, decided.wipe)
            decided = plan_restore(standby.name, None, facts, looked_at)
        often = standby.phase is StandbyPhase.FOLLOWING
        self._restorer.begin(task, decided, facts, {}, looked_at, often=often)

    def _begin_anew(self, standby: _Standby, task: Task, why: str) -> None:
        _log.warning("a standby is dropped and replayed from the beginning", task=task.name, why=why)
        assert task.store is not None
        standby.phase = StandbyPhase.BEHIND
        task.wipe()

    def _facts_of(self, standby: _Standby, ends: dict[str, Mapping[int, int]]) -> dict[str, ChangelogFacts]:
        """Returns the facts of one standby's changelogs, by store. ``ends`` caches end offsets by topic."""
        if self._clock.monotonic() >= self._changelogs_until:
            self._changelogs.clear()
            self._young.clear()
            self._changelogs_until = self._clock.monotonic() + FACTS_EVERY_S
        facts = {}
        for store in standby.stores:
            spec, log = self._topology.changelog_of(store), self._topology.source_log_of(store)
            if log is not None:
                facts[store] = self._facts_of_source(log, standby.partition, ends)
                continue
            assert spec is not None
            seen, starts = self._changelog(spec.name)
            if spec.name not in ends:
                ends[spec.name] = self._view().end_offsets(spec.name, committed=False)
            start, end = starts.get(standby.partition, 0), ends[spec.name].get(standby.partition, 0)
            facts[store] = ChangelogFacts(spec.name, seen.topic_id, start, end, delete_retention_s(seen))
        return facts

    def _facts_of_source(self, log: SourceLog, number: int, ends: dict[str, Mapping[int, int]]) -> ChangelogFacts:
        """Returns the facts of a table's source topic, which a standby replays up to the group's committed offset."""
        seen, starts = self._changelog(log.topic)
        if log.topic not in self._young:
            self._young[log.topic] = young_from(self._view(), seen, log.topic, self._clock.time())
        if log.topic not in ends:
            committed = self._view().committed_offsets(self._options.group)
            ends[log.topic] = {place.number: end for place, end in committed.items() if place.topic == log.topic}
        young = self._young[log.topic].get(number, 0)
        return facts_of_source(log, seen, starts.get(number, 0), ends[log.topic].get(number), young)

    def _changelog(self, name: str) -> _Changelog:
        known = self._changelogs.get(name)
        if known is None:
            described = self._view().describe([name])
            if name not in described:
                raise topic_missing(name, self._topology)
            known = self._changelogs[name] = described[name], self._view().start_offsets(name)
        return known

    def _replay(self) -> None:
        under_way = list(self._restorer.active.values())
        if not under_way:
            return
        before = sum(restore.records for restore in under_way)
        try:
            complete = self._restorer.step(0.0)
        except Exception as failure:
            self._interrupt(failure)
            return
        for restore in under_way:
            self.owners.note(restore.task.name, restore.owner)
        self.busy = sum(restore.records for restore in under_way) > before
        for restore in complete:
            standby = self._standbys[restore.task.name]
            try:
                self._reached(standby, restore)
            except Exception as failure:
                self._put_off(standby, failure)

    def _reached(self, standby: _Standby, restore: TaskRestore) -> None:
        """Finish a replay: store ``complete_at``, and change the standby's phase to FOLLOWING."""
        task = restore.task
        assert task.store is not None
        if restore.records:
            try:
                check_restore_age(task.name, self._clock.time() - restore.complete_at, standby.facts)
            except StateIncoherent as too_long:
                self._begin_anew(standby, task, too_long.message)
                return
        standby.records += restore.records
        if task.meta.stores:
            task.write(restoring=True, complete_at=restore.target_at)
            if note_whole(standby.whole, restore.replays.values()):
                task.store.views.publish()
        if standby.phase is not StandbyPhase.FOLLOWING:
            _log.info("standby has the whole changelog", task=task.name, records=standby.records)
        standby.phase, standby.failures, standby.error = StandbyPhase.FOLLOWING, 0, None

    # -- failures --------------------------------------------------------------------------------------------------

    def _interrupt(self, failure: Exception) -> None:
        """Stops all replays after a failure. Standbys whose replay caused the failure wait before they are retried.

        All other standbys continue soon. If the cause is unknown, all standbys that were replaying wait.
        """
        under_way = dict(self._restorer.active)
        blamed = [name for name, restore in under_way.items() if _is_blamed(restore, failure)]
        self._restorer.close()
        for name in blamed or list(under_way):
            self._put_off(self._standbys[name], failure)

    def _put_off(self, standby: _Standby, failure: Exception) -> None:
        self._changelogs.clear()
        standby.failures += 1
        wait_s = min(RETRY_S_MAX, 2.0 ** (standby.failures - 1))
        standby.retry_at = self._clock.monotonic() + wait_s
        standby.error = _said(failure)
        _log.warning("a standby failed; it will be retried", task=standby.name, error=standby.error, in_s=wait_s)
        self._shut(standby)

    def _shut(self, standby: _Standby) -> None:
        task, standby.task, standby.phase = standby.task, None, StandbyPhase.WAITING
        if task is None:
            return
        try:
            self._restorer.forget(task)
            task.close()
        except Exception as failure:
            _log.warning("a standby was not closed cleanly", task=standby.name, error=_said(failure))

    def _view(self) -> TopicView:
        if self._topics is None:
            self._topics = self._cluster.topics(REQUEST_TIMEOUT_S)
        return self._topics

    def _told(self, standby: _Standby) -> dict[str, Any]:
        meta = TaskMeta() if standby.task is None else standby.task.meta
        stores, lags = {}, []
        for store, facts in standby.facts.items():
            at = meta.stores.get(store)
            position = facts.start if at is None else at.offset
            lags.append(max(0, facts.end - position))
            stores[store] = {"changelog": facts.topic, "position": position, "end": facts.end, "lag": lags[-1]}
        restore = self._restorer.active.get(standby.name)
        return {
            "task": standby.name,
            "subtopology": standby.subtopology,
            "partition": standby.partition,
            "phase": standby.phase.value,
            "stores": stores,
            "lag": sum(lags) if standby.task is not None and lags else None,
            "complete_at": meta.complete_at or None,
            "records": standby.records + (restore.records if restore is not None else 0),
            "checkpoint": self._first.used(standby.name),
            "error": standby.error,
        }


def _plan(task: Task, store: TaskStore, facts: Mapping[str, ChangelogFacts], looked_at: float) -> RestorePlan:
    """Returns the offsets from which a standby continues, and in ``wipe`` the reason if its local state must be
    dropped.

    Raises:
        StateIncoherent: The local state does not match the changelog, but may be the only complete copy. A task left
            the state complete, or was writing the changelog again from it (re-seed). So a standby may not delete it.
    """
    meta = task.meta
    needed = meta.reseeding or (bool(meta.inputs) and not meta.restoring)
    unknown = [name for name in facts if name not in meta.stores and store.holds_data(name)]
    if unknown and needed:
        raise not_to_wipe(task.name, unknown, "its changelog was turned on after the data was written")
    if unknown:
        return RestorePlan({}, wipe="it holds data without offsets: its first write was interrupted")
    if meta == TaskMeta():
        return plan_restore(task.name, None, facts, looked_at)
    try:
        return plan_restore(task.name, meta, facts, looked_at)
    except StateIncoherent as gone:
        if needed:
            raise
        return RestorePlan({}, wipe=gone.message)


def _is_blamed(restore: TaskRestore, failure: Exception) -> bool:
    store = restore.task.store
    if store is not None and store.failure is not None:
        return True
    fields = failure.fields if isinstance(failure, HoldfastError) else {}
    if fields.get("task") == restore.task.name:
        return True
    return any((part.topic, part.number) == (fields.get("topic"), fields.get("partition")) for part in restore.replays)


def _said(failure: Exception) -> str:
    return failure.message if isinstance(failure, HoldfastError) else f"{type(failure).__name__}: {failure}"
