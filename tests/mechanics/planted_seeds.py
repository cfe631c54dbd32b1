"""Whether the seeds of a model find a bug that is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

#: Most bugs show within ten.
SEEDS_MAX = 60


def is_found(plant: Callable[[pytest.MonkeyPatch], None], check: Callable[[int, Path], object], folder: Path) -> bool:
    """Whether ``check``, called with seeds and a folder for each, fails while the bug is planted."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in range(SEEDS_MAX):
            try:
                check(seed, folder / str(seed))
            except (AssertionError, KeyError):
                return True
    return False
