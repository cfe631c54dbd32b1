"""The folder of a test is in memory where there is room: these tests open thousands of databases and registries.

Streams go by columns wherever they fit, also with few messages: every topology of these tests is one of columns, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.processors.engine.runtime.task import columns

#: A file system in memory, and the room that it must have. In containers it often has 64 MiB.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 4 << 30


def has_room() -> bool:
    """Whether files of tests may be in memory, and programs among them may run there."""
    try:
        system = os.statvfs(MEMORY)
    except OSError:
        return False
    room = system.f_bavail * system.f_frsize >= ROOM_BYTES
    return room and not system.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)


@pytest.fixture(scope="session")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """A folder in memory for this test process, or None where there is no room.

    Its path ends with the path on disk: a process that a test leaves behind is known by the folder of the run.
    """
    if not has_room():
        yield None
        return
    disk = tmp_path_factory.getbasetemp()
    folder = MEMORY / disk.relative_to(disk.anchor)
    folder.mkdir(parents=True, exist_ok=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # until one is of another test process, too
        for parent in folder.parents:
            if parent == MEMORY:
                break
            parent.rmdir()


@pytest.fixture
def tmp_path(tmp_path: Path, in_memory: Path | None) -> Iterator[Path]:
    """The test's own folder."""
    if in_memory is None:
        yield tmp_path
        return
    folder = in_memory / tmp_path.name
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def columns_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns take runs of any length. In production, fewer than ``RUN_MIN`` messages go one by one."""
    monkeypatch.setattr(columns, "RUN_MIN", 1)
