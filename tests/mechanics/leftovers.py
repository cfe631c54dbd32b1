"""Finds and kills processes that a test run left behind.

Such a process is found because its command or its environment contains the folder of the test run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.infra.system.process import start_mark
from holdfast.infra.waiting import wait_until

#: Seconds that processes get to end by themselves. For instance, a code server ends after its webserver.
PATIENCE_S = 30.0


def leftovers(run: Path) -> Iterator[tuple[int, str]]:
    """Return the id and the command of each process of this run, except the calling process."""
    folder = os.fsencode(f"{run}{os.sep}")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            known = folder in command or folder in (process / "environ").read_bytes()
            if known and int(process.name) != os.getpid() and start_mark(int(process.name)) is not None:
                yield int(process.name), command.replace(b"\0", b" ").decode(errors="replace")[:300]


def end_leftovers(run: Path) -> list[str]:
    """Wait for the run's processes to end, then kill the rest. Returns one line for each killed process."""
    wait_until(lambda: not any(leftovers(run)), PATIENCE_S, every_s=0.5)
    found = list(leftovers(run))
    for pid, _ in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"process {pid}, {command}" for pid, command in found]
