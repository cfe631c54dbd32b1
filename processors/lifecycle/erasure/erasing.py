"""Carries out the stages of an erasure, and keeps the certificate in Holdfast's registry after each of them.

Invariants:
    - The registry has the mark of the key before the first copy is removed. So a restore that begins meanwhile, or
      after a kill, is refused or told.
    - A stage whose place could not be read to its end raises an error, or records the outcome ``unknown``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

import msgspec

from holdfast.infra.database.registry import Registry
from holdfast.infra.kafka.cluster import KafkaCluster
from holdfast.infra.kafka.records import Partition, Record
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.paths import Paths
from holdfast.processors.engine.checkpoints.ports import Objects
from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint
from holdfast.processors.engine.state.databases.database import DatabaseFiles
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.erasure.changelogs import ReadAll, prove_compacted
from holdfast.processors.lifecycle.erasure.checkpoint_copies import (
    Entries,
    TaskStores,
    delete_local,
    replace_checkpoints,
)
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.finding import Found, not_yet
from holdfast.processors.lifecycle.erasure.local_copies import LocalCopies, rewrite_and_read
from holdfast.processors.lifecycle.erasure.message_copies import erase_in_archive, erase_in_exports, erase_letters
from holdfast.processors.lifecycle.erasure.recorded_names import erase_names
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.plans.apply import Done, ProgressLog
from holdfast.processors.lifecycle.plans.certificates import Certificate, Proof, decode, mark_of
from holdfast.processors.lifecycle.plans.erased_keys import secret_of
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.stages import Certify, CompactStores, EraseCopy, EraseStage, NoteErasure
from holdfast.processors.lifecycle.verbs.state.erase import expiry
from holdfast.processors.lifecycle.world.running_owners import RunningOwners

#: A message key that no program uses: a clear of it deletes nothing, and writes a record to each changelog partition.
NOBODYS_KEY = "\x00holdfast: no key"


@dataclass(frozen=True)
class Checkpoints:
    """How checkpoints are taken, read and deleted.

    Args:
        take: Makes the workers of a processor take checkpoints.
        store: Function that opens the checkpoint store; None if checkpoints are disabled.
        files: Reads and writes databases of checkpoints.
        entries: Reads the entries of a store in a downloaded checkpoint.
        remove: Deletes the folder of a local checkpoint.
    """

    take: Callable[[str], None]
    store: Callable[[], Objects] | None
    files: DatabaseFiles
    entries: Entries = iterate_checkpoint
    remove: Callable[[Path], None] = field(default=shutil.rmtree)


@dataclass(frozen=True)
class Run:
    """The run that carries out the erasure.

    Args:
        step: The name of the present stage: time and number of the apply, and the stage's number.
        check: Raises if this run no longer holds the apply.
        clock: The present time in UTC.
    """

    step: Callable[[], str]
    check: Callable[[], None]
    clock: Callable[[], datetime]


@dataclass(frozen=True)
class Places:
    """The parts of an installation that may have copies of a key.

    Args:
        registry: Holdfast's registry; its writes are refused after another run took over the apply.
        topics: Kafka's topics.
        owners: The workers.
        topology: Function of a processor that returns its topology.
        cluster: Function of a processor that returns its Kafka cluster.
        local: Function of a processor that returns the local copies of its state.
        tasks: Function of a processor that returns its tasks with stores, as name -> partition.
        checkpoints: How checkpoints are taken, read and deleted.
        table: Function of (processor, store), key and offsets that erases the key in the store's tables.
        archive: The archive of orphans.
        paths: The home folder.
        read_all: Reads a range of a topic, with aborted records.
        read: Reads the committed records of a range.
        run: The run that carries out the erasure.
    """

    registry: Registry
    topics: Topics
    owners: RunningOwners
    topology: Callable[[str], Topology]
    cluster: Callable[[str], KafkaCluster]
    local: Callable[[str], LocalCopies]
    tasks: Callable[[str], Mapping[str, int]]
    checkpoints: Checkpoints
    table: Callable[[tuple[str, str], str, Mapping[int, int]], Found]
    archive: Archive
    paths: Paths
    read_all: ReadAll
    read: Callable[[Partition, int, int], Iterator[Record]]
    run: Run


@dataclass(frozen=True)
class Erasing:
    """Carries out the stages of an erasure; implements ``execution.Erasing``."""

    places: Places

    def __call__(self, processor: str, stage: EraseStage, tell: ProgressLog) -> Done:
        """Carry out one stage, and record its proof in the certificate.

        Raises:
            NotYetGone: Copies are left, or a place could not be read; the stage can be repeated.
            HoldfastError: A part of the installation does not answer.
        """
        match stage:
            case NoteErasure():
                return self._begin(processor, stage)
            case EraseCopy():
                found = self._erased(processor, stage, tell)
                self._note(self._certificate(processor), stage.kind, stage.name, found)
                return Done(f"{stage.kind} {stage.name}: {found.outcome}, {found.how}")
            case Certify():
                return self._certify(processor, stage)
            case _:
                assert_never(stage)

    @property
    def _id(self) -> str:
        """The name of the erasure, which all stages of its apply share."""
        return self.places.run.step().rpartition("/")[0]

    def _begin(self, processor: str, stage: NoteErasure) -> Done:
        here = self.places
        mark, now = mark_of(secret_of(here.paths), processor, stage.key.encode()), here.run.clock()
        here.registry.erasures.begin(self._id, processor, mark, now)
        if self._known(processor) is None:
            self._write(Certificate(processor=processor, mark=mark, begun_at=_moment(now)))
        return Done(f"key {mark[:12]} (a keyed hash) is recorded as erased")

    def _erased(self, processor: str, stage: EraseCopy, tell: ProgressLog) -> Found:
        here, entries = self.places, KeyEntries(stage.key)
        match stage.kind:
            case "state":
                return self._delete_state(processor, stage, tell)
            case "changelog":
                return self._prove_changelog(processor, stage, entries, tell)
            case "files":
                compact = CompactStores("")
                return rewrite_and_read(
                    here.local(processor),
                    stage.stores,
                    self._ends_by_store(processor),
                    entries,
                    lambda: _ignored(here.owners.compact(processor, compact, tell)),
                    processor,
                )
            case "checkpoints":
                return self._replace_checkpoints(processor, stage, entries, tell)
            case "table":
                ends = self._ends_by_store(processor).get(stage.name, {})
                return here.table((processor, stage.name), stage.key, ends)
            case "letters":
                cluster = here.cluster(processor)
                return erase_letters(here.topics, cluster, processor, stage.name, entries, here.read, here.run.check)
            case "exports":
                return erase_in_exports(here.paths.exports(processor), entries)
            case "archives":
                return self._search_former(processor, stage, entries)
            case "registry":
                mark = self._certificate(processor).mark
                return erase_names(here.registry.erasures, processor, stage.key, mark)
            case _:
                assert_never(stage.kind)

    def _delete_state(self, processor: str, stage: EraseCopy, tell: ProgressLog) -> Found:
        here = self.places
        tell("the workers delete the key's state")
        entries, ends = here.owners.delete_key(processor, stage.stores, stage.key)
        topology = here.topology(processor)
        logs = {store: spec.name for store in stage.stores if (spec := topology.changelog_of(store)) is not None}
        noted = {logs[store]: each for store, each in ends.items() if store in logs}
        known = self._certificate(processor)
        self._write(msgspec.structs.replace(known, ends={**known.ends, **noted}))
        counts = {store: here.owners.count_key(processor, store, stage.key) for store in stage.stores}
        if unread := [store for store, count in counts.items() if count is None]:
            raise not_yet(stage.name, f"The workers do not count {', '.join(unread)}: a partition has no owner now")
        if left := [store for store, count in counts.items() if count]:
            return Found("gone", f"{_entries(entries)} deleted; {', '.join(left)} has state of later messages")
        return Found("gone" if entries else "absent", f"{_entries(entries)} deleted; the workers count none any more")

    def _prove_changelog(self, processor: str, stage: EraseCopy, entries: KeyEntries, tell: ProgressLog) -> Found:
        here = self.places
        ends = self._certificate(processor).ends.get(stage.name)
        if ends is None:
            raise not_yet(stage.name, f"The offsets of the deletes in {stage.name} are not recorded")
        starts = here.topics.start_offsets(stage.name)

        def close_segments() -> None:
            here.owners.delete_key(processor, stage.stores, NOBODYS_KEY)

        return prove_compacted(stage.name, entries, ends, starts, here.read_all, close_segments, tell)

    def _replace_checkpoints(self, processor: str, stage: EraseCopy, entries: KeyEntries, tell: ProgressLog) -> Found:
        here, topology = self.places, self.places.topology(processor)
        since = here.run.clock().timestamp()
        groups = [tuple(name for name in stage.stores if name in sub.stores) for sub in topology.subtopologies]
        ends: dict[str, dict[int, int]] = {}
        for group in filter(None, groups):
            # A commit in each task: a worker takes no checkpoint of a task that did not change since the last one.
            ends |= here.owners.delete_key(processor, group, NOBODYS_KEY)[1]
        here.checkpoints.take(processor)
        removed = delete_local(here.paths.checkpoints(processor), since, here.checkpoints.remove)
        local = f"; {count_of(len(removed), 'local checkpoint')} deleted" if removed else ""
        if here.checkpoints.store is None:
            return Found("absent" if not removed else "gone", f"checkpoints are disabled{local}")
        tasks = {
            task: TaskStores(number, topology.subtopology(task.rpartition("-")[0]).stores)
            for task, number in here.tasks(processor).items()
            if self._has(topology, task, ends)
        }
        found = replace_checkpoints(
            here.checkpoints.store(),
            here.checkpoints.files,
            processor,
            tasks,
            ends,
            entries,
            ask=lambda: here.checkpoints.take(processor),
            read=here.checkpoints.entries,
            time=lambda: here.run.clock().timestamp(),
            tell=tell,
        )
        return Found(found.outcome, found.how + local)

    @staticmethod
    def _has(topology: Topology, task: str, ends: Mapping[str, Mapping[int, int]]) -> bool:
        sub = topology.subtopology(task.rpartition("-")[0])
        return any(store in ends for store in sub.stores)

    def _search_former(self, processor: str, stage: EraseCopy, entries: KeyEntries) -> Found:
        """Erases in the archive, and looks for changelogs of stores that the processor no longer has."""
        here, topology = self.places, self.places.topology(processor)
        own = {spec.name for spec in topology.topics()}
        with here.archive.held():
            found = erase_in_archive(here.archive, processor, frozenset(own), entries)
        former = [
            name
            for name in here.topics.names()
            if name.startswith(f"{processor}-") and name.endswith("-changelog") and name not in own
        ]
        for name in former:
            starts, ends = here.topics.start_offsets(name), here.topics.end_offsets(name, committed=False)
            if any(
                entries.has(record.key)
                for number, end in ends.items()
                for record in here.read_all(name, number, starts[number], end)
            ):
                return Found("unknown", f"{name} has the key: it is no changelog of the present definition; delete it")
        also = f"; {count_of(len(former), 'changelog')} of former stores read" if former else ""
        return Found(found.outcome, found.how + also)

    def _certify(self, processor: str, stage: Certify) -> Done:
        here, now = self.places, self.places.run.clock()
        described = here.topics.describe(stage.stays)
        known = self._certificate(processor)
        for topic, remark in stage.stays.items():
            if topic in described:
                until = remark if remark.startswith("workers") else expiry(described[topic], now.timestamp())
                how = "messages of the key that were there before the deletes stay"
                how += f"; {remark}" if remark and remark != until else ""
                known = known.with_proof(Proof("messages", topic, "stays", how, _moment(now), until))
        for sink, place in stage.sinks.items():
            how = f"what the sink has stored in {place or 'its system'} stays"
            until = "somebody deletes it in that system"
            known = known.with_proof(Proof("sink", sink, "stays", how, _moment(now), until))
        known = msgspec.structs.replace(known, finished_at=_moment(now))
        here.registry.erasures.write(self._id, known.encode(), now)
        return Done(f"{known.sentence} `holdfast erased {processor}` prints the certificate")

    def _ends_by_store(self, processor: str) -> dict[str, dict[int, int]]:
        topology, known = self.places.topology(processor), self._certificate(processor)
        return {
            spec.store: known.ends[spec.topic.name] for spec in topology.changelogs if spec.topic.name in known.ends
        }

    def _note(self, known: Certificate, kind: str, name: str, found: Found) -> None:
        former = next((each for each in known.proofs if (each.kind, each.name) == (kind, name)), None)
        # A repeated stage finds nothing where its earlier attempt removed copies.
        again = former is not None and former.outcome == "gone" and found.outcome == "absent"
        outcome = "gone" if again else found.outcome
        proof = Proof(kind, name, outcome, found.how, _moment(self.places.run.clock()), found.until)
        self._write(known.with_proof(proof))

    def _certificate(self, processor: str) -> Certificate:
        known = self._known(processor)
        if known is None:
            raise not_yet(
                "registry",
                f"The registry has no record of the erasure {self._id} of {processor}",
                "End the apply with `holdfast apply abandon N --reason WHY`, and erase the key again.",
            )
        return known

    def _known(self, processor: str) -> Certificate | None:
        with suppress(StopIteration):
            found = next(each for each in self.places.registry.erasures.of(processor) if each.erasure_id == self._id)
            return decode(found.document) if found.document else None
        return None

    def _write(self, certificate: Certificate) -> None:
        self.places.registry.erasures.write(self._id, certificate.encode())


def _entries(number: int) -> str:
    return count_of(number, "entry", "entries")


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def _ignored(value: object) -> None:
    """Drops the result of a call, for callers that need no result."""
