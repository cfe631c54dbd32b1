"""Checks that the random seeds of a model find a bug that a test plants in the code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

#: The number of seeds to try; most bugs show within ten.
SEEDS_MAX = 60


def is_found(plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[int, Path], object], folder: Path) -> bool:
    """Whether ``check`` fails for one of the seeds while the bug is planted; each seed gets its own folder."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in range(SEEDS_MAX):
            try:
                check(seed, folder / str(seed))
            except (AssertionError, KeyError):
                return True
    return False
