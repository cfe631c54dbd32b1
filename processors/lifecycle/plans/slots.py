"""Names of a processor's slots on one machine; each worker has one slot."""

from __future__ import annotations

#: Slots of a processor that was never deployed, if the settings contain no number of workers.
FIRST_SLOTS = ("0",)


def slots_of(workers: int) -> tuple[str, ...]:
    """The slots of this number of workers: ``"0"``, ``"1"``, ..."""
    return tuple(str(number) for number in range(workers))
