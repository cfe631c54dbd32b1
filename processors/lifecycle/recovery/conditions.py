"""Tests of the conditions that recovery waits for: a broker answers, the disk has room.

Invariants:
    - A test takes seconds at most and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.recovery.faults import PASSING
from holdfast.processors.lifecycle.recovery.remedies import Wait

#: Free space needed before recovery starts a worker again, bytes.
ROOM_BYTES = 4 << 20


def once(ping: Callable[[], object]) -> Callable[[], object]:
    """A ping that runs at most once; later calls repeat its answer or its failure."""
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
    """The tests.

    Args:
        ping: Asks the brokers; raises HoldfastError when none answers.
        state_dir: The folder that needs room when the failure names none.
    """

    ping: Callable[[], object] = lambda: True
    state_dir: Path | None = None

    def lasts(self, wait: Wait) -> str:
        """Why recovery still waits, as a sentence; empty when the cause is over."""
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
    """Why the folder cannot be written, as a sentence; empty when it can."""
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
