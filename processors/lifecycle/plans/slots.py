"""The slots of a processor on one machine: one for each worker."""

from __future__ import annotations

#: The slots of a processor that was never deployed, and for which the settings name no number of workers.
FIRST_SLOTS = ("0",)


def slots_of(workers: int) -> tuple[str, ...]:
    """The slots of so many workers."""
    return tuple(str(number) for number in range(workers))
