"""The folder of spilled data of each JVM, named after its starting process and deleted after that process ended.

Invariants:
    - A live process holds the lock of the file ``lock`` in its folder: the kernel knows who lives, also in another
      container, which has its own process ids.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

from holdfast.infra.system.files import locked
from holdfast.infra.system.process import is_running, start_mark

#: The lock of this process's folder.
_lock: IO[str] | None = None


def new_spill_folder(folder: Path) -> Path:
    """A folder for the spilled data of this process's JVM; folders of ended processes are deleted."""
    global _lock
    own = folder / "local" / f"{os.getpid()}-{start_mark(os.getpid())}"
    own.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder / "local.lock"):  # a folder without a lock file is not in creation: an older version made it
        _delete_ended(folder)
        own.mkdir(exist_ok=True)
        if _lock is not None:
            _lock.close()
        _lock = (own / "lock").open("a")
        fcntl.flock(_lock, fcntl.LOCK_EX)
    return own


def delete_spills_of_ended(folder: Path) -> int:
    """Delete the folders of ended processes; returns how many."""
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
    """Whether the process that made this folder still runs."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # an older version made no lock file
        pid, _, mark = folder.name.partition("-")
        return pid.isdecimal() and is_running(int(pid), mark)
    return False
