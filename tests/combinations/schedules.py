"""Schedules of topologies: everything that may vary between two runs of the same topology.

``REFERENCE`` is the simplest schedule: one worker, the whole input from the start, and the loop that processes messages
one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from tests.combinations.topology import Topology
from tests.simulation.schedule import AIMS, Fault, Kind

#: The relative frequency of each kind of fault.
WEIGHTS: dict[Kind, int] = {
    Kind.CRASH: 30,
    Kind.CRASH_ALL: 4,
    Kind.FREEZE: 6,
    Kind.STOP: 8,
    Kind.SCALE: 8,
    Kind.REBALANCE: 12,
    Kind.BROKERS_DOWN: 3,
    Kind.REQUEST: 16,
    Kind.SYNC: 3,
    Kind.DISK_LOST: 10,
    Kind.CHECKPOINT: 8,
}


class Kill(NamedTuple):
    """A worker is killed or frozen for a while, after this share of the live input has arrived."""

    share: float
    worker: int
    away_s: float
    frozen: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a topology runs. Times are virtual seconds.

    Attributes:
        seed: Draws the details of faults, and which process runs next.
        workers: The number of processes.
        feed: When input arrives. ``whole``: all from the start; ``parts``: in parts, while no worker runs; ``paused``:
            in parts, while workers are paused; ``live``: while workers run.
        parts: The ends of the parts, as shares of the messages.
        live_s: How long live input takes to arrive.
        poll_max: The largest number of records in one poll.
        slice_max: The number of records processed between two looks at the clock.
        columns: Whether aggregations and windows are computed by columns (whole batches at once).
        generated: Whether the engine generates loops; otherwise it uses the plain loop.
        woven: Whether records of several inputs are processed as one batch.
        backend: The state backend: ``memory`` or ``disk``.
        exactly_once: Whether the guarantee is exactly-once.
        buffered_max: The number of buffered records at which an input is paused.
        kills: Workers that are killed or frozen for a while during live input.
        faults: The faults that strike, one after the other.
        switching: The probability that another process runs after a point (a place in a call).
        patience_s: How long a client waits for the answer to a commit.
        standbys: The number of standbys of each task.
        turns: Whether partitions are polled in a random order.
        changes: The changes to the declaration (``changes.py``).
        small: Whether limits for windows and timers are small, so that closing all due ones takes several commits.
    """

    seed: int = 0
    workers: int = 1
    feed: str = "whole"
    parts: tuple[float, ...] = ()
    live_s: float = 0.0
    poll_max: int = 1_000
    slice_max: int = 500
    commit_every: int = 0
    commit_interval_s: float = 0.1
    columns: bool = False
    generated: bool = False
    woven: bool = False
    backend: str = "memory"
    exactly_once: bool = True
    buffered_max: int = 10_000
    assignor: str = "range"
    kills: tuple[Kill, ...] = ()
    faults: tuple[Fault, ...] = ()
    switching: float = 0.0
    patience_s: float = 3.0
    checkpoint_s: float = 5.0
    standbys: int = 0
    turns: bool = False
    changes: tuple[str, ...] = ()
    small: bool = False

    def text(self) -> str:
        """The fields that differ from the reference, as text."""
        differs = [
            f"{name}={getattr(self, name)!r}"
            for name in Schedule.__dataclass_fields__
            if getattr(self, name) != getattr(REFERENCE, name)
        ]
        return f"Schedule({', '.join(differs)})"


REFERENCE = Schedule()


def draw_schedules(topology: Topology, seed: int, count: int) -> list[Schedule]:
    """Draws schedules whose results must equal those of their references, according to the docs."""
    if "wild" in topology.rules:
        return [draw_ways(topology, seed, number) for number in range(count - 1)]
    return [draw_schedule(topology, seed, number) for number in range(count)]


def reference_of(topology: Topology, schedule: Schedule) -> Schedule:
    """The reference schedule whose results another schedule must reproduce.

    If results depend on commits and polls, the reference is the same schedule with the plain loop.
    """
    if "wild" in topology.rules:
        return replace(schedule, columns=False, generated=False, woven=False)
    return REFERENCE


def draw_ways(topology: Topology, seed: int, number: int) -> Schedule:
    """Draw a schedule for a topology whose results depend on polls and commits.

    It has one worker, and differs from its reference only in the loops with which the engine processes messages.
    """
    random = Random(f"ways {number} of {seed}")
    made = draw_schedule(topology, seed, 0)
    feed = random.choice(["whole", "parts", "parts"])
    return replace(
        made,
        seed=made.seed + number,
        feed=feed,
        parts=_parts(random) if feed == "parts" else (),
        columns=random.random() < 0.9,
        generated=random.random() < 0.8,
        woven=random.random() < 0.8,
        backend="memory",
        turns=False,
        changes=(),
        exactly_once=True,
    )


def draw_schedule(topology: Topology, seed: int, number: int) -> Schedule:
    """Draw one of a seed's schedules. The first schedule has no faults; the others may have all kinds of faults."""
    random = Random(f"schedule {number} of {seed}")
    made = Schedule(
        seed=random.randrange(2**32),
        poll_max=random.choice([1, 3, 10, 40, 1_000]),
        slice_max=random.choice([1, 5, 20, 500]),
        commit_every=random.choice([0, 0, 1, 3, 7, 20]),
        commit_interval_s=random.choice([0.01, 0.05, 0.3]),
        columns=random.random() < 0.7,
        generated=random.random() < 0.8,
        woven=random.random() < 0.7,
        backend=random.choice(["memory", "disk", "disk"]),
        buffered_max=random.choice([2, 10, 10_000]),
        turns=random.random() < 0.5,
        exactly_once=random.random() < 0.88,
        changes=tuple(name for name in ("order", "partitions", "copy") if random.random() < 0.3),
        small=random.random() < 0.3,
    )
    made = replace(made, feed=(feed := _feed(topology, random)), parts=_parts(random) if feed != "whole" else ())
    if Random(f"formats {number} of {seed}").random() < 0.2:
        made = replace(made, changes=(*made.changes, "msgpack"))
    if Random(f"instances {number} of {seed}").random() < 0.3:
        made = replace(made, changes=(*made.changes, "instances"))
    if Random(f"columns {number} of {seed}").random() < 0.3:
        made = replace(made, changes=(*made.changes, "columns"))
    if Random(f"codecs {number} of {seed}").random() < 0.3:
        made = replace(made, changes=(*made.changes, "codecs"))
    if Random(f"slots {number} of {seed}").random() < 0.2:
        made = replace(made, changes=(*made.changes, "schedules"))
    if _needs_room(topology):
        made = replace(made, buffered_max=10_000)
    if feed == "live":
        made = replace(made, live_s=_live_s(topology, random))
    return with_faults(made, random) if number else made


def with_faults(made: Schedule, random: Random) -> Schedule:
    """Adds faults to a schedule: workers die, answers get lost, and disks are lost."""
    kinds = list(WEIGHTS)
    weights = [WEIGHTS[kind] for kind in kinds]
    faults = tuple(
        Fault(random.choices(kinds, weights)[0], random.randint(0, random.choice([30, 200])), random.choice(AIMS))
        for _ in range(random.choice([0, 1, 1, 2, 4]))
    )
    return replace(
        made,
        workers=random.choice([1, 2, 2, 3]),
        faults=faults,
        switching=random.choice([0.0, 0.05, 0.3]),
        checkpoint_s=random.choice([0.2, 1.0, 5.0]),
        backend="disk" if random.random() < 0.8 else made.backend,
        standbys=random.choice([0, 0, 1]),
        kills=_kills(random) if made.feed == "live" else (),
    )


def _needs_room(topology: Topology) -> bool:
    """Whether results depend on the size of buffers.

    Behind ``group_by``, a full buffer lets the engine continue with younger messages. As-of joins and tables with a
    history stay exact even then; other stores that two streams share do not.
    """
    steps = set(topology.steps)
    grouped = not steps.isdisjoint({"group_by", "group_by function"})
    return grouped and not steps.isdisjoint({"store shared", "join_table"})


def _kills(random: Random) -> tuple[Kill, ...]:
    """Draws workers that are gone while others continue, for less or more than a session timeout of the group."""
    return tuple(
        Kill(
            random.uniform(0.1, 0.7), random.randrange(3), random.choice([1.0, 8.0, 14.0, 25.0]), random.random() < 0.3
        )
        for _ in range(random.choice([0, 1, 1, 2]))
    )


def _feed(topology: Topology, random: Random) -> str:
    """Draws when the input arrives.

    After more than a second of silence, a partition's timers fire when it is read again. Behind `group_by`, their
    results may be late. Topologies with `group_by` and timers therefore get the whole input from the start.
    """
    if "grouped" in topology.rules and "process" in topology.steps:
        return "whole"
    if topology.closes_when_idle:  # windows close while inputs are silent, so messages after a silence would be late
        return "whole"
    if "grouped" in topology.rules and _joins_behind_windows(topology):
        return "whole"
    choice = ["whole", "parts", "paused"]
    if "alone" in topology.rules:
        choice += ["live", "live"] if "grouped" not in topology.rules else 4 * ["live"]
    return random.choice(choice)


def _joins_behind_windows(topology: Topology) -> bool:
    """Whether a join may get results of windows, which are as old as the start of their window.

    The input arrives in parts. Such a result of one part may be older than rows of the part before.
    """
    joins = any(each.startswith("join") or "shared" in each for each in topology.steps)
    return joins and any("window" in each for each in topology.steps)


def _live_s(topology: Topology, random: Random) -> float:
    """The virtual seconds in which live input arrives. With ``group_by``, three times the span of its event times.

    Behind ``group_by``, stream time follows watermarks. A message is late if it is longer on its way than the grace. So
    the input must arrive slowly.
    """
    if "grouped" not in topology.rules:
        return random.choice([4.0, 12.0, 25.0])
    times = [each.at for each in topology.messages]
    return 3.0 * (max(times, default=0) - min(times, default=0)) / 1_000


def _parts(random: Random) -> tuple[float, ...]:
    return tuple(sorted(random.uniform(0.05, 0.95) for _ in range(random.choice([1, 2, 4]))))
