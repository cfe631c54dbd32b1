"""Uploads one checkpoint.

The steps, and the situation if the process dies after each step:
    1. write the upload's mark (an object)   - other workers delete nothing until the mark is deleted, or a day old
    2. read the newest manifest              - unchanged files are not uploaded again; the new manifest refers to them
    3. write new files                       - no manifest refers to them; they are deleted when the mark is gone
                                               (if a write fails, the uploader deletes them itself)
    4. write the manifest                    - the checkpoint is complete
    5. delete the mark                       - the checkpoint is complete
    6. delete old manifests and unused files - by the rules of ``retention``
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
    read_manifest,
)
from holdfast.processors.engine.checkpoints.ports import Job, Objects
from holdfast.processors.engine.checkpoints.retention import collect, manifests_of
from holdfast.processors.engine.state.databases.database import DatabaseFiles, LocalFile
from holdfast.processors.engine.state.databases.task_meta import TaskMeta

#: Maximum number of checksums of local files that are kept in memory.
CHECKSUMS_KNOWN_MAX = 20_000

#: Files that a new checkpoint can share with the newest stored checkpoint, by size in bytes and then by SHA-256.
Sharable = dict[int, dict[str, CheckpointFile]]


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint on the local disk that is not uploaded yet."""

    place: Place
    path: Path
    partition: int
    code_version: str
    created_at: float
    meta: TaskMeta


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A finished upload: its manifest, the number of uploaded bytes, and the number of files that were shared."""

    manifest: Manifest
    bytes_new: int
    files_shared: int


@dataclass(slots=True)
class Uploader:
    """Uploads the checkpoints of one worker.

    Args:
        holder: The worker's name. The name of an upload's mark contains it. No other running worker has the same name.
        new_id: Makes a unique name for an upload.
        time: Returns the wall clock, in seconds since 1970.
        known: Maps a local file's ``identity`` to its SHA-256. Files with the same identity have the same content.
        suspect: Names of damaged objects. Files with these objects are uploaded again, and not shared.
    """

    objects: Objects
    files: DatabaseFiles
    holder: str
    new_id: Callable[[], str]
    time: Callable[[], float]
    known: dict[str, str]
    suspect: set[str]

    def run(self, taken: Taken, job: Job) -> Generator[None, None, Uploaded]:
        """Uploads a checkpoint, then deletes the local copy. The generator yields after each part of the work.

        Raises:
            StorageFailed: The object store can't be read or written.
            OSError: The local disk can't be read.
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
            yield from collect(self.objects, place, self.time)
            new = [part for part in parts if f"/{upload}/" in part.object]
            return Uploaded(manifest, sum(part.size for part in new), len(parts) - len(new))
        finally:
            self.files.clear(taken.path)

    def _take_back(self, place: Place, upload: str) -> None:
        """Deletes the files of a failed upload from the object store. Otherwise, repeated failures would fill it."""
        with contextlib.suppress(StorageFailed):
            self.objects.delete(list(self.objects.sizes(place.file(upload, ""))))

    def _mark(self, place: Place, upload: str) -> Iterator[None]:
        start = place.mark(self.holder, "")
        ours = [name for name in self.objects.sizes(place.uploads) if name.startswith(start)]
        if ours:  # The marks are of failed uploads of this worker, or of a killed process with the same worker name.
            self.objects.delete(ours)
        yield
        self.objects.write(place.mark(self.holder, upload), [json.dumps({"since": self.time()}).encode()])
        yield

    def _newest(self, place: Place) -> tuple[str, Manifest | None] | None:
        newest = max(manifests_of(self.objects, place), default=None)
        if newest is None:
            return None
        try:
            return newest, read_manifest(self.objects, newest)
        except (ObjectMissing, ManifestDamaged, FormatUnknown):
            return newest, None

    def _sharable(self, place: Place, before: tuple[str, Manifest | None] | None) -> Generator[None, None, Sharable]:
        """Returns those files of the newest stored checkpoint to which a new checkpoint can refer.

        These files exist in the object store, are complete, and are not in ``suspect``.
        """
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
        """Uploads the files that can't be shared. Returns all files of the checkpoint, uploaded or shared."""
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


class Digest:
    """Computes the SHA-256 and the size in bytes of data that arrives in pieces."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.size = 0

    @property
    def hex(self) -> str:
        """The SHA-256 of the pieces so far, as hex."""
        return self._sha256.hexdigest()

    def of(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the pieces unchanged, and adds each piece to the checksum and its length to the size."""
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
