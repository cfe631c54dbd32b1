"""Decides which checkpoints of a task are kept, and deletes all files that no kept checkpoint needs.

An upload may run at the same time on another machine. These rules protect its files:

- Object names are unique to an upload, and an upload shares only files of the newest manifest.
- A mark is an object that exists while an upload runs. ``collect`` lists files, manifests, marks, and manifests again,
  in this order. If it finds the mark of a running upload, it deletes nothing.

If ``collect`` finds no mark of an upload, the upload is therefore in one of two states. Either the second list of
manifests has the upload's manifest. Or the upload has not read the newest manifest yet. It will then read a manifest
that ``collect`` keeps, or a newer manifest. Even if ``collect`` pauses before it deletes, no later manifest refers to a
deleted file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from holdfast.infra.storage.errors import ObjectMissing, ObjectTooLarge
from holdfast.processors.engine.changelog.format import FormatUnknown
from holdfast.processors.engine.checkpoints.manifest import (
    ManifestDamaged,
    Place,
    folder_of,
    generation_of,
    read_manifest,
)
from holdfast.processors.engine.checkpoints.ports import Objects

Result = TypeVar("Result")

#: Number of checkpoints that are kept for each task: the newest one, and an older one in case the newest is damaged.
CHECKPOINTS_KEPT = 2
#: Seconds. If an upload's mark is older than this, the upload's process has died, and the mark is ignored.
MARK_ABANDONED_S = 86_400.0


def collect(objects: Objects, place: Place, time: Callable[[], float]) -> Iterator[None]:
    """Deletes a task's old checkpoints and unused files. The generator yields after each part of the work.

    No manifest and no file is deleted while an upload of the task runs. They are also kept if a newer Holdfast version
    wrote the manifest of a kept checkpoint, or if this manifest is missing, because its files are then unknown.
    """
    files = objects.sizes(place.files)
    yield
    first = sorted(manifests_of(objects, place))
    yield
    marks = yield from _marks_alive(objects, place, time)
    second = manifests_of(objects, place)
    if marks:
        return
    yield
    old = first[:-CHECKPOINTS_KEPT]
    used = yield from _named_by(objects, set(second) - set(old))
    if used is None:
        return
    objects.delete(old)
    yield
    objects.delete(sorted(set(files) - used))


def collect_others(objects: Objects, place: Place, kept: Callable[[str], bool], time: Callable[[], float]) -> bool:
    """Deletes all checkpoints of a task but those whose manifest's name ``kept`` accepts, and then all unused files.

    Returns False if nothing was deleted, because an upload runs, or because a kept manifest can't be read.
    """
    files = objects.sizes(place.files)
    first = sorted(manifests_of(objects, place))
    marks = _ended(_marks_alive(objects, place, time))
    second = manifests_of(objects, place)
    old = [name for name in first if not kept(name)]
    # Without a kept manifest, an upload could share files of a deleted one.
    if marks or len(old) == len(first):
        return not first and not files and not marks
    used = _ended(_named_by(objects, set(second) - set(old)))
    if used is None:
        return False
    objects.delete(old)
    objects.delete(sorted(set(files) - used))
    return True


def _ended(steps: Generator[None, None, Result]) -> Result:
    """Runs a generator to its end, and returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def delete_all(objects: Objects, processor: str) -> None:
    """Deletes all checkpoints of a processor; manifests first, so that no manifest refers to a deleted file."""
    found = sorted(objects.sizes(folder_of(processor)))
    objects.delete([name for name in found if generation_of(name)])
    objects.delete(found)


def manifests_of(objects: Objects, place: Place) -> list[str]:
    """The names of a task's manifests, unsorted."""
    return [name for name in objects.sizes(place.manifests) if generation_of(name)]


def _marks_alive(objects: Objects, place: Place, time: Callable[[], float]) -> Generator[None, None, list[str]]:
    alive = []
    for mark in objects.sizes(place.uploads):
        try:
            since = float(json.loads(objects.read(mark))["since"])
        except ObjectMissing:
            continue
        except (ObjectTooLarge, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            since = time()  # an unreadable mark may belong to a running upload, so it counts as new
        if time() - since < MARK_ABANDONED_S:
            alive.append(mark)
        else:
            objects.delete([mark])
        yield
    yield
    return alive


def _named_by(objects: Objects, manifests: Iterable[str]) -> Generator[None, None, set[str] | None]:
    """Returns the names of all objects to which these manifests refer.

    Returns None if a manifest is missing, or was written by a newer Holdfast version.
    """
    named: set[str] = set()
    for name in sorted(manifests):
        try:
            named.update(file.object for file in read_manifest(objects, name).files)
        except (ObjectMissing, FormatUnknown):
            # Another worker has just deleted this manifest, or a newer Holdfast version wrote it. The names of its
            # files are therefore unknown.
            return None
        except ManifestDamaged:
            pass  # No restore can use this manifest, so the files to which it refers need not be kept.
        yield
    return named
