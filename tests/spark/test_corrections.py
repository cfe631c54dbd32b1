"""Corrections are rows of the history table.

A full snapshot adds them if the changelog does not give the store's value.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.assets.spark import history, past
from holdfast.processors.engine.state.databases.checkpoint_reader import fingerprint_checkpoint
from holdfast.processors.snapshots.plan import Wanted
from tests.spark.test_random_snapshots import checkpoint


def corrected(changelog: Any, held: dict[tuple[int, bytes], bytes], folder: Path) -> Any:
    """Take a full snapshot from checkpoints whose content differs from the changelog."""
    paths = {number: str(checkpoint(held, number, folder / str(number))) for number in (0, 1)}
    stored = {number: fingerprint_checkpoint(Path(path), "s") for number, path in paths.items()}
    return changelog.snapshot(changelog.plan(paths=paths, wanted=Wanted.CHECKPOINT), stored=stored)


@pytest.mark.thorough
def test_of_two_corrections_at_one_offset_the_later_checkpoint_counts(changelog: Any, tmp_path: Path) -> None:
    """Of two corrections at one offset, the one with the later checkpoint time counts.

    The value does not decide. In this test, the later value is smaller, or the key is deleted.
    """
    changelog.write(0, [(b"a", 5), (b"gone", 5), (b"back", 5)])
    changelog.snapshot()
    nine, one = (changelog.model[0, b"a"][:-1] + digit for digit in (b"9", b"1"))
    first = {(0, b"a"): nine, (0, b"gone"): nine}
    last = {(0, b"a"): one, (0, b"back"): one}
    ends = changelog.ends()
    made = [corrected(changelog, first, tmp_path / "first")]
    between = time.time()
    made.append(corrected(changelog, last, tmp_path / "last"))
    assert [each.corrections for each in made] == [3, 3]
    assert changelog.ends() == ends
    folded = history.live(history.fold(changelog.history()))
    assert changelog.stored() == changelog.stored(folded) == last
    again = corrected(changelog, last, tmp_path / "again")
    assert (again.corrections, changelog.stored()) == (0, last)
    now = past.key_at(changelog.spark, changelog.processor, "s", b"a", again.manifest.taken_at)
    assert [each.value for each in now] == [one]
    assert between > made[0].manifest.taken_at
