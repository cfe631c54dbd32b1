"""Sizes on the disk: folders, free space, and log files, which are rotated while a program writes to them.

Invariants:
    - A size is what the disk gave (blocks), so a sparse file counts what it uses.
    - A file with several names counts once.
    - A file that disappears during the look counts as nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_BLOCK_BYTES = 512
#: Suffix of the former content of a rotated log.
ROTATED = ".1"


@dataclass(frozen=True, slots=True)
class Room:
    """The disk of a folder; both in bytes. ``free_bytes`` is the space that this user may still write."""

    total_bytes: int
    free_bytes: int

    @property
    def free_percent(self) -> float:
        """The free part, percent."""
        return 100.0 * self.free_bytes / self.total_bytes if self.total_bytes else 100.0


def room_of(path: Path) -> Room:
    """The disk of a folder, or of its nearest parent that exists."""
    place = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    found = os.statvfs(place)
    return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def size_on_disk(places: Iterable[Path], *, without: Iterable[Path] = ()) -> int:
    """Bytes of files and folders together; ``without`` names files and folders inside them to leave out."""
    left_out, seen, total = {str(each) for each in without}, set(), 0
    for place in places:
        for facts in _files(str(place), left_out):
            if (facts.st_dev, facts.st_ino) not in seen:
                seen.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * _BLOCK_BYTES
    return total


def rotate(log: Path, max_bytes: int) -> bool:
    """Move the content of a log to a second file when the log uses ``max_bytes`` or more; returns whether it did.

    The file itself stays, because a running program has it open. Its content is copied over the previous copy, and then
    the file is truncated. Lines that are written between the copy and the truncation are lost.
    """
    try:
        if log.is_symlink() or log.stat().st_blocks * _BLOCK_BYTES < max_bytes:
            return False
    except FileNotFoundError:
        return False
    former = log.with_name(log.name + ROTATED)
    with suppress(OSError):  # on a full disk the copy fails; free space matters more than the lines
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
