"""Functions for files that several processes share: atomic replacement, locks, and private files.

Invariants:
    - A reader of a replaced file sees the old content or the new content, never a mixture.
    - A private file has mode 0600 from its creation on.
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
    """Context manager that holds an exclusive lock (flock) on a file; waits while another process holds the lock.

    The file is created if it is absent.
    """
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> bool:
    """Replace the content of a file atomically (UTF-8); returns False if the file already has this content.

    ``mode`` is the permissions of a new file, from which the umask is subtracted.
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
    """Like ``replace_text``, but the file gets mode 0600, because its content is secret."""
    return replace_text(path, text, mode=0o600)


def package_folder(name: str) -> Path | None:
    """The folder of a Python package, found without importing the package; None if it is not installed."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
