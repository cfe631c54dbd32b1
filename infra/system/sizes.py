"""Measures the disk space of folders and the free space, and rotates log files that a program has open.

Invariants:
    - A size counts the allocated blocks, so a sparse file counts only the space that it uses.
    - A file with several names (hard links) counts once.
    - A file that is deleted during the measurement counts as 0 bytes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_BLOCK_BYTES = 512
#: Suffix of the file to which a log's old content is moved by a rotation.
ROTATED = ".1"


@dataclass(frozen=True, slots=True)
class Room:
    """Size and free space of a disk, bytes. ``free_bytes`` is the space that this user can still use."""

    total_bytes: int
    free_bytes: int

    @property
    def free_percent(self) -> float:
        """The free space of the disk as a percentage of its size."""
        return 100.0 * self.free_bytes / self.total_bytes if self.total_bytes else 100.0


def room_of(path: Path) -> Room:
    """Size and free space of the disk with this folder; if it does not exist, of its nearest existing parent."""
    place = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    found = os.statvfs(place)
    return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def size_on_disk(places: Iterable[Path], *, without: Iterable[Path] = ()) -> int:
    """The total size of files and folders, bytes; paths in ``without`` are left out."""
    left_out, seen, total = {str(each) for each in without}, set(), 0
    for place in places:
        for facts in _files(str(place), left_out):
            if (facts.st_dev, facts.st_ino) not in seen:
                seen.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * _BLOCK_BYTES
    return total


def rotate(log: Path, max_bytes: int) -> bool:
    """Rotate a log that uses at least ``max_bytes``; returns whether it was rotated.

    The content is copied to a second file, which is overwritten, and then the log is truncated. The log is not renamed,
    because a running program has it open. Lines that are written between copy and truncation are lost.
    """
    try:
        if log.is_symlink() or log.stat().st_blocks * _BLOCK_BYTES < max_bytes:
            return False
    except FileNotFoundError:
        return False
    former = log.with_name(log.name + ROTATED)
    with suppress(OSError):  # On a full disk, the copy fails. Then free space is more important than the old lines.
        shutil.copyfile(log, former)
    os.truncate(log, 0)
    return True


def _files(place: str, left_out: set[str]) -> Iterator[os.stat_result]:
    if place in left_out:
        return
    try:
        facts = os.lstat(place)
        yield facts
        if not os.path.isdir(place) or os.path.islink(place):
            return
        with os.scandir(place) as entries:
            inside = [entry.path for entry in entries]
    except OSError:
        return
    for path in inside:
        yield from _files(path, left_out)
