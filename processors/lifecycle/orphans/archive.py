"""The archive of orphans: one folder for each copy, with a manifest; what was deleted after it is noted beside it.

    <archive>/<kind>/<name>/<moment>/manifest.json     what was copied, when, from what; written last
                                     deletion.json     the deletion of the original: begun, what is left of it, ended
    <archive>/lock                                     held (flock) by who changes anything
    <archive>/confirmed.json                           the steps that were confirmed last

Invariants:
    - A copy is there whole or not at all: it is made in a folder ``<moment>.part``, which gets its name when all of it
      survives the machine.
    - Nothing here deletes a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.orphans.owned import Kind

VERSION = 1
MANIFEST, DELETION = "manifest.json", "deletion.json"
_PART = ".part"
#: So many characters of a name are in its folder's name; file systems take 255.
_NAME_CHARACTERS = 180


Document = TypeVar("Document")


class ArchiveFailed(HoldfastError):
    """The archive can't be written or read. Fields: path."""


class ArchiveBusy(HoldfastError):
    """Another process archives or deletes orphans just now. Fields: path."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy is of.

    Args:
        kind: What it was.
        name: Its name.
        processor: Whose it was.
        why: Why nobody owned it.
        archived_at: When the copy was whole.
        who: Who asked for it.
        facts: What the original was like before it was copied; as long as it is like that, it has not changed.
        about: What else is worth to be known: a topic's configuration and records, a table's rows.
        files: The copy's files and their sizes.
        version: Of this format.
    """

    kind: Kind
    name: str
    processor: str
    why: str
    archived_at: datetime
    who: str
    facts: dict[str, Any]
    about: dict[str, Any]
    files: dict[str, int]
    version: int = VERSION


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """How the deletion of an original gets on; ``leftovers`` is what of it may still lie somewhere."""

    begun_at: datetime
    who: str
    leftovers: dict[str, Any] = {}
    ended_at: datetime | None = None
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Archived:
    """One copy."""

    folder: Path
    manifest: Manifest
    deletion: Deletion | None = None

    @property
    def id(self) -> str:
        """What tells it from other copies of the same thing."""
        return self.folder.name

    @property
    def half_deleted(self) -> bool:
        """Whether the deletion of the original was begun, and is not known to have ended."""
        return self.deletion is not None and self.deletion.ended_at is None

    @property
    def original_deleted(self) -> bool:
        """Whether the original was deleted; what has its name now is something else."""
        return self.deletion is not None and self.deletion.ended_at is not None


@dataclass(frozen=True, slots=True)
class Archive:
    """All copies below one folder."""

    root: Path

    def newest(self) -> tuple[dict[tuple[Kind, str], Archived], tuple[str, ...]]:
        """The newest copy of each thing by kind and name, and a sentence for each that can't be read."""
        found: dict[tuple[Kind, str], Archived] = {}
        unread = []
        for file in sorted(self.root.glob(f"*/*/*/{MANIFEST}")):
            if file.parent.name.endswith(_PART):
                continue
            try:
                manifest = read(file, Manifest)
                beside = file.with_name(DELETION)
                copy = Archived(file.parent, manifest, read(beside, Deletion) if beside.exists() else None)
            except ArchiveFailed as failed:
                unread.append(f"An archive counts as none: {failed.message}")
                continue
            before = found.get((manifest.kind, manifest.name))
            if before is None or before.manifest.archived_at <= manifest.archived_at:
                found[manifest.kind, manifest.name] = copy
        return found, tuple(unread)

    def begin(self, kind: Kind, name: str, now: datetime) -> Path:
        """An empty folder for a new copy.

        Raises:
            ArchiveFailed: It can't be made.
        """
        place = self.root / kind / _word(name)
        moment = f"{now:%Y%m%dT%H%M%S.%fZ}"
        with told(place):
            place.mkdir(parents=True, exist_ok=True)
            part = place / f"{moment}{_PART}"
            part.mkdir()
        return part

    def sweep(self) -> None:
        """Delete what copies left that were broken off; by who holds the archive.

        Raises:
            ArchiveFailed: It can't be.
        """
        with told(self.root):
            for left in self.root.glob(f"*/*/*{_PART}"):
                shutil.rmtree(left)

    def finish(self, part: Path, manifest: Manifest) -> Archived:
        """Write the manifest of a copy, and give the copy its name.

        Raises:
            ArchiveFailed: It can't be.
        """
        folder = part.with_name(part.name.removesuffix(_PART))
        with told(part):
            write(part / MANIFEST, manifest)
            for below in sorted(each for each in part.rglob("*") if each.is_dir() and not each.is_symlink()):
                sync(below)
            sync(part)
            part.rename(folder)
            for above in (folder.parent, folder.parent.parent, self.root):
                sync(above)
        return Archived(folder, manifest)

    def note_deletion(self, copy: Archived, deletion: Deletion) -> Archived:
        """Write down how the deletion of the original gets on.

        Raises:
            ArchiveFailed: It can't be.
        """
        with told(copy.folder):
            write(copy.folder / DELETION, deletion)
        return Archived(copy.folder, copy.manifest, deletion)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from changing anything, for as long as the block lasts.

        Raises:
            ArchiveBusy: Another process does.
            ArchiveFailed: The folder can't be made.
        """
        with told(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)  # it has what topics and tables had
            descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusy(
                    f"Another process archives or deletes orphans just now: it holds {self.root / 'lock'}.",
                    action="Let it end, then ask for the plan again.",
                    path=str(self.root / "lock"),
                ) from None
            yield
        finally:
            os.close(descriptor)


def copied_files(folder: Path) -> dict[str, int]:
    """The files of a copy and their sizes, without its manifest."""
    return {
        str(each.relative_to(folder)): each.lstat().st_size
        for each in sorted(folder.rglob("*"))
        if (each.is_file() or each.is_symlink()) and each != folder / MANIFEST
    }


def write(file: Path, document: msgspec.Struct | Mapping[str, Any]) -> None:
    """Make or replace a small file, so that it survives the machine whole."""
    part = file.with_name(f"{file.name}.tmp")
    with part.open("wb") as opened:
        opened.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        opened.flush()
        os.fsync(opened.fileno())
    part.replace(file)
    sync(file.parent)


def read(file: Path, type_: type[Document]) -> Document:
    """A small file of the archive.

    Raises:
        ArchiveFailed: It can't be read, or another version wrote it.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=type_)
    except (OSError, msgspec.MsgspecError) as failure:
        raise ArchiveFailed(
            f"{file} can't be read: {failure}.", action="Put it back from a backup.", path=str(file)
        ) from failure
    if getattr(found, "version", VERSION) != VERSION:
        raise ArchiveFailed(
            f"{file} has format {getattr(found, 'version', None)}, expected {VERSION}.",
            action="Use the version of Holdfast that wrote it.",
            path=str(file),
        )
    return found


def sync(folder: Path) -> None:
    """Have a folder's entries survive the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def told(place: Path) -> Iterator[None]:
    """What the disk says, as an error of ours.

    Raises:
        ArchiveFailed: It said something.
    """
    try:
        yield
    except OSError as failure:
        raise ArchiveFailed(
            f"The archive {place} can't be written: {failure.strerror or failure}. Nothing that it is of was changed.",
            action="See to it that there is room and that this user may write there, or set HOLDFAST_ARCHIVE; then ask "
            "for the plan again.",
            path=str(place),
        ) from failure


def _word(name: str) -> str:
    """A folder's name for any name: the name itself where that is safe."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name) and len(name) <= _NAME_CHARACTERS:
        return name
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip("._")[-_NAME_CHARACTERS:]
    return f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
