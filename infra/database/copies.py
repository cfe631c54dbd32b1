"""Copies Holdfast's registry (a SQLite file) to another file, and puts such a copy back.

Other processes may use the registry meanwhile. Its state decides how a copy is put back:

    readable               the copy's content replaces the registry's content in one transaction of SQLite
    damaged, in use        refused, because a file that other processes have open must not be replaced
    damaged, not in use    the damaged file is renamed, and the copy takes its place

Invariants:
    - The file of a registry in use is never replaced or deleted. A process that has the old file open would otherwise
      delete the new file's write-ahead log, because both logs have the same name. This would damage the new file
      (https://sqlite.org/howtocorrupt.html, section 4).
    - Nothing is changed until the copy was checked: it is whole, it is a registry, and this code knows its schema.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from sqlalchemy.engine import make_url

from holdfast.infra.database import locks, schema
from holdfast.infra.database.errors import RegistryUnavailable
from holdfast.infra.errors import HoldfastError
from holdfast.infra.exit_codes import EXIT_BAD_CONFIGURATION
from holdfast.infra.system.files import locked

#: Maximum seconds that a copy waits while another process has locked the registry.
WAIT_S = locks.ATTEMPTS * locks.BUSY_TIMEOUT_S
#: Middle part of the names of unfinished copies.
_PART = ".part-"
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
        CopyRefused: The registry is not in an existing SQLite file, or ``copy`` exists or can't be written.
        RegistryUnavailable: The registry can't be read.
    """
    live = _file_of(url, "Use `pg_dump`, which copies a Postgres database while it is in use.")
    if copy.exists():
        raise CopyRefused(f"{copy} exists already.", action="Name a new file, or delete this one.", file=str(copy))
    if not live.exists():
        action = "Run `holdfast up`, which creates it."
        raise CopyRefused(f"There is no registry {live}.", action=action, file=str(live))
    with _written(url, live), _partial(copy) as partial:
        with closing(_opened(live)) as source, closing(sqlite3.connect(partial)) as target:
            _copy(source, target, url)
            # SQLite copies damaged pages without an error.
            (found,) = target.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise _unreadable(url, live, found)
        os.replace(partial, copy)


def put_back(
    url: str, copy: Path, now: datetime, *, in_use: bool, check: Callable[[], None] = lambda: None
) -> Path | None:
    """Replace the content of the registry at ``url`` by a copy, with the schema of this code.

    ``in_use`` is whether services of this installation run. ``check`` is called directly before the content of a
    readable registry is replaced. It raises an error if the content must not be replaced now. Returns the new path of
    a damaged registry file that was renamed; None if the registry was readable or absent.

    Raises:
        CopyRefused: The copy is damaged or no registry; or the registry is damaged and in use.
        RegistryNewerThanCode: The copy has a schema that only a newer version of Holdfast knows.
        RegistryUnavailable: Another process has locked the registry for too long, or the disk refused a write.
    """
    live = _file_of(url, "Use `pg_restore`.")
    with _written(url, live), _partial(live) as checked:
        _check(copy, checked)
        engine = schema.open_engine(f"sqlite:///{checked}")
        try:
            schema.migrate(engine)
        finally:
            engine.dispose()
        if live.exists() and _is_whole(live):
            with closing(_opened(checked)) as source, closing(_opened(live)) as target:
                check()
                _copy(source, target, url)
            return None
        if in_use:
            raise CopyRefused(
                f"The registry {live} is damaged, and services that have it open run.",
                action="Run `holdfast down`, then repeat this command.",
                file=str(live),
            )
        aside = live.with_name(f"{live.name}.damaged-{now:%Y%m%dT%H%M%S}") if live.exists() else None
        _set_aside(live, aside)
        os.replace(checked, live)
        return aside


def what_to_do(live: Path) -> str:
    """The action for the error about a damaged registry file."""
    return (
        "Its file is damaged. Run `holdfast down`, then `holdfast registry restore COPY`, then `holdfast up`. Without "
        f"a copy, move {live} and the files {live.name}-wal and {live.name}-shm away instead: `holdfast up` records "
        "the processors again from their programs."
    )


def _file_of(url: str, otherwise: str) -> Path:
    """The path of the registry's file without symbolic links, because SQLite's write-ahead log is beside the real file.

    Raises CopyRefused with the action ``otherwise`` if the registry is not in a SQLite file.
    """
    parsed = schema.open_engine(url).url
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise CopyRefused(
            f"The registry {schema.shown(parsed)} is not in a SQLite file.", action=otherwise, file=schema.shown(parsed)
        )
    return Path(parsed.database).resolve()


@contextmanager
def _written(url: str, live: Path) -> Iterator[None]:
    """Context manager for making a copy or putting one back: only one process at a time can enter it.

    Errors of SQLite become RegistryUnavailable; errors of the disk become CopyRefused.
    """
    try:
        live.parent.mkdir(parents=True, exist_ok=True)
        with locked(live.with_name(f"{live.name}.lock")):
            yield
    except sqlite3.Error as failed:
        raise _unreadable(url, live, str(failed)) from failed
    except OSError as failed:
        raise CopyRefused(
            f"A file can't be read or written: {failed}.",
            action="Correct the path, its rights, or the room on its disk; then repeat the command.",
            file=str(failed.filename or live),
        ) from failed


def _unreadable(url: str, live: Path, why: str) -> RegistryUnavailable:
    shown = schema.shown(make_url(url))
    return RegistryUnavailable(
        f"The registry {live} can't be read or written: {why}.", action=what_to_do(live), url=shown
    )


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, url: str) -> None:
    """Copy a whole database in one transaction; waits for a lock for at most ``WAIT_S``.

    Without ``progress``, Python's ``backup`` would wait without a limit, and would not see Ctrl-C.
    """
    deadline = time.monotonic() + WAIT_S

    def progress(status: int, _remaining: int, _total: int) -> None:
        if status & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise RegistryUnavailable(
                f"The registry {schema.shown(make_url(url))} stayed locked for {WAIT_S:.0f} s.",
                action=locks.what_to_do(schema.open_engine(url)),
                url=schema.shown(make_url(url)),
            )

    source.backup(target, progress=progress)


def _opened(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=1.0, isolation_level=None)
    connection.execute("PRAGMA busy_timeout = 1000")
    return connection


def _check(copy: Path, checked: Path) -> None:
    """Copy a file to ``checked``; raise CopyRefused if it is damaged, or if it is no copy of a registry.

    A write-ahead log beside the file is copied, too. If a person copied the registry's files by hand, this log has the
    newest transactions.
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
    """Whether the SQLite file of Holdfast's registry is undamaged, so that all of it can be read."""
    try:
        with closing(_opened(live)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.DatabaseError as failed:
        if is_damaged(failed):
            return False
        raise


def _set_aside(live: Path, aside: Path | None) -> None:
    """Rename the registry's file, and the files that SQLite keeps beside it, to ``aside``.

    Without ``aside``, the registry's file was lost. Then the remaining files of SQLite are deleted.
    """
    for end in ("", *schema.BESIDE):
        part = live.with_name(live.name + end)
        if aside is None:
            part.unlink(missing_ok=True)
        elif part.exists():
            os.replace(part, aside.with_name(aside.name + end))


@contextmanager
def _partial(final: Path) -> Iterator[Path]:
    """Context manager with a private temporary file beside ``final``, for a copy that is not complete yet.

    The file, and the files that SQLite creates beside it, are deleted at the end of the block. Files that a killed
    command left there are deleted first.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f"{final.name}{_PART}*"):
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{final.name}{_PART}", dir=final.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        for end in ("", *schema.BESIDE):
            Path(name + end).unlink(missing_ok=True)
