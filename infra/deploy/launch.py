"""Starts a program: reads its command and environment from a private file, then replaces itself by ``exec``.

The supervisor runs ``python -I launch.py <file> <hash>``, which imports only the standard library. ``exec`` keeps the
process id, so the supervisor controls the program itself.

Invariants:
    - On Linux, the kernel kills the program if the supervisor dies. Otherwise the old program would keep running, and
      the next supervisor would start a second process of the same program.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(launch_path: str) -> None:
    """Replace this process by the command in the launch file."""
    supervisor = os.getppid()
    with open(launch_path, encoding="utf-8") as file:
        document = json.load(file)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            sys.exit("the supervisor ended while the program was starting")
    command: list[str] = document["command"]
    os.execvpe(command[0], command, {**os.environ, **document["environment"]})  # noqa: S606 # nosec B606


if __name__ == "__main__":
    main(sys.argv[1])
