"""A SQLite file returns its unused pages to the disk, unless another process uses the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.infra.database.unused_pages import give_back


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A SQLite file of 4 MiB, nearly all of it unused pages."""
    path = tmp_path / "index.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, event BLOB)")
        connection.executemany("INSERT INTO events (event) VALUES (zeroblob(65536))", [()] * 64)
        connection.execute("DELETE FROM events WHERE id > 2")
        connection.commit()
    return path


def test_the_unused_pages_go_and_the_rows_stay(file: Path) -> None:
    before = file.stat().st_size
    assert give_back([file, file.with_name("missing.db")], small_bytes=1 << 20) > 3 << 20
    assert file.stat().st_size < before / 4
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*), sum(length(event)) FROM events").fetchone() == (2, 131_072)
    assert give_back([file], small_bytes=0) == 0


def test_a_small_file_and_one_in_use_stay(file: Path) -> None:
    assert give_back([file], small_bytes=file.stat().st_size + 1) == 0
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert give_back([file], small_bytes=0) == 0


def test_a_file_that_is_no_database_stays(tmp_path: Path) -> None:
    strange = tmp_path / "strange.db"
    strange.write_bytes(b"no database" * 1000)
    assert give_back([strange], small_bytes=0) == 0
    assert strange.read_bytes() == b"no database" * 1000
