"""Processes that are known by their id only: is it still the same one, and how to end it.

Invariants:
    - A process is identified by its id *and* the moment it started, because ids are used again.
    - A process that has ended but was not collected by its parent counts as ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_LOOK_EVERY_S = 0.02


def start_mark(pid: int) -> str | None:
    """A text that tells this process from any other that had or will have its id; None if none is running."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _mark_by_ps(pid)
    return None if fields[0] in {"Z", "X"} else fields[19]


def started_at(pid: int) -> float | None:
    """When the process began, in seconds since 1970; None if none is running."""
    mark = start_mark(pid)
    if mark is None:
        return None
    if not mark.isdigit():
        return time.mktime(time.strptime(mark))  # as ps says it
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(booted.split()[1]) + int(mark) / os.sysconf("SC_CLK_TCK")


def is_running(pid: int, mark: str) -> bool:
    """Whether the process with this id is still the one that had this mark."""
    return start_mark(pid) == mark


def end_process(pid: int, mark: str, *, timeout_s: float) -> bool:
    """Ask the process to end, wait, and kill it when it has not.

    Returns:
        Whether it ended by itself (True) or had to be killed (False). Ended already counts as by itself.
    """
    _send(pid, mark, signal.SIGTERM)
    if _ended(pid, mark, within_s=timeout_s):
        return True
    _send(pid, mark, signal.SIGKILL)
    _ended(pid, mark, within_s=10.0)
    return False


def _send(pid: int, mark: str, what: signal.Signals) -> None:
    if is_running(pid, mark):
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def _ended(pid: int, mark: str, *, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while is_running(pid, mark):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _mark_by_ps(pid: int) -> str | None:
    told = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = told.stdout.strip().partition(" ")
    return started.strip() or None if state and not state.startswith("Z") else None
