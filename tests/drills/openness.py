"""Finds what other users of a machine could see of an installation: file modes, command lines, and secrets in files."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

#: Files in a home that must contain secrets. Each file is private, and only one process reads it.
KEEPERS = ("supervisor/programs/*.json", "run/*.json", "spark/warm.json")


def open_to_others(home: Path) -> list[str]:
    """The home and all files and folders in it that the group or others may read or write."""
    found = []
    for path in _all_below(home):
        with suppress(FileNotFoundError):  # SQLite deletes its `-shm` and `-wal` files when the last reader closes
            seen = path.lstat()
            mode = stat.S_IMODE(seen.st_mode)
            links = stat.S_ISLNK(seen.st_mode) or stat.S_ISSOCK(seen.st_mode)
            if mode & (0o077 if stat.S_ISDIR(seen.st_mode) else 0o066) and not links:
                found.append(f"{mode:04o} {path}")
    return found


def held_secrets(home: Path, secrets: Mapping[str, str]) -> list[str]:
    """Return the files in a home that contain a secret, without the files that must contain secrets."""
    kept = {path for pattern in KEEPERS for path in home.glob(pattern)}
    found = []
    for path in _all_below(home):
        if path.is_file() and path not in kept:
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                found += [f"{name} in {path}" for name in named_in(content, secrets)]
    return found


def named_in(content: bytes | str, secrets: Mapping[str, str]) -> list[str]:
    """Return the names of the secrets that a content includes, in plain form or as hexadecimal digits."""
    text = content.encode() if isinstance(content, str) else content
    return [name for name, value in secrets.items() if value.encode() in text or value.encode().hex().encode() in text]


class CommandLines:
    """Reads the command line of every process repeatedly during a block."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seen: set[str] = set()
        #: Hashes of the command lines that were read. They give the number of different command lines.
        self.looked: set[int] = set()

    @contextmanager
    def watched(self) -> Iterator[CommandLines]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    command = path.read_bytes()
                    if hash(command) not in self.looked:
                        self.looked.add(hash(command))
                        self.seen |= {f"{name}: {command[:300]!r}" for name in named_in(command, self._secrets)}


def _all_below(home: Path) -> Iterable[Path]:
    yield home
    for folder, folders, files in os.walk(home):
        yield from (Path(folder) / name for name in (*folders, *files))
