"""Dagster's storage on one machine: its own SQLite databases, with connections that are kept open.

Dagster opens a connection for each event, and closes it: SQLite then checkpoints and waits for the disk. Here a
connection stays open, and a commit does not wait for the disk (``synchronous = NORMAL``, which SQLite advises for its
write-ahead log). What was committed survives the end of any process. After a power failure the last events may be
missing, never a part of one. Files and tables are Dagster's, so a home can go from one storage to the other.

Invariants:
    - A database whose file was deleted, or replaced, is opened again.
    - At most ``OPEN_RUNS`` databases of runs are open in a process.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa
from dagster._core.event_api import EventHandlerFn
from dagster._core.storage.event_log.sqlite.sqlite_event_log import (
    SqliteEventLogStorage,
    SqliteEventLogStorageWatchdog,
)
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.schedules.sqlite.sqlite_schedule_storage import SqliteScheduleStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import (
    DagsterSqliteStorage,
    _event_logs_directory,
    _runs_directory,
    _schedule_directory,
)
from dagster._serdes import ConfigurableClassData
from sqlalchemy.engine import Connection, Engine
from watchdog.events import FileSystemEvent
from watchdog.observers import Observer

#: Databases of runs that one process keeps open; each has three files.
OPEN_RUNS = 16


class Engines:
    """Engines of SQLite databases by their URL, the last used ones; safe for threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        #: The last used one is last.
        self._open: OrderedDict[str, _Opened] = OrderedDict()

    def of(self, url: str) -> Engine:
        """The engine of this database; a new one when its file is not the one that was opened."""
        with self._lock:
            found = self._open.pop(url, None)
            if found is not None and found.files - {_identity(url)}:
                found.engine.dispose()
                found = None
            self._open[url] = found or _Opened.at(url)
            while len(self._open) > self._limit:
                self._open.popitem(last=False)[1].engine.dispose()
            return self._open[url].engine

    def close(self) -> None:
        """Close all connections that are not in use."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].engine.dispose()


@dataclass(frozen=True, slots=True)
class _Opened:
    """An engine, and the files that its connections opened: device and inode."""

    engine: Engine
    files: set[tuple[int, int] | None]

    @staticmethod
    def at(url: str) -> "_Opened":
        engine = sa.create_engine(url, max_overflow=-1, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})
        opened = _Opened(engine, set())

        @sa.event.listens_for(engine, "connect")
        def on_connect(connection: Any, _: Any) -> None:
            connection.execute("PRAGMA synchronous = NORMAL")
            opened.files.add(_identity(url))

        return opened


class KeptEvents(SqliteEventLogStorage):
    """Dagster's events; those of a run are in a database of their own."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines = Engines(OPEN_RUNS)
        super().__init__(base_dir, inst_data)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._db_lock:
            url = self.conn_string_for_shard(shard)
            engine = self._engines.of(url)
            if shard not in self._initialized_dbs or not os.path.exists(self.path_for_shard(shard)):
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            with engine.begin() as connection:
                yield connection

    def watch(self, run_id: str, cursor: str | None, callback: EventHandlerFn) -> None:
        """Tell of a run's events as they come."""
        observer: Any = self._obs
        if observer is None:
            observer = Observer()
            observer.start()
            self._obs = observer
        watchdog = _Watchdog(self, run_id, callback, cursor)
        self._watchers[run_id][callback] = watchdog, observer.schedule(watchdog, self._base_dir, recursive=True)

    def dispose(self) -> None:
        """Close the connections."""
        super().dispose()
        self._engines.close()


class _Watchdog(SqliteEventLogStorageWatchdog):
    """Reads a run's events when a file of its database changes: a connection that stays open writes into the log only.

    SQLite writes the database itself when the log has grown, or its last connection is closed.
    """

    def __init__(self, events: KeptEvents, run_id: str, callback: EventHandlerFn, cursor: str | None) -> None:
        super().__init__(events, run_id, callback, cursor)
        self._patterns = [self._log_path, f"{self._log_path}-wal"]

    def on_modified(self, event: FileSystemEvent) -> None:
        """One of the files was written."""
        self._process_log()


class _OneDatabase:
    """What a storage with one database has instead of a connection for each transaction."""

    _conn_string: str

    @cached_property
    def _engines(self) -> Engines:
        return Engines(1)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A transaction."""
        with self._engines.of(self._conn_string).begin() as connection:
            yield connection

    def dispose(self) -> None:
        """Close the connections."""
        self._engines.close()


class KeptRuns(_OneDatabase, SqliteRunStorage):
    """Dagster's runs."""


class KeptSchedules(_OneDatabase, SqliteScheduleStorage):
    """Dagster's sensors and schedules, and their ticks."""


class KeptSqliteStorage(DagsterSqliteStorage):
    """All three, below ``base_dir``."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super(DagsterSqliteStorage, self).__init__()  # type: ignore[no-untyped-call]  # opens nothing
        self.base_dir = base_dir
        self._inst_data = inst_data
        self._run_storage = KeptRuns.from_local(_runs_directory(base_dir))
        self._event_log_storage = KeptEvents(_event_logs_directory(base_dir))
        self._schedule_storage = KeptSchedules.from_local(_schedule_directory(base_dir))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> "KeptSqliteStorage":
        """From its entry in ``dagster.yaml``."""
        return cls(config_value["base_dir"], inst_data)


def _identity(url: str) -> tuple[int, int] | None:
    """Device and inode of the database's file; None when there is none."""
    try:
        found = os.stat(sa.make_url(url).database or "")
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
