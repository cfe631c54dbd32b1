"""Puts test folders into memory if there is enough of it, because these tests open thousands of databases.

In these tests, steps run on columns wherever possible, even for a few messages. So the tests of every topology also
test columns.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.processors.engine.runtime.task import columns

#: The in-memory file system, and the free space that it must have. In containers it often has only 64 MiB.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30


def has_room() -> bool:
    """Whether the in-memory file system has enough space, is writable, and may run programs."""
    try:
        system = os.statvfs(MEMORY)
    except OSError:
        return False
    room = system.f_bavail * system.f_frsize >= ROOM_BYTES
    return room and not system.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)


@pytest.fixture(scope="session")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A folder in memory for this test process, or None if there is not enough memory.

    Its path ends with the path of the run's folder on disk. The search for processes that a test left behind uses this
    path, so it finds them in both places.
    """
    if not has_room():
        yield None
        return
    disk = tmp_path_factory.getbasetemp()
    folder = MEMORY / disk.relative_to(disk.anchor)
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # a parent folder stays if another test process still uses it
        for parent in folder.parents:
            if parent == MEMORY:
                break
            parent.rmdir()


@pytest.fixture
def tmp_path(tmp_path: Path, in_memory: Path | None) -> Iterator[Path]:
    """The folder of one test. It is in memory if there is enough memory."""
    if in_memory is None:
        yield tmp_path
        return
    folder = in_memory / tmp_path.name
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def temporary_in_memory(in_memory: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put temporary folders into memory, too.

    Each run of ``InMemoryCluster`` keeps its state in a temporary folder. To open, close and delete a RocksDB database
    takes 6 ms of CPU and 0.09 s on a disk, and 2 ms in memory.
    """
    if in_memory is not None:
        monkeypatch.setattr(tempfile, "tempdir", str(in_memory))


@pytest.fixture(autouse=True)
def columns_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use columns for batches of any size.

    In production, batches below ``RUN_MIN`` messages go through steps one by one.
    """
    monkeypatch.setattr(columns, "RUN_MIN", 1)
