"""Creates a folder for the spilled data of each JVM, and deletes the folders of ended processes.

A folder is named after the process that starts the JVM.

Invariants:
    - A live process holds a lock on the file ``lock`` in its folder. The lock shows whether the process lives, even if
      it is in another container with its own process ids.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

from holdfast.infra.system.files import locked
from holdfast.infra.system.process import is_running, start_mark

#: The open and locked file in this process's folder; it stays open until the process ends.
_lock: IO[str] | None = None


def new_spill_folder(folder: Path) -> Path:
    """Create a folder for the spilled data of this process's JVM; also deletes the folders of ended processes."""
    global _lock
    own = folder / "local" / f"{os.getpid()}-{start_mark(os.getpid())}"
    own.parent.mkdir(parents=True, exist_ok=True)
    # The lock ensures that no other process sees a folder between its creation and the creation of its lock file.
    with locked(folder / "local.lock"):
        _delete_ended(folder)
        own.mkdir(exist_ok=True)
        if _lock is not None:
            _lock.close()
        _lock = (own / "lock").open("a")
        fcntl.flock(_lock, fcntl.LOCK_EX)
    return own


def delete_spills_of_ended(folder: Path) -> int:
    """Delete the folders of ended processes; returns the number of deleted folders."""
    if not (folder / "local").is_dir():
        return 0
    with locked(folder / "local.lock"):
        return _delete_ended(folder)


def _delete_ended(folder: Path) -> int:
    ended = [each for each in (folder / "local").iterdir() if not _spills(each)]
    for each in ended:
        shutil.rmtree(each, ignore_errors=True)
    return len(ended)


def _spills(folder: Path) -> bool:
    """Whether the process that created this folder for spilled data of Spark is still alive."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # An older version, which made no lock file, created the folder. Its name has process id and mark.
        pid, _, mark = folder.name.partition("-")
        return pid.isdecimal() and is_running(int(pid), mark)
    return False
