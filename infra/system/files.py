"""Files that several processes share: atomic replacement, locks, private permissions; folders of packages.

Invariants:
    - A reader sees the old content or the new content, never a part.
    - A private file has mode 0600 from the moment it exists.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file, which is created if absent; waits while another process holds the lock."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> bool:
    """Write this content to a file, as UTF-8; returns False and leaves the file unchanged if the content is equal.

    ``mode`` has the permissions of the new file, before the umask.
    """
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        if path.read_text(encoding="utf-8") == text:
            return False
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(new, path)
    return True


def write_private(path: Path, text: str) -> bool:
    """As ``replace_text``, with mode 0600: for files that hold secrets."""
    return replace_text(path, text, mode=0o600)


def package_folder(name: str) -> Path | None:
    """The folder of an installed package, found without importing it; None when the package is not installed."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
