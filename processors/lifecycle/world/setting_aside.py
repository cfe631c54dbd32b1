"""Broken local state is set aside, never deleted: what is restored instead may be compared with it.

Invariants:
    - Nothing is moved while a live process holds the slot, nor what does not lie below a slot of this processor.
    - A folder that is set aside lies beside its old place, with the moment in its name.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.state.folder import StateFolder

ASIDE = ".aside-"


class SetAsideFailed(HoldfastError):
    """Local state can't be set aside."""


def set_aside(state_dir: Path, processor: str, slot: str, path: str, now: datetime) -> str:
    """Set a task's folder aside, or all of a slot; what was done, for people. Nothing there is nothing to do.

    Args:
        state_dir: The root of all state, where the broken folder names no other.
        processor: The processor.
        slot: The slot, which has no live process.
        path: The broken folder as the worker named it; empty for all of the slot.
        now: For the new name.

    Raises:
        SetAsideFailed: The folder is none of this slot's, or can't be moved.
        StateFolderTaken: A live process holds the slot.
    """
    folder = Path(path) if path else state_dir / processor / slot
    slot_folder = next((each for each in (folder, folder.parent) if each.parts[-2:] == (processor, slot)), None)
    if slot_folder is None:
        raise SetAsideFailed(
            f"{folder} is no state folder of slot {slot} of {processor}: it is left where it is.",
            action="Look at the worker's log; move the broken folder away by hand, then restart.",
            path=str(folder),
        )
    if not folder.is_dir():
        return f"{folder} is not there: nothing is to be set aside"
    held = StateFolder(slot_folder.parent.parent, processor, slot)
    try:
        to = folder.with_name(f"{folder.name}{ASIDE}{now:%Y%m%dT%H%M%SZ}")
        folder.rename(to)
    except OSError as failure:
        raise SetAsideFailed(
            f"{folder} can't be set aside: {failure.strerror}.",
            action="Look at the disk and at the rights of this folder.",
            path=str(folder),
        ) from failure
    finally:
        held.release()
    return f"{folder} was set aside as {to.name}"
