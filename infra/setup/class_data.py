"""Archives of loaded Java classes (class data sharing, CDS). With an archive, a JVM's start needs a third less CPU.

An archive is valid for one user, one Java and one class path; its file name contains a hash of Java and class path. The
JVM also compares sizes and times of the jars, and ignores an archive that does not match. A note file next to the
archive has the archive's size, because a JVM crashes on an incomplete archive.

Invariants:
    - An archive is used only if the user of this process owns it, and no other user can write to it or its folder.
    - A file gets its final name only after the JVM that wrote it has ended. So a killed JVM leaves no archive.
    - A missing, damaged or foreign archive is not used, and causes no error.
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

#: JVM options that suppress warnings about an archive of classes which does not match; they would go to stdout.
_SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
#: JVM option that verifies the checksum of an archive of classes before it is used.
_CHECKED = "-XX:+VerifySharedSpaces"


class _Note(msgspec.Struct, frozen=True):
    """The note file next to an archive of classes: the archive's size in bytes, and its class path's jars."""

    size: int
    jars: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClassData:
    """The archive of classes of one program; ``file`` may not exist yet."""

    file: Path
    #: The jars of the program's class path, in order.
    jars: tuple[Path, ...]

    @property
    def is_usable(self) -> bool:
        """Whether the archive of classes is complete, and no other user can have written it."""
        note = read_json(_note(self.file), _Note)
        return (
            note is not None
            and _is_own(self.file.parent)
            and _is_own(self.file)
            and self.file.stat().st_size == note.size
        )

    def options(self) -> tuple[str, ...]:
        """The JVM options with which a program loads classes from the archive; empty if the archive can't be used."""
        options = (f"-XX:SharedArchiveFile={self.file}", "-Xshare:auto", _CHECKED, *_SILENT)
        return options if self.is_usable else ()

    def recording(self) -> tuple[str, ...]:
        """The options with which a JVM writes its loaded classes to a file when it ends; after that, call ``keep``."""
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._written.unlink(missing_ok=True)
        return (f"-XX:ArchiveClassesAtExit={self._written}", *_SILENT)

    def keep(self) -> bool:
        """Give the archive of classes its final name, after the JVM that wrote it has ended.

        Returns whether a usable archive exists. Also deletes archives whose jars no longer exist.
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
    """The archive of a program for this Java and these jars; it may not exist yet.

    Args:
        cache: The cache folder in the settings.
        program: A word for the file name, for example ``spark``.
        java: The Java that runs the program.
        jars: The jars of the program's class path, in the order of the class path.
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
