"""Tests the conditions that recovery waits for: a broker answers, the disk has free space.

Invariants:
    - A test takes a few seconds at most and changes nothing permanently.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.recovery.faults import PASSING
from holdfast.processors.lifecycle.recovery.remedies import Wait

#: Minimum free disk space, in bytes, before recovery starts a worker again.
ROOM_BYTES = 4 << 20


def once(ping: Callable[[], object]) -> Callable[[], object]:
    """Wraps a ping so that it runs at most once; further calls return the same result or raise the same error."""
    known: list[HoldfastError | None] = []

    def asked() -> object:
        if not known:
            try:
                ping()
                known.append(None)
            except HoldfastError as failed:
                known.append(failed)
        if known[0] is not None:
            raise known[0]
        return None

    return asked


@dataclass(frozen=True, slots=True)
class Conditions:
    """Tests whether recovery still has to wait. It waits while no broker answers, or while the disk is full.

    Args:
        ping: Function that sends a request to the brokers; raises HoldfastError if no broker answers.
        state_dir: The folder that needs free space if the failure names no folder.
    """

    ping: Callable[[], object] = lambda: True
    state_dir: Path | None = None

    def lasts(self, wait: Wait) -> str:
        """Why recovery still has to wait, as a sentence; empty if the cause of the wait has ended."""
        if wait.kind == "disk-full":
            folder = Path(wait.path) if wait.path else self.state_dir
            return "" if folder is None else no_room(folder)
        if wait.kind not in PASSING:
            return ""
        try:
            self.ping()
        except HoldfastError as failed:
            return failed.message
        return ""


def no_room(folder: Path, size: int = ROOM_BYTES) -> str:
    """Why a process cannot write to the folder, as a sentence; empty if it can."""
    there = next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))
    probe = there / f".room-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(b"\0" * size)
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        return f"{there} can't be written: {failure.strerror}."
    finally:
        probe.unlink(missing_ok=True)
    return ""
