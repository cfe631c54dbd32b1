"""Finds topics, groups, local state, checkpoints and tables that no registered store owns: a pure function.

    names of our processors ──► resources with these names ──► minus those of a definition, release or open apply

Invariants:
    - Only resources with the name of a processor of this installation can be orphans; those of other programs never.
    - In doubt a resource has an owner: while it is in use, while an apply of its processor is open, and if it may
      belong to a definition that can't be imported now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.processors.engine.changelog.names import filling_topic, shadow_group
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.plans.orphan_facts import Orphan
from holdfast.processors.snapshots.names import snapshots_name, tables_of, views_of

#: Files in a slot's folder that are not tasks.
SLOT_FILES = ("lock", "identity.json", "identity.tmp")
_SHADOW = "--rebuild-"


@dataclass(frozen=True, slots=True)
class Owner:
    """A registered processor: defined, or deployed and not stopped.

    Args:
        name: The name of the processor and of its group.
        stores: The stores of the defined version and of the last release that worked.
        changelogs: The changelogs of these stores.
        slots: Its slots; None when unknown.
        tasks: The names of its tasks in state folders and in the checkpoint store; None when unknown.
        vague: Whether its stores are unknown, as for a deployed processor without a definition here. Then it owns every
            changelog and table with its name.
    """

    name: str
    stores: frozenset[str]
    changelogs: frozenset[str]
    slots: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    vague: bool = False


@dataclass(frozen=True, slots=True)
class Defined:
    """The processors that the settings define.

    Args:
        topologies: The topologies of the definitions that could be imported.
        state_dirs: The roots of local state that definitions set.
        doubtful: Whether a definition can't be imported.
    """

    topologies: Sequence[Topology] = ()
    state_dirs: Set[Path] = frozenset()
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One entry in the state folder of a slot; ``in_use`` when a live process holds the slot."""

    group: str
    slot: str
    entry: str
    path: str
    size_bytes: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The resources that exist.

    Args:
        topics: All topics.
        groups: All consumer groups.
        state: The entries of all state folders.
        checkpoints: (processor, task) -> bytes, of checkpoint folders (with an empty task) and of the checkpoint store.
        tables: ``holdfast.<namespace>.<table>`` of every table of the catalog.
    """

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    state: Sequence[StateEntry] = ()
    checkpoints: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tables: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """The processors that resources may belong to.

    Args:
        owners: The registered processors.
        names: All known former and present names of processors of this installation.
        busy: Processors with an open apply.
        doubtful: Whether a definition can't be imported; then resources of undefined processors are no orphans.
    """

    owners: Sequence[Owner]
    names: Set[str] = frozenset()
    busy: Set[str] = frozenset()
    doubtful: bool = False


def find_orphans(known: Known, found: Found) -> tuple[Orphan, ...]:
    """The resources in ``found`` without an owner, sorted by kind and name."""
    everything = [
        *_topics(known, found.topics),
        *_groups(known, found.groups),
        *_state(known, found.state),
        *_checkpoints(known, found.checkpoints),
        *_tables(known, found.tables),
    ]
    registered = _owners(known)
    marked = (replace(each, forsaken=each.processor not in registered) for each in everything)
    return tuple(sorted(marked, key=lambda each: (each.kind, each.name)))


def _owners(known: Known) -> dict[str, Owner]:
    return {each.name: each for each in known.owners}


def _all_names(known: Known) -> list[str]:
    """Longest first, so that a topic of processor ``a-b`` is not read as one of processor ``a``."""
    return sorted({*known.names, *_owners(known)}, key=len, reverse=True)


def _unregistered(known: Known, name: str) -> str | None:
    """Why a processor owns nothing; None when it is registered, busy, or may be registered."""
    processor = name.partition(_SHADOW)[0]
    if processor in known.busy:
        return None
    if name in _owners(known):
        return None
    if name != processor and processor in _owners(known):
        return f"it is left from a backfill of {processor}, and none is open"
    return None if known.doubtful else f"{processor} is neither defined nor deployed"


def _topics(known: Known, topics: Sequence[str]) -> Iterator[Orphan]:
    owners, names = _owners(known), _all_names(known)
    owned = {log for owner in known.owners for log in owner.changelogs}
    for topic in topics:
        name = next((each for each in names if topic.startswith(f"{each}-")), None)
        if name is None or not topic.endswith("-changelog") or topic in owned:
            continue
        processor = name.partition(_SHADOW)[0]
        owner = owners.get(name)
        if processor in known.busy or (owner is not None and owner.vague):
            continue
        if owner is None:
            why = _unregistered(known, name)
        elif any(topic.startswith(f"{shadow_group(name, store)}-") for store in owner.stores):
            why = f"it is left from a backfill of {name}, and none is open"
        elif topic in {filling_topic(name, store) for store in owner.stores}:
            why = f"it is left from a restore of {name}, and none is open"
        else:
            why = f"no store of {name} has this changelog"
        if why is not None:
            yield Orphan("topic", topic, processor, why)


def _groups(known: Known, groups: Sequence[str]) -> Iterator[Orphan]:
    mine = {*_all_names(known), *(shadow_group(each.name, store) for each in known.owners for store in each.stores)}
    for group in groups:
        why = _unregistered(known, group) if group in mine else None
        if why is not None:
            yield Orphan("group", group, group.partition(_SHADOW)[0], why)


def _state(known: Known, entries: Sequence[StateEntry]) -> Iterator[Orphan]:
    owners = _owners(known)
    for each in entries:
        processor = each.group.partition(_SHADOW)[0]
        owner = owners.get(each.group)
        why: str | None = None
        aside = False
        if processor in known.busy or each.entry in SLOT_FILES:
            continue
        if owner is None:
            why = None if each.in_use else _unregistered(known, each.group)
        elif owner.slots is not None and each.slot not in owner.slots:
            why = None if each.in_use else f"{each.group} has no slot {each.slot}"
        elif owner.tasks is not None and each.entry not in owner.tasks:
            base = next((task for task in owner.tasks if each.entry.startswith(f"{task}.")), None)
            aside = base is not None
            why = f"{each.group} has no such task" if base is None else f"it was set aside, and {base} does not need it"
        if why is not None:
            yield Orphan("state", each.path, processor, why, each.size_bytes, aside)


def _checkpoints(known: Known, checkpoints: Mapping[tuple[str, str], int]) -> Iterator[Orphan]:
    owners = _owners(known)
    for (name, task), size in checkpoints.items():
        owner = owners.get(name)
        why = None
        if owner is None:
            why = _unregistered(known, name)
        elif task and owner.tasks is not None and task not in owner.tasks and name not in known.busy:
            why = f"{name} has no such task"
        if why is not None:
            yield Orphan("checkpoint", f"{name}/{task}".rstrip("/"), name.partition(_SHADOW)[0], why, size)


def _tables(known: Known, tables: Sequence[str]) -> Iterator[Orphan]:
    owners = _owners(known)
    namespaces = {snapshots_name(name).split(".")[1]: name for name in _all_names(known)}
    owned = {snapshots_name(owner.name) for owner in known.owners}
    for owner in known.owners:
        for store in owner.stores:
            owned |= {*tables_of(owner.name, store), *views_of(owner.name, store)}
    for table in tables:
        name = namespaces.get(table.split(".")[1])
        if name is None or table in owned or name in known.busy or (name in owners and owners[name].vague):
            continue
        why = f"no store of {name} has this table" if name in owners else _unregistered(known, name)
        if why is not None:
            yield Orphan("table", table, name, why)
