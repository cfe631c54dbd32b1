"""Gives the unused pages of a SQLite file back to the disk.

SQLite reuses the pages of deleted rows, so a file with a bounded number of rows is bounded. But the file never shrinks
by itself, for example after a setting was lowered. Only ``VACUUM`` shrinks it, and ``VACUUM`` needs exclusive access.

Invariants:
    - A file that another process uses now stays as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from holdfast.infra.system.sizes import room_of

#: Files below this size are not compacted, bytes.
SMALL_BYTES = 64 << 20
#: Part of a file that has to be unused.
UNUSED_PART = 0.5


def give_back(files: Iterable[Path], *, small_bytes: int = SMALL_BYTES) -> int:
    """Shrink files that are mostly unused pages; returns the number of bytes freed on the disk."""
    got = 0
    for file in files:
        with suppress(OSError, sqlite3.Error):
            before = file.stat().st_size
            if before >= small_bytes and room_of(file).free_bytes > before:
                _vacuum(file)
                got += before - file.stat().st_size
    return got


def _vacuum(file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=0.0, isolation_level=None)) as connection:
        unused, pages = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count")
        )
        if unused >= UNUSED_PART * pages:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
