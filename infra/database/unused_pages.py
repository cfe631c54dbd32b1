"""Shrinks SQLite files by their unused pages.

SQLite reuses the pages of deleted rows, but a file never shrinks by itself, for example after many rows were deleted.
Only ``VACUUM`` shrinks a file, and ``VACUUM`` needs exclusive access.

Invariants:
    - A file that another process uses at the moment is left unchanged.
"""

# tidy: allow-crumb because this module adapts a part of SQLite

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

from holdfast.infra.system.sizes import room_of

#: Minimum size of a file that is shrunk, bytes.
SMALL_BYTES = 64 << 20
#: Minimum fraction of unused pages in a file that is shrunk.
UNUSED_PART = 0.5


def give_back(files: Iterable[Path], *, small_bytes: int = SMALL_BYTES) -> int:
    """Shrink the files of which at least half is unused; returns the number of bytes freed on the disk."""
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
