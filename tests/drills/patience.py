"""Waits on conditions with a long timeout, instead of for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Timeout for steps that take seconds, or up to a minute, on a quiet machine.
PATIENCE_S = 240.0
#: Timeout for a Dagster run with Spark: the first takes 40 s alone, and minutes beside other work.
RUN_PATIENCE_S = 480.0


def wait_for(condition: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
    """Wait until a condition returns a true value, and return that value."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience_s:g} s for: {what}")
        time.sleep(0.2)
    return found
