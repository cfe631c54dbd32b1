"""A planned change of the number of workers (scale up, scale down). Workers restore state before the rebalance.

    announced (workers restore the state of their future tasks) ──► ``join`` (new workers join, old ones leave) ──►
    deleted

All workers read the same planned change, and compute from it which tasks they will own. A worker keeps standbys (copies
of tasks that other workers own) of its future tasks until the rebalance. A new worker then joins with restored state,
and a remaining worker already has the state of the leaving workers.

Invariants:
    - A change decides which state a worker restores in advance, and when a new worker joins the group. It does not
      decide the assignment, which is made by Kafka.
    - A change expires after a timeout, so that no worker waits forever for an operator process that died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.infra.deploy.workers_change_file import read_change
from holdfast.infra.paths import Paths
from holdfast.processors.engine.changelog.names import transactional_id
from holdfast.processors.engine.state.folder import StateFolder

#: Seconds between two checks whether a new worker may join the consumer group.
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """A planned change of a processor's workers.

    Args:
        known: Client ids of the workers that are on this machine before or after the change.
        expected: Client ids of the workers on this machine after the change.
        join: Whether the new workers may join the group now.
    """

    known: frozenset[str]
    expected: frozenset[str]
    join: bool


#: A function that returns the planned change that is in progress now; None if there is none.
ChangeSource = Callable[[], Change | None]


def no_change() -> Change | None:
    """Returns None. Workers that have no planned changes use this function as their change source."""
    return None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Stands for the future group member of a worker that has not joined its consumer group yet.

    The worker restores standbys (copies of tasks) before it joins. This object has a member id, because the tasks of a
    worker are computed from the members' ids.
    """

    client_id: str
    brokers_down_s: float = 0.0

    @property
    def member_id(self) -> str:
        """The client id with a dash. The real member id will begin with this text; the broker adds random text.

        Kafka's assignor sorts members by id. This id gets the same place in that order as the real id will get.
        """
        return f"{self.client_id}-"


class Follower(Protocol):
    """The standbys of a worker: copies of tasks that other workers own."""

    busy: bool

    def step(self, member: Newcomer, taken: Container[str], *, idle: bool) -> None:
        """Replay changelog records into the standbys for a short time."""


def warm_up(change: ChangeSource, client_id: str, standbys: Follower, alive: Callable[[], bool]) -> None:
    """Restores the state of a new worker's future tasks. Returns when the worker may join its group.

    Returns at once if no change is in progress. The function ``alive`` is called repeatedly. It returns False when the
    worker was asked to stop; ``warm_up`` then returns, too.
    """
    newcomer = Newcomer(client_id)
    while (now := change()) is not None and not now.join and client_id in now.expected and alive():
        standbys.step(newcomer, (), idle=True)
        if not standbys.busy:
            time.sleep(LOOK_EVERY_S)


def change_for(paths: Paths, state_dir: Path, group: str, *, told: bool) -> ChangeSource:
    """Returns a function that reads the planned change of a processor's workers on this machine.

    The client id of a worker comes from its state folder, so a change leaves out workers without a folder. ``told``
    says whether the worker takes part in planned changes. If it is False, the returned function always returns None.
    This is for workers that have no planned changes: workers without an HTTP server, and shadows (workers that only
    rebuild a store).
    """
    if not told:
        return no_change

    def clients(slots: Sequence[str]) -> frozenset[str]:
        ids = {slot: StateFolder.id_of(state_dir / group / slot) for slot in slots}
        return frozenset(transactional_id(group, ids[slot], slot) for slot in slots if ids[slot])

    def change() -> Change | None:
        found = read_change(paths, group)
        if found is None:
            return None
        return Change(clients(tuple(dict.fromkeys((*found.before, *found.slots)))), clients(found.slots), found.join)

    return change
