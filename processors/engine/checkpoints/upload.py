"""The upload of one checkpoint, and the collection of what no checkpoint needs any more.

Steps, and what is true if we die after each:
    1. a mark says that an upload is under way     - others collect nothing until it is gone, or a day old
    2. the newest manifest is read                 - its files may be shared: nobody collects them while it is newest
    3. new files are written                       - no manifest names them: they are collected once the mark is gone
                                                     (where this fails and we live, we delete them ourselves)
    4. the manifest is written                     - the checkpoint is there
    5. the mark is deleted                         - the same
    6. old manifests are deleted, then files that no manifest names

Why nobody can delete what another's manifest refers to: names are unique to an upload, and only files of the newest
manifest are shared. A collector lists files, manifests, marks, and manifests again, in this order, and stops at any
mark. An upload that it saw no mark of has either written its manifest (it is in the second list), or not yet read
which manifest is the newest: that will be one that the collector keeps, or one that it never saw. A collector that
stands still before it deletes changes nothing about that: what it deletes is named by no manifest ever again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.storage.errors import ObjectMissing, StorageFailed
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.checkpoints.manifest import (
    STATE_FORMAT,
    CheckpointFile,
    Manifest,
    ManifestDamaged,
    Place,
    generation_of,
    id_of,
)
from holdfast.processors.engine.checkpoints.ports import Job, Objects
from holdfast.processors.engine.state.database import DatabaseFiles, LocalFile
from holdfast.processors.engine.state.task_store import TaskMeta

#: So many checkpoints of a task are kept: one to use, and one in case that its files are damaged.
MANIFESTS_KEPT = 2
#: A mark that is older, in seconds, was left by an upload that died.
MARK_ABANDONED_S = 86_400.0

#: Checksums of local files that are remembered; beyond, files are read again.
CHECKSUMS_KNOWN_MAX = 20_000

#: Files of a checkpoint by size and SHA-256.
Sharable = dict[int, dict[str, CheckpointFile]]


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint on the local disk, and what is known about it."""

    place: Place
    path: Path
    partition: int
    code_version: str
    created_at: float
    meta: TaskMeta


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What came of an upload: how many bytes were new, and how many files of earlier checkpoints it shares."""

    manifest: Manifest
    bytes_new: int
    files_shared: int


@dataclass(slots=True)
class Uploader:
    """Uploads checkpoints of one worker.

    Args:
        objects: Where they go.
        files: What reads the local files.
        holder: Who we are: nobody else that lives has this name.
        new_id: Makes names that nobody had before.
        time: Wall-clock seconds since 1970.
        known: The SHA-256 of local files by their identity.
        suspect: Objects that were found damaged; they are written anew.
    """

    objects: Objects
    files: DatabaseFiles
    holder: str
    new_id: Callable[[], str]
    time: Callable[[], float]
    known: dict[str, str]
    suspect: set[str]

    def run(self, taken: Taken, job: Job) -> Generator[None, None, Uploaded]:
        """Upload a checkpoint in steps; returns what came of it (``Uploaded``), and removes the local copy.

        Raises:
            StorageFailed: The store is away, full or refuses.
            OSError: The local disk does.
        """
        try:
            place, upload = taken.place, self.new_id()
            yield from self._mark(place, upload)
            before = self._newest(place)
            yield
            sharable = yield from self._sharable(place, before)
            try:
                parts = yield from self._carry(taken, upload, sharable, job)
            except (StorageFailed, OSError):
                self._take_back(place, upload)
                raise
            generation = generation_of(before[0]) + 1 if before is not None else 1
            name = place.manifest(generation, upload)
            manifest = _manifest_of(taken, id_of(name), self.files.kind, parts)
            yield from self._publish(name, manifest)
            self.objects.delete([place.mark(self.holder, upload)])
            yield
            yield from self.collect(place)
            new = [part for part in parts if f"/{upload}/" in part.object]
            return Uploaded(manifest, sum(part.size for part in new), len(parts) - len(new))
        finally:
            self.files.clear(taken.path)

    def collect(self, place: Place) -> Iterator[None]:
        """Delete old checkpoints and unused files of a task, in steps, unless somebody else is uploading to it.

        Raises:
            StorageFailed: The store is away, or refuses.
        """
        files = self.objects.sizes(place.files)
        yield
        first = sorted(name for name in self.objects.sizes(place.manifests) if generation_of(name))
        yield
        marks = yield from self._marks_alive(place)
        second = [name for name in self.objects.sizes(place.manifests) if generation_of(name)]
        if marks:
            return
        yield
        old = first[:-MANIFESTS_KEPT]
        used = yield from self._named_by(set(second) - set(old))
        if used is None:
            return
        self.objects.delete(old)
        yield
        self.objects.delete(sorted(set(files) - used))

    def _take_back(self, place: Place, upload: str) -> None:
        """Delete what an upload wrote that failed before its manifest: tried again and again, it would fill a store
        that is full already."""
        with contextlib.suppress(StorageFailed):
            self.objects.delete(list(self.objects.sizes(place.file(upload, ""))))

    def _mark(self, place: Place, upload: str) -> Iterator[None]:
        ours = [name for name in self.objects.sizes(place.uploads) if self._is_ours(name)]
        if ours:  # of our own uploads that failed, or of a former life
            self.objects.delete(ours)
        yield
        self.objects.write(place.mark(self.holder, upload), [json.dumps({"since": self.time()}).encode()])
        yield

    def _is_ours(self, mark: str) -> bool:
        return mark.rpartition("/")[2].startswith(f"{self.holder}.")

    def _newest(self, place: Place) -> tuple[str, Manifest | None] | None:
        names = [name for name in self.objects.sizes(place.manifests) if generation_of(name)]
        if not names:
            return None
        newest = max(names)
        try:
            return newest, Manifest.decode(self.objects.read(newest))
        except (ObjectMissing, ManifestDamaged, FormatUnknown):
            return newest, None

    def _sharable(self, place: Place, before: tuple[str, Manifest | None] | None) -> Generator[None, None, Sharable]:
        """By size and checksum, the files of the newest checkpoint that are there."""
        found: Sharable = {}
        if before is not None and before[1] is not None:
            there = self.objects.sizes(place.files)
            yield
            for file in before[1].files:
                if there.get(file.object) == file.size and file.object not in self.suspect:
                    found.setdefault(file.size, {})[file.sha256] = file
        return found

    def _carry(
        self, taken: Taken, upload: str, sharable: Sharable, job: Job
    ) -> Generator[None, None, list[CheckpointFile]]:
        """Write the files that are new."""
        parts: list[CheckpointFile] = []
        local = self.files.files(taken.path)
        job.progress.update(bytes=0, bytes_total=sum(file.size for file in local))
        for file in local:
            same = sharable.get(file.size, {})
            shared = same.get(self._checksum(taken.path, file)) if same else None
            if shared is not None:
                parts.append(CheckpointFile(file.name, shared.object, file.size, shared.sha256))
            else:
                parts.append(self._write(taken, file, upload))
            job.progress["bytes"] += file.size
            yield
        return parts

    def _write(self, taken: Taken, file: LocalFile, upload: str) -> CheckpointFile:
        name, digest = taken.place.file(upload, file.name), Digest()
        self.objects.write(name, digest.of(self.files.read_file(taken.path, file.name)))
        self._remember(file, digest)
        return CheckpointFile(file.name, name, digest.size, digest.hex)

    def _publish(self, name: str, manifest: Manifest) -> Iterator[None]:
        self.objects.write(name, [manifest.encode()])
        yield

    def _checksum(self, path: Path, file: LocalFile) -> str:
        if file.identity not in self.known:
            digest = Digest()
            for _ in digest.of(self.files.read_file(path, file.name)):
                pass
            self._remember(file, digest)
        return self.known[file.identity]

    def _remember(self, file: LocalFile, digest: Digest) -> None:
        if len(self.known) >= CHECKSUMS_KNOWN_MAX:
            self.known.clear()
        self.known[file.identity] = digest.hex

    def _marks_alive(self, place: Place) -> Generator[None, None, list[str]]:
        alive = []
        for mark in self.objects.sizes(place.uploads):
            since = self.time()
            try:
                since = float(json.loads(self.objects.read(mark))["since"])
            except ObjectMissing:
                continue
            except (ValueError, KeyError, TypeError):
                since = self.time()  # somebody's mark all the same
            if self.time() - since < MARK_ABANDONED_S:
                alive.append(mark)
            else:
                self.objects.delete([mark])
            yield
        yield
        return alive

    def _named_by(self, manifests: Iterable[str]) -> Generator[None, None, set[str] | None]:
        """The objects that these manifests name; None when that can't be known."""
        named: set[str] = set()
        for name in sorted(manifests):
            try:
                named.update(file.object for file in Manifest.decode(self.objects.read(name)).files)
            except (ObjectMissing, FormatUnknown):
                return None  # somebody else collects, or a later version uploads here: it may know better
            except ManifestDamaged:
                pass  # nobody can ever restore from it
            yield
        return named


class Digest:
    """SHA-256 and size of what goes by: ``hex`` and ``size`` are as of now."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.size = 0

    @property
    def hex(self) -> str:
        """The checksum."""
        return self._sha256.hexdigest()

    def of(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Hand pieces on."""
        for chunk in chunks:
            self._sha256.update(chunk)
            self.size += len(chunk)
            yield chunk


def _manifest_of(taken: Taken, checkpoint_id: str, database: str, files: list[CheckpointFile]) -> Manifest:
    return Manifest(
        checkpoint_id=checkpoint_id,
        processor=taken.place.processor,
        task=taken.place.task,
        partition=taken.partition,
        code_version=taken.code_version,
        database=database,
        state_format=STATE_FORMAT,
        created_at=taken.created_at,
        meta=taken.meta,
        files=tuple(files),
    )
