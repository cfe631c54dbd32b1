"""Becomes a program: reads command and environment from a private file, then replaces itself by the command.

Run by the supervisor as ``python -I launch.py <file> <hash>``; imports the standard library only. The process
keeps its id, so the supervisor watches the program itself.

Invariants:
    - On Linux the program is killed when the supervisor dies: no process lives on that nobody supervises,
      next to the one that the next supervisor starts in its place.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(launch_path: str) -> None:
    """Replace this process by the command in the file."""
    supervisor = os.getppid()
    with open(launch_path, encoding="utf-8") as file:
        document = json.load(file)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            sys.exit("the supervisor died while the program was starting")
    command: list[str] = document["command"]
    os.execvpe(command[0], command, {**os.environ, **document["environment"]})  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1])
