"""Whether processors keep out of each other's way: names of processors, stores' changelogs and topics.

Pure: descriptions in, conflicts out. What one name alone has to be is said by ``processors.engine.changelog.names``.

Invariants:
    - A changelog has one writer: the processor that owns its store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.processors.engine.topology import Topology
from holdfast.processors.snapshots.names import SNAPSHOTS_TABLE, tables_of


@dataclass(frozen=True, slots=True)
class NameConflict:
    """Two names that can't both be: what is seen, and what to do."""

    sentence: str
    action: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.sentence} {self.action}"


def name_conflicts(topology: Topology, others: Sequence[Topology] = ()) -> tuple[NameConflict, ...]:
    """What stands against a processor beside others, and in itself; empty when nothing does."""
    return (*_within(topology), *(conflict for other in others for conflict in _between(topology, other)))


def _within(topology: Topology) -> Iterator[NameConflict]:
    changelogs = {spec.topic.name: spec.store for spec in topology.changelogs}
    others = [*topology.inputs, *topology.outputs, *([topology.dead_letter] if topology.dead_letter else [])]
    for spec in others:
        if spec.name in changelogs:
            yield NameConflict(
                f"Processor {topology.processor} uses {spec.name} as a topic, and it is the changelog of its "
                f"store {changelogs[spec.name]}: only state may be in it.",
                "Name the topic or the store otherwise.",
            )
    yield from _alike(topology, topology)
    yield from _tables(topology)


def _tables(topology: Topology) -> Iterator[NameConflict]:
    """Each store has a table of its own in the warehouse, and others beside it."""
    owners: dict[str, str] = {}
    for spec in topology.changelogs:
        if spec.store == SNAPSHOTS_TABLE:
            yield NameConflict(
                f"Processor {topology.processor} has a store {SNAPSHOTS_TABLE}: in the warehouse, that is the table of "
                "its snapshots.",
                "Name the store otherwise.",
            )
        for table in tables_of(topology.processor, spec.store):
            other = owners.setdefault(table, spec.store)
            if other != spec.store:
                yield NameConflict(
                    f"Stores {other} and {spec.store} of {topology.processor} both have a table {table} in the "
                    "warehouse.",
                    "Name one of the stores otherwise.",
                )


def _between(topology: Topology, other: Topology) -> Iterator[NameConflict]:
    name, taken = topology.processor, other.processor
    if name == taken:
        yield NameConflict(
            f"Two definitions are named {name} (their consumer_group): they would share state and offsets.",
            "Give one of them another consumer_group, or take it out of HOLDFAST_PROCESSORS.",
        )
        return
    if _safe(name) == _safe(taken):
        yield NameConflict(
            f"Processors {name} and {taken} have one name in Dagster, which takes letters, digits and underscores.",
            "Give one of them another consumer_group.",
        )
    owned = {spec.topic.name: spec.store for spec in topology.changelogs}
    theirs = {spec.topic.name: spec.store for spec in other.changelogs}
    for changelog in owned.keys() & theirs.keys():
        yield NameConflict(
            f"Store {owned[changelog]} of {name} and store {theirs[changelog]} of {taken} have one changelog, "
            f"{changelog}: each would restore the other's state.",
            "Rename one of the stores, or one consumer_group.",
        )
    for writer, owner, changelogs in ((topology, other, theirs), (other, topology, owned)):
        foreign = {spec.name for spec in (*writer.outputs, *([writer.dead_letter] if writer.dead_letter else []))}
        for changelog in sorted(foreign & changelogs.keys()):
            yield NameConflict(
                f"Processor {writer.processor} writes to {changelog}, the changelog of store {changelogs[changelog]} "
                f"of {owner.processor}, whose state it would damage.",
                "Write to another topic; to read a changelog is fine.",
            )
    yield from _alike(topology, other)


def _alike(topology: Topology, other: Topology) -> Iterator[NameConflict]:
    """Kafka refuses a topic whose name differs from another one's in dots and underscores only."""
    theirs = {spec.name for spec in other.topics()}
    by_form = {name.replace(".", "_"): name for name in sorted(theirs)}
    for name in sorted({spec.name for spec in topology.topics()} - (theirs if other is not topology else set())):
        twin = by_form.get(name.replace(".", "_"))
        if twin is not None and twin != name:
            yield NameConflict(
                f"Topics {name} and {twin} differ in dots and underscores only, and Kafka takes only one of them.",
                "Name one of them otherwise.",
            )


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
