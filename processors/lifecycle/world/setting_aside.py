"""Sets aside (renames) broken local state instead of deleting it, so that it can be compared with the restored state.

A slot is the place of one worker, with its own folder.

Invariants:
    - No folder is renamed while a live process has its slot, and no folder outside of the processor's slots is renamed.
    - A renamed folder stays in the same parent folder, with the time in its name.
    - Only the newest ``KEPT`` copies of each folder are kept. Otherwise, state that is damaged again and again would
      fill the disk with copies.
"""

from __future__ import annotations

import re
import shutil
from datetime import datetime
from pathlib import Path

from holdfast.infra.errors import HoldfastError
from holdfast.processors.engine.state.folder import StateFolder

ASIDE = ".aside-"
#: Maximum number of copies of a folder that are kept after they were set aside (renamed).
KEPT = 2
_TIME = re.compile(r"\d{8}T\d{6}Z")


class SetAsideFailed(HoldfastError):
    """Local state cannot be set aside."""


def set_aside(state_dir: Path, processor: str, slot: str, path: str, now: datetime) -> str:
    """Set aside (rename) a task's folder or a whole slot (place of one worker); returns the result as text.

    A missing folder is not an error. Of the copies of a folder that were set aside, only the newest ``KEPT`` are kept.

    Args:
        state_dir: The root folder of all state.
        processor: Name of the processor.
        slot: The slot, which must not have a live process.
        path: The broken folder as the worker reported it, possibly below another root; empty for the whole slot.
        now: The time for the new name.

    Raises:
        SetAsideFailed: The folder does not belong to this slot, or cannot be renamed.
        StateFolderTaken: A live process holds the slot.
    """
    folder = Path(path) if path else state_dir / processor / slot
    slot_folder = next((each for each in (folder, folder.parent) if each.parts[-2:] == (processor, slot)), None)
    if slot_folder is None:
        raise SetAsideFailed(
            f"{folder} is not a state folder of slot {slot} of {processor}, so it was not moved.",
            action=f"Read `holdfast logs {processor}`, move the broken folder away by hand, then `holdfast apply "
            f"deploy {processor}`.",
            path=str(folder),
        )
    if not folder.is_dir():
        return f"{folder} does not exist: nothing was set aside"
    held = StateFolder(slot_folder.parent.parent, processor, slot)
    try:
        to = folder.with_name(f"{folder.name}{ASIDE}{now:%Y%m%dT%H%M%SZ}")
        folder.rename(to)
    except OSError as failure:
        raise SetAsideFailed(
            f"{folder} cannot be set aside: {failure.strerror}.",
            action="Check the disk and the rights of this folder, then retry.",
            path=str(folder),
        ) from failure
    finally:
        held.release()
    gone = _delete_older(folder)
    return f"{folder} was set aside as {to.name}" + "".join(f"; the older {each} was deleted" for each in gone)


def _delete_older(folder: Path) -> list[str]:
    """Delete all but the newest set-aside (renamed) copies of a folder; returns the names of the deleted copies.

    Copies that verbs set aside have no time in their names, so they are never deleted here. If a copy cannot be
    deleted, no error is raised, so that workers can start.
    """
    begin = f"{folder.name}{ASIDE}"
    known = [each for each in folder.parent.iterdir() if each.name.startswith(begin)]
    older = sorted(each for each in known if _TIME.fullmatch(each.name.removeprefix(begin)))[:-KEPT]
    for each in older:
        shutil.rmtree(each, ignore_errors=True)
    return [each.name for each in older if not each.exists()]
