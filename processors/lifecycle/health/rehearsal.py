"""Restore rehearsals: restore one partition into a scratch folder in the same way as a worker, and measure the time.

The restored state is compared with a checkpoint of the worker that owns the partition.

    the owner takes a checkpoint (offset A) ──► replay the changelog up to A into a scratch folder ──► equal? how long?

Invariants:
    - The owner's state is never opened, and the processor keeps running; the scratch folder is deleted afterwards.
    - The restored copy and the checkpoint are compared at the same changelog offset, because later records are not
      replayed.
    - At most one rehearsal of a task runs on a machine. A rehearsal first deletes the folder that a killed rehearsal
      left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from holdfast.infra.database.records import Action
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.infra.system.rooted import inside
from holdfast.processors.audits.stores import size_of
from holdfast.processors.engine.runtime.ownership.changelog_replay import Restorer
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster
from holdfast.processors.engine.runtime.task.task import Task
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.coherence import ChangelogFacts, delete_retention_s
from holdfast.processors.engine.state.databases.checkpoint_reader import fingerprint_checkpoint
from holdfast.processors.engine.state.databases.database import Databases
from holdfast.processors.engine.state.databases.task_store import TaskStore
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.engine.state.keep_or_restore import plan_restore
from holdfast.processors.lifecycle.ports import World

#: The name of rehearsals in the list of actions in Holdfast's registry (field ``verb``).
REHEARSE = "rehearse"
#: Minimum free disk space, as a multiple of the state's size. During a compaction, RocksDB keeps the old and the new
#: files.
ROOM = 2.0
#: A restore rate is computed only from a rehearsal of at least this many records.
RECORDS_FEW = 1_000
_STEP_S = 0.2


class RehearsalImpossible(HoldfastError):
    """No rehearsal is possible: the task moved, its changelog or disk space is missing, or another rehearsal runs.

    Fields: ``processor``, ``seen``, ``expected``.
    """


class NothingToRehearse(RehearsalImpossible):
    """No running worker has a task with a changelog, so there is nothing to restore and compare."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running task with changelogs, which can be chosen for a rehearsal."""

    processor: str
    slot: str
    task: str
    partition: int


@dataclass(frozen=True, slots=True)
class StoreRehearsal:
    """The result for one store: the fingerprints of the restored copy and of the worker's checkpoint.

    Both copies have the state at changelog offset ``offset``.
    """

    store: str
    changelog: str
    offset: int
    restored: Fingerprint
    owned: Fingerprint

    @property
    def equal(self) -> bool:
        """Whether the restored copy and the worker's checkpoint have the same fingerprint."""
        return self.restored == self.owned


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One rehearsed restore.

    ``seconds`` is the time from the opening of the scratch folder to the end of the restore.
    """

    processor: str
    task: str
    partition: int
    stores: tuple[StoreRehearsal, ...]
    records: int
    seconds: float
    #: Number of tasks of the processor, for the estimate of a full restore.
    tasks: int = 1

    @property
    def equal(self) -> bool:
        """Whether every restored store has the fingerprint of the worker's checkpoint."""
        return all(each.equal for each in self.stores)

    @property
    def records_per_s(self) -> float:
        """Changelog records replayed per second."""
        return self.records / max(self.seconds, 1e-6)

    @property
    def all_s(self) -> float:
        """Estimated seconds for one worker to restore all tasks, if every task is as large as the rehearsed task."""
        return self.seconds * self.tasks

    @property
    def sentence(self) -> str:
        """Partition, duration, counts and verdict of the rehearsal as one sentence."""
        keys = sum(each.restored.count for each in self.stores)
        differing = [each.store for each in self.stores if not each.equal]
        verdict = f"{', '.join(differing)} differ from the owner's state" if differing else "all equal to the owner's"
        return (
            f"Partition {self.partition} of {self.processor} was restored from its changelogs in {self.seconds:.2f} s: "
            f"{self.records:,} records, {keys:,} keys, {verdict}."
        )


def choose(candidates: Sequence[Candidate], day: str) -> Candidate | None:
    """Picks a task by a hash of ``day``, so all calls on one day pick the same task; None without candidates."""
    ordered = sorted(candidates, key=lambda each: (each.processor, each.task))
    if not ordered:
        return None
    number = int.from_bytes(hashlib.sha256(day.encode()).digest()[:8], "big")
    return ordered[number % len(ordered)]


def judge(rehearsal: Rehearsal, target_s: float, before_s: float | None = None) -> tuple[bool, str]:
    """Returns whether a rehearsal passes, and the text for its Dagster asset check.

    Args:
        rehearsal: The finished rehearsal.
        target_s: Maximum seconds that a restore of all tasks may take.
        before_s: Seconds of the previous rehearsal of the same processor; None if there is none.
    """
    name = rehearsal.processor
    if not rehearsal.equal:
        return False, (
            f"{rehearsal.sentence} A restore from the changelog would give other state. Find the keys and repair: "
            f"`holdfast audit {name}`."
        )
    if rehearsal.all_s > target_s:
        return False, (
            f"{rehearsal.sentence} One worker would take {rehearsal.all_s:.0f} s for all {rehearsal.tasks} partitions, "
            f"the target is {target_s:.0f} s. Keep checkpoints or standbys, add workers, or raise "
            "`HOLDFAST_RESTORE_TARGET_S`."
        )
    last = "" if before_s is None else f" The rehearsal before took {before_s:.2f} s."
    return True, f"{rehearsal.sentence}{last}"


def as_document(rehearsal: Rehearsal) -> dict[str, Any]:
    """The rehearsal as a JSON object, for Holdfast's registry and the option ``--json``."""
    stores = [{**asdict(each), "restored": each.restored.hex, "owned": each.owned.hex} for each in rehearsal.stores]
    return {
        **asdict(rehearsal),
        "seconds": round(rehearsal.seconds, 3),
        "records_per_s": round(rehearsal.records_per_s, 1),
        "all_s": round(rehearsal.all_s, 3),
        "equal": rehearsal.equal,
        "stores": stores,
    }


def rehearsed(actions: Sequence[Action], processor: str) -> list[dict[str, Any]]:
    """The recorded rehearsals of a processor, newest first; unreadable records are left out."""
    found = []
    for each in actions:
        if each.verb == REHEARSE and each.subject == processor:
            try:
                document = json.loads(each.plan)
                found.append({**document, "seconds": float(document["seconds"]), "records": int(document["records"])})
            except (ValueError, KeyError, TypeError):
                continue
    return found


def rehearsed_rate(actions: Sequence[Action], processor: str) -> float | None:
    """Records per second of the newest rehearsal with at least ``RECORDS_FEW`` restored records; otherwise None."""
    for each in rehearsed(actions, processor):
        if each["records"] >= RECORDS_FEW and each["seconds"] > 0:
            return float(each["records"] / each["seconds"])
    return None


class Rehearsals:
    """Runs restore rehearsals on this machine.

    ``slots`` is a function that returns the slots (places of workers) of a processor that run.
    """

    def __init__(
        self, world: World, cluster: KafkaCluster, databases: Databases, slots: Callable[[str], Sequence[str]]
    ) -> None:
        self._slots = slots
        self._world = world
        self._cluster = cluster
        self._databases = databases

    def candidates(self, processor: str | None = None, partition: int | None = None) -> list[Candidate]:
        """The tasks that can be rehearsed now: running tasks with changelogs.

        ``processor`` and ``partition`` restrict the result.
        """
        found = []
        for name in [processor] if processor is not None else self._deployed():
            for slot in self._slots(name):
                status = self._world.statuses(name, slot).status()
                for task in () if status is None else status.tasks:
                    if task.phase == "running" and task.stores and partition in (None, task.partition):
                        found.append(Candidate(name, slot, task.task, task.partition))
        return found

    def rehearse(self, chosen: Candidate, who: str) -> Rehearsal:
        """Restore one task, compare it with the owner's checkpoint, and record the result in Holdfast's registry.

        Raises:
            RehearsalImpossible: The task moved, its changelog or disk space is missing, or another rehearsal runs.
            ProcessorSilent: The owner did not take a checkpoint.
            HoldfastError: The restore failed; a restore by a worker would fail, too.
        """
        began = self._world.clock()
        manifest = ProcessorClient(chosen.processor, chosen.slot, self._world.paths).checkpoint()
        copied = next((task for task in manifest["tasks"] if task["task"] == chosen.task), None)
        if copied is None:
            raise RehearsalImpossible(
                f"The checkpoint of {chosen.processor} has no task {chosen.task}: the task moved to another worker.",
                action=f"Run `holdfast rehearse {chosen.processor}` again.",
                processor=chosen.processor,
                task=chosen.task,
            )
        owned = {name: fingerprint_checkpoint(Path(copied["path"]), name) for name in copied["stores"]}
        with self._scratch(chosen, size_of(Path(copied["path"]))) as folder:
            restored, records, seconds = self._restore(chosen, copied, folder)
        stores = tuple(
            StoreRehearsal(name, at["changelog"], at["offset"], restored[name], owned[name])
            for name, at in sorted(copied["stores"].items())
        )
        tasks = len(self.candidates(chosen.processor))
        done = Rehearsal(chosen.processor, chosen.task, chosen.partition, stores, records, seconds, max(1, tasks))
        self._record(done, who, began)
        return done

    def before(self, processor: str) -> float | None:
        """Seconds of the rehearsal before the processor's newest one, for a comparison; None if there is none."""
        known = rehearsed(self._world.registry.actions(1000), processor)
        return None if len(known) < 2 else float(known[1]["seconds"])

    def _restore(
        self, chosen: Candidate, copied: Mapping[str, Any], folder: Path
    ) -> tuple[dict[str, Fingerprint], int, float]:
        described = self._cluster.topics().describe([at["changelog"] for at in copied["stores"].values()])
        facts = {}
        for name, at in copied["stores"].items():
            seen = described.get(at["changelog"])
            if seen is None or seen.topic_id != at["topic_id"]:
                raise RehearsalImpossible(
                    f"Changelog {at['changelog']} is not the topic that state belongs to (topic id {at['topic_id']}); "
                    "no restore is possible.",
                    action=f"If local state is right: `holdfast apply backfill {chosen.processor} --store {name} "
                    "--from local`.",
                    processor=chosen.processor,
                    seen=None if seen is None else seen.topic_id,
                    expected=at["topic_id"],
                )
            start = self._cluster.topics().start_offsets(at["changelog"]).get(chosen.partition, 0)
            kept_s = delete_retention_s(seen)
            facts[name] = ChangelogFacts(at["changelog"], seen.topic_id, start, at["offset"], kept_s)
        looked_at, began = self._world.clock().timestamp(), time.monotonic()
        task = Task(chosen.task, chosen.task, chosen.partition, ())
        task.open(TaskStore(self._databases, folder), tuple(facts))
        ends = {Partition(each.topic, chosen.partition): each.end for each in facts.values()}
        restorer = Restorer(cast(Cluster, _UpTo(self._cluster, ends)))
        try:
            restorer.begin(task, plan_restore(chosen.task, None, facts, looked_at), facts, {}, looked_at)
            while not (complete := restorer.step(_STEP_S)):
                pass
            seconds = time.monotonic() - began
            assert task.store is not None
            prints = {name: fingerprint_of(task.store.items(name)) for name in facts}
            return prints, complete[0].records, seconds
        finally:
            restorer.close()
            if task.store is not None:
                task.store.close()

    @contextmanager
    def _scratch(self, chosen: Candidate, size_bytes: int) -> Iterator[Path]:
        """A scratch folder that is locked during the block and deleted afterwards; raises RehearsalImpossible."""
        root = self._world.paths.rehearsals
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
        if free < ROOM * size_bytes:
            raise RehearsalImpossible(
                f"The disk of {root} has {free} bytes free, expected {ROOM * size_bytes:.0f} for a copy.",
                action="Free disk space, or rehearse a smaller partition with `--partition N`.",
                processor=chosen.processor,
                seen=free,
                expected=int(ROOM * size_bytes),
            )
        folder = inside(root, f"{chosen.processor}-{chosen.task}")
        with folder.with_name(f"{folder.name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as held:
                raise RehearsalImpossible(
                    f"Task {chosen.task} of {chosen.processor} is being rehearsed already.",
                    action="Wait until that rehearsal has ended.",
                    processor=chosen.processor,
                ) from held
            shutil.rmtree(folder, ignore_errors=True)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _record(self, done: Rehearsal, who: str, began: datetime) -> None:
        outcome = "equal" if done.equal else "different"
        text = json.dumps(as_document(done))
        self._world.registry.record_action(REHEARSE, done.processor, who, text, outcome, began, self._world.clock())

    def _deployed(self) -> list[str]:
        return [each.processor for each in self._world.registry.deployments() if each.desired == "deployed"]


class _UpTo:
    """Wraps a Kafka cluster and hides later records, so that its changelogs seem to end at the given offsets."""

    def __init__(self, cluster: KafkaCluster, ends: Mapping[Partition, int]) -> None:
        self._cluster = cluster
        self._ends = ends
        self.clock = cluster.clock
        self.topics = cluster.topics

    def changelog_consumer(self) -> ChangelogReplayer:
        """A replayer of changelogs that stops before the given end offsets."""
        return cast(ChangelogReplayer, _Replayer(self._cluster.changelog_consumer(), self._ends))


class _Replayer:
    def __init__(self, inner: ChangelogReplayer, ends: Mapping[Partition, int]) -> None:
        self._inner = inner
        self._ends = ends
        self.assign = inner.assign
        self.drop = inner.drop
        self.positions = inner.positions
        self.close = inner.close

    def poll(self, records_max: int, timeout_s: float) -> tuple[list[Batch], dict[Partition, int]]:
        batches, ends = self._inner.poll(records_max, timeout_s)
        cut = (cut_at(batch, self._ends[batch.partition]) for batch in batches)
        return [batch for batch in cut if batch.offsets], ends


def cut_at(batch: Batch, end: int) -> Batch:
    """The part of a batch with offsets below ``end``."""
    if not batch.offsets or batch.offsets[-1] < end:
        return batch
    count = bisect_left(batch.offsets, end)
    return replace(batch, keys=batch.keys[:count], values=batch.values[:count], offsets=batch.offsets[:count])
