"""Bugs that tests plant in checkpoints: in the upload, in the checks before a restore, and in the deletion."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.processors.engine.changelog.format import META_KEY
from holdfast.processors.engine.checkpoints import decision, retention
from holdfast.processors.engine.checkpoints.fetch import Fetcher
from holdfast.processors.engine.checkpoints.manifest import CheckpointFile, Manifest, Place
from holdfast.processors.engine.checkpoints.ports import Job, Objects
from holdfast.processors.engine.checkpoints.upload import Digest, Taken, Uploader
from holdfast.processors.engine.state.databases.database import LocalFile
from holdfast.processors.engine.state.databases.task_store import TaskStore
from tests.simulation.disk import SimulatedDatabase


def manifest_first(patch: pytest.MonkeyPatch) -> None:
    """The bug: the manifest is written before the files that it names."""
    publish = Uploader._publish
    waiting: list[tuple[str, bytes]] = []

    def write(self: Uploader, taken: Taken, file: LocalFile, upload: str) -> CheckpointFile:
        digest = Digest()
        name = taken.place.file(upload, file.name)
        waiting.append((name, b"".join(digest.of(self.files.read_file(taken.path, file.name)))))
        return CheckpointFile(file.name, name, digest.size, digest.hex)

    def publishes(self: Uploader, name: str, manifest: Manifest) -> Iterator[None]:
        yield from publish(self, name, manifest)
        while waiting:
            self.objects.write(waiting[0][0], [waiting[0][1]])
            waiting.pop(0)
            yield

    patch.setattr(Uploader, "_write", write)
    patch.setattr(Uploader, "_publish", publishes)


def other_topics_trusted(patch: pytest.MonkeyPatch) -> None:
    """The bug: a checkpoint is restored although it belongs to another changelog topic."""
    patch.setattr(decision, "_of_other_topics", lambda manifest, wanted: None)


def offsets_after_files(patch: pytest.MonkeyPatch) -> None:
    """The bug: a checkpoint has older data than its offsets say, because the offsets are read later."""
    original = TaskStore.checkpoint
    copied: dict[int, dict[bytes, bytes]] = {}

    def checkpoint(self: TaskStore, path: Path) -> None:
        original(self, path)
        database = self._database
        assert isinstance(database, SimulatedDatabase)
        now = database._disk._stored[path].content
        before = copied.get(id(self._database))
        copied[id(self._database)] = dict(now)
        if before is not None:
            database._disk._stored[path].content = {**before, META_KEY: now[META_KEY]}

    patch.setattr(TaskStore, "checkpoint", checkpoint)


def checksums_unread(patch: pytest.MonkeyPatch) -> None:
    """The bug: files from the store are used without a check of their checksums."""

    def download(self: Fetcher, manifest: Manifest, path: Path, job: Job) -> Iterator[None]:
        for file in manifest.files:
            self.files.write_file(path, file.name, self.objects.chunks(file.object))
            yield

    patch.setattr(Fetcher, "_download", download)


def marks_unread(patch: pytest.MonkeyPatch) -> None:
    """The bug: garbage collection deletes files that another process has uploaded, before its manifest names them."""

    def alive(objects: Objects, place: Place, time: Callable[[], float]) -> Generator[None, None, list[str]]:
        yield
        return []

    patch.setattr(retention, "_marks_alive", alive)


PLANTS: dict[str, Any] = {
    "a checkpoint's manifest is written before its files": manifest_first,
    "a checkpoint of another changelog is restored": other_topics_trusted,
    "a checkpoint's offsets are read after its files": offsets_after_files,
    "checksums of a checkpoint are not verified": checksums_unread,
    "files are collected that another upload is about to name": marks_unread,
}
