"""Audits a store: compares its checkpoint, its folded changelog, and its table in the warehouse.

    checkpoint (at offsets A) ── changelog up to A          audits the store
    table (at offsets B) ─────── changelog up to B          audits the warehouse
                  └───────────── an older checkpoint at B   if it exists, the table is also compared with it

To fold a changelog means to reduce it to the newest value of each key. If A equals B in a partition, all three copies
are compared at once.

Invariants:
    - Copies are compared at the same offset of the same topic id.
    - ``ChangelogCopy`` folds with a plain Python dict and shares no code with the store, so an error in one of them
      shows as a difference.
    - The audit reports a changelog partition with state that is in no checkpoint, and a table partition that cannot be
      compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from holdfast.infra.kafka.records import Partition
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.system.json_file import read_json
from holdfast.infra.system.rooted import PathOutside, inside
from holdfast.processors.audits.comparison import SHOWN, Copy, Moment, Place, Side, compare_copies
from holdfast.processors.audits.copies import AuditImpossible, ChangelogCopy, Config, StoreCopy, Stray
from holdfast.processors.audits.repair import Subject, repair_plan
from holdfast.processors.audits.rows import key_row, stray_warning
from holdfast.processors.audits.tables import Tabled
from holdfast.processors.engine.serving.worker_client import ProcessorClient
from holdfast.processors.engine.state.fingerprint import Fingerprint
from holdfast.processors.engine.topology import SourceLog

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StorePartition:
    """One partition of a store in a checkpoint: its folder, and its changelog offset."""

    partition: int
    path: Path
    changelog: str
    topic_id: str
    offset: int

    @property
    def place(self) -> Place:
        """The point in the changelog (topic id and offset) whose state the checkpoint contains."""
        return Place(self.topic_id, self.offset)


@dataclass(frozen=True, slots=True)
class MeasuredPartition:
    """One partition of the checkpoint after its comparison.

    ``mib`` is the size of the checkpoint. ``records`` is the number of changelog records that were read. ``stray``
    describes records after the checkpoint's offset that other programs wrote.
    """

    part: StorePartition
    mib: float
    moment: Moment
    records: int
    stray: Stray | None = None

    @property
    def stored(self) -> Fingerprint:
        """The fingerprint of the store's content in the checkpoint."""
        return self.moment.prints[Side.STORE].whole

    @property
    def folded(self) -> Fingerprint:
        """The fingerprint of the folded changelog."""
        return self.moment.prints[Side.CHANGELOG].whole


@dataclass(frozen=True, slots=True)
class StoreAudit:
    """The result of auditing one store; ``differences`` is empty if all copies are equal."""

    subject: Subject
    partitions: tuple[MeasuredPartition, ...]
    #: Changelog partitions that contain state but belong to no checkpoint.
    unowned: tuple[int, ...]
    #: Comparisons of those table partitions whose offsets differ from the checkpoint's, made at the table's offsets.
    earlier: tuple[Moment, ...] = ()
    #: A text for each partition of the table that cannot be compared.
    unproved: tuple[str, ...] = ()
    tabled: Tabled | None = None

    @property
    def store(self) -> str:
        """The store's name."""
        return self.subject.store

    @property
    def moments(self) -> tuple[Moment, ...]:
        """All comparisons: first at the checkpoint's offsets, then at the table's offsets."""
        return (*(each.moment for each in self.partitions), *self.earlier)

    @property
    def differences(self) -> tuple[str, ...]:
        """One text, without a full stop, for each partition that differs or cannot be compared."""
        texts = [moment.sentence for moment in self.moments]
        unowned = [f"partition {number} has state in the changelog, but no worker has it" for number in self.unowned]
        return (*(each for each in texts if each is not None), *unowned, *self.unproved)

    @property
    def repair(self) -> tuple[str, ...]:
        """The repair steps, each as one text; empty if no copy differs."""
        steps = list(repair_plan(self.subject, self.moments))
        if self.unowned:
            steps.append("Wait until every partition has a running task (`holdfast status`); then audit again.")
        if self.unproved:
            steps.append(f"{self.subject.full_snapshot}; then audit again.")
        return tuple(steps)

    @property
    def warnings(self) -> tuple[str, ...]:
        """A text for each partition with records of other programs. A restore would read these records as state."""
        found = (each.stray for each in self.partitions)
        return tuple(stray_warning(self.subject, each) for each in found if each is not None)

    @property
    def unjudged(self) -> int:
        """The number of keys that cannot be judged, because compaction removed their records."""
        return sum(moment.unjudged for moment in self.moments)


def store_partitions(manifests: Sequence[Mapping[str, Any]], store: str) -> list[StorePartition]:
    """The partitions of a store in these manifests, sorted by number.

    If several manifests contain the same partition, the first of these manifests is used.
    """
    found: dict[int, StorePartition] = {}
    for part in _parts(manifests, store):
        found.setdefault(part.partition, part)
    return [found[partition] for partition in sorted(found)]


def checkpoint_manifests(folder: Path) -> list[dict[str, Any]]:
    """The readable manifests of the checkpoints in a folder, newest first.

    A manifest that names a path outside of its checkpoint's folder is left out, because readers open the named paths.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():
        document = read_json(path / "manifest.json", dict[str, Any])
        if document is not None and _is_usable(path, document):
            found.append(document)
    return found


class _KeptStore(msgspec.Struct):
    changelog: str
    topic_id: str
    offset: int


class _KeptTask(msgspec.Struct):
    partition: int
    path: str
    stores: dict[str, _KeptStore]
    inputs: dict[str, int] = {}
    sources: dict[str, str] = {}


class _Kept(msgspec.Struct):
    """The fields of a local checkpoint's manifest that audits and snapshots read."""

    taken_at: float
    tasks: list[_KeptTask]


def _is_usable(folder: Path, document: Mapping[str, Any]) -> bool:
    """Whether a manifest has the required fields, and all its paths are inside the folder of its checkpoint."""
    try:
        for task in msgspec.convert(document, _Kept).tasks:
            inside(folder, task.path)
    except (msgspec.ValidationError, PathOutside):
        return False
    return True


def audit_stores(
    subjects: Sequence[Subject],
    clients: Sequence[ProcessorClient],
    topics: Topics,
    config: Config,
    *,
    tables: Mapping[str, Tabled] | None = None,
    kept: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
) -> tuple[StoreAudit, ...]:
    """Take checkpoints now, and compare stores with their changelogs and tables.

    Args:
        subjects: The stores.
        clients: The processor's workers.
        topics: Access to Kafka topics and groups.
        config: Security settings of the Kafka client.
        tables: Store -> its table; a store without a table is not compared with the warehouse.
        kept: Function that returns the manifests of older checkpoints. If one of these checkpoints has the table's
            offsets, the table is compared with it. The function is called after the new checkpoint was taken, because
            taking a checkpoint may delete the oldest checkpoint.

    Raises:
        ProcessorSilent: A worker does not answer.
        AuditImpossible: A changelog ends before the offset of the state.
    """
    manifests = [client.checkpoint() for client in clients]
    older = kept()
    return tuple(
        audit_store(subject, manifests, topics, config, tabled=(tables or {}).get(subject.store), kept=older)
        for subject in subjects
    )


def audit_store(
    subject: Subject,
    manifests: Sequence[Mapping[str, Any]],
    topics: Topics,
    config: Config,
    *,
    tabled: Tabled | None = None,
    kept: Sequence[Mapping[str, Any]] = (),
) -> StoreAudit:
    """Compare a store's checkpoints with its changelog and its table.

    Args:
        subject: The store.
        manifests: The checkpoints' manifests. If several contain the same partition, the first of these is used. If
            there is no manifest, only the table is audited, at the table's own offsets.
        topics: Access to Kafka topics and groups.
        config: Security settings of the Kafka client.
        tabled: The store's table; None for no comparison with the warehouse.
        kept: Manifests of earlier checkpoints, for a comparison of the table with the store at the table's offsets.

    Raises:
        AuditImpossible: The changelog ends before the offset of the state.
    """
    parts = store_partitions(manifests, subject.store)
    measured = tuple(measure(topics, part, subject.store, config, tabled, subject.log) for part in parts)
    # If a table's source topic replaces the changelog, partitions in no checkpoint are not reported. They may contain
    # records, but a partition that no worker has processed yet contains no state.
    known = bool(manifests) and subject.log is None
    unowned = tuple(uncovered(topics, subject.changelog, parts, config)) if known else ()
    if tabled is None:
        return StoreAudit(subject, measured, unowned)
    earlier, unproved = _earlier(topics, subject, tabled, parts, (*manifests, *kept), config)
    return StoreAudit(subject, measured, unowned, earlier, unproved, tabled)


def measure(
    topics: Topics,
    part: StorePartition,
    store: str,
    config: Config,
    tabled: Tabled | None = None,
    log: SourceLog | None = None,
) -> MeasuredPartition:
    """Compare one partition of a checkpoint with its changelog, and with the table if the table has the same offset.

    ``log`` describes the conversion of records to rows, if the changelog is the source topic of a table.

    Raises:
        AuditImpossible: The changelog ends before the checkpoint's offset, or has another topic id than the checkpoint.
    """
    facts = topics.describe([part.changelog]).get(part.changelog)
    if facts is None or facts.topic_id != part.topic_id:
        seen = "is missing" if facts is None else f"has topic id {facts.topic_id}"
        raise AuditImpossible(
            f"Changelog {part.changelog} {seen}, but the checkpoint's offsets belong to topic id {part.topic_id}, so "
            "the two can't be compared.",
            action="If local state is right, refill the changelog: `holdfast apply backfill PROCESSOR --store "
            f"{store} --from local`. Then audit again.",
            topic=part.changelog,
            partition=part.partition,
            seen="none" if facts is None else facts.topic_id,
            expected=part.topic_id,
        )
    changelog = ChangelogCopy(topics, Partition(part.changelog, part.partition), part.offset, config, log)
    copies: dict[Side, Copy] = {Side.STORE: StoreCopy(part.path, store, part.place), Side.CHANGELOG: changelog}
    if tabled is not None and tabled.place(part.partition) == part.place:
        copies[Side.WAREHOUSE] = tabled.copy(part.partition)
    moment = compare_copies(part.partition, part.place, copies, changelog.superseded)
    return MeasuredPartition(part, round(size_of(part.path) / MIB, 3), moment, changelog.records, changelog.stray())


def size_of(folder: Path) -> int:
    """Total size, in bytes, of all files in a folder and its subfolders."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def uncovered(topics: Topics, changelog: str, parts: Sequence[StorePartition], config: Config) -> list[int]:
    """The changelog partitions that have live keys but are in no checkpoint."""
    covered = {part.partition for part in parts}
    ends = topics.end_offsets(changelog, committed=True)
    others = {number: end for number, end in sorted(ends.items()) if number not in covered}
    return [
        number
        for number, end in others.items()
        if ChangelogCopy(topics, Partition(changelog, number), end, config).prints().whole.count
    ]


def document(audit: StoreAudit) -> dict[str, Any]:
    """An audit as data that can be encoded as JSON."""
    manifest = None if audit.tabled is None else audit.tabled.manifest
    return {
        "store": audit.store,
        "equal": not audit.differences,
        "differences": list(audit.differences),
        "warnings": list(audit.warnings),
        "partitions": [_moment(moment) for moment in audit.moments],
        "keys_differing": sum(moment.differing for moment in audit.moments),
        "keys_unjudged": audit.unjudged,
        "keys": [key_row(one) for moment in audit.moments for one in moment.first][:SHOWN],
        "repair": list(audit.repair),
        "snapshot": None
        if manifest is None or audit.tabled is None
        else {
            "id": manifest.snapshot_id,
            "table": manifest.table,
            "source": manifest.source,
            "taken_at": manifest.taken_at,
            "untouched": audit.tabled.untouched,
        },
    }


def _earlier(
    topics: Topics,
    subject: Subject,
    tabled: Tabled,
    parts: Sequence[StorePartition],
    manifests: Sequence[Mapping[str, Any]],
    config: Config,
) -> tuple[tuple[Moment, ...], tuple[str, ...]]:
    """Compares the table at its own offsets, for partitions where they differ from the newest checkpoint's offsets."""
    facts = topics.describe([subject.changelog]).get(subject.changelog)
    kept = {(part.partition, part.place): part for part in _parts(manifests, subject.store)}
    moments, unproved = [], []
    now = {part.partition: part.place for part in parts}
    for number in sorted({*now, *(part.partition for part in tabled.manifest.partitions)}):
        place = tabled.place(number)
        if place is None:
            unproved.append(f"partition {number} is not in snapshot {tabled.manifest.snapshot_id}")
        elif facts is None or place.topic_id != facts.topic_id:
            seen = "is missing" if facts is None else f"now has topic id {facts.topic_id}"
            unproved.append(
                f"partition {number} of snapshot {tabled.manifest.snapshot_id} is at offset {place.offset} of topic id "
                f"{place.topic_id}, but {subject.changelog} {seen}: there is nothing to compare it with"
            )
        elif now.get(number) != place:
            changelog = ChangelogCopy(topics, Partition(subject.changelog, number), place.offset, config, subject.log)
            copies: dict[Side, Copy] = {}
            # The folder can be missing, because taking a newer checkpoint deletes the oldest checkpoint.
            if (number, place) in kept and kept[number, place].path.is_dir():
                copies[Side.STORE] = StoreCopy(kept[number, place].path, subject.store, place)
            copies |= {Side.CHANGELOG: changelog, Side.WAREHOUSE: tabled.copy(number)}
            moments.append(compare_copies(number, place, copies, changelog.superseded))
    return tuple(moments), tuple(unproved)


def _parts(manifests: Sequence[Mapping[str, Any]], store: str) -> Iterable[StorePartition]:
    for manifest in manifests:
        for task in manifest["tasks"]:
            at = task["stores"].get(store)
            if at is not None and at.get("changelog"):
                yield StorePartition(
                    task["partition"], Path(task["path"]), at["changelog"], at["topic_id"], at["offset"]
                )


def _moment(moment: Moment) -> dict[str, Any]:
    wholes = moment.wholes
    told = {Side.STORE: "stored", Side.CHANGELOG: "folded", Side.WAREHOUSE: "tabled"}
    return {
        "partition": moment.partition,
        "offset": moment.place.offset,
        "keys": next(iter(wholes.values())).count,
        **{name: wholes[side].hex if side in wholes else None for side, name in told.items()},
        "keys_differing": {odd.value: count for odd, count in moment.odd.items()},
        "keys_unjudged": moment.unjudged,
        "buckets_differing": list(moment.by_bucket),
    }
