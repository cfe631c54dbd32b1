"""Releases: a copy of a processor's deployed code, which a rollback can start again.

    <home>/releases/<processor>/<code version>-<digest of the files>/     first on the worker's import path

A release has copies of the project files that the definition's import loads (module ``code_files``).

Invariants:
    - A release folder is complete or missing, because it is filled under another name and then renamed. If a folder is
      damaged later, the next deploy of the same files creates it again.
    - The files of a release never change; other files make another release.
    - The two releases that worked last, and the release that a rollback would start, are never deleted.
    - Releases that never worked are deleted before releases that worked.
    - Only a release's own folder is written or deleted. If a registry row names another folder, nothing is deleted.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from holdfast.infra.database.records import Release
from holdfast.infra.database.releases import ReleaseBook
from holdfast.infra.log import get_logger
from holdfast.infra.paths import Paths
from holdfast.infra.system.rooted import PathOutside, inside, remove_folder
from holdfast.processors.lifecycle.deploy.code_files import Code, CodeFile, digest_of
from holdfast.processors.lifecycle.deploy.deployed_settings import DeployedSettings
from holdfast.processors.lifecycle.plans.facts.shape import Shape, as_document
from holdfast.processors.lifecycle.ports import NotStarted

log = get_logger(__name__)

#: Default number of releases kept for each processor.
KEPT = 5
#: Number of releases that are always kept: the last two releases that worked.
UNDO = 2
#: Maximum age, in seconds, of a release folder that a running deploy is still filling; a copy takes only seconds. An
#: older half-filled folder was left by a killed deploy, and is deleted.
_FILLED_WITHIN_S = 86_400.0
_PART = re.compile(r"\.part\d+$")
#: Maximum number of a processor's releases that one call of ``prune`` reads.
_READ_MAX = 1_000


class ReleaseFailed(NotStarted):
    """The code of a release changed after the plan was made, or the code cannot be copied. No worker was started."""


def release_id(code_version: str, digest: str) -> str:
    """The id of a release: code version and digest, or only the code version if no files are copied."""
    return f"{code_version}-{digest}" if digest else code_version


class ReleaseFolders:
    """Creates release folders, and records them in ``book``, the part of Holdfast's registry about releases.

    ``kept`` is the number of releases that are kept for each processor.
    """

    def __init__(self, book: ReleaseBook, paths: Paths, kept: int = KEPT) -> None:
        self._book = book
        self._paths = paths
        self._settings = DeployedSettings(paths)
        self._kept = kept

    def make(self, processor: str, expected: str, code: Code, shape: Shape, now: datetime) -> Release:
        """Copy the code into the folder of release ``expected`` and record the release; an existing copy is kept.

        Raises:
            ReleaseFailed: The files differ from the files at the time of the plan, or cannot be copied.
            PathOutside: The name of the processor or version leads to a folder outside of the releases.
        """
        name = release_id(shape.code_version, code.digest)
        if name != expected:
            raise ReleaseFailed(
                f"The code of {processor} changed since the plan was made: release {name} now, {expected} planned.",
                action=f"Read the present plan with `holdfast explain deploy {processor}`, and apply it.",
                processor=processor,
                seen=name,
                expected=expected,
            )
        folder = None if not code.copied else self._copy(self._place(processor, name), code)
        self._book.record(
            processor,
            name,
            code_version=shape.code_version,
            target=code.target,
            folder=None if folder is None else str(folder),
            shape=as_document(shape),
            now=now,
        )
        found = self._book.find(processor, name)
        assert found is not None
        return found

    def prune(self, processor: str, keep: Sequence[str]) -> int:
        """Delete all releases except the newest ``kept``; returns the number of deleted releases.

        Releases that never worked are deleted first. Three kinds of releases are never deleted, because plans name them
        as the way to undo a change: those in ``keep``, the last two releases that worked, and the release that a
        rollback would start. A row in the registry (database of deployments) may name a folder that is not the
        release's own. Then the row is deleted with a warning, and the folder remains.
        """
        known = self._book.newest(processor, limit=_READ_MAX)
        worked = [each for each in known if each.worked_at is not None]
        undo = self._book.before(processor)
        needed = {*keep, *(each.release_id for each in worked[:UNDO]), *(() if undo is None else (undo.release_id,))}
        ranked = [*worked, *(each for each in known if each.worked_at is None)]
        old = [each for each in ranked[self._kept :] if each.release_id not in needed]
        for each in old:
            if each.folder is not None:
                self._delete(processor, each.release_id, Path(each.folder))
            self._settings.forget(processor, each.release_id)
            self._book.forget(processor, each.release_id)
        return len(old)

    def _place(self, processor: str, release: str) -> Path:
        """The folder of a release; raises PathOutside if a name leads outside of the releases folder."""
        return inside(inside(self._paths.all_releases, processor), release)

    def _delete(self, processor: str, release: str, recorded: Path) -> None:
        try:
            own = self._place(processor, release)
            if recorded.resolve() == own.resolve():
                remove_folder(own.parent, release)
                return
            expected = str(own)
        except (PathOutside, ValueError) as failure:
            expected = str(failure)
        log.warning(
            "the registry names a folder that is not this release's own, so the folder was not deleted",
            processor=processor,
            release=release,
            seen=str(recorded),
            expected=expected,
            next="delete that folder by hand if an earlier home left it; otherwise find out what wrote the row",
        )

    def _copy(self, folder: Path, code: Code) -> Path:
        """Copies the code into the folder, unless it has a complete copy already; returns the folder."""
        if _is_whole(folder, code):
            return folder
        part, torn = (folder.with_name(f"{folder.name}.part{os.getpid()}{end}") for end in ("", "0"))
        _sweep(folder.parent)
        try:
            shutil.rmtree(part, ignore_errors=True)
            for each in code.files:
                to = inside(part, each.name)
                to.parent.mkdir(parents=True, exist_ok=True)
                # Only the contents are copied, not the file permissions, so that the copy is private.
                shutil.copyfile(each.path, to)
            if not _is_whole(part, code):
                raise ReleaseFailed(
                    f"The files of {code.target} changed while they were copied.",
                    action="Deploy again once the files no longer change.",
                )
            if folder.is_dir() and not _is_whole(folder, code):
                folder.rename(torn)
            part.rename(folder)
        except OSError as failed:
            if _is_whole(folder, code):
                return folder  # Another deploy, in parallel, has already created the folder from the same files.
            raise ReleaseFailed(
                f"The code of {code.target} cannot be copied to {folder}: {failed}.",
                action="Free disk space there, or correct the folder's rights, then deploy again. Nothing was changed.",
                folder=str(folder),
            ) from failed
        finally:
            for left in (part, torn):
                shutil.rmtree(left, ignore_errors=True)
        return folder


def _is_whole(folder: Path, code: Code) -> bool:
    """Whether a folder has all files of the code, unchanged; additional files, such as Python's caches, are ignored."""
    try:
        return digest_of(CodeFile(each.name, folder / each.name) for each in code.files) == code.digest
    except OSError:
        return False


def _sweep(releases: Path) -> None:
    """Deletes old folders that killed deploys have only partly filled.

    No later deploy uses such a folder, because its name contains the id of the killed process.
    """
    for part in releases.iterdir() if releases.is_dir() else ():
        if _PART.search(part.name) and part.lstat().st_mtime < time.time() - _FILLED_WITHIN_S:
            remove_folder(releases, part.name)
