"""Restores state: replays changelogs with a separate consumer, in steps between polls of the group consumer.

``assignment`` chooses the start of each replay. The target is the changelog's high watermark, read after the previous
owner was fenced. The consumer reads with read_committed. A partition is complete when the position reaches the target,
or when the consumer reaches the partition's end. The position may stay below the target, because the last offsets
before the target may be transaction markers or compacted records.

A table with ``changelog="source"`` is replayed from its source topic, up to the group's committed offset; each record
becomes a row (``joins.source_rows``).

Invariants:
    - Data is written before the changelog offsets that cover it. An interrupted restore continues at these offsets.
    - During a replay, the store is marked ``restoring``, so that its incomplete state is never used.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import msgspec
import structlog

from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.changelog.format import META_KEY, Commands, check_records, decode_meta
from holdfast.processors.engine.joins.source_rows import rows_of
from holdfast.processors.engine.runtime.ownership.store_replay import StoreReplay
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state.coherence import ChangelogFacts
from holdfast.processors.engine.state.databases.keys import store_prefix
from holdfast.processors.engine.state.databases.task_meta import RESEEDING, StoreOffset
from holdfast.processors.engine.state.errors import StateFailed, StateIncoherent
from holdfast.processors.engine.state.keep_or_restore import RestorePlan
from holdfast.processors.engine.topology import SourceLog

_log = structlog.get_logger("runtime.restore")

#: Maximum number of records that one step reads.
RECORDS_PER_STEP = 10_000
#: Minimum number of offsets to replay for which RocksDB's bulk mode is used.
BULK_RECORDS_MIN = 50_000
#: Seconds between two writes of the replayed offsets to RocksDB. After a crash, the records of this time are replayed
#: again.
NOTE_EVERY_S = 1.0
#: Seconds. If the worker pauses longer than this between two steps, the timeouts for a lack of progress start again.
ABSENT_S = 5.0
#: Seconds. A restore fails if no record arrives during this time. The error names the cause.
NO_PROGRESS_S = 120.0
#: Seconds. After this time without progress, the worker searches for open transactions that block the changelog.
HELD_S = 5.0


def is_for_bulk(records: int) -> bool:
    """Whether a replay is so long that RocksDB's bulk mode (faster writes) pays, although it costs two more opens."""
    return records >= BULK_RECORDS_MIN


@dataclass(slots=True)
class TaskRestore:
    """The restore of one task: the replays of its stores, and their progress."""

    task: Task
    replays: dict[Partition, StoreReplay]
    committed: Mapping[str, int | None]
    started_at: float
    progress_at: float
    #: Wall-clock seconds at which the targets were read. A finished restore contains all changes up to this time.
    target_at: float
    #: Wall-clock seconds. When the restore started, the local state contained all changes up to this time.
    complete_at: float
    #: Maps each input topic to the topic id that it had when the state was built.
    sources: Mapping[str, str]
    #: Transactional id of the worker that made the last replayed commit; empty if no commit was replayed yet.
    owner: str = ""
    #: The ``once`` names of the last owner commands that changed the state, from the last replayed commit. A repeated
    #: command has the same name, and is not carried out again.
    commands: Commands = msgspec.UNSET
    records: int = 0
    #: Number of offsets that were left to replay when the restore started.
    started_with: int = 0
    #: Monotonic seconds at which the replayed offsets were last written to RocksDB.
    noted_at: float = 0.0
    noted_remaining: int = 0
    #: Whether all records are written to RocksDB, but RocksDB still flushes them to disk in the background.
    flushing: bool = False

    @property
    def bulk(self) -> bool:
        """Whether RocksDB is in bulk mode. An earlier, interrupted restore may have set this mode."""
        return self.task.store is not None and self.task.store.in_bulk

    @property
    def done(self) -> bool:
        """Whether every changelog reached its target."""
        return all(replay.done for replay in self.replays.values())

    @property
    def remaining(self) -> int:
        """Number of offsets left to replay, over all stores of the task."""
        return sum(max(0, replay.facts.end - replay.position) for replay in self.replays.values())

    def state_inputs(self) -> dict[str, Mapping[str, int]]:
        """Maps each store to the input offsets up to which its state is complete."""
        return {replay.store: replay.held(self.committed) for replay in self.replays.values()}

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """Maps each store to text lines that describe its keys, for example the key of a ``group_by``.

        A store has no entry if no commit recorded these lines.
        """
        replayed = {replay.store: replay.keys for replay in self.replays.values()}
        kept = {name: lines for name, lines in self.task.meta.keys.items() if name not in replayed}
        return kept | {name: lines for name, lines in replayed.items() if lines is not msgspec.UNSET}

    @property
    def facts(self) -> dict[str, ChangelogFacts]:
        """Maps each store to what is known of its changelog: topic id, first offset, target offset, and retention."""
        return {replay.store: replay.facts for replay in self.replays.values()}

    @property
    def sources_replayed(self) -> set[str]:
        """The source topics from which tables are restored."""
        return {replay.facts.topic for replay in self.replays.values() if replay.facts.source is not None}

    def never_written(self, stores: Set[str]) -> frozenset[str]:
        """Returns the stores among ``stores`` whose changelog has no committed record, and that have no local data."""
        store = self.task.store
        return frozenset(
            each.store
            for each in self.replays.values()
            if each.store in stores and not each.inputs and (store is None or not store.holds_data(each.store))
        )

    def begun(self, stores: Set[str], inputs: Mapping[str, int]) -> dict[str, StoreOffset]:
        """Returns the offsets to save for ``stores``, which begin empty: the next one to replay, and ``inputs``."""
        return {
            each.store: StoreOffset(each.facts.topic, each.facts.topic_id, each.position, inputs)
            for each in self.replays.values()
            if each.store in stores
        }

    def progress(self, now: float) -> dict[str, float | None]:
        """Returns the progress for status and logs: records, rate, duration, time left.

        ``now`` is in monotonic seconds.
        """
        seconds = max(now - self.started_at, 1e-3)
        replayed = self.started_with - self.remaining
        return {
            "records": self.records,
            "remaining": self.remaining,
            "records_per_s": round(self.records / seconds, 1),
            "seconds": round(seconds, 3),
            "seconds_left": round(self.remaining * seconds / replayed, 1) if replayed > 0 else None,
        }


class Restorer:
    """Restores several tasks at the same time, with one consumer.

    A step reads at most ``records_max`` records (default ``RECORDS_PER_STEP``).
    """

    def __init__(self, cluster: Cluster, records_max: int | None = None) -> None:
        self._records_max = RECORDS_PER_STEP if records_max is None else records_max
        self._cluster = cluster
        self._clock = cluster.clock
        self._consumer: ChangelogReplayer | None = None
        self._tasks: dict[str, TaskRestore] = {}
        self._logged_at = 0.0
        self._stepped_at = 0.0
        #: Whether the consumer is assigned to the partitions of the running replays. If False, the next step assigns
        #: them.
        self._assigned = True

    @property
    def active(self) -> Mapping[str, TaskRestore]:
        """The running restores, by task name."""
        return self._tasks

    def begin(
        self,
        task: Task,
        decided: RestorePlan,
        changelogs: Mapping[str, ChangelogFacts],
        committed: Mapping[str, int | None],
        looked_at: float,
        *,
        often: bool = False,
    ) -> None:
        """Start the restore of a task. ``decided`` has the start of each replay, and whether local state is dropped.

        ``looked_at`` is the wall-clock time at which the facts of the changelogs were read. ``often`` is True for a
        standby that replays at short intervals. Bulk mode is then not used, because it reopens RocksDB and stops the
        compaction.
        """
        assert task.store is not None or not changelogs
        if decided.wipe is not None and task.store is not None:
            _log.warning("local state is dropped and restored from the beginning", task=task.name, why=decided.wipe)
            task.wipe(aside=decided.aside)
        replays = {}
        for store, facts in changelogs.items():
            at = task.meta.stores.get(store)
            replays[Partition(facts.topic, task.partition)] = StoreReplay(
                store,
                facts,
                decided.starts[store],
                at.inputs if at is not None else {},
                store_prefix(store),
                task.meta.keys.get(store, msgspec.UNSET),
            )
        now = self._clock.monotonic()
        complete_at = task.meta.complete_at if task.meta.stores else looked_at
        restore = TaskRestore(task, replays, committed, now, now, looked_at, complete_at, task.meta.sources)
        restore.commands = task.meta.commands
        restore.started_with = restore.remaining
        self._tasks[task.name] = restore
        if is_for_bulk(restore.started_with) and not often and task.store is not None and not restore.bulk:
            task.store.begin_bulk(restore.started_with)
        if restore.started_with:
            # The store is marked ``restoring`` before its first data is written, so that no task uses an incomplete
            # store. In bulk mode, a crash loses only the newest writes, so the mark is not lost.
            self._note(restore)
        self._assigned = False

    def forget(self, task: Task) -> None:
        """Stop the restore of a revoked task; the replayed records stay on disk for a later restore."""
        restore = self._tasks.pop(task.name, None)
        if restore is not None:
            self._note_if_possible(restore)
            self._assigned = False

    def excuse(self) -> None:
        """Start the timeouts for a lack of progress again, after Kafka was unreachable or the worker was busy."""
        for restore in self._tasks.values():
            restore.progress_at = self._clock.monotonic()

    @property
    def waits_s(self) -> float:
        """Returns the longest time, in seconds, for which a running restore has made no progress."""
        now = self._clock.monotonic()
        return max((now - restore.progress_at for restore in self._tasks.values()), default=0.0)

    def step(self, timeout_s: float) -> list[TaskRestore]:
        """Replay some records, and return the restores that are complete now.

        Raises StateIncoherent if a restore gets no record for ``NO_PROGRESS_S`` seconds.
        """
        now = self._clock.monotonic()
        if now - self._stepped_at > ABSENT_S:
            self.excuse()  # the worker was frozen or busy, so no progress was possible
        self._stepped_at = now
        if not self._assigned:
            self._assign()
        if self._consumer is not None and any(restore.started_with for restore in self._tasks.values()):
            reading = any(not restore.done for restore in self._tasks.values())
            with _uncollected():
                batches, ends = self._consumer.poll(self._records_max, timeout_s if reading else min(timeout_s, 0.01))
                self._apply(batches)
            self._advance(ends)
            self._note_in_time(idle=not batches)
        complete = self._complete()
        self._watch()
        return complete

    def close(self) -> None:
        """Stop all restores, and close the consumer; the replayed records stay on disk."""
        for restore in self._tasks.values():
            self._note_if_possible(restore)
        self._tasks.clear()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _assign(self) -> None:
        self._assigned = True
        starts = {
            partition: replay.position
            for restore in self._tasks.values()
            for partition, replay in restore.replays.items()
            if not replay.done
        }
        if self._consumer is None:
            if not starts:
                return
            self._consumer = self._cluster.changelog_consumer()
        sources = {topic for each in self._tasks.values() for topic in each.sources_replayed}
        self._consumer.assign(starts, sources)

    def _apply(self, batches: list[Batch]) -> None:
        for batch in batches:
            found = self._find(batch.partition)
            if found is None or found[0].flushing:
                continue
            restore, replay = found
            if replay.facts.source is None:
                keys, values = _data_of(batch, restore, replay)
                replay.position = batch.offsets[-1] + 1
                restore.records += len(batch.keys)
            else:
                keys, values = self._rows(batch, restore, replay, replay.facts.source)
            restore.progress_at = self._clock.monotonic()
            if keys:
                assert restore.task.store is not None
                restore.task.store.load(list(map(replay.prefix.__add__, keys)), values)

    def _rows(
        self, batch: Batch, restore: TaskRestore, replay: StoreReplay, log: SourceLog
    ) -> tuple[Sequence[bytes], Sequence[bytes | None]]:
        """Converts a batch of a table's source topic to rows, up to the target of the replay."""
        assert self._consumer is not None
        if replay.done:  # records beyond the target, fetched before the consumer dropped the partition
            return [], []
        count = bisect_left(batch.offsets, replay.facts.end)
        replay.position = min(batch.offsets[-1] + 1, replay.facts.end)
        restore.records += count
        if replay.done:
            self._consumer.drop([batch.partition])
        return rows_of(log, batch.keys[:count], batch.values[:count], batch.timestamps[:count])

    def _note_in_time(self, *, idle: bool) -> None:
        """Write the replayed offsets every ``NOTE_EVERY_S`` seconds; in bulk mode, flush if no records arrive.

        Records may stop arriving, for example before an open transaction.
        """
        now = self._clock.monotonic()
        for restore in self._tasks.values():
            due = now - restore.noted_at >= NOTE_EVERY_S and restore.remaining != restore.noted_remaining
            if due and not restore.done:
                self._note(restore)
                if idle and restore.bulk and restore.task.store is not None:
                    restore.task.store.flush()

    def _advance(self, ends: Mapping[Partition, int]) -> None:
        """Sets a replay's position to its target if no record is left before the target.

        The offsets in between are then transaction markers or compacted records.
        """
        assert self._consumer is not None
        waiting = [
            partition
            for restore in self._tasks.values()
            for partition, replay in restore.replays.items()
            if not replay.done
        ]
        positions = self._consumer.positions(waiting) if waiting else {}
        for partition in waiting:
            found = self._find(partition)
            assert found is not None
            _, replay = found
            reached = max(positions.get(partition, 0), ends.get(partition, 0))
            if reached >= replay.facts.end > replay.position:
                replay.position = replay.facts.end

    def _note(self, restore: TaskRestore) -> None:
        """Write the replayed offsets to RocksDB, so that an interrupted replay continues there."""
        task = restore.task
        assert task.store is not None
        restore.noted_at = self._clock.monotonic()
        restore.noted_remaining = restore.remaining
        task.write(
            restoring=True,
            sources=restore.sources,
            complete_at=restore.complete_at,
            commands=restore.commands,
            keys=restore.keys,
            stores={name: at for name, at in task.meta.stores.items() if at.topic_id == RESEEDING}
            | {
                replay.store: StoreOffset(replay.facts.topic, replay.facts.topic_id, replay.position, replay.noted)
                for replay in restore.replays.values()
            },
        )

    def _note_if_possible(self, restore: TaskRestore) -> None:
        store = restore.task.store
        if restore.done or store is None or store.failure is not None:
            return
        try:
            self._note(restore)
        except StateFailed as failure:
            _log.warning(
                "an interrupted replay will repeat its last records", task=restore.task.name, error=failure.message
            )

    def _complete(self) -> list[TaskRestore]:
        """Remove and return the restores that are complete: all records are replayed, and bulk mode has ended."""
        complete = []
        for restore in list(self._tasks.values()):
            store = restore.task.store
            if not restore.done:
                continue
            if not restore.flushing and restore.started_with:
                self._note(restore)
                if self._consumer is not None:
                    self._consumer.drop(list(restore.replays))
                if restore.bulk and store is not None:
                    store.flush(wait=False)
            restore.flushing = True
            if restore.bulk and store is not None:
                if store.flushing:  # RocksDB flushes in the background. Meanwhile, other tasks are replayed.
                    restore.progress_at = self._clock.monotonic()
                    continue
                store.end_bulk()
            del self._tasks[restore.task.name]
            complete.append(restore)
        return complete

    def _find(self, partition: Partition) -> tuple[TaskRestore, StoreReplay] | None:
        for restore in self._tasks.values():
            replay = restore.replays.get(partition)
            if replay is not None:
                return restore, replay
        return None

    def _watch(self) -> None:
        now = self._clock.monotonic()
        for restore in self._tasks.values():
            if now - restore.progress_at > NO_PROGRESS_S:
                raise self._stalled(restore)
        if self._tasks and now - self._logged_at > 5.0:
            self._logged_at = now
            for restore in self._tasks.values():
                _log.info("restoring", task=restore.task.name, **restore.progress(now))

    def _stalled(self, restore: TaskRestore) -> StateIncoherent:
        partition, replay = next((part, rep) for part, rep in restore.replays.items() if not rep.done)
        end = self._cluster.topics().end_offsets(partition.topic, committed=False).get(partition.number, 0)
        if end < replay.facts.end:
            why, cause, action = (
                f"its end moved back to {end}, so it was truncated or recreated",
                "changelog-truncated",
                "Clear the store and reset the group's input offsets, or re-seed the changelog.",
            )
        else:
            why, cause, action = (
                "an open transaction holds its committed records back",
                "changelog-held",
                "Find the hanging transaction with `kafka-transactions.sh find-hanging`, and abort it.",
            )
        return StateIncoherent(
            f"Restoring {partition.topic}[{partition.number}] got no further than offset {replay.position} of "
            f"{replay.facts.end} in {NO_PROGRESS_S:.0f} s: {why}.",
            action=action,
            cause=cause,
            topic=partition.topic,
            task=restore.task.name,
            store=replay.store,
            seen=replay.position,
            expected=replay.facts.end,
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switches Python's cyclic garbage collector off inside this context.

    A collection would scan all replayed records, which takes long and frees nothing: the records have no cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _data_of(batch: Batch, restore: TaskRestore, replay: StoreReplay) -> tuple[Sequence[bytes], Sequence[bytes | None]]:
    """Returns the keys and values of the data records in a batch.

    Meta records (the records with a commit's input offsets) are left out. Their content is stored in ``replay`` and
    ``restore``.
    """
    topic, number = batch.partition
    keys, values, offsets = batch.keys, batch.values, batch.offsets
    metas: list[tuple[int, bytes]] = []
    if META_KEY in keys or None in keys:
        rows = list(zip(keys, values, offsets, strict=True))
        metas = [(offset, value) for key, value, offset in rows if key == META_KEY and value is not None]
        data = [row for row in rows if row[0] is not None and row[0] != META_KEY]
        keys, values, offsets = [row[0] for row in data], [row[1] for row in data], [row[2] for row in data]
    check_records(topic, number, cast(list[bytes], keys), values, offsets)
    replay.ends_commit = batch.keys[-1] == META_KEY
    for offset, raw in metas:
        meta = decode_meta(topic, number, offset, raw)
        replay.inputs, replay.keys = meta.inputs, meta.keys
        restore.sources = meta.sources or restore.sources
        restore.owner = meta.owner
        restore.commands = meta.commands
    return cast(list[bytes], keys), values
