"""The archive of orphans (resources without an owner): one folder for each copy, with a manifest.

The folder also records the deletion of the original.

    <archive>/<kind>/<name>/<moment>/manifest.json     the original, the time, the files; written last
                                     deletion.json     the original's deletion: its begin, the leftovers, its end
    <archive>/lock                                     locked (flock) by the process that changes the archive

``<moment>`` is the time of the copy.

Invariants:
    - A copy is complete or absent. It is written to a folder ``<moment>.part``, and the folder is renamed after every
      file was synced to the disk.
    - This module never deletes a complete copy, and never follows a link to delete files outside of the archive.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.infra.system.json_file import JSON_FAILURES
from holdfast.infra.system.rooted import inside
from holdfast.processors.lifecycle.plans.facts.orphans import VERSION, Archived, Deletion, Kind, Manifest

MANIFEST, DELETION = "manifest.json", "deletion.json"
_PART = ".part"
#: Maximum number of characters of a resource's name in a folder name, because file systems allow 255 in total.
_NAME_CHARACTERS = 180

Document = TypeVar("Document")


class ArchiveFailed(HoldfastError):
    """The archive of orphans (resources without an owner) cannot be written or read. Fields: ``path``."""


class ArchiveBusy(HoldfastError):
    """Another process archives or deletes orphans (resources without an owner) at the moment. Fields: ``path``."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive in one folder. It has copies of orphans, which are resources without an owner."""

    root: Path

    def newest(self) -> tuple[dict[tuple[Kind, str], Archived], tuple[str, ...]]:
        """Returns the newest copy of each archived resource, by kind and name; and a text for each unreadable copy."""
        found: dict[tuple[Kind, str], Archived] = {}
        copies, unread = self.copies()
        for copy in copies:
            manifest = copy.manifest
            before = found.get((manifest.kind, manifest.name))
            if before is None or before.manifest.archived_at <= manifest.archived_at:
                found[manifest.kind, manifest.name] = copy
        return found, unread

    def copies(self) -> tuple[tuple[Archived, ...], tuple[str, ...]]:
        """All complete copies, and a sentence for each unreadable copy."""
        found, unread = [], []
        for file in sorted(self.root.glob(f"*/*/*/{MANIFEST}")):
            if file.parent.name.endswith(_PART):
                continue
            try:
                beside = file.with_name(DELETION)
                deletion = read(beside, Deletion) if beside.exists() else None
                found.append(Archived(file.parent, read(file, Manifest), deletion))
            except ArchiveFailed as failed:
                unread.append(f"An archived copy is ignored: {failed.message}")
        return tuple(found), tuple(unread)

    def begin(self, kind: Kind, name: str, now: datetime) -> Path:
        """Create an empty folder for a new copy. The copy is valid only after ``finish``.

        Raises:
            ArchiveFailed: The folder cannot be created.
        """
        place = self.root / kind / _word(name)
        moment = f"{now:%Y%m%dT%H%M%S.%fZ}"
        with disk_errors(place):
            place.mkdir(parents=True, exist_ok=True)
            part = place / f"{moment}{_PART}"
            part.mkdir()
        return part

    def finish(self, part: Path, manifest: Manifest) -> Path:
        """Write the manifest of a copy, sync all files to the disk, and rename the folder; returns the renamed folder.

        The copy is valid once its folder has the final name.

        Raises:
            ArchiveFailed: A write failed.
        """
        folder = part.with_name(part.name.removesuffix(_PART))
        with disk_errors(part):
            write(part / MANIFEST, manifest)
            for below in sorted(each for each in part.rglob("*") if each.is_dir() and not each.is_symlink()):
                sync(below)
            sync(part)
            part.rename(folder)
            for above in (folder.parent, folder.parent.parent, self.root):
                sync(above)
        return folder

    def note_deletion(self, copy: Archived, deletion: Deletion) -> None:
        """Record the progress of the deletion of the original resource.

        Raises:
            ArchiveFailed: The record cannot be written.
        """
        with disk_errors(copy.folder):
            write(copy.folder / DELETION, deletion)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the archive's lock during the block, so that no other process changes orphans.

        An orphan is a resource without an owner. The folders of interrupted copies are deleted before the block, and
        after an error in it.

        Raises:
            ArchiveBusy: Another process holds the lock.
            ArchiveFailed: The folder cannot be created or cleaned.
            PathOutside: An interrupted copy is behind a link that leads outside of the archive.
        """
        lock = self.root / "lock"
        with disk_errors(self.root):
            # The folder is private (0o700), because copies contain the messages of topics.
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusy(
                    f"Another process archives or deletes orphans: it holds {lock}.",
                    action="Wait until it has ended, then repeat the command.",
                    path=str(lock),
                ) from None
            self._sweep()
            try:
                yield
            except HoldfastError:
                self._sweep()
                raise
        finally:
            os.close(descriptor)

    def _sweep(self) -> None:
        with disk_errors(self.root):
            for left in self.root.glob(f"*/*/*{_PART}"):
                shutil.rmtree(inside(self.root, left))


def copied_files(folder: Path) -> dict[str, int]:
    """The files of a copy without the manifest: relative path -> size in bytes."""
    return {
        str(each.relative_to(folder)): each.lstat().st_size
        for each in sorted(folder.rglob("*"))
        if (each.is_file() or each.is_symlink()) and each != folder / MANIFEST
    }


def write(file: Path, document: msgspec.Struct) -> None:
    """Create or replace a small JSON file atomically, and sync it to the disk."""
    part = file.with_name(f"{file.name}.tmp")
    write_synced(part, [msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"])
    part.replace(file)
    sync(file.parent)


def write_synced(file: Path, chunks: Iterable[bytes]) -> None:
    """Write a file, and sync its content to the disk."""
    with file.open("wb") as opened:
        opened.writelines(chunks)
    sync(file)


def read(file: Path, type_: type[Document]) -> Document:
    """Read and decode a JSON file in the archive of orphans (resources without an owner).

    Raises:
        ArchiveFailed: The file cannot be read, or has another format version.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=type_)
    except (OSError, *JSON_FAILURES) as failure:
        raise ArchiveFailed(
            f"{file} can't be read: {failure}.", action="Restore the file from a backup.", path=str(file)
        ) from failure
    if getattr(found, "version", VERSION) != VERSION:
        raise ArchiveFailed(
            f"{file} has format {getattr(found, 'version', None)}, expected {VERSION}.",
            action="Use the version of Holdfast that wrote it.",
            path=str(file),
        )
    return found


def sync(path: Path) -> None:
    """Sync a file's content or a folder's entries to the disk, so that a power failure does not lose them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Converts each ``OSError`` of the block to ``ArchiveFailed``.

    Raises:
        ArchiveFailed: The block raised an ``OSError``.
    """
    try:
        yield
    except OSError as failure:
        raise ArchiveFailed(
            f"The archive {place} can't be written: {failure.strerror or failure}.",
            action="Free disk space and check the rights of this user, or set `HOLDFAST_ARCHIVE`, then repeat the "
            "command.",
            path=str(place),
        ) from failure


def _word(name: str) -> str:
    """The folder name for a resource: its name if that is a safe file name, otherwise a cleaned name with a hash."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name) and len(name) <= _NAME_CHARACTERS:
        return name
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._")[-_NAME_CHARACTERS:]
    return f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
