"""Waiting on conditions, with a generous deadline, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: How long is waited for what takes seconds, or a minute, on a quiet machine.
PATIENCE_S = 240.0
#: How long is waited for a run of Dagster with Spark: 40 s alone the first time, minutes beside other work.
RUN_PATIENCE_S = 480.0


def wait_for(condition: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
    """Wait until a condition gives something true, and return that."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience_s:g} s for: {what}")
        time.sleep(0.2)
    return found
