"""Keeps the home folder private: only the user who runs Holdfast can read and write its files.

New files get their mode from the umask. Every process sets this umask at its start (``keep_private``), or inherits the
umask from its parent. If a home folder is open to other users, the start of a process corrects the modes of its files.

Invariants:
    - Permissions are only removed, never added, and only in the home folder.
    - If a home folder also has files of other programs, only Holdfast's files are changed.
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

from holdfast.infra.log import get_logger
from holdfast.infra.paths import Paths

# The module of the settings is imported only for type checks. A process that only starts another process does not need
# it.
if TYPE_CHECKING:
    from holdfast.infra.settings import Settings

_log = get_logger("privacy")

#: Default umask of every Holdfast process: new files get mode 0600, new folders 0700.
UMASK: Final = 0o077
#: Umask with ``HOLDFAST_GROUP_ACCESS``: new files get mode 0660, new folders 0770. Files with secrets still get 0600.
GROUP_UMASK: Final = 0o007


@dataclass(frozen=True, slots=True)
class Mended:
    """The result of correcting a home folder that other users could read.

    ``mode`` is its former mode, ``changed`` the number of corrected paths. ``left`` are paths that can't be corrected.
    """

    home: Path
    mode: int
    changed: int
    left: tuple[Path, ...]


_taken = UMASK


def process_umask() -> int:
    """The umask for child processes: the umask that ``keep_private`` set in this process, or ``UMASK``."""
    return _taken


def keep_private(settings: Settings) -> None:
    """Set Holdfast's umask for this process and its children, and correct a home folder that is open to other users.

    Logs a warning about corrections. Must be called at the start of a process, before it writes files.
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
    """Context manager like ``keep_private``, but restores the former umask at the end of the block.

    Use it in a user's own program, whose umask must not change permanently.
    """
    before = os.umask(UMASK)
    try:
        keep_private(settings)
        yield
    finally:
        os.umask(before)


def mend_home(paths: Paths, umask: int) -> Mended | None:
    """Remove the permissions that the umask forbids from a home folder and its content.

    Returns None if nothing was corrected. If the home folder itself has the correct mode, its content is not checked,
    because other users can't reach the content.
    """
    try:
        mode = stat.S_IMODE(paths.home.stat().st_mode)
    except OSError:
        return None
    if not mode & umask:
        return None
    ours, foreign = _entries(paths)
    if foreign:
        # The folder has files of other programs, so it may be named as home by mistake. Common names such as `logs`
        # count as Holdfast's only if one of Holdfast's typical files proves that this is a home folder.
        ours = [path for path in ours if _is_open(path, umask)] if any(map(Path.exists, paths.proofs)) else []
    changed, left = 0, []
    # The folder itself is corrected first, because then no other user can reach its content any more.
    for below in ([] if foreign else [paths.home], *map(_below, ours)):
        for path in below:
            done = _close(path, umask)
            changed += done is True
            left += [path] if done is None else []
    return Mended(paths.home, mode, changed, tuple(left)) if ours and (changed or left) else None


def _entries(paths: Paths) -> tuple[list[Path], list[Path]]:
    """The entries of the home folder in two lists: entries of Holdfast, and entries of other programs."""
    ours: list[Path] = []
    foreign: list[Path] = []
    with contextlib.suppress(OSError):
        for entry in sorted(paths.home.iterdir()):
            (ours if paths.is_own(entry.name) else foreign).append(entry)
    return ours, foreign


def _below(path: Path) -> Iterator[Path]:
    """Yields a path and everything in it, except symbolic links; a folder comes before its content."""
    if path.is_symlink():
        return
    yield path
    if path.is_dir():
        for folder, folders, files in os.walk(path):
            yield from (Path(folder) / name for name in (*folders, *files) if not (Path(folder) / name).is_symlink())


def _is_open(path: Path, umask: int) -> bool:
    return bool(stat.S_IMODE(path.lstat().st_mode) & umask)


def _close(path: Path, umask: int) -> bool | None:
    """Remove the permissions that the umask forbids.

    Returns whether the mode was changed; None if this user may not change the mode.
    """
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if not mode & umask:
            return False
        path.chmod(mode & ~umask)
    except FileNotFoundError:  # Another process has deleted the file.
        return False
    except OSError:
        return None
    return True
