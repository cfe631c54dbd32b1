"""What varies between two runs of one topology: a schedule, as a value.

``REFERENCE`` is the plainest: one worker, the whole input is there, each message goes through the plain loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from tests.combinations.topology import Topology
from tests.simulation.schedule import AIMS, Fault, Kind

#: How often each fault comes, relative to the others.
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
    """A worker that is gone for a while, from a share of the live input on; frozen, or dead."""

    share: float
    worker: int
    away_s: float
    frozen: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a topology runs. Times are virtual seconds.

    Attributes:
        seed: Draws what a fault does, and who goes on at a point.
        workers: How many processes there are.
        feed: ``whole``: the input is there from the start; ``parts``: part by part, while no worker runs; ``paused``:
            while workers are paused; ``live``: while they run.
        parts: Where the parts end, as shares of the messages.
        live_s: How long the input takes to come, if it is live.
        poll_max: Records in one poll.
        slice_max: Records that are processed before a look at the clock.
        columns: Aggregations and windows by columns.
        generated: Generated loops; else the plain one.
        woven: Records of several inputs as one run.
        backend: ``memory``, or ``disk``.
        exactly_once: The guarantee.
        buffered_max: Records in the buffer of an input from which on it is paused.
        kills: Of live input: at which shares of it a worker dies (``kill -9``) or freezes, and for how many seconds.
        faults: What strikes, one after the other.
        switching: How likely another process goes on at a point.
        patience_s: How long a client waits for the answer to a commit.
        standbys: How many other workers follow each task.
        turns: Partitions are polled in any order.
        changes: What is declared in another way (``changes``).
        small: Portions of windows and timers are small: what is due takes several commits.
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
        """What differs from the reference."""
        differs = [
            f"{name}={getattr(self, name)!r}"
            for name in Schedule.__dataclass_fields__
            if getattr(self, name) != getattr(REFERENCE, name)
        ]
        return f"Schedule({', '.join(differs)})"


REFERENCE = Schedule()


def draw_schedules(topology: Topology, seed: int, count: int) -> list[Schedule]:
    """Schedules under which docs promise the results of their references."""
    if "wild" in topology.rules:
        return [draw_ways(topology, seed, number) for number in range(count - 1)]
    return [draw_schedule(topology, seed, number) for number in range(count)]


def reference_of(topology: Topology, schedule: Schedule) -> Schedule:
    """The schedule whose results docs promise for another one.

    Where results depend on commits and polls, it is the same with each message through the plain loop.
    """
    if "wild" in topology.rules:
        return replace(schedule, columns=False, generated=False, woven=False)
    return REFERENCE


def draw_ways(topology: Topology, seed: int, number: int) -> Schedule:
    """A schedule for a topology whose results depend on polls and commits: one worker, and other ways of a message."""
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
    """One of the schedules of a seed: the first has no faults, the last ones all that there is."""
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
    """A schedule with workers that die, answers that are lost, and disks that are."""
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
    """Whether results depend on the room in buffers: behind ``group_by``, a full one goes on with younger messages.

    As-of joins and tables with a history are exact then, too, and nothing else that two streams share.
    """
    steps = set(topology.steps)
    grouped = not steps.isdisjoint({"group_by", "group_by function"})
    return grouped and not steps.isdisjoint({"store shared", "join_table"})


def _kills(random: Random) -> tuple[Kill, ...]:
    """Workers that are gone while others go on: for less than a session of the group, or for longer."""
    return tuple(
        Kill(
            random.uniform(0.1, 0.7), random.randrange(3), random.choice([1.0, 8.0, 14.0, 25.0]), random.random() < 0.3
        )
        for _ in range(random.choice([0, 1, 1, 2]))
    )


def _feed(topology: Topology, random: Random) -> str:
    """How the input comes.

    A timer of a partition that is silent for more than a second fires when the partition is read on: behind `group_by`,
    what it sends may be late. So the whole input is there from the start.
    """
    if "grouped" in topology.rules and "process" in topology.steps:
        return "whole"
    if topology.closes_when_idle:  # what comes after a silence is late
        return "whole"
    if "grouped" in topology.rules and _joins_behind_windows(topology):
        return "whole"
    choice = ["whole", "parts", "paused"]
    if "alone" in topology.rules:
        choice += ["live", "live"] if "grouped" not in topology.rules else 4 * ["live"]
    return random.choice(choice)


def _joins_behind_windows(topology: Topology) -> bool:
    """Whether a join may meet results of windows: they are as old as the beginning of their window.

    What is behind them in a part of the input may then be older than rows of the part before it.
    """
    joins = any(each.startswith("join") or "shared" in each for each in topology.steps)
    return joins and any("window" in each for each in topology.steps)


def _live_s(topology: Topology, random: Random) -> float:
    """How long live input takes: where watermarks tell the time, three times as long as its event times, so that the
    time that a message is on its way is short beside a grace."""
    if "grouped" not in topology.rules:
        return random.choice([4.0, 12.0, 25.0])
    times = [each.at for each in topology.messages]
    return 3.0 * (max(times, default=0) - min(times, default=0)) / 1_000


def _parts(random: Random) -> tuple[float, ...]:
    return tuple(sorted(random.uniform(0.05, 0.95) for _ in range(random.choice([1, 2, 4]))))
