"""A set of keys that may be larger than memory.

The keys are in a private SQLite database in the folder for temporary files. The database is deleted at the end of the
``with`` block.
"""

from __future__ import annotations

import sqlite3
from types import TracebackType


class SeenKeys:
    """A set of byte keys, used in a ``with`` block. ``len()`` still works after the block."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID",
            "BEGIN",
        ):
            self._database.execute(statement)
        self._count = 0

    def __enter__(self) -> SeenKeys:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def __len__(self) -> int:
        return self._count

    def add(self, key: bytes) -> bool:
        """Add a key; returns False if the set already contained the key."""
        is_new = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (key,)).rowcount == 1
        self._count += is_new
        return is_new
