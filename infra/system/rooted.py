"""Checks that an untrusted name leads to a path inside a given folder (protection against path traversal).

Three kinds of names are untrusted: names in the manifest (list of files) of a checkpoint, in rows of Holdfast's
registry, and in listings of object stores. Code that reads, writes or deletes a file with such a name must get the path
from this module.

Invariants:
    - Symbolic links are resolved before the check. The folder itself may be a link.
    - The folder itself does not count as a path inside the folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.infra.errors import HoldfastError


class PathOutside(HoldfastError):
    """A name leads outside of the folder; nothing was read, written or deleted. Fields: root, name, seen."""


def inside(root: Path, name: str | Path) -> Path:
    """The path of ``name`` in the folder ``root``; an absolute ``name`` must already be inside ``root``.

    Raises:
        PathOutside: The name is empty, has a part ``..``, or leads outside of ``root`` or to ``root`` itself.
    """
    path = root / name
    try:
        seen = path.resolve()
        if ".." not in Path(name).parts and seen != root.resolve() and seen.is_relative_to(root.resolve()):
            return path
    # The path has a loop of symbolic links, a null byte, or a too long name.
    except (OSError, ValueError, RuntimeError) as failure:
        raise _outside(root, name, str(failure)) from failure
    raise _outside(root, name, str(seen))


def remove_folder(root: Path, name: str | Path) -> None:
    """Delete the folder ``name`` inside ``root`` with its content; errors of single files are ignored.

    Raises:
        PathOutside: The name is empty, has a part ``..``, or leads outside of ``root`` or to ``root`` itself.
    """
    shutil.rmtree(inside(root, name), ignore_errors=True)


def _outside(root: Path, name: str | Path, seen: str) -> PathOutside:
    return PathOutside(
        f"{str(name)!r} leads outside of {root}: it is {seen!r}, expected a path below that folder. Nothing was "
        "read, written or deleted.",
        action="Correct that name, or remove what holds it, and find out what wrote it. Replace a link by its folder.",
        root=str(root),
        name=str(name),
        seen=seen,
    )
