"""A change of a processor's workers in progress: the future members of the group, and whether new workers may join yet.

    told (the workers fetch what they will own) ──► ``join`` (newcomers join, others leave) ──► forgotten

Every worker reads the same change, and computes its future tasks from it. It follows these tasks as standbys until the
group has changed. So a new worker joins with warm state, and a remaining worker has the state of the leaving workers.

Invariants:
    - A change only decides what is fetched, and when a newcomer joins. It never decides who owns a partition.
    - A change that is not ended is void after its time: no worker waits for an operator that died.
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

#: Seconds between two checks of a new worker whether it may join.
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """A change of workers.

    Args:
        known: Client ids of all workers of this installation, before and after the change.
        expected: Client ids of those after the change.
        join: Whether newcomers may join now.
    """

    known: frozenset[str]
    expected: frozenset[str]
    join: bool


#: Returns the change in progress now; None if there is none.
ChangeSource = Callable[[], Change | None]


def no_change() -> Change | None:
    """No change, ever."""
    return None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Replaces the group membership of a worker that has not joined yet."""

    client_id: str
    brokers_down_s: float = 0.0

    @property
    def member_id(self) -> str:
        """An id that sorts like the future member id: brokers build it from the client id, a dash and a random text."""
        return f"{self.client_id}-"


class Follower(Protocol):
    """The standbys of a worker."""

    busy: bool

    def step(self, member: Newcomer, taken: Container[str], *, idle: bool) -> None:
        """Replay for a short time."""


def warm_up(change: ChangeSource, client_id: str, standbys: Follower, alive: Callable[[], bool]) -> None:
    """Fetch the state of a worker's future tasks, until the change in progress lets the worker join.

    ``alive`` is called in each turn; it returns false when the worker was asked to stop.
    """
    newcomer = Newcomer(client_id)
    while (now := change()) is not None and not now.join and client_id in now.expected and alive():
        standbys.step(newcomer, (), idle=True)
        if not standbys.busy:
            time.sleep(LOOK_EVERY_S)


def change_for(paths: Paths, state_dir: Path, group: str, *, told: bool) -> ChangeSource:
    """Reads the change of this machine's workers of a processor.

    A worker without a state folder has no client id yet, and is left out until it has one. ``told`` is false for a
    worker that no operator runs: changes do not apply to it.
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
