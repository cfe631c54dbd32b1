"""Which snapshots of a processor's stores belong together, and which of them is meant: pure functions over facts.

Invariants:
    - Stores that are processed together are taken from snapshots at one vector of input offsets, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.lifecycle.plans.facts import Facts
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.warehouse_facts import StoreTable, StoreVersion
from holdfast.processors.snapshots.manifest import SnapshotManifest

LATEST = "latest"
#: So many snapshots are named where none is the one that was asked for.
SHOWN = 5

#: Input topic -> partition -> offset.
Vector = dict[str, dict[int, int]]
Chosen = dict[str, StoreVersion]


def choose(facts: Facts, together: Sequence[str], at: str) -> Chosen | Refused:
    """The snapshots of stores that are processed together.

    Args:
        facts: With the tables of these stores.
        together: The stores.
        at: What was asked for.
    """
    for store in together:
        table = facts.tables[store]
        if table.problem:
            return Refused(f"Store {store}: {table.problem}", table.action, {"store": store, "table": table.table})
    named = [store for store in together if at == LATEST or any(v.answers(at) for v in facts.tables[store].versions)]
    if not named:
        return _not_there(facts, together, at)
    first, lacks = named[0], ""
    for version in _candidates(facts.tables[first], at):
        unusable = _unusable(version, facts, first)
        if unusable is not None:
            if at == LATEST and version.manifest is None:
                continue  # a version that compaction or somebody else wrote
            return unusable
        assert version.manifest is not None
        vector = vector_of(version.manifest)
        chosen: Chosen = {first: version}
        for other in together:
            found = version if other == first else _at_vector(facts.tables[other], vector, at)
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
        f"Store {lacks} has no snapshot at the input offsets of the one of {first} that was asked for ({at}), and both "
        f"are built from the same inputs: their contents would part. {_told(facts.tables[lacks])}",
        f"Take snapshots of {', '.join(together)} of one checkpoint (materialise them in one run), or bring "
        f"{first} alone back and read on where the input stands: --store {first} --input stay.",
        {"store": lacks, "at": at},
    )


def vector_of(manifest: SnapshotManifest) -> Vector:
    """The input offsets that a snapshot belongs to."""
    vector: Vector = {}
    for part in manifest.partitions:
        for topic, offset in part.inputs.items():
            vector.setdefault(topic, {})[part.partition] = offset
    return vector


def sources_of(manifest: SnapshotManifest) -> dict[str, set[str]]:
    """Input topic -> the ids that it had when the snapshot was taken, as far as it says."""
    found: dict[str, set[str]] = {}
    for part in manifest.partitions:
        for topic, topic_id in part.sources.items():
            found.setdefault(topic, set()).add(topic_id)
    return found


def name_of(version: StoreVersion) -> str:
    """A snapshot for people: its id, and when the owner was there."""
    assert version.manifest is not None
    taken = datetime.fromtimestamp(version.manifest.taken_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{version.manifest.snapshot_id} of {taken}"


def newest(table: StoreTable) -> StoreVersion | None:
    """The newest version that is a snapshot of ours."""
    return next((each for each in table.versions if each.manifest is not None), None)


def _candidates(table: StoreTable, at: str) -> Sequence[StoreVersion]:
    return [each for each in table.versions if at == LATEST or each.answers(at)]


def _at_vector(table: StoreTable, vector: Vector, at: str) -> StoreVersion | None:
    fits = [each for each in table.versions if each.manifest is not None and vector_of(each.manifest) == vector]
    return next((each for each in fits if each.answers(at)), next(iter(fits), None))


def _unusable(version: StoreVersion, facts: Facts, store: str) -> Refused | None:
    """Why a version can't be restored from."""
    table = facts.tables[store].table
    fields: dict[str, str | int | float | bool | None] = {"store": store, "table": table, "version": version.version}
    manifest = version.manifest
    if manifest is None:
        return Refused(
            f"Version {version.version} of {table} can't be restored from: {version.problem}.",
            f"Name another snapshot. {_told(facts.tables[store])}",
            fields,
        )
    if (manifest.processor, manifest.store) != (facts.processor, store):
        return Refused(
            f"Version {version.version} of {table} is a snapshot of store {manifest.store} of processor "
            f"{manifest.processor}, not of {store} of {facts.processor}.",
            "See where this table comes from, and name a snapshot of this very store.",
            {**fields, "seen": f"{manifest.processor}.{manifest.store}", "expected": f"{facts.processor}.{store}"},
        )
    if manifest.state_format != STATE_FORMAT:
        return Refused(
            f"Snapshot {name_of(version)} of {store} has keys and values of format {manifest.state_format}; this "
            f"version reads and writes {STATE_FORMAT}.",
            "Restore it with the Holdfast version that wrote it, or name a newer snapshot.",
            {**fields, "seen": manifest.state_format, "expected": STATE_FORMAT},
        )
    numbers = sorted(part.partition for part in manifest.partitions)
    if numbers != list(range(len(numbers))):
        return Refused(
            f"The manifest of snapshot {manifest.snapshot_id} of {store} is of partitions {numbers}: some are missing.",
            "Name another snapshot.",
            fields,
        )
    return None


def _not_there(facts: Facts, together: Sequence[str], at: str) -> Refused:
    shown = " ".join(_told(facts.tables[store]) for store in together)
    return Refused(
        f"{', '.join(together)}: there is no snapshot, tag or version {at!r}.",
        f"Name one that is there. {shown}",
        {"at": at},
    )


def _told(table: StoreTable) -> str:
    """The newest snapshots of a table, for people."""
    there = [each for each in table.versions if each.manifest is not None]
    if not there:
        why = f" Version {table.versions[0].version}: {table.versions[0].problem}" if table.versions else ""
        return f"{table.table} has no snapshot that can be read.{why}"
    shown = ", ".join(f"{name_of(each)} ({', '.join(each.tags) or 'no tag'})" for each in there[:SHOWN])
    return f"{table.table} has {shown}" + (f" and {len(there) - SHOWN} more." if len(there) > SHOWN else ".")


def describe(chosen: Mapping[str, StoreVersion]) -> dict[str, str]:
    """What a plan rests on: store -> snapshot and version."""
    return {
        store: f"{each.manifest.snapshot_id if each.manifest else ''} (version {each.version})"
        for store, each in chosen.items()
    }
