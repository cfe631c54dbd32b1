"""Opens the registry's database, and migrates its schema to the present version.

Invariants:
    - All pending migrations, and the new version number, are one transaction under a lock. If two processes migrate at
      once, the second finds nothing to do.
    - If the schema already has the newest version, ``migrate`` makes only two reads. It then takes no lock, and does
      not load the library for migrations.
    - A schema of an unknown version is not changed.
    - SQLite uses a write-ahead log (WAL), enforces foreign keys, and waits for locks. A write transaction takes the
      write lock at its begin, so that none of its statements waits for the lock. A committed transaction is on the disk
      (``synchronous=FULL``). Otherwise a power failure could undo the record of an executed plan whose effects remain.
    - Postgres limits the time that a statement waits for a lock, and that a session is idle in a transaction. So a
      frozen process can't block other processes forever.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from holdfast.infra.database import locks
from holdfast.infra.database.errors import RegistryNewerThanCode, RegistryUnavailable
from holdfast.infra.database.leases import STEADY_S
from holdfast.infra.installation import missing_in
from holdfast.infra.masking import shown_url
from holdfast.infra.system.files import locked
from holdfast.infra.waiting import wait_until

#: Pause between two attempts to switch SQLite's write-ahead log on, seconds.
WAL_RETRY_S = 0.005

#: Key of the Postgres advisory lock that a migration holds; the bytes of "holdfast" as a number.
_ADVISORY_LOCK = int.from_bytes(b"holdfast", "big")

_MIGRATIONS = Path(__file__).resolve().parent / "migrations"
#: Endings of the files that SQLite keeps beside a database file.
BESIDE = ("-wal", "-shm", "-journal")
#: Name of the table in which the library for migrations keeps the schema's version.
VERSION_TABLE = "alembic_version"


def open_engine(url: str, steady_s: Callable[[], float] = time.monotonic) -> Engine:
    """A SQLAlchemy engine for the registry's URL; it opens no connection yet.

    ``steady_s`` is a monotonic clock in seconds, for the heartbeats in a SQLite database. All processes of the machine
    must use the same clock.

    Raises:
        RegistryUnavailable: The URL is malformed, or its driver is not installed.
    """
    try:
        parsed = make_url(url)
        arguments: dict[str, Any] = {"pool_pre_ping": True}
        if parsed.get_backend_name() == "sqlite":
            arguments["connect_args"] = {"timeout": locks.BUSY_TIMEOUT_S, "check_same_thread": False}
        engine = create_engine(parsed, **arguments)
    except (ArgumentError, NoSuchModuleError, ImportError) as unusable:
        if (missing := missing_in(unusable)) is not None:
            raise missing from unusable
        raise RegistryUnavailable(
            f"The registry's URL can't be used: {_without_password(url, str(unusable))}.",
            action="Set `HOLDFAST_REGISTRY_URL` to `sqlite:///<file>` or "
            "`postgresql+psycopg://<user>:<password>@<host>/<database>`, and install the driver.",
        ) from unusable
    if engine.dialect.name == "sqlite":

        def prepare(connection: sqlite3.Connection, _record: object) -> None:
            _prepare_sqlite(connection, steady_s)

        event.listen(engine, "connect", prepare)
        event.listen(engine, "begin", _begin_sqlite)
    elif engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _prepare_postgres)
    return engine


def shown(url: URL) -> str:
    """The URL without its password and the values of its query, for errors and logs."""
    return shown_url(url.render_as_string(hide_password=True))


def migrate(engine: Engine) -> str:
    """Upgrade the schema to the newest version that this code knows; returns the name of this version.

    Raises:
        RegistryNewerThanCode: The schema has a version that this code does not know.
        sqlalchemy.exc.DBAPIError: The database failed.
    """
    if engine.dialect.name == "sqlite" and engine.url.database:
        _begin_file(Path(engine.url.database))
    with engine.connect() as connection:
        present = _present_version(connection)
    return present if present == newest_version() else _upgrade(engine)


def newest_version() -> str:
    """The newest schema version that this code knows: the highest number in the names of the migrations' files."""
    return max(file.name.partition("_")[0] for file in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def _present_version(connection: Connection) -> str | None:
    """The version of the schema; None if the database has no schema, or does not name exactly one version."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()  # noqa: S608 # nosec B608: a constant
    return str(found[0]) if len(found) == 1 else None


def _upgrade(engine: Engine) -> str:
    # Imported late, because importing Alembic takes 125 ms of CPU, and hardly any command has to migrate the schema.
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config)
    (head,) = scripts.get_heads()
    with locks.begun(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        current = MigrationContext.configure(connection).get_current_revision()
        known = {script.revision for script in scripts.walk_revisions()}
        if current is not None and current not in known:
            raise RegistryNewerThanCode(
                f"The registry {shown(engine.url)} has schema version {current}; this code knows up to {head}.",
                action="Install the Holdfast version that wrote the registry, or a newer one.",
                found=current,
                newest_known=head,
            )
        if current != head:
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    return head


def _begin_file(path: Path) -> None:
    """Create the database file if it is absent.

    Journals of a deleted database file are deleted first; otherwise SQLite would replay them into the new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    with locked(path.with_name(f"{path.name}.lock")):
        if path.exists():
            return
        for left in BESIDE:
            path.with_name(path.name + left).unlink(missing_ok=True)
        path.touch()


def _prepare_postgres(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        for name in ("lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"SET {name} = {int(locks.LOCK_TIMEOUT_S * 1000)}")
    connection.commit()


def _prepare_sqlite(connection: sqlite3.Connection, steady_s: Callable[[], float]) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {int(locks.BUSY_TIMEOUT_S * 1000)}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    connection.create_function(STEADY_S, 0, steady_s)

    def logs_ahead() -> bool:
        if connection.execute("PRAGMA journal_mode").fetchone()[0] in ("wal", "memory"):
            return True
        # SQLite does not wait for a locked database in this statement (`journal_mode = WAL`): the statement fails at
        # once. So the caller repeats this function.
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
        return False

    wait_until(logs_ahead, locks.BUSY_TIMEOUT_S, every_s=WAL_RETRY_S)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(locks.WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _without_password(url: str, message: str) -> str:
    with contextlib.suppress(ArgumentError):
        parsed = make_url(url)
        return f"{shown(parsed)}: {message}"
    # Neither the URL nor the message is shown, because both may contain the password if the URL is malformed.
    return "it does not have the form dialect://..."
