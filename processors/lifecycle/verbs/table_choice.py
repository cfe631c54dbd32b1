"""Chooses the snapshots that ``restore --at`` means: pure functions over facts.

Invariants:
    - Stores that are processed together are restored from snapshots with the same input offsets, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from holdfast.processors.engine.checkpoints.manifest import STATE_FORMAT
from holdfast.processors.lifecycle.plans.explanation import quoted
from holdfast.processors.lifecycle.plans.facts import Facts
from holdfast.processors.lifecycle.plans.plan import Refused
from holdfast.processors.lifecycle.plans.warehouse_facts import StoreTable, StoreVersion
from holdfast.processors.snapshots.manifest import SnapshotManifest

LATEST = "latest"
#: Number of snapshots that a refusal lists.
SHOWN = 5

#: Input topic -> partition -> offset.
Vector = dict[str, dict[int, int]]
Chosen = dict[str, StoreVersion]


def choose(facts: Facts, together: Sequence[str], at: str) -> Chosen | Refused:
    """The snapshots of stores that are processed together, or why there are none.

    Args:
        facts: Facts with the warehouse tables of these stores.
        together: The stores.
        at: A tag, a snapshot's id, a version's number or ``latest``.
    """
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
                continue  # a version that compaction or another program wrote
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
        f"Store `{lacks}` has no snapshot at the input offsets of the requested snapshot ({at}) of store `{first}`. "
        f"Both are built from the same inputs, so they would hold different input. {_known(facts.tables[lacks])}",
        f"Materialise the snapshots of {quoted(together)} in one run, which takes them at the same offsets. Or restore "
        f"store `{first}` alone and leave the input offsets: `--store {first} --input stay`.",
        {"store": lacks, "at": at},
    )


def vector_of(manifest: SnapshotManifest) -> Vector:
    """The input offsets of a snapshot's state: topic -> partition -> next offset."""
    vector: Vector = {}
    for part in manifest.partitions:
        for topic, offset in part.inputs.items():
            vector.setdefault(topic, {})[part.partition] = offset
    return vector


def sources_of(manifest: SnapshotManifest) -> dict[str, set[str]]:
    """Input topic -> the topic ids that the snapshot's manifest records."""
    found: dict[str, set[str]] = {}
    for part in manifest.partitions:
        for topic, topic_id in part.sources.items():
            found.setdefault(topic, set()).add(topic_id)
    return found


def name_of(version: StoreVersion) -> str:
    """A snapshot in words: its id and the time of its state."""
    assert version.manifest is not None
    taken = datetime.fromtimestamp(version.manifest.taken_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{version.manifest.snapshot_id} of {taken}"


def newest(table: StoreTable) -> StoreVersion | None:
    """The newest version that carries a manifest; None without one."""
    return next((each for each in table.versions if each.manifest is not None), None)


def _candidates(table: StoreTable, at: str) -> Sequence[StoreVersion]:
    return [each for each in table.versions if at == LATEST or each.answers(at)]


def _at_vector(table: StoreTable, vector: Vector, at: str) -> StoreVersion | None:
    fits = [each for each in table.versions if each.manifest is not None and vector_of(each.manifest) == vector]
    return next((each for each in fits if each.answers(at)), next(iter(fits), None))


def _unusable(version: StoreVersion, facts: Facts, store: str) -> Refused | None:
    """Why a version cannot be restored; None when it can."""
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
    return Refused(
        f"Store {quoted(together)}: there is no snapshot, tag or version {at!r}.",
        f"Name an existing one after `--at`. {shown}",
        {"at": at},
    )


def _known(table: StoreTable) -> str:
    """The newest snapshots of a table, in words."""
    there = [each for each in table.versions if each.manifest is not None]
    if not there:
        why = f" Version {table.versions[0].version}: {table.versions[0].problem}" if table.versions else ""
        return f"{table.table} has no readable snapshot.{why}"
    shown = ", ".join(f"{name_of(each)} ({', '.join(each.tags) or 'no tag'})" for each in there[:SHOWN])
    return f"{table.table} has {shown}" + (f" and {len(there) - SHOWN} more." if len(there) > SHOWN else ".")


def describe(chosen: Mapping[str, StoreVersion]) -> dict[str, str]:
    """Store -> snapshot and version, for a plan's basis."""
    return {
        store: f"{each.manifest.snapshot_id if each.manifest else ''} (version {each.version})"
        for store, each in chosen.items()
    }
