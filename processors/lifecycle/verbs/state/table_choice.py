"""Chooses the snapshots for ``restore --at``. The functions are pure: they depend only on facts.

Invariants:
    - Stores that share input topics are restored from snapshots with the same input offsets, or not at all.
    - A missing input offset counts as unknown. An unknown offset is not 0, and is not equal to any other offset.
    - ``latest`` and ``newest`` choose only snapshots that were published from an owner's state, never versions that
      were computed from the table's history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.explanation import quoted
from holdfast.processors.lifecycle.plans.facts.facts import Facts
from holdfast.processors.lifecycle.plans.facts.warehouse import StoreTable, StoreVersion
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.verbs.refusals import retracting_with
from holdfast.processors.snapshots.manifest import SnapshotManifest

LATEST = "latest"
#: Maximum number of snapshots that a refusal lists.
SHOWN = 5

#: The type of input offsets: input topic -> partition -> offset.
Vector = dict[str, dict[int, int]]
Chosen = dict[str, StoreVersion]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a restore requires of the snapshots that it chooses for stores which share input topics.

    Args:
        at: A tag, a snapshot id, a version number, or ``latest``.
        reads: Input topic of these stores -> number of partitions.
        placed: Whether the input offsets will be set to those of the snapshots.
    """

    at: str
    reads: Mapping[str, int]
    placed: bool


def choose(facts: Facts, together: Sequence[str], wish: Wish) -> Chosen | Refused:
    """The snapshots to restore for stores that share input topics, or a refusal with the reason."""
    at = wish.at
    for store in together:
        table = facts.tables[store]
        if table.problem:
            return Refused(f"Store `{store}`: {table.problem}", table.action, {"store": store, "table": table.table})
    named = [store for store in together if at == LATEST or any(v.answers(at) for v in facts.tables[store].versions)]
    if not named:
        return _not_there(facts, together, at)
    first, lacks = named[0], ""
    for version in _candidates(facts.tables[first], at):
        unusable = _unusable(version, facts, first)
        if unusable is not None:
            if at == LATEST and version.manifest is None:
                continue  # Table maintenance or another program wrote this version, so ``latest`` does not choose it.
            return unusable
        assert version.manifest is not None
        # Versions for past times, built from the history table, have no input offsets, so they are compared by time.
        compared = len(together) > 1 and not version.manifest.from_history
        unplaced = _unplaced(version, facts, first, wish) if wish.placed or compared else None
        if unplaced is not None:
            return unplaced
        chosen: Chosen = {first: version}
        for other in together:
            found = version if other == first else _of_one_state(facts.tables[other], version.manifest, at)
            if found is not None:
                chosen[other] = found
            else:
                lacks = lacks or other
        if len(chosen) == len(together):
            in_order = {store: chosen[store] for store in together}
            problem = (_unusable(each, facts, store) for store, each in in_order.items())
            return next((each for each in problem if each is not None), in_order)
    if not lacks:
        return _not_there(facts, together, at)
    return Refused(
        f"Store `{lacks}` has no snapshot at the input offsets of the requested snapshot ({at}) of store `{first}`. "
        f"Both are built from the same inputs, so they would hold different input. {_known(facts.tables[lacks])}",
        f"Materialise the snapshots of {quoted(together)} in one run, which takes them at the same offsets. Or restore "
        f"store `{first}` alone and leave the input offsets: `--store {first} --input stay`.",
        {"store": lacks, "at": at},
    )


def vector_of(manifest: SnapshotManifest) -> Vector:
    """The input offsets that a snapshot's state includes: topic -> partition -> next input offset."""
    vector: Vector = {}
    for part in manifest.partitions:
        for topic, offset in part.inputs.items():
            vector.setdefault(topic, {})[part.partition] = offset
    return vector


def unlike_others(inputs: str, facts: Facts, topology: Topology, chosen: Chosen) -> list[str]:
    """The chosen stores of a ``group_by`` of a table whose restored entries would not fit those of the other stores.

    With ``inputs`` ``stay``, a store fits if its snapshot has the state at the committed input offsets. A snapshot
    without the offset of an input partition, such as a version of a past time, does not fit. With ``snapshot``, a
    store fits if its inputs are only repartition topics, because it reads them again from the snapshot's offsets. With
    other values of ``inputs``, no store fits.
    """
    parted = [store for store in chosen if store in retracting_with(topology, tuple(chosen))]
    if inputs == "stay":
        return [store for store in parted if not _is_current(facts, topology.inputs_of(store), chosen[store])]
    if inputs != "snapshot":
        return parted
    return [store for store in parted if not all(map(topology.is_repartition, topology.inputs_of(store)))]


def _is_current(facts: Facts, inputs: Sequence[str], version: StoreVersion) -> bool:
    """Whether a snapshot has the state at the committed offsets of all partitions of these inputs."""
    assert version.manifest is not None
    reads = {topic: facts.topics[topic].partitions for topic in inputs}
    return not lacking(version.manifest, reads) and all(
        facts.committed.get(topic, {}).get(number) == at
        for topic, each in vector_of(version.manifest).items()
        for number, at in each.items()
    )


def sources_of(manifest: SnapshotManifest) -> dict[str, set[str]]:
    """Maps input topics to the topic ids of their offsets; the id is an empty text if none was recorded."""
    found: dict[str, set[str]] = {}
    for part in manifest.partitions:
        for topic in part.inputs:
            found.setdefault(topic, set()).add(part.sources.get(topic, ""))
    return found


def name_of(version: StoreVersion) -> str:
    """A snapshot as text: its id, and the time when its state was taken."""
    assert version.manifest is not None
    taken = datetime.fromtimestamp(version.manifest.taken_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{version.manifest.snapshot_id} of {taken}"


def newest(table: StoreTable) -> StoreVersion | None:
    """The newest snapshot that was taken from a worker's state; None if there is none."""
    return next(iter(_published(table)), None)


def lacking(manifest: SnapshotManifest, reads: Mapping[str, int]) -> list[tuple[str, int]]:
    """The input partitions that a snapshot's tasks read, but whose offsets the snapshot lacks.

    ``reads`` maps input topics to their number of partitions. Only partitions in the snapshot's manifest are checked.
    """
    parts = sorted(manifest.partitions, key=lambda part: part.partition)
    return [
        (topic, part.partition)
        for part in parts
        for topic, count in reads.items()
        if part.partition < count and topic not in part.inputs
    ]


def _published(table: StoreTable) -> list[StoreVersion]:
    return [each for each in table.versions if each.manifest is not None and not each.manifest.from_history]


def _candidates(table: StoreTable, at: str) -> Sequence[StoreVersion]:
    if at == LATEST:
        return [each for each in table.versions if each.manifest is None or not each.manifest.from_history]
    return [each for each in table.versions if each.answers(at)]


def _of_one_state(table: StoreTable, manifest: SnapshotManifest, at: str) -> StoreVersion | None:
    """A version of another store's table with the same input offsets as the snapshot of ``manifest``; None without one.

    Of several such versions, the version that ``at`` names is preferred.
    """
    fits = [each for each in table.versions if each.manifest is not None and _same_state(each.manifest, manifest)]
    return next((each for each in fits if each.answers(at)), next(iter(fits), None))


def _same_state(one: SnapshotManifest, other: SnapshotManifest) -> bool:
    """Whether two snapshots contain the same input: equal offsets or, if made from the history, equal times."""
    if one.from_history or other.from_history:
        return one.from_history and other.from_history and one.taken_at == other.taken_at
    return vector_of(one) == vector_of(other)


def _unplaced(version: StoreVersion, facts: Facts, store: str, wish: Wish) -> Refused | None:
    """The refusal of a snapshot that lacks the offset of an input partition; None if it has all offsets."""
    assert version.manifest is not None
    missing = lacking(version.manifest, wish.reads)
    if not missing:
        return None
    topic, number = missing[0]
    made = "it was made from the history, which has no input offsets"
    why = made if version.manifest.from_history else "the checkpoint that it was taken from had none"
    others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return Refused(
        f"Snapshot {name_of(version)} of store `{store}` has no input offset of {topic}[{number}]{others}: {why}. "
        "Where its input continues is unknown, and input that is read again would count twice.",
        f"Name a snapshot that was published from the store after `--at`. {_known(facts.tables[store])} To restore "
        f"content alone and leave the input offsets: `--store {store} --input stay`. If all records of the inputs are "
        "newer than this snapshot: `--input earliest`.",
        {"store": store, "topic": topic, "partition": number, "seen": None, "expected": "an offset"},
    )


def _unusable(version: StoreVersion, facts: Facts, store: str) -> Refused | None:
    """The reason why a version cannot be restored, as a refusal; None if it can be restored."""
    table = facts.tables[store].table
    fields: dict[str, str | int | float | bool | None] = {"store": store, "table": table, "version": version.version}
    manifest = version.manifest
    if manifest is None:
        return Refused(
            f"Version {version.version} of {table} cannot be restored: {version.problem}.",
            f"Name another snapshot after `--at`. {_known(facts.tables[store])}",
            fields,
        )
    if (manifest.processor, manifest.store) != (facts.processor, store):
        return Refused(
            f"Version {version.version} of {table} is a snapshot of store `{manifest.store}` of processor "
            f"{manifest.processor}, not of store `{store}` of {facts.processor}.",
            "Find out which program wrote this table, and name a snapshot of the right store after `--at`.",
            {**fields, "seen": f"{manifest.processor}.{manifest.store}", "expected": f"{facts.processor}.{store}"},
        )
    if manifest.state_format != STATE_FORMAT:
        return Refused(
            f"Snapshot {name_of(version)} of store `{store}` has state format {manifest.state_format}; this Holdfast "
            f"reads format {STATE_FORMAT}.",
            "Restore it with the Holdfast version that wrote it, or name a newer snapshot after `--at`.",
            {**fields, "seen": manifest.state_format, "expected": STATE_FORMAT},
        )
    numbers = sorted(part.partition for part in manifest.partitions)
    if numbers != list(range(len(numbers))):
        return Refused(
            f"The manifest of snapshot {manifest.snapshot_id} of store `{store}` lists partitions {numbers}: some are "
            "missing.",
            "Name another snapshot after `--at`.",
            fields,
        )
    return None


def _not_there(facts: Facts, together: Sequence[str], at: str) -> Refused:
    shown = " ".join(_known(facts.tables[store]) for store in together)
    if at == LATEST:
        return Refused(
            f"Store {quoted(together)}: no version of its table is a snapshot that was published from the store.",
            f"Materialise its state asset and its snapshot asset while the processor runs. {shown}",
            {"at": at},
        )
    return Refused(
        f"Store {quoted(together)}: there is no snapshot, tag or version {at!r}.",
        f"Name an existing one after `--at`. {shown}",
        {"at": at},
    )


def _known(table: StoreTable) -> str:
    """A text that lists the newest published snapshots of a table, and the number of versions made from its history."""
    there = _published(table)
    past = sum(1 for each in table.versions if each.manifest is not None and each.manifest.from_history)
    made = f" Versions made from the history, without input offsets: {past}." if past else ""
    if not there:
        problem = next((each for each in table.versions if each.manifest is None), None)
        why = f" Version {problem.version}: {problem.problem.rstrip('.')}." if problem is not None else ""
        return f"{table.table} has no readable snapshot that was published from the store.{why}{made}"
    shown = ", ".join(f"{name_of(each)} ({', '.join(each.tags) or 'no tag'})" for each in there[:SHOWN])
    return f"{table.table} has {shown}{f' and {len(there) - SHOWN} more' if len(there) > SHOWN else ''}.{made}"


def describe(chosen: Mapping[str, StoreVersion]) -> dict[str, str]:
    """Maps each store to the snapshot's id and table version, for the basis of a plan (facts that its hash covers)."""
    return {
        store: f"{each.manifest.snapshot_id if each.manifest else ''} (version {each.version})"
        for store, each in chosen.items()
    }
