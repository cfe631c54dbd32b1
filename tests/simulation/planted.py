"""Bugs that tests plant in the engine, or in the cluster below it. Each is a patch that a simulation must detect.

Every bug is a mistake that exactly-once engines have had, or could have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from holdfast.infra.kafka.errors import KafkaFailed, TransactionAborted
from holdfast.processors.engine.aggregates.columnar import ColumnarAggregation
from holdfast.processors.engine.changelog import stored_values
from holdfast.processors.engine.changelog.format import CODEC_JSON, META_KEY, pack_head
from holdfast.processors.engine.record_times import RecordTimes
from holdfast.processors.engine.runtime import commit, loop
from holdfast.processors.engine.runtime.committer import Committer
from holdfast.processors.engine.runtime.ownership import changelog_facts, standby
from holdfast.processors.engine.runtime.ownership.assignment import Assignment
from holdfast.processors.engine.runtime.ownership.changelog_replay import Restorer
from holdfast.processors.engine.runtime.ownership.standby import Standbys
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.state import keep_or_restore as restore_start
from holdfast.processors.engine.state.databases.task_meta import TaskMeta
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.store import StoreState
from holdfast.processors.testing.consumers import InMemoryReplayer
from holdfast.processors.testing.groups import Group
from holdfast.processors.testing.log import PartitionLog
from holdfast.processors.testing.producer import InMemoryProducer
from tests.simulation import (
    planted_calls,
    planted_checkpoints,
    planted_groups,
    planted_questions,
    planted_sources,
    planted_time,
    planted_world,
)
from tests.simulation.run import runner

Patch = Callable[[pytest.MonkeyPatch], None]
#: How many other seeds are run if a bug's known seed no longer detects the bug.
AFTER_KNOWN = 20
#: The file with a seed that detects each bug, written by `print_table`.
KNOWN_SEEDS = Path(__file__).with_name("known_seeds.txt")


@dataclass(frozen=True, slots=True)
class Planted:
    """A bug: its name, and the patch that plants it."""

    name: str
    plant: Patch

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Plant the bug in the engine while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield


def _write_overlays(pending: commit.Commit) -> None:
    for part in pending.tasks:
        if part.task.store is not None:
            changes = [state.rocks_changes(state.writes()) for state in part.task.states.values()]
            part.task.store.write(chain.from_iterable(changes), part.task.meta)


def _write_before_commit(patch: pytest.MonkeyPatch) -> None:
    def commits(pending: commit.Commit, producer: Any, member: Any) -> None:
        producer.flush(commit.FLUSH_TIMEOUT_S)
        producer.send_offsets(pending.offsets, member.group_metadata())
        _write_overlays(pending)
        producer.commit()

    patch.setattr(commit, "commit_transaction", commits)


def _zombie_writes(patch: pytest.MonkeyPatch) -> None:
    original = commit.commit_transaction

    def commits(pending: commit.Commit, producer: Any, member: Any) -> None:
        try:
            original(pending, producer, member)
        except KafkaFailed:
            _write_overlays(pending)
            raise

    patch.setattr(commit, "commit_transaction", commits)


def _offsets_after_transaction(patch: pytest.MonkeyPatch) -> None:
    def commits(pending: commit.Commit, producer: Any, member: Any) -> None:
        producer.flush(commit.FLUSH_TIMEOUT_S)
        producer.commit()
        member.commit(pending.offsets)

    patch.setattr(commit, "commit_transaction", commits)


def _offsets_before_transaction(patch: pytest.MonkeyPatch) -> None:
    def commits(pending: commit.Commit, producer: Any, member: Any) -> None:
        producer.flush(commit.FLUSH_TIMEOUT_S)
        member.commit(pending.offsets)
        producer.commit()

    patch.setattr(commit, "commit_transaction", commits)


def _stale_metadata(patch: pytest.MonkeyPatch) -> None:
    kept: dict[int, Any] = {}

    def commits(pending: commit.Commit, producer: Any, member: Any) -> None:
        producer.flush(commit.FLUSH_TIMEOUT_S)
        metadata = kept.setdefault(id(member), (member, member.group_metadata()))[1]
        producer.send_offsets(pending.offsets, metadata)
        producer.commit()

    patch.setattr(commit, "commit_transaction", commits)


def _target_is_lso(patch: pytest.MonkeyPatch) -> None:
    original = changelog_facts.read_changelogs

    def read(topics: Any, *given: Any) -> changelog_facts.Found:
        return {
            store: {
                number: replace(known, end=topics.end_offsets(known.topic, committed=True)[number])
                for number, known in partitions.items()
            }
            for store, partitions in original(topics, *given).items()
        }

    patch.setattr("holdfast.processors.engine.runtime.ownership.assignment.read_changelogs", read)


def _end_of_partition_is_enough(patch: pytest.MonkeyPatch) -> None:
    original = Restorer._advance

    def advance(self: Restorer, ends: Mapping[Any, int]) -> None:
        for place in ends:
            found = self._find(place)
            if found is not None:
                found[1].position = max(found[1].position, found[1].facts.end)
        original(self, ends)

    patch.setattr(Restorer, "_advance", advance)


def _pending_offsets_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "has_pending", lambda self, partitions: False)


def _generation_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Group, "refusal", lambda self, member_id, generation: None)


#: Whether the running simulated process reads uncommitted records. A context variable keeps the value for each process,
#: because the scheduler switches processes within a call.
_UNCOMMITTED: ContextVar[bool] = ContextVar("uncommitted", default=False)


@contextmanager
def _uncommitted() -> Iterator[None]:
    token = _UNCOMMITTED.set(True)
    try:
        yield
    finally:
        _UNCOMMITTED.reset(token)


def _can_read_uncommitted(patch: pytest.MonkeyPatch) -> None:
    original = PartitionLog.read

    def read(self: PartitionLog, start: int, records_max: int, *, committed: bool) -> Any:
        return original(self, start, records_max, committed=committed and not _UNCOMMITTED.get())

    patch.setattr(PartitionLog, "read", read)


def _uncommitted_replay(patch: pytest.MonkeyPatch) -> None:
    look = InMemoryReplayer._look

    def looks(self: InMemoryReplayer, records_max: int) -> Any:
        with _uncommitted():
            return look(self, records_max)

    _can_read_uncommitted(patch)
    patch.setattr(InMemoryReplayer, "_look", looks)


def _tombstones_dropped(patch: pytest.MonkeyPatch) -> None:
    original = InMemoryProducer.produce_all

    def produce_all(self: InMemoryProducer, topic: str, values: Any, keys: Any, **more: Any) -> None:
        if more.get("partition", -1) >= 0:  # only changelog records have an explicit partition
            left = [(value, key) for value, key in zip(values, keys, strict=True) if value is not None]
            values, keys = [value for value, _ in left], [key for _, key in left]
        original(self, topic, values, keys, **more)

    patch.setattr(InMemoryProducer, "produce_all", produce_all)


def _cache_survives_abort(patch: pytest.MonkeyPatch) -> None:
    original = StoreState.drop

    def drop(self: StoreState) -> None:
        for cell in self._all():
            cell.young.update(cell.dirty)
        original(self)

    patch.setattr(StoreState, "drop", drop)


def _overlay_survives_abort(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreState, "drop", lambda self: None)


def _no_undo(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreState, "undo_message", lambda self, mark=0: self.keep_message())


def _producer_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_replace_producer", lambda self: None)


def _unknown_is_success(patch: pytest.MonkeyPatch) -> None:
    def resolve(self: Committer, pending: commit.Commit, member: Any, why: KafkaFailed) -> bool:
        self._replace_producer()
        return True

    patch.setattr(Committer, "_resolve", resolve)


def _unknown_is_failure(patch: pytest.MonkeyPatch) -> None:
    def resolve(self: Committer, pending: commit.Commit, member: Any, why: KafkaFailed) -> bool:
        self._replace_producer()
        return False

    patch.setattr(Committer, "_resolve", resolve)


def _meta_first(patch: pytest.MonkeyPatch) -> None:
    def write(self: TaskStore, changes: Any, meta: TaskMeta) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            self._database.write([(META_KEY, meta.encode())])
            self._database.write(list(changes))
        except Exception as failure:
            raise self._broken("written", failure) from failure

    patch.setattr(TaskStore, "write", write)


def _no_rewind(patch: pytest.MonkeyPatch) -> None:
    original = Task.drop

    def drop(self: Task) -> dict[str, int]:
        reached = dict(self.positions)
        original(self)
        self.positions = reached
        return reached

    patch.setattr(Task, "drop", drop)


def _refusal_is_success(patch: pytest.MonkeyPatch) -> None:
    original = commit.commit_transaction

    def commits(pending: commit.Commit, producer: Any, member: Any) -> None:
        with suppress(TransactionAborted):
            original(pending, producer, member)

    patch.setattr(commit, "commit_transaction", commits)


def _revoked_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Assignment, "revoked", lambda self, partitions: None)


def _failures_ignored(patch: pytest.MonkeyPatch) -> None:
    original = TaskStore._broken

    def broken(self: TaskStore, done: str, failure: Exception) -> Exception:
        found = original(self, done, failure)
        self.failure = None
        return found

    patch.setattr(TaskStore, "_broken", broken)
    patch.setattr(TaskStore, "get", lambda self, key: _or_none(lambda: self._database.get(key)))
    patch.setattr(
        TaskStore,
        "get_many",
        lambda self, keys: _or_none(lambda: self._database.get_many(keys)) or [None] * len(keys),
    )


def _or_none(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception:
        return None


def _old_state_trusted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restore_start, "RETENTION_PART_SAFE", 1e9)


def _guard_asleep(patch: pytest.MonkeyPatch) -> None:
    def lenient(task: str, inputs: Any, committed: Mapping[str, int | None], fed_by: Any) -> dict[str, int]:
        return {topic: offset for topic, offset in committed.items() if offset is not None}

    patch.setattr("holdfast.processors.engine.runtime.ownership.assignment.check_inputs", lenient)


def _rows_stay_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ColumnarAggregation, "leave", lambda self, keys: None)


def _standby_outlives_promotion(patch: pytest.MonkeyPatch) -> None:
    def release(self: Standbys, name: str) -> None:
        standby = self._standbys.get(name)
        if standby is not None and standby.task is not None and standby.task.store is not None:
            # release the database's lock, so that the task can open it while the standby still writes
            standby.task.store._database._stored.holder = None

    patch.setattr(Standbys, "release", release)


def _standby_reads_uncommitted(patch: pytest.MonkeyPatch) -> None:
    step = Restorer.step

    def steps(self: Restorer, timeout_s: float) -> Any:
        if self._records_max is None:
            return step(self, timeout_s)
        with _uncommitted():
            return step(self, timeout_s)

    _can_read_uncommitted(patch)
    patch.setattr(Restorer, "step", steps)


def _standby_counts_as_complete(patch: pytest.MonkeyPatch) -> None:
    def plan(task: Task, store: TaskStore, facts: Any, looked_at: float) -> restore_start.RestorePlan:
        if task.meta.stores:
            task.correct(replace(task.meta, complete_at=looked_at))
        return original(task, store, facts, looked_at)

    original = standby._plan
    patch.setattr(standby, "_plan", plan)


def _commit_after_any_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "ProcessingFailed", Exception)


def _times_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RecordTimes, "bounds", lambda self, topic: (float("-inf"), float("inf")))


def _codec_not_named(patch: pytest.MonkeyPatch) -> None:
    def head(version: int, codec: int, timestamp_ms: int) -> bytes:
        return pack_head(version, CODEC_JSON, timestamp_ms)

    patch.setattr(stored_values, "pack_head", head)


BUGS = (
    Planted("RocksDB is written before the commit", _write_before_commit),
    Planted("a zombie writes locally what its group refused", _zombie_writes),
    Planted("offsets are committed after the transaction, not in it", _offsets_after_transaction),
    Planted("offsets are committed before the transaction, not in it", _offsets_before_transaction),
    Planted("group metadata is kept from the first commit", _stale_metadata),
    Planted("the restore target is the last stable offset", _target_is_lso),
    Planted("any end of partition completes a restore", _end_of_partition_is_enough),
    Planted("committed offsets are read without waiting for pending ones", _pending_offsets_ignored),
    Planted("restores read uncommitted records", _uncommitted_replay),
    Planted("the group's generation does not fence", _generation_unchecked),
    Planted("deletes are left out of the changelog", _tombstones_dropped),
    Planted("cached reads survive an abort", _cache_survives_abort),
    Planted("the overlay survives an abort", _overlay_survives_abort),
    Planted("an aggregation's rows are not given to the plain path", _rows_stay_behind),
    Planted("a failed message's writes are kept", _no_undo),
    Planted("the producer is kept after an unknown outcome", _producer_kept),
    Planted("an unknown outcome counts as success", _unknown_is_success),
    Planted("an unknown outcome counts as failure", _unknown_is_failure),
    Planted("offsets are written before the data, not with it", _meta_first),
    Planted("nothing is read again after an abort", _no_rewind),
    Planted("a refused commit counts as done", _refusal_is_success),
    Planted("work is committed after an exception that nobody knows", _commit_after_any_failure),
    Planted("times that a topic refuses are sent", _times_unchecked),
    Planted("values of another codec are stored as JSON", _codec_not_named),
    Planted("work continues with revoked partitions", _revoked_goes_on),
    Planted("damaged data reads as absent", _failures_ignored),
    Planted("state of any age is replayed on", _old_state_trusted),
    *(Planted(name, plant) for name, plant in planted_checkpoints.PLANTS.items()),
    Planted("a standby continues to write after its promotion", _standby_outlives_promotion),
    Planted("a standby reads uncommitted records", _standby_reads_uncommitted),
    Planted("a standby counts as complete before it has reached the end", _standby_counts_as_complete),
    *(Planted(name, plant) for name, plant in planted_world.PLANTS.items()),
)
#: Bugs that appear only with windows, sessions and timers.
TIMED_BUGS = tuple(Planted(name, plant) for name, plant in planted_time.PLANTS.items())
#: Bugs that appear only in a stream that is grouped by another key.
GROUPED_BUGS = tuple(Planted(name, plant) for name, plant in planted_groups.PLANTS.items())
#: Bugs that appear in a stream whose producers continue while workers die.
LIVE_BUGS = tuple(Planted(name, plant) for name, plant in planted_groups.LIVE_PLANTS.items())
#: Bugs that appear in joins of two topics.
JOINED_BUGS = tuple(Planted(name, plant) for name, plant in planted_groups.JOINED_PLANTS.items())
#: Bugs that appear in tables that are restored from their topics.
SOURCED_BUGS = tuple(Planted(name, plant) for name, plant in planted_sources.PLANTS.items())
#: Bugs that appear in durable calls.
CALLED_BUGS = tuple(Planted(name, plant) for name, plant in planted_calls.PLANTS.items())

#: Bugs that appear in queries of workers' state.
ASKED_BUGS = tuple(Planted(name, plant) for name, plant in planted_questions.PLANTS.items())


def known_seeds() -> dict[str, int]:
    """Return the known seed of each bug. The seed detected its bug when the file was written."""
    lines = KNOWN_SEEDS.read_text(encoding="utf-8").splitlines()
    return {name: int(seed) for seed, _, name in (line.partition(" ") for line in lines)}


def not_caught(bug: Any, module: str) -> str:
    """Says what to do if no seed detected a planted bug."""
    return (
        f"no seed detected {bug.name!r}. If the code or the schedules have changed, `python -m {module}` finds a seed "
        "and writes it to tests/simulation/known_seeds.txt. If it finds none, the simulation no longer sees such a bug."
    )


def seeds_until_caught(seeds: Any, bug: Any, seeds_max: int, *, known: bool = False) -> tuple[int, Any] | None:
    """Run seeds with a planted bug until an invariant breaks.

    Args:
        seeds: Runs one seed; its outcome has the ``invariant`` that broke.
        bug: Has a ``name``, and ``growing``, which plants the bug for a while.
        seeds_max: The largest number of seeds to run, without the known seed.
        known: Run the known seed of the bug first. It ends the search unless code or schedules have changed. Then only
            ``AFTER_KNOWN`` other seeds are run, because a long search in each run of the tests would hide the change.

    Returns:
        How many seeds ran, and the outcome of the last one; None if no seed detected the bug.
    """
    first = [known_seeds()[bug.name]] if known and bug.name in known_seeds() else []
    with bug.growing():
        others = range(min(seeds_max, AFTER_KNOWN) if first else seeds_max)
        for needed, seed in enumerate(chain(first, others), start=1):
            outcome = seeds.run(seed)
            if outcome.invariant is not None:
                return needed, outcome
    return None


def print_table(seeds: Any, bugs: Iterable[Any], seeds_max: int) -> None:
    """Print the table for the documentation, and write the known seeds; arguments are those of `seeds_until_caught`."""
    print("| Planted bug | Caught by | Seeds needed |\n| --- | --- | --- |")
    known = known_seeds()
    for bug in bugs:
        caught = seeds_until_caught(seeds, bug, seeds_max)
        if caught is None:
            print(f"| {bug.name} | **nothing** | > {seeds_max} |", flush=True)
        else:
            print(f"| {bug.name} | {caught[1].invariant} | {caught[0]} |", flush=True)
            known[bug.name] = caught[1].seed
    KNOWN_SEEDS.write_text("".join(f"{seed} {name}\n" for name, seed in sorted(known.items())), encoding="utf-8")


def main() -> None:
    """Print the tables of the engine's planted bugs."""
    work = {"functions": BUGS, "timed": TIMED_BUGS, "grouped": GROUPED_BUGS, "joined": JOINED_BUGS, "asked": ASKED_BUGS}
    for of, bugs in {
        **work,
        "live": LIVE_BUGS,
        "sourced": SOURCED_BUGS,
        "called": CALLED_BUGS,
        "asked": ASKED_BUGS,
    }.items():
        with runner(of=of) as seeds:
            print_table(seeds, bugs, 500)


if __name__ == "__main__":
    main()
