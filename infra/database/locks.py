"""Write transactions on a database that another process may have locked.

Invariants:
    - A locked database is waited for and asked again, within a bound; then the error names who holds it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from holdfast.infra.system.process import lock_holders

#: Execution option of connections that write.
WRITES = "holdfast_writes"

#: How long SQLite waits for a lock (``busy_timeout``), seconds.
BUSY_TIMEOUT_S = 10.0
#: Attempts to begin a transaction on a locked SQLite database; each waits for ``BUSY_TIMEOUT_S``.
ATTEMPTS = 3
#: How long a statement waits for a lock of Postgres, and a session may be idle in a transaction, seconds.
LOCK_TIMEOUT_S = 30.0

#: SQLSTATE of Postgres: a lock was not granted within ``lock_timeout``.
_LOCK_NOT_AVAILABLE = "55P03"


@contextmanager
def begun(engine: Engine) -> Iterator[Connection]:
    """A connection in one transaction that writes, committed at the end.

    Raises:
        sqlalchemy.exc.DBAPIError: The database failed, or stayed locked.
    """
    for attempt in range(1, ATTEMPTS + 1):
        with engine.connect().execution_options(**{WRITES: True}) as connection:
            try:
                transaction = connection.begin()
            except OperationalError as failed:
                # Nothing was written yet, so another attempt repeats nothing.
                if attempt == ATTEMPTS or not is_locked(failed):
                    raise
                continue
            with transaction:
                yield connection
            return


def is_locked(failed: BaseException) -> bool:
    """Whether a statement failed because another transaction kept its lock."""
    seen = failed.orig if isinstance(failed, DBAPIError) else failed
    if isinstance(seen, sqlite3.Error):
        return getattr(seen, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return getattr(seen, "sqlstate", "") == _LOCK_NOT_AVAILABLE


def what_to_do(engine: Engine) -> str:
    """The action for a database that stays locked; on this machine, the text names the process that holds the lock."""
    if engine.dialect.name != "sqlite":
        return (
            "Another session holds a row of the registry. Find it with `SELECT pid, client_addr, state, query FROM "
            "pg_stat_activity` on the server, and let it finish or end it; then repeat the command."
        )
    file = Path(engine.url.database or "")
    locked = (file.with_name(f"{file.name}-shm"), file)  # the lock of a writer is on the first one
    holders = dict.fromkeys(name for part in locked for name in lock_holders(part))
    who = " or ".join(holders) or "another process"
    return f"Let {who} finish, which holds its lock, or end it; then repeat the command."
