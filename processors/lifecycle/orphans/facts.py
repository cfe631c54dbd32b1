"""Finds orphans (resources without an owner) on this machine and in its Kafka cluster; changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.records import TopicFacts
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.storage.objects import FsspecObjects
from holdfast.infra.warehouse.stored_tables import table_names
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.engine.topology import Topology
from holdfast.processors.lifecycle.orphans.archive import Archive
from holdfast.processors.lifecycle.orphans.owned import (
    SLOT_FILES,
    Defined,
    Found,
    Known,
    Owner,
    Signed,
    StateEntry,
    candidates,
    find_orphans,
)
from holdfast.processors.lifecycle.plans.facts.orphans import Orphan
from holdfast.processors.lifecycle.plans.facts.shape import from_document
from holdfast.processors.lifecycle.world.changelog_meta import writers_of
from holdfast.processors.lifecycle.world.reading_beside import ReadOnly
from holdfast.processors.snapshots.names import CATALOG

if TYPE_CHECKING:
    from holdfast.infra.database.registry import Registry


def orphans_of(
    defined: Defined, settings: Settings, registry: Registry, topics: Topics, only: str | None = None
) -> tuple[tuple[Orphan, ...], tuple[str, ...]]:
    """All resources without an owner, and a sentence for each topic, folder or store that could not be read.

    ``only`` limits the search to one resource: the records of other topics are then not read.

    Raises:
        HoldfastError: Kafka or Holdfast's registry does not answer.
    """
    topologies = {each.processor: each for each in defined.topologies}
    state_roots = sorted({settings.paths.state, *defined.state_dirs})
    names, groups = topics.listed()
    inputs = {spec.name for each in topologies.values() for spec in each.inputs}
    known = Known(
        owners=tuple(_owners(topologies, registry, topics.describe(inputs & set(names)))),
        names=_names(settings, registry, state_roots),
        busy=frozenset(each.processor for each in registry.journal.applies(open_only=True)),
        doubtful=defined.doubtful,
    )
    unseen: list[str] = []
    found = Found(
        topics=names,
        groups=groups,
        state=tuple(entry for root in state_roots for entry in _state(root)),
        checkpoints=_checkpoints(settings, known, unseen),
        tables=_tables(settings, unseen),
        signed={
            topic: _signed(topics, topic, unseen) for topic in candidates(known, names) if only is None or topic == only
        },
    )
    return find_orphans(known, found), tuple(unseen)


def _owners(topologies: dict[str, Topology], registry: Registry, inputs: dict[str, TopicFacts]) -> Iterator[Owner]:
    deployed = {each.processor: each for each in registry.deployments()}
    for name in sorted({*topologies, *(name for name, each in deployed.items() if each.desired != "stopped")}):
        topology, release = topologies.get(name), registry.releases.working(name)
        stores: set[str] = set()
        changelogs: set[str] = set()
        tasks: set[str] = set()
        counts: dict[str, int] = {topic: facts.partitions for topic, facts in inputs.items()}
        if release is not None:
            shape = from_document(release.shape)
            counts = {**shape.inputs, **counts}
            stores |= {each.name for each in shape.stores}
            changelogs |= {each.changelog for each in shape.stores if each.changelog is not None}
            changelogs |= {spec.topic for spec in shape.repartitions}
            for each in shape.stores:
                width = max((counts.get(topic, 0) for topic in each.inputs), default=0)
                tasks |= {f"{each.task_group}-{number}" for number in range(width)}
        if topology is not None:
            stores |= {spec.name for spec in topology.stores}
            changelogs |= {spec.topic.name for spec in topology.changelogs}
            changelogs |= {each.topic for each in topology.repartitions}
            tasks |= set(topology.tasks(counts))
        slots = frozenset(deployed[name].slots) if name in deployed else None
        folders = frozenset(StateFolder.path_of(Path(), "", "", task).name for task in tasks)
        vague = topology is None and release is None
        here = name in deployed and deployed[name].desired != "stopped"
        yield Owner(name, frozenset(stores), frozenset(changelogs), slots, folders or None, vague, here)


def _signed(topics: Topics, topic: str, unseen: list[str]) -> Signed:
    """The processors that a topic's records name as their writers, and the topic's end offsets.

    Both are empty if the topic cannot be read.
    """
    try:
        ends = topics.end_offsets(topic, committed=False)
        return Signed(writers_of(topics, topic), ends)
    except HoldfastError as failed:
        unseen.append(f"The records of topic {topic} could not be read: {failed.message}")
        return Signed()


def _names(settings: Settings, registry: Registry, roots: Iterable[Path]) -> frozenset[str]:
    """The names of all present and former processors in Holdfast's registry, the home folder or the archives."""
    places = [*roots, *(settings.paths.home / name for name in ("checkpoints", "releases", "exports"))]
    folders = {path.name for place in places for path in _folders(place)}
    recorded = {each.processor for each in registry.deployments()}
    archived, _ = Archive(settings.archive_folder).newest()
    former = {each.manifest.processor for each in archived.values()} | {
        name for kind, name in archived if kind == "group"
    }
    return frozenset({*folders, *recorded, *former})


def _state(root: Path) -> Iterator[StateEntry]:
    peek = ReadOnly()
    for group in _folders(root):
        for slot in _folders(group):
            in_use = peek.in_use(slot)
            for entry in sorted(slot.iterdir()):
                # Only the state of tasks is listed. The files of the slot (place of one worker) itself, such as its
                # lock, and temporary entries are left out.
                if entry.name not in SLOT_FILES and not entry.name.startswith("."):
                    yield StateEntry(group.name, slot.name, entry.name, str(entry), _size(entry), in_use)


def _checkpoints(settings: Settings, known: Known, unseen: list[str]) -> dict[tuple[str, str], int]:
    """Maps (processor, task) to the size of its checkpoints in bytes; the task is empty for folders on this machine."""
    found = {(folder.name, ""): _size(folder) for folder in _folders(settings.paths.checkpoint_folders)}
    try:
        objects = FsspecObjects(settings.checkpoint_store, settings.checkpoints.options)
        for name in sorted({*known.names, *(each.name for each in known.owners)}):
            word = StateFolder.path_of(Path(), "", "", name).name
            for path, size in objects.sizes(f"{word}/").items():
                task = path.removeprefix(f"{word}/").partition("/")[0]
                found[name, task] = found.get((name, task), 0) + size
    except HoldfastError as failed:
        unseen.append(f"The checkpoint store could not be read: {failed.message}")
    return found


def _tables(settings: Settings, unseen: list[str]) -> tuple[str, ...]:
    try:
        return tuple(f"{CATALOG}.{name}" for name in table_names(settings))
    except HoldfastError as failed:
        unseen.append(f"The warehouse could not be read: {failed.message}")
        return ()


def _folders(place: Path) -> list[Path]:
    """The subfolders of a folder. Hidden subfolders are left out, because they are being deleted."""
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _size(path: Path) -> int:
    total = 0
    for file in [path] if path.is_file() else path.rglob("*"):
        with contextlib.suppress(OSError):  # the file was deleted during the loop
            total += file.stat().st_size if file.is_file() else 0
    return total
