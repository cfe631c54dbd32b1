"""Finds erased keys that have state again, because late messages of them came after their erasure.

Invariants:
    - A key is known by its mark alone, so neither the verdict nor its figures name a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from holdfast.processors.engine.changelog.format import split_key
from holdfast.processors.lifecycle.plans.erased_keys import ErasedKeys

#: Maximum number of marks that the verdict names.
NAMED = 3


@dataclass(frozen=True, slots=True)
class Returned:
    """Whether all erased keys stay gone. ``warns`` is whether a failure only says that nobody knows."""

    passed: bool
    sentence: str
    action: str = ""
    warns: bool = False


def entries_again(known: ErasedKeys, manifests: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Mark of an erased key -> number of its entries in local checkpoints; absent without entries.

    ``manifests`` are those of the workers' checkpoints (``ProcessorClient.checkpoint``). All their entries are read.
    """
    from holdfast.processors.engine.state.databases.checkpoint_reader import iterate_checkpoint  # imports RocksDB

    found: Counter[str] = Counter()
    for task in (task for manifest in manifests for task in manifest["tasks"]):
        for store in task["stores"]:
            keys = (split_key(key)[0] for key, _ in iterate_checkpoint(Path(task["path"]), store))
            for key, entries in groupby(keys):
                if known.erased_at(key) is not None:
                    found[known.mark(key)] += sum(1 for _ in entries)
    return dict(found)


def judge_returned(processor: str, erased: int, again: Mapping[str, int] | None, why: str = "") -> Returned:
    """Judges whether erased keys have state again.

    Args:
        processor: The name of the processor.
        erased: The number of its erased keys.
        again: The result of ``entries_again``; None if the state could not be read.
        why: The reason why it could not be read.
    """
    if not erased:
        return Returned(True, f"No key of {processor} was erased.")
    if again is None:
        sentence = f"The state of {processor} can't be read, so nobody knows whether erased keys came back: {why}"
        return Returned(False, sentence, f"See `holdfast status {processor}`, then run this check again.", warns=True)
    if not again:
        return Returned(True, f"No erased key has state; {erased:,} erased.")
    marks = ", ".join(mark[:12] for mark in sorted(again)[:NAMED])
    keys = "1 erased key has" if len(again) == 1 else f"{len(again):,} erased keys have"
    entries = sum(again.values())
    sentence = f"{keys} state again, {entries:,} entries, by later messages. Hashes of the keys: {marks}."
    return Returned(
        False,
        sentence,
        f"`holdfast erased {processor} --look` names them. Erase them again: `holdfast erase {processor} KEY`.",
    )
