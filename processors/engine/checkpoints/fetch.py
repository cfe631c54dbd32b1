"""Downloads a task's best checkpoint into a scratch folder, and checks the checksum of every file.

Invariants:
    - Only a complete download whose checksums match its manifest is moved to a state folder.
    - A download stops at the size in the manifest, so that an object that is too large can't fill the disk.
    - A failure is not raised but returned as a reason, because the task can also be restored from the changelog.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from holdfast.infra.errors import HoldfastError
from holdfast.infra.storage.errors import ObjectTooLarge, StorageFailed
from holdfast.infra.storage.objects import at_most
from holdfast.infra.system.rooted import inside
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.checkpoints.decision import Patience, Refusal, Wanted, choose
from holdfast.processors.engine.checkpoints.manifest import Manifest, ManifestDamaged, Place, id_of, read_manifest
from holdfast.processors.engine.checkpoints.ports import Job, Objects
from holdfast.processors.engine.checkpoints.retention import manifests_of
from holdfast.processors.engine.checkpoints.upload import Digest
from holdfast.processors.engine.state.databases.database import DatabaseFiles

_log = structlog.get_logger("checkpoints.fetch")
_searches = structlog.get_logger("checkpoints.fetching")

#: Maximum number of manifests that are read for one search; the newest are read first.
MANIFESTS_LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a search for a checkpoint; ``manifest`` is None if no checkpoint was downloaded.

    ``path`` is the folder of the download. The download may be incomplete if ``manifest`` is None. ``refused`` has the
    checkpoints that were not used, with the reasons.
    """

    manifest: Manifest | None
    path: Path | None
    refused: tuple[Refusal, ...] = ()

    def told(self) -> dict[str, object]:
        """Returns the result as a dict, for log lines and the status page."""
        used = self.manifest
        return {
            "used": None if used is None else used.checkpoint_id,
            "created_at": None if used is None else used.created_at,
            "bytes": 0 if used is None else used.size,
            "refused": [{"checkpoint": each.checkpoint_id, "why": each.why} for each in self.refused],
        }


class CheckpointUnavailable(HoldfastError):
    """No checkpoint of the task exists in the checkpoint store, or none can be used."""


class Damaged(Exception):
    """The size or the checksum of an object differs from the manifest."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name.rpartition('/')[2]} {why}")
        self.object = name


@dataclass(slots=True)
class Fetcher:
    """Downloads checkpoints.

    Adds the names of damaged objects to ``suspect``, so that no new checkpoint refers to these objects.
    """

    objects: Objects
    files: DatabaseFiles
    suspect: set[str]

    def run(self, place: Place, wanted: Wanted, path: Path, job: Job) -> Generator[None, None, Fetched]:
        """Downloads the best usable checkpoint to ``path``. The generator yields after each part of the work.

        Failures are not raised, but returned in ``Fetched.refused``.
        """
        refused: list[Refusal] = []
        try:
            found: list[Manifest] = []
            yield from self._manifests(place, found, refused)
            usable, unfit = choose(found, wanted)
            refused += unfit
            for manifest in usable:
                self.files.clear(path)
                try:
                    yield from self._download(manifest, path, job)
                except (Damaged, StorageFailed) as failure:
                    refused.append(Refusal(manifest.checkpoint_id, _why(failure)))
                    if isinstance(failure, Damaged):
                        self.suspect.add(failure.object)
                    continue
                return Fetched(manifest, path, tuple(refused))
        except GeneratorExit:  # Python raises GeneratorExit here if the job of this download is cancelled
            self.files.clear(path)
            raise
        except StorageFailed as failure:
            refused.append(Refusal("all", failure.message))
        except OSError as failure:
            refused.append(Refusal("all", f"the local disk refused: {failure}"))
        self.files.clear(path)
        return Fetched(None, path, tuple(refused))

    def _manifests(self, place: Place, found: list[Manifest], refused: list[Refusal]) -> Iterator[None]:
        """Reads the task's newest manifests, and adds them to ``found``. Yields after each manifest.

        An unreadable manifest is added to ``refused`` instead, with the reason.
        """
        names = manifests_of(self.objects, place)
        yield
        for name in sorted(names, reverse=True)[:MANIFESTS_LOOKED_AT]:
            try:
                found.append(read_manifest(self.objects, name))
            except (ManifestDamaged, FormatUnknown, StorageFailed) as failure:
                refused.append(Refusal(id_of(name), _why(failure)))
            yield

    def _download(self, manifest: Manifest, path: Path, job: Job) -> Iterator[None]:
        job.progress.update(bytes=0, bytes_total=manifest.size)
        for file in manifest.files:
            digest = Digest()
            try:
                pieces = at_most(file.object, self.objects.chunks(file.object), file.size)
                self.files.write_file(path, file.name, _counted(digest.of(pieces), job))
            except ObjectTooLarge as failure:
                why = f"has more than the {file.size} bytes that its manifest says"
                raise Damaged(file.object, why) from failure
            except StorageFailed as failure:
                self.suspect.add(file.object)
                raise failure
            if digest.size != file.size:
                raise Damaged(file.object, f"has {digest.size} bytes, its manifest says {file.size}")
            if digest.hex != file.sha256:
                raise Damaged(file.object, f"has the checksum {digest.hex[:12]}, its manifest says {file.sha256[:12]}")
            yield


def obtain_checkpoint(
    objects: Objects,
    files: DatabaseFiles,
    place: Place,
    folder: Path,
    refuses: Callable[[Manifest], str | None] = lambda manifest: None,
) -> tuple[Manifest, Path]:
    """Downloads a task's newest checkpoint for a program that only reads it; returns its manifest and local folder.

    A checkpoint that was downloaded before is not downloaded again.

    Args:
        objects: The object store.
        files: The local databases.
        place: The task whose checkpoint is wanted.
        folder: A scratch folder; each complete checkpoint is a subfolder, named by the checkpoint's id.
        refuses: Returns the reason to refuse a checkpoint, or None to accept it.

    Raises:
        CheckpointUnavailable: No checkpoint exists, or every checkpoint is refused or damaged; the error has the
            reasons.
    """
    fetcher, job = Fetcher(objects, files, set()), Job()
    found: list[Manifest] = []
    refused: list[Refusal] = []
    try:
        for _ in fetcher._manifests(place, found, refused):
            pass
    except StorageFailed as failure:
        refused.append(Refusal("all", failure.message))
        found.clear()
    for manifest in found:
        path = inside(folder, manifest.checkpoint_id)
        part = path.with_name(path.name + ".part")
        why = refuses(manifest)
        if why is None and manifest.database != files.kind:
            why = f"its files are of {manifest.database}, expected {files.kind}"
        if why is None and path.exists():
            return manifest, path
        if why is None:
            files.clear(part)
            try:
                for _ in fetcher._download(manifest, part, job):
                    pass
                part.replace(path)
                return manifest, path
            except (Damaged, StorageFailed) as failure:
                why = _why(failure)
            except OSError as failure:
                why = f"the local disk refused: {failure}"
            files.clear(part)
        refused.append(Refusal(manifest.checkpoint_id, why))
    reasons = "; ".join(f"{each.checkpoint_id}: {each.why}" for each in refused) or "there is none"
    raise CheckpointUnavailable(
        f"The checkpoint store {objects.shown} has no checkpoint of {place.processor}, task {place.task}, that can be "
        f"used: {reasons}.",
        action="Materialise the store's state asset, which takes a checkpoint; or read the changelog instead.",
        processor=place.processor,
        task=place.task,
    )


def _counted(chunks: Iterable[bytes], job: Job) -> Iterator[bytes]:
    for chunk in chunks:
        job.progress["bytes"] += len(chunk)
        yield chunk


def _why(failure: Exception) -> str:
    return failure.message if isinstance(failure, StorageFailed | FormatUnknown) else str(failure)


@dataclass(frozen=True, slots=True)
class CheckpointSearch:
    """A search for one task's checkpoint that runs in the background, with its timeouts."""

    task: str
    job: Job
    patience: Patience

    def ended(self, now: float) -> Fetched | None:
        """Returns the result of the search; None while it continues. Logs a line for each refused checkpoint.

        If the search failed or reached its timeout, the result has no checkpoint. ``now`` is monotonic seconds.
        """
        too_slow = None if self.job.done else self.patience.spent(now, self.job.progress.get("bytes", 0))
        if not self.job.done and too_slow is None:
            return None
        if too_slow is not None:
            self.job.cancel()
        found = self._found
        if found is None:
            found = Fetched(None, None, (Refusal("all", too_slow or f"the fetch failed: {self.job.failure!r}"),))
        for refused in found.refused:
            _searches.warning(
                "a checkpoint is not used", task=self.task, checkpoint=refused.checkpoint_id, why=refused.why
            )
        return found

    def give_up(self) -> Fetched | None:
        """Cancels the search; returns its result if the search had already ended, otherwise None."""
        self.job.cancel()
        return self._found

    @property
    def _found(self) -> Fetched | None:
        return self.job.result if isinstance(self.job.result, Fetched) else None
