"""Reduces a failing topology, its input and its schedule to the smallest ones that still fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.combinations.schedules import REFERENCE, Schedule
from tests.combinations.topology import Topology

#: Returns whether a topology under a schedule still shows the failure.
Shows = Callable[[Topology, Schedule], bool]
#: The fields of a schedule that are reset to the reference's values, one by one, in this order.
_FIELDS = (
    *(
        "changes",
        "kills",
        "faults",
        "workers",
        "standbys",
        "feed",
        "parts",
        "backend",
        "turns",
        "switching",
        "woven",
        "columns",
    ),
    *("generated", "small", "buffered_max", "assignor", "exactly_once", "checkpoint_s", "patience_s", "live_s"),
    *("commit_interval_s", "commit_every", "slice_max", "poll_max"),
)


class _Spent(Exception):
    """Raised if the allowed number of attempts is used up."""


def shrunk(topology: Topology, schedule: Schedule, shows: Shows, attempts: int = 150) -> tuple[Topology, Schedule]:
    """The smallest topology and schedule found within this many attempts."""
    left = attempts

    def still(other: Topology, how: Schedule) -> bool:
        nonlocal left
        if left <= 0:
            raise _Spent
        left -= 1
        return bool(other.outputs or other.stores) and shows(other, how)

    best = topology, schedule
    try:
        while True:
            before = best
            for smaller in (_plainer, _fewer_lines, _fewer_messages):
                for pair in _descent(best, smaller, still):
                    best = pair
            if best == before:
                break
    except _Spent:
        pass
    return best


def _descent(
    best: tuple[Topology, Schedule],
    smaller: Callable[[Topology, Schedule], Iterator[tuple[Topology, Schedule]]],
    still: Shows,
) -> Iterator[tuple[Topology, Schedule]]:
    """Yields smaller and smaller failing pairs, until no smaller pair fails."""
    found = True
    while found:
        found = False
        for pair in smaller(*best):
            if still(*pair):
                best, found = pair, True
                yield best
                break


def _plainer(topology: Topology, schedule: Schedule) -> Iterator[tuple[Topology, Schedule]]:
    for name in ("changes", "kills", "faults", "parts"):
        value = getattr(schedule, name)
        if len(value) > 1:
            for index in range(len(value)):
                yield topology, replace(schedule, **{name: (*value[:index], *value[index + 1 :])})
    for name in _FIELDS:
        plain = getattr(REFERENCE, name)
        if getattr(schedule, name) != plain:
            yield topology, replace(schedule, **{name: plain})


def _fewer_lines(topology: Topology, schedule: Schedule) -> Iterator[tuple[Topology, Schedule]]:
    for line in topology.lines:
        if line.sends and len(topology.outputs) + len(topology.stores) > 1:
            yield topology.without((), (line.sends,)), schedule
    for line in reversed(topology.lines):
        if line.name and line.step != "topic":
            yield topology.without((line.name,)), schedule


def _fewer_messages(topology: Topology, schedule: Schedule) -> Iterator[tuple[Topology, Schedule]]:
    messages, size = topology.messages, len(topology.messages) // 2
    while size:
        for first in range(0, len(messages), size):
            yield replace(topology, messages=(*messages[:first], *messages[first + size :])), schedule
        size //= 2
