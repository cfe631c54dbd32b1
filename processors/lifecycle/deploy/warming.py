"""Changes the number of workers: first the future owners of tasks fetch the state; then the group rebalances once.

A file announces the change to all workers. The states of the change:

announced ──all workers prepared, or time is up──► joining (new workers join, others are stopped) ──► ended
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from holdfast.infra.deploy.workers_change_file import WorkersChange, end_change, new_change, record_change
from holdfast.processors.engine.serving.status import ProcessorStatus
from holdfast.processors.lifecycle.deploy.present import slots_present
from holdfast.processors.lifecycle.ports import World

#: Seconds that an announced change of workers remains valid after the maximum wait (``warm_s``). After this time, new
#: workers that still wait join the group.
SLACK_S = 60.0
#: Maximum seconds to wait for a worker of an earlier Holdfast version, which does not report whether it is prepared.
UNTOLD_S = 10.0


@contextmanager
def change_of_workers(
    processor: str, slots: Sequence[str], world: World, warm_s: float
) -> Iterator[WorkersChange | None]:
    """Writes the planned change of workers to a file, which all workers read; deletes the file when the block ends.

    Yields the change. Yields None, and writes no file, if the number of workers stays the same or no wait is wanted.

    Raises:
        OSError: The announcement cannot be written.
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
    """Allow the new workers to join the consumer group, by writing this to the file that announces the change."""
    record_change(world.paths, processor, msgspec.structs.replace(change, join=True))


def unprepared(statuses: Mapping[str, ProcessorStatus | None], waited_s: float) -> tuple[str, ...]:
    """The slots of workers that have not yet fetched the state of the tasks that they will own after the change."""
    return tuple(
        slot
        for slot, status in statuses.items()
        if status is None or status.prepared is False or (status.prepared is None and waited_s < UNTOLD_S)
    )
