"""What other users of the machine could see of an installation: file modes, command lines, and files with secrets."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

#: Files in a home that must contain secrets; each is private and read by one process.
KEEPERS = ("supervisor/programs/*.json", "run/*.json", "spark/warm.json")


def open_to_others(home: Path) -> list[str]:
    """The home and all files and folders in it that the group or others may read or write."""
    return [
        f"{mode:04o} {path}"
        for path in _all_below(home)
        if (mode := stat.S_IMODE(path.lstat().st_mode)) & (0o077 if path.is_dir() else 0o066)
        and not path.is_symlink()
        and not stat.S_ISSOCK(path.lstat().st_mode)
    ]


def held_secrets(home: Path, secrets: Mapping[str, str]) -> list[str]:
    """The files in a home that contain a secret, except those that must contain secrets."""
    kept = {path for pattern in KEEPERS for path in home.glob(pattern)}
    found = []
    for path in _all_below(home):
        if path.is_file() and path not in kept:
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                found += [f"{name} in {path}" for name in named_in(content, secrets)]
    return found


def named_in(content: bytes | str, secrets: Mapping[str, str]) -> list[str]:
    """The names of the secrets in a content, in plain form or in hexadecimal digits."""
    text = content.encode() if isinstance(content, str) else content
    return [name for name, value in secrets.items() if value.encode() in text or value.encode().hex().encode() in text]


class CommandLines:
    """Reads the command line of every process repeatedly during a block."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seen: set[str] = set()
        #: Hashes of the command lines that were read, to count the different ones.
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
