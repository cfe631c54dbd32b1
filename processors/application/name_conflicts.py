"""Finds names that two processors can't both use: names of groups, changelogs, topics and warehouse tables.

All functions are pure: they compare only descriptions of processors. ``processors.engine.changelog.names`` checks
whether Kafka allows a single name.

Invariants:
    - Only one processor writes to a changelog: the processor that owns its store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.processors.engine.topology import Topology
from holdfast.processors.snapshots.names import SNAPSHOTS_TABLE, tables_of


@dataclass(frozen=True, slots=True)
class NameConflict:
    """A conflict between two names: a sentence that states the conflict, and the edit that resolves it."""

    sentence: str
    action: str

    @property
    def text(self) -> str:
        """The description of the conflict, followed by the edit that resolves it, in one line."""
        return f"{self.sentence} {self.action}"


def name_conflicts(topology: Topology, others: Sequence[Topology] = ()) -> tuple[NameConflict, ...]:
    """Returns the conflicts of a processor's names, with each other and with the names of other processors.

    An empty result means that the processor can run.
    """
    return (*_within(topology), *(conflict for other in others for conflict in _between(topology, other)))


def _within(topology: Topology) -> Iterator[NameConflict]:
    changelogs = {spec.topic.name: spec.store for spec in topology.changelogs}
    rejects = [topology.dead_letter] if topology.dead_letter else []
    others = [*topology.inputs, *topology.global_tables, *topology.outputs, *rejects]
    for spec in others:
        if spec.name in changelogs:
            yield NameConflict(
                f"Processor {topology.processor} uses topic {spec.name} as input or output, but it is the changelog of "
                f"its store {changelogs[spec.name]}, which may hold state only.",
                "Rename the topic or the store.",
            )
    yield from _alike(topology, topology)
    yield from _tables(topology)


def _tables(topology: Topology) -> Iterator[NameConflict]:
    """Yields conflicts between the warehouse tables of the processor's stores."""
    owners: dict[str, str] = {}
    for spec in topology.changelogs:
        if spec.store == SNAPSHOTS_TABLE:
            yield NameConflict(
                f"Processor {topology.processor} has a store {SNAPSHOTS_TABLE}, but the warehouse uses this name for "
                "the table of snapshots.",
                "Rename the store.",
            )
        for table in tables_of(topology.processor, spec.store):
            other = owners.setdefault(table, spec.store)
            if other != spec.store:
                yield NameConflict(
                    f"Stores {other} and {spec.store} of {topology.processor} both have a table {table} in the "
                    "warehouse.",
                    "Rename one of the stores.",
                )


def _between(topology: Topology, other: Topology) -> Iterator[NameConflict]:
    name, taken = topology.processor, other.processor
    if name == taken:
        yield NameConflict(
            f"Two definitions are named {name} (their consumer_group): they would share state and offsets.",
            "Change one `consumer_group`, or take one definition out of the setting `processors`.",
        )
        return
    if _safe(name) == _safe(taken):
        yield NameConflict(
            f"Processors {name} and {taken} have the same name in Dagster, which allows letters, digits and "
            "underscores only.",
            "Change one `consumer_group`.",
        )
    owned = {spec.topic.name: spec.store for spec in topology.changelogs}
    theirs = {spec.topic.name: spec.store for spec in other.changelogs}
    for changelog in owned.keys() & theirs.keys():
        yield NameConflict(
            f"Store {owned[changelog]} of {name} and store {theirs[changelog]} of {taken} have one changelog, "
            f"{changelog}: each would restore the other's state.",
            "Rename one of the stores, or change one `consumer_group`.",
        )
    shared = {spec.topic for spec in topology.repartitions} & {spec.topic for spec in other.repartitions}
    for topic in sorted(shared):
        yield NameConflict(
            f"A `group_by` of {name} and one of {taken} have one repartition topic, {topic}: each would count the "
            "other's messages.",
            "Give one `group_by` another `name`, or change one `consumer_group`.",
        )
    for writer, owner in ((topology, other), (other, topology)):
        uses = {spec.name for spec in (*writer.outputs, *writer.sources, *filter(None, (writer.dead_letter,)))}
        for topic in sorted(uses & {spec.topic for spec in owner.repartitions}):
            yield NameConflict(
                f"Processor {writer.processor} uses {topic}, the repartition topic of a `group_by` of "
                f"{owner.processor}: it holds messages only until they are processed.",
                f"Let {owner.processor} send its messages to a topic for others, too.",
            )
    for writer, owner, changelogs in ((topology, other, theirs), (other, topology, owned)):
        foreign = {spec.name for spec in (*writer.outputs, *([writer.dead_letter] if writer.dead_letter else []))}
        for changelog in sorted(foreign & changelogs.keys()):
            yield NameConflict(
                f"Processor {writer.processor} writes to {changelog}, the changelog of store {changelogs[changelog]} "
                f"of {owner.processor}: this would damage the state of {owner.processor}.",
                "Write to another topic. Reading a changelog is allowed.",
            )
    yield from _alike(topology, other)


def _alike(topology: Topology, other: Topology) -> Iterator[NameConflict]:
    """Yields conflicts of topic names that differ only in dots and underscores; Kafka refuses the second topic."""
    theirs = {spec.name for spec in other.topics()}
    by_form = {name.replace(".", "_"): name for name in sorted(theirs)}
    for name in sorted({spec.name for spec in topology.topics()} - (theirs if other is not topology else set())):
        twin = by_form.get(name.replace(".", "_"))
        if twin is not None and twin != name:
            yield NameConflict(
                f"Topics {name} and {twin} differ in dots and underscores only; Kafka allows only one of them.",
                "Rename one of the topics.",
            )


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
