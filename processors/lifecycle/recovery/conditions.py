"""Whether what recovery waits for is there: a broker that answers, room on the disk.

Invariants:
    - A look takes seconds at most, and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.recovery.faults import PASSING
from holdfast.processors.lifecycle.recovery.remedies import Wait

#: So much has to be writable before a worker is started again, bytes.
ROOM_BYTES = 4 << 20


def _answers() -> bool:
    return True


def once(ping: Callable[[], object]) -> Callable[[], object]:
    """The same question, asked at most once: the answer, or the failure, is given again."""
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
    """How it is looked at.

    Args:
        ping: Asks the brokers, raising HoldfastError when none answers.
        state_dir: Where there has to be room, where the failure names no folder.
    """

    ping: Callable[[], object] = _answers
    state_dir: Path | None = None

    def lasts(self, wait: Wait) -> str:
        """Why there is still to be waited, as a sentence; empty when the cause is gone."""
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
    """Why nothing can be written below a folder, as a sentence; empty when it can."""
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
