"""Archives of loaded classes, with which a JVM starts for a third less CPU: Java's class data sharing (CDS).

An archive belongs to one user, one Java and one class path; its file name contains a hash of them. The JVM also
compares the jars' sizes and times, and ignores an archive that does not match. A note file next to the archive has its
size, because a JVM crashes on half of an archive.

Invariants:
    - An archive is used only if nobody but its owner, who runs this process, can write it or its folder.
    - A file has its final name only after the JVM that wrote it has ended: a JVM that was killed leaves no archive.
    - Nothing here raises for an archive that is missing, damaged or foreign: it is not used.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.infra.setup.java import Java
from holdfast.infra.system.files import replace_text
from holdfast.infra.system.json_file import read_json

#: Without these options, a JVM with an archive that does not match prints a warning on standard output.
_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
#: The JVM compares the checksum of an archive before it uses it.
_CHECKED = "-XX:+VerifySharedSpaces"


class _Note(msgspec.Struct, frozen=True):
    """The note file next to an archive: its size in bytes, and the jars of its class path."""

    size: int
    jars: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClassData:
    """The archive of one program; ``file`` may not exist yet."""

    file: Path
    #: The jars of the class path.
    jars: tuple[Path, ...]

    @property
    def is_usable(self) -> bool:
        """Whether the archive is complete and only this user can have written it."""
        note = read_json(_note(self.file), _Note)
        return (
            note is not None
            and _is_own(self.file.parent)
            and _is_own(self.file)
            and self.file.stat().st_size == note.size
        )

    def options(self) -> tuple[str, ...]:
        """The JVM options that use the archive; empty when there is no archive."""
        options = (f"-XX:SharedArchiveFile={self.file}", "-Xshare:auto", _CHECKED, *_SILENT)
        return options if self.is_usable else ()

    def recording(self) -> tuple[str, ...]:
        """The JVM options that write the archive at the JVM's end; ``keep`` then makes the archive usable."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._written.unlink(missing_ok=True)
        return (f"-XX:ArchiveClassesAtExit={self._written}", *_SILENT)

    def keep(self) -> bool:
        """Keep the archive that an ended JVM wrote; returns whether a usable archive exists.

        Archives whose jars no longer exist are deleted.
        """
        with suppress(OSError):
            note = _Note(self._written.stat().st_size, tuple(map(str, self.jars)))
            self._written.replace(self.file)
            replace_text(_note(self.file), msgspec.json.encode(note).decode())
        for file in self.file.parent.glob("*.jsa"):
            found = read_json(_note(file), _Note)
            if found is not None and not all(Path(jar).exists() for jar in found.jars):
                for each in (file, _note(file)):
                    each.unlink(missing_ok=True)
        return self.is_usable

    @property
    def _written(self) -> Path:
        return self.file.with_suffix(f".{os.getpid()}")


def _note(archive: Path) -> Path:
    return archive.with_suffix(".json")


def class_data(cache: Path, program: str, java: Java, jars: Sequence[Path]) -> ClassData:
    """The archive of a program with this Java and these jars, in the cache folder.

    Args:
        cache: The cache folder of the settings.
        program: A word for the file name; programs with the same word may share an archive.
        java: The Java that runs the program.
        jars: The jars of its class path, in its order.
    """
    told = hashlib.sha256(f"{java.home.resolve()} {java.version}\n".encode())
    for file in (java.home / "lib" / "modules", *jars):
        with suppress(OSError):
            status = file.stat()
            told.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    return ClassData(cache / f"class-data-{os.getuid()}" / f"{program}-{told.hexdigest()[:16]}.jsa", tuple(jars))


def _is_own(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
