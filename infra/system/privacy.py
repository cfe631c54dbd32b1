"""Keeps the home folder private: only the user of a process can read and write the files of that process.

New files get their mode from the umask, which every process sets at its start (``keep_private``) or inherits from its
parent (``UMASK``). Files of an older home are corrected at a start.

Invariants:
    - Rights are only taken away, and only below the home folder.
    - Of a folder that also holds other things than Holdfast's, only Holdfast's are changed.
    - Symbolic links are not followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from holdfast.infra.paths import Paths

if TYPE_CHECKING:  # processes that only start other processes load no settings
    from holdfast.infra.settings import Settings

_log = structlog.get_logger("privacy")

#: The umask of every process of Holdfast: files 0600, folders 0700.
UMASK: Final = 0o077
#: The umask with ``HOLDFAST_GROUP_ACCESS``: files 0660, folders 0770. Files with secrets stay 0600.
GROUP_UMASK: Final = 0o007


@dataclass(frozen=True, slots=True)
class Mended:
    """A home that was open to others: its previous mode, the number of corrected paths, and the paths that failed."""

    home: Path
    mode: int
    changed: int
    left: tuple[Path, ...]


_taken = UMASK


def process_umask() -> int:
    """The umask for child processes: the umask that this process set, else ``UMASK``."""
    return _taken


def keep_private(settings: Settings) -> None:
    """Set Holdfast's umask for this process and its children; correct a home that is open to others.

    Logs a warning with the corrections. Call it at the entry of a process, before the process writes files.
    """
    global _taken
    umask = _taken = GROUP_UMASK if settings.group_access else UMASK
    os.umask(umask)
    mended = mend_home(settings.paths, umask)
    if mended is None:
        return
    _log.warning(
        "other users could reach the home folder; it is private now",
        home=str(mended.home),
        former_mode=f"{mended.mode:04o}",
        changed=mended.changed,
        umask=f"{umask:03o}",
    )
    if mended.left:
        _log.warning(
            "other users can reach parts of the home folder that this user may not change",
            paths=[str(path) for path in mended.left[:5]],
            number=len(mended.left),
            action="Have their owner run `chmod -R go= <path>`, or set `HOLDFAST_GROUP_ACCESS` to true where a group "
            "shares the home.",
        )


@contextlib.contextmanager
def private_files(settings: Settings) -> Iterator[None]:
    """Sets Holdfast's umask during the block, for a process of a user's own program; corrects the home."""
    before = os.umask(UMASK)
    try:
        keep_private(settings)
        yield
    finally:
        os.umask(before)


def mend_home(paths: Paths, umask: int) -> Mended | None:
    """Remove the rights that the umask forbids from a home and its content; None if no other user could read the home.

    A home folder with the right mode is not searched, because other users can't reach its content.
    """
    try:
        mode = stat.S_IMODE(paths.home.stat().st_mode)
    except OSError:
        return None
    if not mode & umask:
        return None
    ours, foreign = _entries(paths)
    if foreign:
        # A foreign folder may have been named as the home. Common names such as `logs` count as Holdfast's only next to
        # other files of Holdfast.
        ours = [path for path in ours if _is_open(path, umask)] if any(map(Path.exists, paths.proofs)) else []
    changed, left = 0, []
    # The folder itself comes first: after that, no other user can reach its content.
    for below in ([] if foreign else [paths.home], *map(_below, ours)):
        for path in below:
            done = _close(path, umask)
            changed += done is True
            left += [path] if done is None else []
    return Mended(paths.home, mode, changed, tuple(left)) if ours and (changed or left) else None


def _entries(paths: Paths) -> tuple[list[Path], list[Path]]:
    """The content of the home folder: Holdfast's files and folders, and others."""
    ours: list[Path] = []
    foreign: list[Path] = []
    with contextlib.suppress(OSError):
        for entry in sorted(paths.home.iterdir()):
            (ours if paths.is_own(entry.name) else foreign).append(entry)
    return ours, foreign


def _below(path: Path) -> Iterator[Path]:
    """A path and everything below it, without symbolic links; a folder comes before its content."""
    if path.is_symlink():
        return
    yield path
    if path.is_dir():
        for folder, folders, files in os.walk(path):
            yield from (Path(folder) / name for name in (*folders, *files) if not (Path(folder) / name).is_symlink())


def _is_open(path: Path, umask: int) -> bool:
    return bool(stat.S_IMODE(path.lstat().st_mode) & umask)


def _close(path: Path, umask: int) -> bool | None:
    """Whether a path's mode was changed; None when this user may not change it."""
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not mode & umask:
            return False
        path.chmod(mode & ~umask)
    except FileNotFoundError:  # another process deleted it
        return False
    except OSError:
        return None
    return True
