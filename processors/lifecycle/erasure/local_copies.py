"""Finds the local copies of a processor's state, rewrites those of workers, and deletes those that nobody uses.

    the owner's, a standby's     rewritten by its worker after the deletes; reading shows no entry of the key
    a task of another worker     deleted if it is older than the deletes: its worker restores it when it gets the task
    set aside, or in transfer    never deleted, because it may be the only copy of other keys; refused if it has the key

Invariants:
    - A copy that a worker has open is never deleted: RocksDB's lock is held while a copy is renamed.
    - A copy counts as free of the key only if its offsets are after the deletes, and all its entries were read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.infra.waiting import wait_until
from holdfast.processors.engine.state.databases.checkpoint_reader import checkpoint_meta, iterate_checkpoint
from holdfast.processors.engine.state.errors import StateFailed
from holdfast.processors.engine.state.folder import StateFolder
from holdfast.processors.lifecycle.erasure.entries import KeyEntries
from holdfast.processors.lifecycle.erasure.finding import Found, not_yet

#: Maximum seconds until all standbys have the deletes, and all other copies could be read.
CURRENT_WITHIN_S = 300.0
LOOK_EVERY_S = 1.0
_GONE = ".erased-"


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a task's state; ``offsets`` maps each store to the next changelog offset, empty if it is unreadable.

    ``partition`` is None for a copy that is not a task's folder: it was set aside, or is being transferred.
    ``with_key`` are the stores in which the copy has entries of the key.
    """

    path: Path
    partition: int | None
    offsets: Mapping[str, int]
    with_key: tuple[str, ...]


class LocalCopies(Protocol):
    """The local copies of a processor's state on this machine."""

    def copies(self, stores: Sequence[str], entries: KeyEntries) -> Iterator[Copy]:
        """Reads all copies."""

    def delete(self, copy: Copy) -> bool:
        """Delete a copy; returns False if a worker has it open."""


def rewrite_and_read(
    local: LocalCopies,
    stores: Sequence[str],
    ends: Mapping[str, Mapping[int, int]],
    entries: KeyEntries,
    rewrite: Callable[[], None],
    processor: str,
) -> Found:
    """Rewrite the files of workers, delete copies that are older than the deletes, and read all others.

    ``ends`` maps store and partition to the changelog offset after the deletes. ``rewrite`` makes the workers rewrite
    the files of their tasks and standbys.

    Raises:
        NotYetGone: A copy is older than the deletes and in use, or can't be read.
    """
    deleted: list[Path] = []

    def current() -> bool:
        """Whether every copy has the deletes. Older copies that no worker has open are deleted."""
        old = [each for each in local.copies((), entries) if _is_old(each, ends)]
        for each in old:
            if local.delete(each):
                deleted.append(each.path)
        return all(each.path in deleted for each in old)

    if not wait_until(current, CURRENT_WITHIN_S, every_s=LOOK_EVERY_S):
        raise not_yet(
            processor,
            f"A local copy of {processor} that a worker uses does not have the deletes yet, or can't be read",
            "Read `holdfast status`: standbys must follow.",
        )
    # Only now, because a standby that got the deletes after the rewrite would keep the former values in its files.
    rewrite()
    count, later = 0, 0
    for each in local.copies(stores, entries):
        count += 1
        if each.partition is None and each.with_key:
            raise not_yet(
                str(each.path),
                f"{each.path} has entries of the key, and no worker uses it",
                "Delete the folder: `holdfast apply clean` does it for state that was set aside, and `holdfast restart "
                f"{processor}` for unfinished transfers.",
            )
        if _is_old(each, ends):
            raise not_yet(str(each.path), f"The local copy {each.path} is older than the deletes, or can't be read")
        if each.with_key and not _has_later(each, ends):
            raise not_yet(str(each.path), f"The local copy {each.path} has entries of the key")
        later += bool(each.with_key)
    again = f"; {later} have state of later messages of the key" if later else ""
    removed = f", {len(deleted)} older copies are deleted" if deleted else ""
    return Found(
        "gone",
        f"the files of workers and standbys on this machine were rewritten after the deletes{removed}; all entries of "
        f"{count} copies were read{again}",
    )


def _is_old(copy: Copy, ends: Mapping[str, Mapping[int, int]]) -> bool:
    """Whether a task's copy lacks the deletes, or has unknown offsets."""
    if copy.partition is None:
        return False
    return not copy.offsets or any(
        copy.offsets.get(store, 0) < each[copy.partition]
        for store, each in ends.items()
        if store in copy.offsets and copy.partition in each
    )


def _has_later(copy: Copy, ends: Mapping[str, Mapping[int, int]]) -> bool:
    """Whether the copy has commits after the deletes in each store that has the key."""
    return copy.partition is not None and all(
        store in ends and copy.offsets.get(store, 0) > ends[store].get(copy.partition, 0) for store in copy.with_key
    )


class StateFolders:
    """The state folders of a processor on this machine. Implements ``LocalCopies``.

    Args:
        state_dir: The root folder of all state.
        processor: The processor's name.
        tasks: Name of each task -> its partition.
    """

    def __init__(self, state_dir: Path, processor: str, tasks: Mapping[str, int]) -> None:
        self._state_dir, self._processor, self._tasks = state_dir, processor, tasks

    def copies(self, stores: Sequence[str], entries: KeyEntries) -> Iterator[Copy]:
        """Reads all copies on this machine, also of running workers; RocksDB opens them read-only."""
        for slot in StateFolder.slots(self._state_dir, self._processor):
            folder = self._state_dir / self._processor / slot
            paths = (StateFolder.path_of(self._state_dir, self._processor, slot, task) for task in self._tasks)
            names = dict(zip((path.name for path in paths), self._tasks.values(), strict=True))
            for path in sorted(each.parent for each in [*folder.glob("*/CURRENT"), *folder.glob(".*/*/CURRENT")]):
                partition = names.get(path.name) if path.parent == folder else None
                yield self._read(path, partition, stores, entries)

    def delete(self, copy: Copy) -> bool:
        """Delete a copy; returns False if a worker has it open."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(copy.path / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                # RocksDB locks this file in the same way while a process has the database open.
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                gone = copy.path.with_name(f"{copy.path.name}{_GONE}{os.getpid()}")
                copy.path.rename(gone)
                shutil.rmtree(gone)
            except BlockingIOError:
                return False
            finally:
                os.close(descriptor)
        return True

    @staticmethod
    def _read(path: Path, partition: int | None, stores: Sequence[str], entries: KeyEntries) -> Copy:
        try:
            meta = checkpoint_meta(path)
            # A standby is marked as restoring all the time. All records before its offsets are in its data, too.
            offsets = {} if meta is None else {name: at.offset for name, at in meta.stores.items()}
            found = tuple(
                store for store in stores if any(entries.has(key) for key, _ in iterate_checkpoint(path, store))
            )
        except StateFailed:
            # A worker may have replaced files during the read. The caller reads again.
            return Copy(path, partition, {}, ())
        return Copy(path, partition, offsets, found)
