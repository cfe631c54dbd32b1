"""Rehearsing a restore: one partition, replayed into a scratch folder as a worker would, timed, and judged.

    the owner takes a checkpoint (offset A) ──► replay the changelog up to A into a scratch folder ──► equal? how long?

Invariants:
    - The owner's state is never opened, and nothing of the processor is stopped; the scratch folder is gone afterwards.
    - Both copies are at one offset of one changelog: records behind it are not replayed.
    - One rehearsal of a task at a time on a machine; what a killed one left is removed by the next.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from holdfast.infra.database.records import Action
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import Batch, Partition
from holdfast.processors.engine.runtime.ports import ChangelogReplayer, Cluster
from holdfast.processors.engine.runtime.restore import Restorer
from holdfast.processors.engine.runtime.task import Task
from holdfast.processors.engine.serving.client import ProcessorClient
from holdfast.processors.engine.state.checkpoint_reader import fingerprint_checkpoint
from holdfast.processors.engine.state.coherence import ChangelogFacts, delete_retention_s, plan_restore
from holdfast.processors.engine.state.database import Databases
from holdfast.processors.engine.state.fingerprint import Fingerprint, fingerprint_of
from holdfast.processors.engine.state.task_store import TaskStore
from holdfast.processors.lifecycle.ports import World

#: What the registry's actions call it.
REHEARSE = "rehearse"
#: So many times the size of the state has to be free on the disk: while files are compacted, both are there.
ROOM = 2.0
#: Fewer records than this tell nothing about a rate.
RECORDS_FEW = 1_000
_STEP_S = 0.2


class RehearsalImpossible(HoldfastError):
    """There is nothing to rehearse, nobody to compare with, or no room. Fields: processor, and what was seen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that a worker runs, with stores that have changelogs."""

    processor: str
    slot: str
    task: str
    partition: int


@dataclass(frozen=True, slots=True)
class StoreRehearsal:
    """One store of the task, restored up to ``offset``, and what its owner has there."""

    store: str
    changelog: str
    offset: int
    restored: Fingerprint
    owned: Fingerprint

    @property
    def equal(self) -> bool:
        """Whether the restored copy is what its owner has."""
        return self.restored == self.owned


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """One rehearsed restore; ``seconds`` from the opening of the scratch folder until all of it could be read."""

    processor: str
    task: str
    partition: int
    stores: tuple[StoreRehearsal, ...]
    records: int
    seconds: float
    #: Input partitions of the same processor, for what a restore of all would take.
    tasks: int = 1

    @property
    def equal(self) -> bool:
        """Whether every store is what its owner has."""
        return all(each.equal for each in self.stores)

    @property
    def records_per_s(self) -> float:
        """Changelog records replayed in a second."""
        return self.records / max(self.seconds, 1e-6)

    @property
    def all_s(self) -> float:
        """How long a restore of all tasks by one worker would take, seconds, if all were as this one."""
        return self.seconds * self.tasks

    @property
    def sentence(self) -> str:
        """For people."""
        keys = sum(each.restored.count for each in self.stores)
        differing = [each.store for each in self.stores if not each.equal]
        verdict = f"{', '.join(differing)} differ from what the owner has" if differing else "all equal to the owner's"
        return (
            f"Partition {self.partition} of {self.processor} was restored from its changelogs in {self.seconds:.2f} s: "
            f"{self.records:,} records, {keys:,} keys, {verdict}."
        )


def choose(candidates: Sequence[Candidate], day: str) -> Candidate | None:
    """One of them, by chance, the same for one day; None when there is none."""
    ordered = sorted(candidates, key=lambda each: (each.processor, each.task))
    if not ordered:
        return None
    number = int.from_bytes(hashlib.sha256(day.encode()).digest()[:8], "big")
    return ordered[number % len(ordered)]


def judge(rehearsal: Rehearsal, target_s: float, before_s: float | None = None) -> tuple[bool, str]:
    """Whether a rehearsal is in order, and what is to be said.

    Args:
        rehearsal: What was seen.
        target_s: How long a restore of all may take, seconds.
        before_s: How long the same processor's last rehearsal took, seconds.
    """
    name = rehearsal.processor
    if not rehearsal.equal:
        return False, (
            f"{rehearsal.sentence} A restore from the changelog would give other state. Find the keys: `holdfast audit "
            f"{name}`; it names what mends them."
        )
    if rehearsal.all_s > target_s:
        return False, (
            f"{rehearsal.sentence} One worker would take {rehearsal.all_s:.0f} s for all {rehearsal.tasks} partitions, "
            f"the target is {target_s:.0f} s. Keep checkpoints or standbys, add workers, or raise "
            "HOLDFAST_RESTORE_TARGET_S."
        )
    last = "" if before_s is None else f" The one before took {before_s:.2f} s."
    return True, f"{rehearsal.sentence}{last}"


def as_document(rehearsal: Rehearsal) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "processor": rehearsal.processor,
        "task": rehearsal.task,
        "partition": rehearsal.partition,
        "records": rehearsal.records,
        "seconds": round(rehearsal.seconds, 3),
        "records_per_s": round(rehearsal.records_per_s, 1),
        "tasks": rehearsal.tasks,
        "all_s": round(rehearsal.all_s, 3),
        "equal": rehearsal.equal,
        "stores": [
            {
                "store": each.store,
                "changelog": each.changelog,
                "offset": each.offset,
                "restored": each.restored.hex,
                "owned": each.owned.hex,
            }
            for each in rehearsal.stores
        ],
    }


def rehearsed(actions: Sequence[Action], processor: str) -> list[dict[str, Any]]:
    """What the registry has of a processor's rehearsals, newest first; what can't be read is left out."""
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
    """Records a second of a processor's newest rehearsal that was long enough to tell; None when there is none."""
    for each in rehearsed(actions, processor):
        if each["records"] >= RECORDS_FEW and each["seconds"] > 0:
            return float(each["records"] / each["seconds"])
    return None


class Rehearsals:
    """Rehearses restores on this machine.

    Args:
        world: Who runs, and where it is remembered.
        cluster: Kafka.
        databases: How scratch folders are opened.
    """

    def __init__(self, world: World, cluster: KafkaCluster, databases: Databases) -> None:
        self._world = world
        self._cluster = cluster
        self._databases = databases

    def candidates(self, processor: str | None = None, partition: int | None = None) -> list[Candidate]:
        """The tasks that could be rehearsed now: those that run, and have changelogs."""
        found = []
        for name in [processor] if processor is not None else self._deployed():
            deployment = self._world.registry.deployment(name)
            for slot in () if deployment is None else deployment.slots:
                status = self._world.statuses(name, slot).status()
                for task in () if status is None else status.tasks:
                    runs = task.phase == "running" and bool(getattr(task, "stores", {}))
                    if runs and partition in (None, task.partition):
                        told = str(getattr(task, "task", task.partition))
                        found.append(Candidate(name, slot, told, task.partition))
        return found

    def rehearse(self, chosen: Candidate, who: str) -> Rehearsal:
        """Restore one task, compare it with its owner, and record how it went.

        Raises:
            RehearsalImpossible: Its state has no checkpoint or no room here, or one is under way.
            ProcessorSilent: The owner did not take a checkpoint.
            HoldfastError: The restore failed, as a worker's would.
        """
        began = self._world.clock()
        manifest = ProcessorClient(chosen.processor, chosen.slot, self._world.paths).checkpoint()
        copied = next((task for task in manifest["tasks"] if task["task"] == chosen.task), None)
        if copied is None:
            raise RehearsalImpossible(
                f"The checkpoint of {chosen.processor} has no task {chosen.task}: it was given to another worker.",
                action="Rehearse again.",
                processor=chosen.processor,
                task=chosen.task,
            )
        owned = {name: fingerprint_checkpoint(Path(copied["path"]), name) for name in copied["stores"]}
        with self._scratch(chosen, _size_of(Path(copied["path"]))) as folder:
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
        """How long the rehearsal before the last one took, seconds."""
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
                    f"Changelog {at['changelog']} is not the one that state belongs to ({at['topic_id']}): nothing "
                    "could be restored from it.",
                    action=f"If local state is right: holdfast apply backfill {chosen.processor} --store {name} --from "
                    "local.",
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
        """A folder that nobody else has, and that is gone afterwards."""
        root = self._world.paths.rehearsals
        root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(root).free
        if free < ROOM * size_bytes:
            raise RehearsalImpossible(
                f"The disk of {root} has {free} bytes free, a copy of this partition may need {ROOM * size_bytes:.0f}.",
                action="Make room, or rehearse a smaller partition.",
                processor=chosen.processor,
                seen=free,
                expected=int(ROOM * size_bytes),
            )
        folder = root / f"{chosen.processor}-{chosen.task}"
        with folder.with_name(f"{folder.name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as held:
                raise RehearsalImpossible(
                    f"Task {chosen.task} of {chosen.processor} is being rehearsed already.",
                    action="Wait for its end.",
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
    """A cluster whose changelogs end at given offsets, whatever was written since."""

    def __init__(self, cluster: KafkaCluster, ends: Mapping[Partition, int]) -> None:
        self._cluster = cluster
        self._ends = ends
        self.clock = cluster.clock
        self.topics = cluster.topics

    def changelog_consumer(self) -> ChangelogReplayer:
        """A replayer that hands out nothing from the ends on."""
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
    """The records of a batch before an offset."""
    if not batch.offsets or batch.offsets[-1] < end:
        return batch
    count = bisect_left(batch.offsets, end)
    return replace(batch, keys=batch.keys[:count], values=batch.values[:count], offsets=batch.offsets[:count])


def _size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
