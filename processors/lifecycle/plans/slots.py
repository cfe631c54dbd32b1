"""Names the slots of a processor on one machine.

A slot is the place of one worker: its number, state folder and lock.
"""

from __future__ import annotations

#: The slots (places of workers) if neither the settings nor a recorded deployment names them.
FIRST_SLOTS = ("0",)


def slots_of(workers: int) -> tuple[str, ...]:
    """The slots (places of workers) for this number of workers: ``"0"``, ``"1"``, ..."""
    return tuple(str(number) for number in range(workers))
