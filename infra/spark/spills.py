"""The folder of spilled data of each JVM: named by the process that started it, and deleted once that has ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from holdfast.infra.process import is_running, start_mark


def new_spill_folder(folder: Path) -> Path:
    """A folder for the spilled data of this process's JVM; folders of ended processes are deleted."""
    delete_spills_of_ended(folder)
    own = folder / "local" / f"{os.getpid()}-{start_mark(os.getpid())}"
    own.mkdir(parents=True, exist_ok=True)
    return own


def delete_spills_of_ended(folder: Path) -> int:
    """Delete the folders of ended processes; returns how many."""
    local, count = folder / "local", 0
    for other in local.iterdir() if local.is_dir() else ():
        pid, _, mark = other.name.partition("-")
        if not (pid.isdecimal() and is_running(int(pid), mark)):
            shutil.rmtree(other, ignore_errors=True)
            count += 1
    return count
