"""Joins the export files of one apply (executed plan) to one file, so that one command writes all entries back.

    worker 0 ─► …-totals-3f1c.jsonl ─┐
    worker 1 ─► …-totals-9d20.jsonl ─┼─► 20261129T135500123456-apply-7.jsonl
    stage 2  ─► …-users-1c59.jsonl  ─┘

Invariants:
    - An entry is never lost: a part is deleted only after the whole joined file is on the disk.
    - If two parts have different values of one entry, they are not joined. An interrupted apply can write such parts,
      if the key got a new value between the two attempts of the apply.
    - A repeated join gives the same file, because a line that the joined file already has is not written again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from holdfast.infra.log import get_logger
from holdfast.infra.seen_keys import SeenKeys
from holdfast.processors.engine.state.exports import ExportUnreadable, entry_of

log = get_logger(__name__)


class _TwoValues(Exception):
    """Two export files have different values for the same entry."""


def joined(paths: Sequence[str], folder: Path, step: str) -> tuple[str, ...]:
    """Joins export files (parts) to one file, and returns the path of the joined file.

    The file has all entries of these parts, and of parts that the same apply (execution of a plan) joined before. The
    parts can't be joined if one is on another machine, if two have different values of one entry, or if the disk is
    full. Then the paths of the parts are returned.

    Args:
        paths: The export files that the workers wrote, oldest first.
        folder: The folder for the joined file.
        step: The name of the stage (``holding.Hold.step``). The file's name is made of the part of this name that all
            stages of an apply share, so an apply has one joined file.
    """
    whole = folder / name_of(step)
    parts = [Path(path) for path in dict.fromkeys(paths) if Path(path) != whole]
    try:
        there = [whole] if whole.exists() else []
        if not parts:
            return tuple(map(str, there))
        if not all(part.exists() for part in parts):
            return tuple(map(str, (*there, *parts)))
        if there or len(parts) > 1:
            _write([*there, *parts], whole)
        else:
            os.replace(parts[0], whole)
        _settle(folder)
        for part in parts:
            part.unlink(missing_ok=True)
        return (str(whole),)
    except (OSError, _TwoValues, ExportUnreadable) as failure:
        log.warning(
            "exports.not_joined", why=str(failure) or type(failure).__name__, files=[str(each) for each in parts]
        )
        return tuple(str(each) for each in (whole, *parts) if each.exists())


def name_of(step: str) -> str:
    """The name of an apply's joined file, made of the time when the apply began and the apply's number.

    An apply is the execution of a plan.
    """
    started, number, _ = step.split("/")
    moment = "".join(each for each in started.partition("+")[0] if each.isdigit() or each == "T")
    return f"{moment}-apply-{number}.jsonl"


def _write(parts: Sequence[Path], whole: Path) -> None:
    unfinished = whole.with_suffix(".part")
    try:
        with SeenKeys() as entries, SeenKeys() as lines:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                for part in parts:
                    _append(part, file, entries, lines)
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, whole)
    finally:
        unfinished.unlink(missing_ok=True)


def _append(part: Path, whole: BinaryIO, entries: SeenKeys, lines: SeenKeys) -> None:
    with part.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            entry = entry_of(line, number)
            is_new = entries.add(b"\0".join((entry.store.encode(), str(entry.partition).encode(), entry.key)))
            if lines.add(line):
                if not is_new:
                    raise _TwoValues(f"{part}, line {number}: another part has another value of this entry")
                whole.write(line)


def _settle(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
