"""What no registered store owns any more: topics, groups, local state, checkpoints and tables. A pure decision.

    names that were ever ours ──► what bears them ──► minus what a definition, a deployed release or an open apply owns

Invariants:
    - Only what bears the name of a processor of this installation is looked at; other programs' things never count.
    - In doubt it is owned: what is in use, what an open apply works on, and whatever may belong to a definition that
      can't be imported just now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from holdfast.processors.engine.changelog.names import filling_topic, shadow_group
from holdfast.processors.engine.topology import Topology
from holdfast.processors.snapshots.names import snapshots_name, tables_of, views_of

Kind = Literal["topic", "group", "state", "checkpoint", "table"]
#: What is in a slot's folder besides tasks.
SLOT_FILES = ("lock", "identity.json", "identity.tmp")
_SHADOW = "--rebuild-"


@dataclass(frozen=True, slots=True)
class Owner:
    """A processor that is registered: defined, or deployed and not stopped for good.

    Args:
        name: Its name, and its group's.
        stores: The stores of the defined version and of the release that worked last.
        changelogs: Their changelogs.
        slots: Its slots; None where it is not known which there are.
        tasks: The folder names of its tasks, and their names in the checkpoint store; None where they are not known.
        vague: Whether it is not known which stores it has, as where it is deployed and its definition is not here: then
            every changelog and table of its name is owned.
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
        topologies: The definitions that can be used.
        state_dirs: The roots of local state that definitions name themselves.
        doubtful: Whether a definition can't be imported.
    """

    topologies: Sequence[Topology] = ()
    state_dirs: Set[Path] = frozenset()
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class StateEntry:
    """Something in the state folder of a slot; ``in_use`` whether a live process has the slot."""

    group: str
    slot: str
    entry: str
    path: str
    size_bytes: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What is there.

    Args:
        topics: All topics.
        groups: All consumer groups.
        state: What lies in state folders.
        checkpoints: (processor, task) -> bytes, of folders of checkpoints (the task empty) and of the checkpoint store.
        tables: ``holdfast.<namespace>.<table>`` of every table of the catalog.
    """

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    state: Sequence[StateEntry] = ()
    checkpoints: Mapping[tuple[str, str], int] = field(default_factory=dict)
    tables: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """Whose things there may be.

    Args:
        owners: The registered processors.
        names: Every name that a processor of this installation ever had, as far as it is known.
        busy: Processors with an open apply.
        doubtful: Whether a definition can't be imported: then nothing of a processor that is not defined is an orphan.
    """

    owners: Sequence[Owner]
    names: Set[str] = frozenset()
    busy: Set[str] = frozenset()
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Orphan:
    """A thing that nobody owns; ``size_bytes`` None where it is not known.

    ``aside`` is state that was set aside beside a task: no process opens it, also none that has the slot.
    ``forsaken`` is what belonged to a processor that is not registered.
    """

    kind: Kind
    name: str
    processor: str
    why: str
    size_bytes: int | None = None
    aside: bool = False
    forsaken: bool = False


def find_orphans(known: Known, found: Found) -> tuple[Orphan, ...]:
    """What of ``found`` nobody owns, by kind and name."""
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
    """Longest first, so that the name of a longer processor is not taken for a store of a shorter one."""
    return sorted({*known.names, *_owners(known)}, key=len, reverse=True)


def _unregistered(known: Known, name: str) -> str | None:
    """Why nothing of a processor is owned; None when it is registered, busy, or may be."""
    processor = name.partition(_SHADOW)[0]
    if processor in known.busy:
        return None
    if name in _owners(known):
        return None
    if name != processor and processor in _owners(known):
        return f"no backfill of {processor} is open that would need it"
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
            why = f"no backfill of {name} is open that would need it"
        elif topic in {filling_topic(name, store) for store in owner.stores}:
            why = f"no restore of {name} is open that would need it"
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
