"""Copies a SQLite registry to a file, and puts such a copy back, both while other processes use Holdfast's registry.

    live, readable      the copy replaces the content in one transaction of SQLite
    live, damaged       refused, because a file that other processes have open must not be replaced
    not in use          a damaged file is set aside, and the copy takes its place

Invariants:
    - The file of a registry in use is never replaced or deleted. A process that has the old file open would delete the
      write-ahead log of the new file by its name, and so damage it (https://sqlite.org/howtocorrupt.html, section 4).
    - Nothing is changed until the copy was checked: it is whole, it is a registry, and this code knows its schema.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from sqlalchemy.engine import URL, make_url

from holdfast.infra.database import locks, schema
from holdfast.infra.database.errors import RegistryUnavailable
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION

#: SQLite's codes for a file whose content is damaged, or that is no database.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class CopyRefused(HoldfastError):
    """A copy of the registry can't be written or put back. Field: file."""

    exit_code = EXIT_BAD_CONFIGURATION


def is_damaged(failed: BaseException | None) -> bool:
    """Whether a statement failed because the content of the SQLite file is damaged."""
    return isinstance(failed, sqlite3.Error) and getattr(failed, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def back_up(url: str, copy: Path) -> None:
    """Write a copy of Holdfast's registry at ``url`` to a new file that only this user can read.

    Raises:
        CopyRefused: The registry is not in a SQLite file, or the file exists already.
        RegistryUnavailable: The registry can't be read.
    """
    live = _file_of(url, "Use `pg_dump`, which copies a Postgres database while it is in use.")
    if copy.exists():
        raise CopyRefused(f"{copy} exists already.", action="Name a new file, or delete this one.", file=str(copy))
    if not live.exists():
        raise CopyRefused(
            f"There is no registry {live}.", action="Run `holdfast up`, which creates it.", file=str(live)
        )
    with _partial(copy.parent) as partial:
        try:
            with closing(_opened(live)) as source, closing(sqlite3.connect(partial)) as target:
                source.backup(target)
                # SQLite copies damaged pages without an error.
                (found,) = target.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.Error as failed:
            found = str(failed)
        if found != "ok":
            url = schema.shown(make_url(url))
            raise RegistryUnavailable(f"The registry {live} can't be read: {found}.", action=what_to_do(live), url=url)
        os.replace(partial, copy)


def put_back(url: str, copy: Path, now: datetime, *, in_use: bool) -> Path | None:
    """Replace the content of Holdfast's registry at ``url`` by a copy, with the schema of this code.

    ``in_use`` is whether services of this installation run. Returns the path of the damaged file that was set aside, if
    the registry was damaged.

    Raises:
        CopyRefused: The copy is damaged or no registry; or the registry is damaged and in use.
        RegistryNewerThanCode: The copy has a schema that only a newer version of Holdfast knows.
    """
    live = _file_of(url, "Use `pg_restore`.")
    with _partial(live.parent) as checked:
        _check(copy, checked)
        engine = schema.open_engine(f"sqlite:///{checked}")
        try:
            schema.migrate(engine)
        finally:
            engine.dispose()
        with closing(_opened(checked)) as source:
            if _is_whole(live):
                with closing(_opened(live)) as target:
                    source.backup(target)
                return None
            if in_use:
                raise CopyRefused(
                    f"The registry {live} is damaged, and services that have it open run.",
                    action="Run `holdfast down`, then repeat this command.",
                    file=str(live),
                )
            aside = live.with_name(f"{live.name}.damaged-{now:%Y%m%dT%H%M%S}")
            _set_aside(live, aside)
            with closing(_opened(live)) as target:
                source.backup(target)
            return aside


def what_to_do(live: Path) -> str:
    """The action for the error about a damaged registry file."""
    return (
        "Its file is damaged. Run `holdfast down`, then `holdfast registry restore COPY`, then `holdfast up`. Without "
        f"a copy, move {live} and the files {live.name}-wal and {live.name}-shm away instead: `holdfast up` records "
        "the processors again from their programs."
    )


def _file_of(url: str, otherwise: str) -> Path:
    parsed: URL = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise CopyRefused(
            f"The registry {schema.shown(parsed)} is not in a SQLite file.", action=otherwise, file=schema.shown(parsed)
        )
    return Path(parsed.database)


def _opened(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=locks.BUSY_TIMEOUT_S, isolation_level=None)
    connection.execute(f"PRAGMA busy_timeout = {int(locks.BUSY_TIMEOUT_S * 1000)}")
    return connection


def _check(copy: Path, checked: Path) -> None:
    """Copy a file to ``checked``, and refuse it there if it is damaged, or if it is no copy of a registry.

    A write-ahead log beside the file belongs to it: it has the newest transactions if the file was copied by hand.
    """
    if not copy.is_file():
        action = "Name a file of `holdfast registry backup FILE`."
        raise CopyRefused(f"There is no file {copy}.", action=action, file=str(copy))
    for end in ("", "-wal"):
        if (part := copy.with_name(copy.name + end)).exists():
            shutil.copyfile(part, checked.with_name(checked.name + end))
    try:
        with closing(_opened(checked)) as source:
            (found,) = source.execute("PRAGMA integrity_check(1)").fetchone()
            names = {name for (name,) in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as failed:
        found, names = str(failed), set[str]()
    if found != "ok":
        action = "Name another copy, from `holdfast registry backup FILE`."
        raise CopyRefused(f"{copy} is damaged: {found}.", action=action, file=str(copy))
    if missing := {"deployments", "incidents", "applies", schema.VERSION_TABLE} - names:
        lacks = ", ".join(sorted(missing))
        action = "Name a file of `holdfast registry backup FILE`."
        raise CopyRefused(f"{copy} is not a copy of a registry: it lacks {lacks}.", action=action, file=str(copy))


def _is_whole(live: Path) -> bool:
    """Whether the SQLite file of Holdfast's registry is undamaged: absent, or readable from start to end."""
    if not live.exists():
        return True
    try:
        with closing(_opened(live)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError as failed:
        if is_damaged(failed):
            return False
        raise


def _set_aside(live: Path, aside: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        part = live.with_name(live.name + end)
        if part.exists():
            os.replace(part, aside.with_name(aside.name + end))


@contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """Context manager with a private temporary file in ``folder``, for a copy that is not complete yet.

    The file, and the files that SQLite creates beside it, are deleted at the end of the block.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".registry-copy-", dir=folder)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            Path(name + end).unlink(missing_ok=True)
