"""A change of the number of workers: those that get tasks fetch their state first, then the group changes once.

told ──every worker prepared, or out of time──► joining (newcomers join, others are stopped) ──► ended
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from holdfast.infra.deploy.changes import WorkersChange, end_change, new_change, record_change
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.present import slots_present
from holdfast.processors.lifecycle.ports import World

#: A change outlives its longest wait by this time, seconds; then workers that wait for it join.
SLACK_S = 60.0
#: A worker of a former version never tells whether it is prepared; it is not waited for longer than this, seconds.
UNTOLD_S = 10.0


@contextmanager
def change_of_workers(
    processor: str, slots: Sequence[str], world: World, warm_s: float
) -> Iterator[WorkersChange | None]:
    """Tell the workers of a change, until the block ends; None when nothing changes or nothing is to be fetched.

    Raises:
        OSError: The change can't be written.
    """
    before = slots_present(processor, world)
    if not warm_s or not before or set(before) == set(slots):
        yield None
        return
    change = new_change(before, tuple(slots), warm_s + SLACK_S)
    record_change(world.paths, processor, change)
    try:
        yield change
    finally:
        end_change(world.paths, processor)


def let_join(processor: str, change: WorkersChange, world: World) -> None:
    """Let newcomers join their group."""
    record_change(world.paths, processor, msgspec.structs.replace(change, join=True))


def unprepared(statuses: Mapping[str, ProcessorStatus | None], waited_s: float) -> tuple[str, ...]:
    """The slots whose worker does not have the state of all its tasks to come."""
    return tuple(
        slot
        for slot, status in statuses.items()
        if status is None or status.prepared is False or (status.prepared is None and waited_s < UNTOLD_S)
    )
