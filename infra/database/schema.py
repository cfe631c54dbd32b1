"""Opening the registry's database and bringing its schema up to date.

Invariants:
    - All pending migrations and the version mark are one transaction, taken behind a lock: two processes that
      migrate at once do it one after the other, and the second finds nothing to do.
    - A schema that this code doesn't know is left untouched.
    - SQLite: write-ahead log, foreign keys on, waits for a lock instead of failing; a transaction that is going
      to write takes the write lock when it begins, so it can't fail halfway for want of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import time
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from holdfast.infra.database.errors import RegistryNewerThanCode, RegistryUnavailable

#: Execution option of a connection that is going to write.
WRITES = "holdfast_writes"

BUSY_TIMEOUT_S = 30.0

#: Key of the advisory lock that migrations hold on Postgres ("holdfast" in ASCII).
_ADVISORY_LOCK = int.from_bytes(b"holdfast", "big")

_MIGRATIONS = Path(__file__).resolve().parent / "migrations"


def open_engine(url: str) -> Engine:
    """An engine for the registry's URL; connects to nothing yet.

    Raises:
        RegistryUnavailable: The URL is malformed, or the driver that it names isn't installed.
    """
    try:
        parsed = make_url(url)
        arguments: dict[str, Any] = {"pool_pre_ping": True}
        if parsed.get_backend_name() == "sqlite":
            arguments["connect_args"] = {"timeout": BUSY_TIMEOUT_S, "check_same_thread": False}
        engine = create_engine(parsed, **arguments)
    except (ArgumentError, NoSuchModuleError, ImportError) as unusable:
        raise RegistryUnavailable(
            f"The registry's URL can't be used: {_without_password(url, str(unusable))}.",
            action="Set HOLDFAST_REGISTRY_URL to a SQLAlchemy URL (sqlite:///<file> or "
            "postgresql+psycopg://<user>:<password>@<host>/<database>) whose driver is installed.",
        ) from unusable
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def shown(url: URL) -> str:
    """The URL as it may be shown: without its password."""
    return url.render_as_string(hide_password=True)


def migrate(engine: Engine) -> str:
    """Bring the schema to the newest version that this code knows; its name is returned.

    Raises:
        RegistryNewerThanCode: The database is at a version that this code doesn't know.
        sqlalchemy.exc.DBAPIError: The database failed.
    """
    if engine.dialect.name == "sqlite" and engine.url.database:
        _begin_file(Path(engine.url.database))
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    (head,) = scripts.get_heads()
    with engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        current = MigrationContext.configure(connection).get_current_revision()
        known = {script.revision for script in scripts.walk_revisions()}
        if current is not None and current not in known:
            raise RegistryNewerThanCode(
                f"The registry {shown(engine.url)} has schema version {current}; this code knows up to {head}.",
                action="Run the Holdfast version that wrote the registry, or a newer one.",
                found=current,
                newest_known=head,
            )
        if current != head:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    return head


def _begin_file(path: Path) -> None:
    """Make the file if it is not there, without what a lost one left beside it: SQLite would take it for its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        for left in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + left).unlink(missing_ok=True)
        path.touch()


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    # Turning the log on needs the file for itself and doesn't wait for it as other statements do.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
            continue
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _without_password(url: str, message: str) -> str:
    with contextlib.suppress(ArgumentError):
        parsed = make_url(url)
        return f"{shown(parsed)}: {message}"
    # Not even parseable: show neither it nor a message that quotes it.
    return "it is not of the form dialect://..."
