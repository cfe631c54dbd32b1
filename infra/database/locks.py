"""Begins write transactions on a database that another process may have locked.

Invariants:
    - If the database is locked, a transaction waits and retries for a limited time. Then the error names the lock's
      holder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from holdfast.infra.system.process import lock_holders

#: Name of the SQLAlchemy execution option that marks connections for write transactions.
WRITES = "holdfast_writes"

#: Maximum seconds that SQLite waits for a lock (``busy_timeout``).
BUSY_TIMEOUT_S = 10.0
#: Maximum number of attempts to begin a transaction on a locked SQLite database; each waits ``BUSY_TIMEOUT_S``.
ATTEMPTS = 3
#: On Postgres, maximum seconds that a statement waits for a lock, and that a session may be idle in a transaction.
LOCK_TIMEOUT_S = 30.0

#: Postgres' error code (SQLSTATE) if a lock was not granted within ``lock_timeout``.
_LOCK_NOT_AVAILABLE = "55P03"


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """Context manager with a connection in a write transaction, which is committed at the end of the block.

    Raises:
        sqlalchemy.exc.DBAPIError: The database failed, or stayed locked.
    """
    for attempt in range(1, ATTEMPTS + 1):
        with engine.connect().execution_options(**{WRITES: True}) as connection:
            try:
                transaction = connection.begin()
            except OperationalError as failed:
                # A repeated begin is safe, because the transaction has not written anything yet.
                if attempt == ATTEMPTS or not is_locked(failed):
                    raise
                continue
            with transaction:
                yield connection
            return


def is_locked(failed: BaseException) -> bool:
    """Whether a statement failed because another transaction held a lock for too long."""
    seen = failed.orig if isinstance(failed, DBAPIError) else failed
    if isinstance(seen, sqlite3.Error):
        return getattr(seen, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return getattr(seen, "sqlstate", "") == _LOCK_NOT_AVAILABLE


def what_to_do(engine: Engine) -> str:
    """The action for the error about a locked database; for SQLite, it names the process that holds the lock."""
    if engine.dialect.name != "sqlite":
        return (
            "Another session holds a row of the registry. Find it with `SELECT pid, client_addr, state, query FROM "
            "pg_stat_activity` on the server, and let it finish or end it; then repeat the command."
        )
    file = Path(engine.url.database or "")
    # In WAL mode, the lock of a writing process is on the `-shm` file.
    locked = (file.with_name(f"{file.name}-shm"), file)
    holders = dict.fromkeys(name for part in locked for name in lock_holders(part))
    who = " or ".join(holders) or "another process"
    return f"Let {who} finish, which holds its lock, or end it; then repeat the command."
