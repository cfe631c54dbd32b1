"""A change of the number of workers: workers that get tasks fetch their state first, then the group changes once.

told ──every worker prepared, or out of time──► joining (newcomers join, others are stopped) ──► ended
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from holdfast.infra.deploy.workers_change_file import WorkersChange, end_change, new_change, record_change
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.present import slots_present
from holdfast.processors.lifecycle.ports import World

#: A change expires this many seconds after the maximum wait (``warm_s``); waiting workers then join.
SLACK_S = 60.0
#: A worker of an older version never reports whether it is prepared; the wait for it is limited to this time, seconds.
UNTOLD_S = 10.0


@contextmanager
def change_of_workers(
    processor: str, slots: Sequence[str], world: World, warm_s: float
) -> Iterator[WorkersChange | None]:
    """Announce a change to the workers until the block ends; yields None when nothing changes or needs fetching.

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
    """Let new workers join their group."""
    record_change(world.paths, processor, msgspec.structs.replace(change, join=True))


def unprepared(statuses: Mapping[str, ProcessorStatus | None], waited_s: float) -> tuple[str, ...]:
    """The slots whose worker lacks the state of some of its future tasks."""
    return tuple(
        slot
        for slot, status in statuses.items()
        if status is None or status.prepared is False or (status.prepared is None and waited_s < UNTOLD_S)
    )
