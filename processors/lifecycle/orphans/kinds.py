"""Reads, copies and deletes each kind of orphan (resource without an owner), for the command ``clean``.

Invariants:
    - ``look`` and ``copy`` do not change the original resource.
    - Before a folder is deleted, it is renamed to a name that no other process knows. Then the facts of the folder are
      read again. If they differ from the plan, the folder gets its previous name again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.infra.kafka.topics.topic_copies import copy_partition, file_of, own_config
from holdfast.infra.kafka.topics.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.infra.storage.objects import FsspecObjects, at_most
from holdfast.infra.system.rooted import PathOutside, inside
from holdfast.infra.warehouse.removal import delete_files, drop_table, table_facts, table_files
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.lifecycle.orphans.archive import disk_errors, sync, write_synced
from holdfast.processors.lifecycle.plans.apply import ApplyFailed
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.facts.orphans import Kind, Look, Orphan
from holdfast.processors.lifecycle.world.reading_beside import ReadOnly

#: The file with a group's committed offsets, in the format of ``kafka-consumer-groups.sh --reset-offsets --from-file``.
OFFSETS = "offsets.csv"
#: Maximum seconds to wait, before a topic is copied, until its open transactions have ended.
SETTLE_S = 5.0
_TRASH = ".deleted-"
#: Suffix of the files that RocksDB never changes after writing. The archive gets a hard link to such a file instead of
#: a copy.
_IMMUTABLE = ".sst"


class OrphanChanged(ApplyFailed):
    """An orphan differs from the facts in the plan, or is in use; the orphan was not changed.

    An orphan is a resource without an owner.

    Fields: ``kind``, ``name``.
    """

    exit_code = EXIT_REFUSED


class Thing(ABC):
    """Reads, copies and deletes orphans (resources without an owner) of one kind."""

    @abstractmethod
    def look(self, orphan: Orphan) -> Look:
        """The present facts of the orphan; ``facts`` is None if the orphan does not exist.

        An orphan is a resource without an owner.
        """

    @abstractmethod
    def copy(self, orphan: Orphan, facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Copy the orphan into an empty folder; returns the details for ``about`` in the manifest.

        An orphan is a resource without an owner.

        Raises:
            OrphanChanged: The orphan changed during the copy.
        """

    def leftovers(self, orphan: Orphan, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The parts that remain if the deletion is interrupted, as JSON values; empty if the deletion is atomic."""
        return {}

    @abstractmethod
    def delete(self, orphan: Orphan, facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> None:
        """Delete the orphan (resource without an owner) if its facts still equal ``facts``.

        Raises:
            OrphanChanged: The facts differ.
        """

    def finish(self, name: str, leftovers: Mapping[str, Any], *, orphan: bool) -> None:
        """Finish an interrupted deletion: delete the parts that it left.

        ``orphan`` is true if the resource with this name is still an orphan (without an owner).
        """
        return None


class TopicThing(Thing):
    """Reads, copies and deletes topics without an owner.

    The facts of a topic are its id and its end offsets. A copy has its records and its configuration.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def look(self, orphan: Orphan) -> Look:
        described = self._topics.describe([orphan.name]).get(orphan.name)
        if described is None:
            return Look(None)
        ends = self._topics.end_offsets(orphan.name, committed=False)
        stable = self._topics.end_offsets(orphan.name, committed=True)
        starts = self._topics.start_offsets(orphan.name)
        facts = {"topic_id": described.topic_id, "ends": {str(number): ends[number] for number in sorted(ends)}}
        if orphan.ends is not None and orphan.ends != ends:
            return Look(facts, "it is written to: its end moved between two looks. Stop its writer, then plan again.")
        if any(stable.get(number, 0) < end for number, end in ends.items()):
            return Look(facts, "a transaction is open on it. Wait for its end, or abort it, then plan again.")
        return Look(facts, "", f"at most {count_of(sum(ends.values()) - sum(starts.values()), 'record')}")

    def copy(self, orphan: Orphan, facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        described = self._topics.describe([orphan.name])[orphan.name]
        ends = {int(number): end for number, end in facts["ends"].items()}
        self._topics.settled_end_offsets(orphan.name, SETTLE_S, upto=ends)
        starts, records = self._topics.start_offsets(orphan.name), {}
        hashes = {}
        for number, end in ends.items():
            file = folder / file_of(number)
            with disk_errors(file):
                records[str(number)] = copy_partition(self._topics, orphan.name, number, (starts[number], end), file)
                hashes[file.name] = sha256_of(file)
        return {
            "partitions": described.partitions,
            "replication": described.replication,
            "config": own_config(self._topics, orphan.name),
            "records": records,
            "starts": {str(number): start for number, start in sorted(starts.items())},
            "sha256": hashes,
        }

    def delete(self, orphan: Orphan, facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> None:
        _check_same(orphan, facts, self.look(orphan))
        self._topics.delete(orphan.name)


class GroupThing(Thing):
    """Reads, copies and deletes consumer groups without an owner.

    The facts are the committed offsets; a copy is a CSV file for ``kafka-consumer-groups.sh``.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def look(self, orphan: Orphan) -> Look:
        members = self._topics.members(orphan.name)
        offsets = self._topics.committed_offsets(orphan.name)
        if not members and not offsets and orphan.name not in self._topics.listed()[1]:
            return Look(None)
        facts: dict[str, Any] = {"offsets": {}}
        for place, offset in sorted(offsets.items()):
            facts["offsets"].setdefault(place.topic, {})[str(place.number)] = offset
        blocked = f"it has {count_of(members, 'member')}. Stop them, then plan again." if members else ""
        return Look(facts, blocked, count_of(len(offsets), "offset"))

    def copy(self, orphan: Orphan, facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        lines = [
            f"{topic},{number},{offset}\n".encode()
            for topic, parts in sorted(facts["offsets"].items())
            for number, offset in sorted(parts.items(), key=lambda part: int(part[0]))
        ]
        with disk_errors(folder):
            write_synced(folder / OFFSETS, lines)
        return {"offsets": len(lines)}

    def delete(self, orphan: Orphan, facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> None:
        _check_same(orphan, facts, self.look(orphan))
        self._topics.delete_group(orphan.name)  # Kafka refuses to delete a group that has members


class FolderThing(Thing):
    """Reads, copies and deletes folders and files on this machine that have no owner.

    The facts are the number of files, their total size, and a digest of names, sizes and times.

    Args:
        place: Function of the name of an orphan (resource without an owner) that returns its path.
        hold: Function that returns a context manager, which locks the orphan during its copy and its deletion.
        blocked: Function that returns the reason why the orphan must not be changed; empty if it may be changed.
    """

    def __init__(
        self,
        place: Callable[[str], Path] = Path,
        hold: Callable[[Orphan], contextlib.AbstractContextManager[object]] = lambda _: contextlib.nullcontext(),
        blocked: Callable[[Orphan], str] = lambda _: "",
    ) -> None:
        self._place, self._hold, self._blocked = place, hold, blocked

    def look(self, orphan: Orphan) -> Look:
        path = self._place(orphan.name)
        if not path.exists():
            return Look(None)
        facts = folder_facts(path)
        return Look(facts, self._blocked(orphan), count_of(facts["files"], "file"))

    def copy(self, orphan: Orphan, facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        path = self._place(orphan.name)
        with disk_errors(folder), self._hold(orphan):
            if path.is_dir():
                shutil.copytree(path, folder / path.name, symlinks=True, copy_function=_copy_file)
            else:
                _copy_file(str(path), str(folder / path.name))
            _check_same(orphan, facts, Look(folder_facts(path)))
        return {"path": str(path)}

    def leftovers(self, orphan: Orphan, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The path that the folder has after it was renamed for its deletion."""
        path = self._place(orphan.name)
        return {"path": str(path.with_name(f"{_TRASH}{facts['digest'][:8]}-{path.name}"))}

    def delete(self, orphan: Orphan, facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> None:
        """Rename the folder, compare its facts again, then delete it."""
        path = self._place(orphan.name)
        trash = path.with_name(Path(leftovers["path"]).name)
        with self._hold(orphan):
            # ``blocked`` is not checked again, because it would report this process, which now holds the lock of the
            # slot (place of one worker).
            _check_same(orphan, facts, Look(folder_facts(path)))
            path.rename(trash)
            if folder_facts(trash) != facts:
                trash.rename(path)
                raise changed(orphan)
            sync(path.parent)
            _remove(trash)

    def finish(self, name: str, leftovers: Mapping[str, Any], *, orphan: bool) -> None:
        """Delete the renamed folder of an interrupted deletion; raises PathOutside for any other path."""
        trash, place = Path(leftovers["path"]), self._place(name).parent
        if trash.parent != place or not trash.name.startswith(_TRASH):
            raise PathOutside(
                f"The record of the deletion of {name} names {trash}, expected a name {_TRASH}… in {place}. Nothing "
                "was deleted.",
                action="Find out what changed `deletion.json` of that copy. Delete the named folder by hand if it is a "
                "leftover.",
                root=str(place),
                name=str(trash),
                seen=str(trash),
            )
        _remove(trash)


class ObjectThing(Thing):
    """Reads, copies and deletes objects of the checkpoint store that have no owner.

    The facts are names and sizes, which identify the contents, because object names are never reused.
    """

    def __init__(self, settings: Settings) -> None:
        self._open = partial(FsspecObjects, settings.checkpoint_store, settings.checkpoints.options)

    def look(self, orphan: Orphan) -> Look:
        sizes = self._sizes(orphan.name)
        if not sizes:
            return Look(None)
        digest = hashlib.sha256("".join(f"{name}\0{size}\n" for name, size in sorted(sizes.items())).encode())
        facts = {"files": len(sizes), "bytes": sum(sizes.values()), "digest": digest.hexdigest()}
        return Look(facts, "", count_of(len(sizes), "object"))

    def copy(self, orphan: Orphan, facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Copy each object of the checkpoint store to a file with the object's name."""
        objects = self._open()
        for name, size in self._sizes(orphan.name).items():
            file = inside(folder, name)
            with disk_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_synced(file, at_most(name, objects.chunks(name), size))
        _check_same(orphan, facts, self.look(orphan))
        return {"store": objects.shown}

    def leftovers(self, orphan: Orphan, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {"objects": sorted(self._sizes(orphan.name))}

    def delete(self, orphan: Orphan, facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> None:
        _check_same(orphan, facts, self.look(orphan))
        self._open().delete(leftovers["objects"])

    def finish(self, name: str, leftovers: Mapping[str, Any], *, orphan: bool) -> None:
        """Delete the objects that an interrupted deletion left, unless a processor owns their task again.

        In that case the objects stay, because newer checkpoints of that task may share them.
        """
        if orphan:
            self._open().delete(leftovers["objects"])

    def _sizes(self, name: str) -> dict[str, int]:
        processor, _, task = name.partition("/")
        word = StateFolder.path_of(Path(), "", "", processor).name
        return {
            path: size
            for path, size in self._open().sizes(f"{word}/").items()
            if path.removeprefix(f"{word}/").partition("/")[0] == task
        }


class TableThing(Thing):
    """Reads, copies and deletes tables of the catalog that have no owner.

    A copy has only facts about the table, not its rows. Until the table is deleted, its data files stay in their place.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def look(self, orphan: Orphan) -> Look:
        found = table_facts(self._settings, _in_catalog(orphan.name))
        if found is None:
            return Look(None)
        facts = {"uuid": found.uuid, "metadata": found.metadata, "snapshot": found.snapshot}
        return Look(facts, "", "" if found.rows is None else count_of(found.rows, "row"))

    def copy(self, orphan: Orphan, facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        """Returns number of rows, size and facts of the table, for the copy's manifest; writes no file."""
        found = table_facts(self._settings, _in_catalog(orphan.name))
        return {} if found is None else {"rows": found.rows, "size_bytes": found.size_bytes, **facts}

    def leftovers(self, orphan: Orphan, facts: Mapping[str, Any]) -> dict[str, Any]:
        return {"uuid": facts["uuid"], "files": list(table_files(self._settings, _in_catalog(orphan.name)))}

    def delete(self, orphan: Orphan, facts: Mapping[str, Any], leftovers: Mapping[str, Any]) -> None:
        """Remove the table from the catalog, then delete its files."""
        _check_same(orphan, facts, self.look(orphan))
        if not drop_table(self._settings, _in_catalog(orphan.name), facts["uuid"]):
            raise changed(orphan)
        self.finish(orphan.name, leftovers, orphan=True)

    def finish(self, name: str, leftovers: Mapping[str, Any], *, orphan: bool) -> None:
        """Delete the files in ``leftovers`` after the table was dropped from the catalog; no other table uses them."""
        now = table_facts(self._settings, _in_catalog(name))
        if now is None or now.uuid != leftovers["uuid"]:
            delete_files(self._settings, _in_catalog(name), leftovers["files"])


def thing_of(kind: Kind, name: str, settings: Settings, topics: Topics) -> Thing:
    """Returns the object that reads, copies and deletes an orphan (resource without an owner) of this kind and name."""
    match kind:
        case "topic":
            return TopicThing(topics)
        case "group":
            return GroupThing(topics)
        case "state":
            return FolderThing(hold=_slot_held, blocked=_slot_in_use)
        case "table":
            return TableThing(settings)
        # `NAME/TASK` is a task's checkpoint in the checkpoint store; `NAME` is a processor's folder on this machine
        case "checkpoint":
            in_store = "/" in name
            return (
                ObjectThing(settings) if in_store else FolderThing(partial(inside, settings.paths.checkpoint_folders))
            )


def folder_facts(path: Path) -> dict[str, Any]:
    """Number and total size of the files in a folder (or of one file), and a digest of names, sizes and times."""
    hashed, count, size = hashlib.sha256(), 0, 0
    for each in [path] if not path.is_dir() else sorted(path.rglob("*")):
        told_of = each.lstat()
        name = "" if each == path else str(each.relative_to(path))
        if each.is_dir() and not each.is_symlink():
            hashed.update(f"{name}/\n".encode())
            continue
        count, size = count + 1, size + told_of.st_size
        hashed.update(f"{name}\0{told_of.st_size}\0{told_of.st_mtime_ns}\n".encode())
    return {"files": count, "bytes": size, "digest": hashed.hexdigest()}


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, in hex."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _in_catalog(name: str) -> str:
    return name.split(".", 1)[1]


def _slot_in_use(orphan: Orphan) -> str:
    slot = Path(orphan.name).parent
    if orphan.aside or not ReadOnly().in_use(slot):
        return ""
    return f"a live process has the slot {slot}. Stop it, then plan again."


@contextlib.contextmanager
def _slot_held(orphan: Orphan) -> Iterator[None]:
    """Locks the state folder of a slot (place of one worker) during the block, so that no worker starts on it.

    State that was set aside (renamed) needs no lock, because no process opens it.

    Raises:
        StateFolderTaken: A live process holds the slot.
    """
    if orphan.aside:
        yield
        return
    slot = Path(orphan.name).parent
    folder = StateFolder(slot.parent.parent, slot.parent.name, slot.name)
    try:
        yield
    finally:
        # `StateFolder` wrote this process's id to the lock file. The file is emptied, because readers expect a worker's
        # id.
        (slot / "lock").write_text("")
        folder.release()


def _copy_file(source: str, target: str) -> None:
    """Copy a file with its times; if RocksDB never changes the file, hard-link it instead where possible."""
    if source.endswith(_IMMUTABLE):
        with contextlib.suppress(OSError):
            os.link(source, target, follow_symlinks=False)
            return
    shutil.copy2(source, target, follow_symlinks=False)
    if not os.path.islink(target):
        sync(Path(target))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _check_same(orphan: Orphan, facts: Mapping[str, Any], now: Look) -> None:
    if now.blocked or now.facts != facts:
        raise changed(orphan, now.blocked)


def changed(orphan: Orphan, blocked: str = "") -> OrphanChanged:
    """The error that says that an orphan (resource without an owner) was left unchanged.

    ``blocked`` is the reason as a sentence. It is empty if the reason is that the orphan differs from the plan.
    """
    return OrphanChanged(
        f"{orphan.kind} {orphan.name} was not touched: {blocked or 'it changed since the plan was made.'}",
        action="Run `holdfast plan clean`. A changed orphan is archived again, and its grace period starts again.",
        kind=orphan.kind,
        name=orphan.name,
    )
