"""Replaces the checkpoints of a processor: takes new ones after the deletes, and deletes all older ones.

A checkpoint is made of RocksDB files, and a file keeps a deleted value until RocksDB rewrites it. So every checkpoint
from before the rewrite of the local files counts as a copy, also one that shows no entry of the key.

Invariants:
    - An old checkpoint is deleted only after a newer one of its task is complete.
    - A remaining checkpoint is downloaded, and all its entries are read, before it counts as free of the key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.infra.errors import HoldfastError
from holdfast.infra.storage.errors import StorageFailed
from holdfast.infra.waiting import wait_until
from holdfast.processors.engine.checkpoints.fetch import CheckpointUnavailable, obtain_checkpoint
from holdfast.processors.engine.checkpoints.manifest import Manifest, Place, folder_of, generation_of, read_manifest
from holdfast.processors.engine.checkpoints.ports import Objects
from holdfast.processors.engine.checkpoints.retention import collect_others, manifests_of
from holdfast.processors.engine.state.databases.database import DatabaseFiles
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.finding import Found, not_yet
from holdfast.processors.lifecycle.plans.apply import ProgressLog

#: Maximum seconds until the workers have stored new checkpoints, and uploads that ran before have ended.
STORED_WITHIN_S = 600.0
LOOK_EVERY_S = 1.0

#: Store -> partition -> the changelog offset that a new checkpoint must have at least.
Ends = Mapping[str, Mapping[int, int]]
#: Function of a checkpoint's folder and a store that yields all entries of the store.
Entries = Callable[[Path, str], Iterator[tuple[bytes, bytes]]]


class TaskStores(NamedTuple):
    """The partition of a task, and the names of its stores."""

    partition: int
    stores: tuple[str, ...]


def replace_checkpoints(  # tidy: allow-wide because each parameter is another part of the installation
    objects: Objects,
    files: DatabaseFiles,
    processor: str,
    tasks: Mapping[str, TaskStores],
    ends: Ends,
    entries: KeyEntries,
    *,
    ask: Callable[[], None],
    read: Entries,
    time: Callable[[], float],
    tell: ProgressLog,
) -> Found:
    """Wait for new checkpoints of all tasks, delete all others, and read what is left.

    Args:
        objects: The checkpoint store.
        files: Downloads databases.
        processor: The processor's name.
        tasks: Each task whose checkpoints are replaced, by name.
        ends: The changelog offsets that new checkpoints must have at least.
        entries: Recognises the key.
        ask: Makes the workers take new checkpoints.
        read: Reads all entries of a downloaded checkpoint.
        time: The wall clock, seconds since 1970.
        tell: Gets the progress as text.

    Raises:
        NotYetGone: A new checkpoint is missing, an upload did not end, or a checkpoint still has the key.
        StorageFailed: The checkpoint store can't be read or written.
    """
    there = {task for name in objects.sizes(folder_of(processor)) if (task := _task_folder(name))}
    if not there:
        return Found("absent", f"{objects.shown} has no checkpoint of {processor}")
    former = sum(len(manifests_of(objects, Place(processor, task))) for task in tasks)
    ask()
    for task, own in sorted(tasks.items()):
        place = Place(processor, task)
        # Tasks of other streams have the same partition, and other stores.
        wanted = {store: ends[store][own.partition] for store in own.stores if own.partition in ends.get(store, {})}
        tell(f"waiting for a new checkpoint of {task}")

        def kept(name: str, wanted: Mapping[str, int] = wanted) -> bool:
            return _is_new(_read(objects, name), wanted)

        def stored(place: Place = place, kept: Callable[[str], bool] = kept) -> bool:
            return any(map(kept, manifests_of(objects, place))) and collect_others(objects, place, kept, time)

        if not wait_until(stored, STORED_WITHIN_S, every_s=LOOK_EVERY_S):
            raise not_yet(
                objects.shown,
                f"The workers stored no new checkpoint of {task} in {STORED_WITHIN_S:.0f} s, or an upload does not end",
                f"Read `holdfast status` and `holdfast logs {processor}`.",
            )
        there.discard(_task_folder(place.folder + "x"))
    for folder in sorted(there):  # of tasks that the processor no longer has, for example after a change of its streams
        objects.delete([name for name in objects.sizes(f"{folder_of(processor)}{folder}/") if generation_of(name)])
        objects.delete(list(objects.sizes(f"{folder_of(processor)}{folder}/")))
    read_all = _read_back(objects, files, processor, tasks, ends, entries, read)
    gone = f"{former} older checkpoints are deleted, with all files that only they had"
    return Found("gone", f"new checkpoints of {len(tasks)} tasks were taken after the rewrite; {gone}; {read_all}")


def _read_back(  # tidy: allow-wide because it reads what its caller has replaced
    objects: Objects,
    files: DatabaseFiles,
    processor: str,
    tasks: Iterable[str],
    ends: Ends,
    entries: KeyEntries,
    read: Entries,
) -> str:
    """Downloads each remaining checkpoint and reads it; returns how many entries were read, as text."""
    count = 0
    for task in sorted(tasks):
        place = Place(processor, task)
        with tempfile.TemporaryDirectory(prefix="holdfast-erasure-") as scratch:
            try:
                manifest, path = obtain_checkpoint(objects, files, place, Path(scratch))
            except CheckpointUnavailable as failure:
                raise not_yet(
                    objects.shown, f"The new checkpoint of {task} can't be read: {failure.message}"
                ) from failure
            for store in manifest.meta.stores:
                for key, _ in read(path, store):
                    count += 1
                    if entries.has(key) and not _is_later(manifest, store, ends):
                        raise not_yet(objects.shown, f"Checkpoint {manifest.checkpoint_id} of {task} has the key")
    return f"the remaining checkpoints were downloaded, and all {count:,} entries read"


def _is_later(manifest: Manifest, store: str, ends: Ends) -> bool:
    """Whether the checkpoint has more than the deletes: entries of the key are then of later messages."""
    return manifest.meta.stores[store].offset > ends.get(store, {}).get(manifest.partition, 0)


def _is_new(manifest: Manifest | None, wanted: Mapping[str, int]) -> bool:
    return manifest is not None and all(
        store in manifest.meta.stores and manifest.meta.stores[store].offset >= end for store, end in wanted.items()
    )


def _read(objects: Objects, name: str) -> Manifest | None:
    try:
        return read_manifest(objects, name)
    except StorageFailed:
        raise
    except HoldfastError:
        return None  # A damaged manifest is no new checkpoint, so it is deleted.


def _task_folder(name: str) -> str:
    words = name.split("/")
    return words[1] if len(words) > 2 else ""


def delete_local(folder: Path, since: float, remove: Callable[[Path], None]) -> Sequence[Path]:
    """Delete the local checkpoints of a processor that were taken before ``since``, seconds since 1970.

    The name of a local checkpoint is the time at which it was taken, in milliseconds.
    """
    old = [
        each
        for each in sorted(folder.iterdir() if folder.is_dir() else ())
        if each.is_dir() and (not each.name.isdecimal() or int(each.name) < since * 1000)
    ]
    for each in old:
        remove(each)
    return old
