"""A planned change of a processor's workers (scale up, scale down), so that workers restore state before the rebalance.

    announced (workers restore their future tasks) ──► ``join`` (new workers join, old workers leave) ──► deleted

Every worker reads the same change, and computes from it which tasks it will own. The worker keeps standbys
of these tasks until the rebalance. Then a new worker joins with restored state, and a remaining worker already has the
state of the leaving workers.

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

#: Seconds between two checks whether a new worker may join the group.
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """A planned change of a processor's workers.

    Args:
        known: Client ids of all workers of this machine that run before the change or after it.
        expected: Client ids of the workers after the change.
        join: Whether the new workers may join the group now.
    """

    known: frozenset[str]
    expected: frozenset[str]
    join: bool


#: A function that returns the planned change that is in progress now; None if there is none.
ChangeSource = Callable[[], Change | None]


def no_change() -> Change | None:
    """The change source of a worker without planned changes; always returns None."""
    return None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Stands for the group member of a worker that has not joined its group yet, because standbys need a member id."""

    client_id: str
    brokers_down_s: float = 0.0

    @property
    def member_id(self) -> str:
        """A prefix of the future member id: a broker makes the id from client id, dash and random text.

        Kafka's assignor sorts members by id, so the prefix gives the same order.
        """
        return f"{self.client_id}-"


class Follower(Protocol):
    """The standbys of a worker: copies of tasks that other workers own."""

    busy: bool

    def step(self, member: Newcomer, taken: Container[str], *, idle: bool) -> None:
        """Replay changelog records into the standbys for a short time."""


def warm_up(change: ChangeSource, client_id: str, standbys: Follower, alive: Callable[[], bool]) -> None:
    """Restore the state of a new worker's future tasks; return when the worker may join its group.

    Returns at once if no change is in progress. ``alive`` is called in each turn; it returns False when the worker was
    asked to stop.
    """
    newcomer = Newcomer(client_id)
    while (now := change()) is not None and not now.join and client_id in now.expected and alive():
        standbys.step(newcomer, (), idle=True)
        if not standbys.busy:
            time.sleep(LOOK_EVERY_S)


def change_for(paths: Paths, state_dir: Path, group: str, *, told: bool) -> ChangeSource:
    """Returns a function that reads the planned change of a processor's workers on this machine.

    A worker without a state folder has no client id yet, so a change can't contain it. If ``told`` is False, the
    function always returns None. This is for shadows and for workers without an HTTP server, which have no planned
    changes.
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
