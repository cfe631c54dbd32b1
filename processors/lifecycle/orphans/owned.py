"""Finds orphans: topics, groups, local state, checkpoints and tables that no registered store owns. Pure functions.

    names of our processors ──► resources with these names ──► minus resources of definitions, releases, open applies

Invariants:
    - Only a resource whose name begins with a processor of this installation can be an orphan. Resources of other
      programs cannot.
    - A changelog's processor is known from its records, because the topic name can be ambiguous. For example
      ``orders-eu-totals-changelog`` fits processor ``orders`` and processor ``orders-eu`` of another installation.
    - If the owner is uncertain, the resource counts as owned. The owner is uncertain while the resource is in use, or
      while an apply (change) of its processor is open. It is also uncertain if the processor's definition may be one
      that cannot be imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.processors.engine.changelog.names import (
    CHANGELOG_SUFFIX,
    REPARTITION_SUFFIX,
    filling_topic,
    is_repartition_topic,
    shadow_group,
)
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.facts.orphans import Orphan
from holdfast.processors.snapshots.names import snapshots_name, tables_of, views_of

#: Files in the folder of a slot (one worker's place on this machine) that do not belong to the state of tasks.
SLOT_FILES = ("lock", "identity.json", "identity.tmp", "id", "id.tmp")
_SHADOW = "--rebuild-"


@dataclass(frozen=True, slots=True)
class Owner:
    """A registered processor: it has a definition, or it is deployed and not stopped.

    Args:
        name: The name of the processor and of its consumer group.
        stores: The stores of the defined version and of the last release that worked.
        changelogs: The changelogs of ``stores``, and the processor's repartition topics.
        slots: The processor's slots (places of workers); None if unknown.
        tasks: The names of the processor's tasks in state folders and in the checkpoint store; None if unknown.
        vague: Whether the processor's stores are unknown, because it is deployed but has no definition here. Every
            changelog and table with its name then counts as owned.
        deployed: Whether the processor is deployed here and not stopped, so that the members of its group are its
            workers.
    """

    name: str
    stores: frozenset[str]
    changelogs: frozenset[str]
    slots: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    vague: bool = False
    deployed: bool = True


@dataclass(frozen=True, slots=True)
class Defined:
    """The processors that the settings define.

    Args:
        topologies: The topologies of the definitions that could be imported.
        state_dirs: The root folders of local state that the definitions name.
        doubtful: Whether the import of at least one definition failed.
    """

    topologies: Sequence[Topology] = ()
    state_dirs: Set[Path] = frozenset()
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One file or subfolder in the state folder of a slot; ``in_use`` is true if a live worker process uses the slot.

    A slot is the place of one worker.
    """

    group: str
    slot: str
    entry: str
    path: str
    size_bytes: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Signed:
    """The processors that the records of a topic name as their writers, and the high watermark of each partition."""

    writers: frozenset[str] = frozenset()
    ends: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """All resources that were found on this machine and in Kafka, with or without an owner.

    ``signed`` has the topics whose records were read. The function ``candidates`` lists the topics whose records must
    be read. ``checkpoints`` maps (processor, task) to the size of its checkpoints in bytes; the task is empty for
    folders on this machine. ``tables`` has names such as ``holdfast.<namespace>.<table>``.
    """

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    state: Sequence[StateEntry] = ()
    checkpoints: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tables: Sequence[str] = ()
    signed: Mapping[str, Signed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """The processors that resources may belong to.

    Args:
        owners: The registered processors.
        names: All known names of present and former processors of this installation.
        busy: Processors with an open apply (execution of a plan).
        doubtful: Whether the import of a definition failed. If so, resources of undefined processors are not orphans
            (resources without an owner).
    """

    owners: Sequence[Owner]
    names: Set[str] = frozenset()
    busy: Set[str] = frozenset()
    doubtful: bool = False

    def owner(self, name: str) -> Owner | None:
        """The registered processor with this name; None if no processor has it."""
        return next((each for each in self.owners if each.name == name), None)

    def all_names(self) -> list[str]:
        """All processor names, longest first, so that a topic of processor ``a-b`` is not assigned to ``a``."""
        return sorted({*self.names, *(each.name for each in self.owners)}, key=len, reverse=True)

    def unregistered(self, name: str) -> str:
        """Why a resource with this processor's name has no owner, as text.

        Empty if the processor may own resources: it is registered, or has an open apply (execution of a plan), or its
        definition may be one that failed to import.
        """
        processor = _processor(name)
        if processor in self.busy or self.owner(name) is not None:
            return ""
        if self.owner(processor) is not None:
            return f"it is left from a backfill of {processor}, and none is open"
        return "" if self.doubtful else f"{processor} is neither defined nor deployed"


def find_orphans(known: Known, found: Found) -> tuple[Orphan, ...]:
    """The resources in ``found`` that no registered processor owns, sorted by kind and name."""
    everything = (
        *_topics(known, found),
        *_groups(known, found.groups),
        *_state(known, found.state),
        *_checkpoints(known, found.checkpoints),
        *_tables(known, found.tables),
    )
    orphans = [replace(each, forsaken=_forsaken(known, each.processor)) for each in everything if each.why]
    return tuple(sorted(orphans, key=lambda each: (each.kind, each.name)))


def candidates(known: Known, topics: Sequence[str]) -> dict[str, str]:
    """Maps each topic that looks like an orphan to the processor or shadow (second run of a processor) in its name.

    An orphan is a resource without an owner. A topic's records name the processor that wrote them. The caller reads
    these records, to know whether the topic is an orphan.
    """
    names = known.all_names()
    owned = {log for owner in known.owners for log in owner.changelogs}
    found = {}
    for topic in topics:
        name = next((each for each in names if topic.startswith(f"{each}-")), None)
        ours = topic.endswith((CHANGELOG_SUFFIX, REPARTITION_SUFFIX)) and topic not in owned
        if name is not None and ours and _unowned(known, name, topic):
            found[topic] = name
    return found


def in_use(orphan: Orphan, groups: Mapping[str, Set[str]]) -> str:
    """The reason why a running group forbids a change of a topic, as a sentence; empty without such a group.

    ``groups`` maps each group to the topics that it reads. Example: the topic ``orders-eu-totals-changelog`` looks like
    an orphan (resource without an owner) of processor ``orders``, but a group ``orders-eu`` runs. The topic may then
    belong to processor ``orders-eu`` of another installation.
    """
    if orphan.kind != "topic":
        return ""
    for group, read in sorted(groups.items()):
        if orphan.name in read:
            return f"group {group} reads it. Stop the members of {group}, then plan again."
        if len(group) > len(orphan.processor) and orphan.name.startswith(f"{group}-"):
            return f"group {group} has members, and the topic may be its changelog. Stop them, then plan again."
    return ""


def _forsaken(known: Known, processor: str) -> bool:
    owner = known.owner(processor)
    return owner is None or not owner.deployed


# Each function below yields resources of one kind whose name contains the name of a processor of this installation. The
# field ``why`` says why the resource is an orphan; it is empty for a resource with an owner.


def _processor(name: str) -> str:
    """The processor of a name: ``orders`` for ``orders`` and for its shadow (second run) ``orders--rebuild-totals``."""
    return name.partition(_SHADOW)[0]


def _topics(known: Known, found: Found) -> Iterator[Orphan]:
    names = known.all_names()
    for topic, by_name in candidates(known, found.topics).items():
        signed = found.signed.get(topic, Signed())
        if any(_processor(writer) not in names for writer in signed.writers):
            continue  # A processor of another installation wrote the topic's records.
        whys = {name: _unowned(known, name, topic) for name in sorted(signed.writers) or [by_name]}
        if all(whys.values()):
            name, why = next(iter(whys.items()))
            yield Orphan("topic", topic, _processor(name), why, unsigned=not signed.writers, ends=signed.ends)


def _unowned(known: Known, name: str, topic: str) -> str:
    """The reason why the named processor or shadow (temporary second run) does not own a topic; empty if it may own it.

    The caller has already excluded the changelogs of the processor's present stores.
    """
    owner = known.owner(name)
    if _processor(name) in known.busy:
        return ""
    if owner is None:
        return known.unregistered(name)
    if owner.vague:
        return ""
    if any(topic.startswith(f"{shadow_group(name, store)}-") for store in owner.stores):
        return f"it is left from a backfill of {name}, and none is open"
    if topic in {filling_topic(name, store) for store in owner.stores}:
        return f"it is left from a restore of {name}, and none is open"
    what = "`group_by` of {} has this topic" if is_repartition_topic(topic) else "store of {} has this changelog"
    return f"no {what.format(name)}"


def _groups(known: Known, groups: Sequence[str]) -> Iterator[Orphan]:
    shadows = {shadow_group(each.name, store) for each in known.owners for store in each.stores}
    for group in {*known.all_names(), *shadows}.intersection(groups):
        yield Orphan("group", group, _processor(group), known.unregistered(group))


def _state(known: Known, entries: Sequence[StateEntry]) -> Iterator[Orphan]:
    for each in entries:
        processor, owner = _processor(each.group), known.owner(each.group)
        why, base = "", None
        if processor in known.busy or each.entry in SLOT_FILES:
            continue
        if owner is None:
            why = "" if each.in_use else known.unregistered(each.group)
        elif owner.slots is not None and each.slot not in owner.slots:
            why = "" if each.in_use else f"{each.group} has no slot {each.slot}"
        elif owner.tasks is not None and each.entry not in owner.tasks:
            base = next((task for task in owner.tasks if each.entry.startswith(f"{task}.")), None)
            why = f"it was set aside, and {base} does not need it" if base else f"{each.group} has no such task"
        yield Orphan("state", each.path, processor, why, each.size_bytes, aside=base is not None)


def _checkpoints(known: Known, checkpoints: Mapping[tuple[str, str], int]) -> Iterator[Orphan]:
    for (name, task), size in checkpoints.items():
        owner = known.owner(name)
        why = known.unregistered(name)
        if (
            owner is not None
            and task
            and owner.tasks is not None
            and task not in owner.tasks
            and name not in known.busy
        ):
            why = f"{name} has no such task"
        yield Orphan("checkpoint", f"{name}/{task}".rstrip("/"), _processor(name), why, size)


def _tables(known: Known, tables: Sequence[str]) -> Iterator[Orphan]:
    namespaces = {snapshots_name(name).split(".")[1]: name for name in known.all_names()}
    owned = {snapshots_name(owner.name) for owner in known.owners}
    for owner in known.owners:
        for store in owner.stores:
            owned |= {*tables_of(owner.name, store), *views_of(owner.name, store)}
    for table in tables:
        name = namespaces.get(table.split(".")[1])
        if name is None or table in owned or name in known.busy:
            continue
        holder = known.owner(name)
        if holder is None or not holder.vague:
            why = known.unregistered(name) if holder is None else f"no store of {name} has this table"
            yield Orphan("table", table, name, why)
