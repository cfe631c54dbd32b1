"""Draws the schedule of a seed: how the processors run, and which faults occur when.

A point is a place in a call where a process may be killed. A fault waits for a number of points. Some faults then
wait for a point with a certain name, for instance a step of the commit cycle. The details of a fault are drawn when it
occurs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from holdfast.processors.testing.groups import Assignor


class Kind(Enum):
    """The kinds of faults."""

    CRASH = "crash"
    CRASH_ALL = "crash all"
    FREEZE = "freeze"
    STOP = "stop"
    SCALE = "scale"
    REBALANCE = "rebalance"
    BROKERS_DOWN = "brokers down"
    REQUEST = "request"
    COMPACT = "compact"
    FOREIGN = "foreign transaction"
    DISK_FULL = "disk full"
    SHORT_WRITE = "short write"
    CORRUPT = "corrupt"
    SYNC = "sync"
    WALL_CLOCK = "wall clock"
    DISK_LOST = "disk lost"
    CHECKPOINT = "checkpoint"
    STORE_DOWN = "checkpoint store down"
    STORE_DAMAGED = "checkpoint damaged"
    STORE_FORGED = "checkpoint of a former topic"


#: The relative frequency with which each kind of fault is drawn.
WEIGHTS: dict[Kind, int] = {
    Kind.CRASH: 30,
    Kind.CRASH_ALL: 4,
    Kind.FREEZE: 16,
    Kind.STOP: 5,
    Kind.SCALE: 6,
    Kind.REBALANCE: 12,
    Kind.BROKERS_DOWN: 6,
    Kind.REQUEST: 22,
    Kind.COMPACT: 12,
    Kind.FOREIGN: 8,
    Kind.DISK_FULL: 4,
    Kind.SHORT_WRITE: 5,
    Kind.CORRUPT: 6,
    Kind.SYNC: 5,
    Kind.WALL_CLOCK: 3,
    Kind.DISK_LOST: 9,
    Kind.CHECKPOINT: 9,
    Kind.STORE_DOWN: 6,
    Kind.STORE_DAMAGED: 5,
    Kind.STORE_FORGED: 3,
}

#: Points (places in a call) at which crashes and freezes occur: the steps of the commit cycle and of a restore. None
#: means any point.
AIMS = (
    "produce:before",
    "flush:before",
    "flush:half",
    "flush:after",
    "send_offsets:before",
    "send_offsets:after",
    "commit:before",
    "commit:sent",
    "commit:after",
    "disk:write:before",
    "disk:write:after",
    "abort:before",
    "init:before",
    "init:after",
    "committed:before",
    "committed:after",
    "replay",
    "store:write",
    "store:delete",
    "disk:file",
    None,
    None,
    None,
)
#: A fault waits for a point (a place in a call) with a certain name. If no process passes it during this number of
#: points, the fault occurs at the next point with any name.
AIM_PATIENCE = 300


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. It waits for ``after`` points since the last fault, then for a point whose name starts with ``aim``.

    A point is a place in a call where a process may be killed. Faults of some kinds, and faults whose ``aim`` is None,
    occur at the next point with any name (``faults.Faults``).
    """

    kind: Kind
    after: int
    aim: str | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that a seed draws. Times are virtual seconds.

    Attributes:
        processes: The number of processes at the start.
        pieces: A local write is divided into batches of this many changes; 0 keeps the production value.
        poll_max: The largest number of records in one poll.
        switching: The probability that another process runs after a point (a place in a call).
        horizon_s: By this time, all input has arrived and faults end.
        retention_s: `delete.retention.ms` of the changelogs.
        checkpoint_s: The interval between two checkpoints of a task.
        spares: A checkpoint is used only if it saves the replay of this many records or more.
        store_step_s: The time between two steps of an upload or download.
        aggregated: The processor has a built-in aggregation instead of functions.
        patience_s: How long a client waits for the answer to a commit, an abort or a flush.
        standby_replicas: The number of standbys of each task.
        client_raises_at_s: When a client library raises an undocumented error at its next poll.
        inputs: The number of input topics: one, or two that feed the same stores.
        form: The type that the outputs' serializer returns.
        past: What happens to messages of 1970: there are ``none``, or their outputs are ``taken`` or ``refused``.
        twins: Whether two machines have the same slot and host name, each with its own state folder.
        markers_left_out: While brokers are down, some transaction markers are never written, as in KAFKA-20734.
        clears_at: When an operator stops all processes, clears all state and sets the input back. The time is a
            fraction of ``horizon_s``, as in the next three attributes.
        deletes_at: When the output topic or the dead-letter topic is deleted.
        intruders_at: When a foreign group member joins that reads only the first of two inputs.
        regroups_at: When an operator deploys the version that joins the tasks of two inputs, or the one that parts
            them. Each input then has its own store; the joined version has one more store, which both inputs feed.
        timed: The processor has windows, sessions and timers instead of functions.
        grouped: The processor groups a stream by another key; no input arrives while a process runs.
        joins: The processor joins two inputs; no input arrives while a process runs.
        scheduled: The processor has functions and also schedules.
        called: The processor has functions behind durable calls of a service.
        asked: Queries read the state of workers at random points.
        live: The grouped stream has messages with current event times, which are produced while processes run and die.
    """

    seed: int
    exactly_once: bool
    dead_letters: bool
    partitions: int
    stores: int
    processes: int
    assignor: Assignor
    commit_every: int
    commit_interval_s: float
    commit_interval_min_s: float | None
    pieces: int
    poll_max: int
    restore_step: int
    switching: float
    horizon_s: float
    marker_delay_s: float
    retention_s: float
    patience_s: float
    checkpoint_s: float
    spares: int
    store_step_s: float
    aggregated: bool
    standby_replicas: int
    client_raises_at_s: tuple[float, ...]
    inputs: int
    form: str
    past: str
    twins: bool
    markers_left_out: bool
    clears_at: tuple[float, ...]
    deletes_at: tuple[float, ...]
    intruders_at: tuple[float, ...]
    regroups_at: tuple[float, ...]
    faults: tuple[Fault, ...]
    timed: bool = False
    grouped: bool = False
    joins: bool = False
    sourced: bool = False
    scheduled: bool = False
    live: bool = False
    called: bool = False
    asked: bool = False


def draw_schedule(seed: int) -> Schedule:
    """Draws the schedule of a seed."""
    random = Random(seed)
    exactly_once = random.random() >= 0.15
    kinds = list(WEIGHTS)
    weights = [WEIGHTS[kind] for kind in kinds]
    crowded = random.random() < 0.5
    faults = tuple(
        Fault(
            random.choices(kinds, weights)[0],
            random.randint(0, 60) if crowded else random.randint(10, 400),
            random.choice(AIMS),
        )
        for _ in range(random.randint(1, 12))
    )
    # These choices have their own random generators, so that the other choices of a seed stay the same.
    standby_replicas = Random(f"standbys of {seed}").choice([0, 0, 1])
    shape = Random(f"shape of {seed}")
    aggregated = Random(f"aggregation of {seed}").random() < 0.25
    inputs = 1 if aggregated else shape.choice([1, 1, 2])
    regroups_at = _moments(f"regroups of {seed}", 0.4, 4, 1.0) if inputs == 2 else ()
    markers_left_out = Random(f"markers of {seed}").random() < 0.3
    return Schedule(
        seed=seed,
        exactly_once=exactly_once,
        dead_letters=random.random() < 0.6,
        partitions=_partitions(seed, random.randint(1, 3)),
        stores=max(random.randint(1, 2), 2 if regroups_at else 1),
        processes=max(random.randint(1, 3), 2 if standby_replicas else 1),
        assignor=_assignor(seed, inputs, cooperative=random.random() < 0.35),
        commit_every=random.choice([0, 1, 3, 7, 20]),
        commit_interval_s=random.choice([0.01, 0.05, 0.3]),
        commit_interval_min_s=Random(f"commit intervals of {seed}").choice([None, None, 0.002, 0.01]),
        pieces=random.choice([0, 0, 1, 2, 3]),
        poll_max=random.choice([1, 3, 10, 40]),
        restore_step=random.choice([1, 2, 5, 20, 10_000]),
        switching=random.choice([0.0, 0.05, 0.3]),
        horizon_s=random.choice([2.0, 6.0, 20.0]),
        marker_delay_s=random.choice([0.0005, 0.002, 0.05, 0.4]),
        retention_s=random.choice([20.0, 86_400.0]),
        patience_s=random.choice([3.0, 3.0, 30.0]),
        checkpoint_s=random.choice([0.2, 0.2, 1.0, 5.0]),
        spares=random.choice([1, 1, 4, 20]),
        store_step_s=random.choice([0.0, 0.0, 0.01, 0.3]),
        aggregated=aggregated,
        standby_replicas=standby_replicas,
        client_raises_at_s=_moments(f"client of {seed}", 0.25, 3, 2.0),
        inputs=inputs,
        form=shape.choice(["json", "json", "bytearray", "view", "text"]),
        past=shape.choice(["none", "taken", "refused"]),
        twins=shape.random() < 0.3,
        markers_left_out=markers_left_out,
        clears_at=_moments(f"clears of {seed}", 0.08, 2, 1.0),
        deletes_at=_moments(f"deletes of {seed}", 0.12, 2, 1.0),
        intruders_at=_moments(f"intruders of {seed}", 0.5, 2, 1.0) if inputs == 2 else (),
        regroups_at=regroups_at,
        faults=(*_outages(seed), *faults) if markers_left_out else faults,
    )


def plain_schedule(seed: int) -> Schedule:
    """A simplified schedule of a seed: few partitions, one input, JSON outputs, and no actors besides the processes."""
    drawn = draw_schedule(seed)
    return replace(
        drawn,
        partitions=drawn.partitions if drawn.partitions <= 3 else 1 + drawn.partitions % 3,
        inputs=1,
        form="json",
        past="none",
        twins=False,
        markers_left_out=False,
        clears_at=(),
        deletes_at=(),
        intruders_at=(),
        regroups_at=(),
    )


def timed_schedule(seed: int) -> Schedule:
    """A seed's schedule with windows, sessions and timers.

    It has only one input, because two inputs have no common order of event times.
    """
    drawn = draw_schedule(seed)
    return replace(
        plain_schedule(seed),
        timed=True,
        aggregated=False,
        partitions=drawn.partitions,
        twins=drawn.twins,
        markers_left_out=drawn.markers_left_out,
        clears_at=drawn.clears_at,
        deletes_at=drawn.deletes_at,
    )


def grouped_schedule(seed: int) -> Schedule:
    """A seed's schedule with a stream that is grouped by another key."""
    drawn = timed_schedule(seed)
    # Few partitions, because each task sends watermarks to each partition, which is slow with 64 of them. The range
    # assignor gives both sides of a join to one process.
    return replace(drawn, timed=False, grouped=True, partitions=min(drawn.partitions, 6), assignor="range")


#: Virtual seconds for the end of a session and the takeover by another worker, while producers continue.
LIVE_S = 24.0


def live_schedule(seed: int) -> Schedule:
    """A seed's schedule with a stream that is grouped by another key. Its producers continue while workers die."""
    drawn = grouped_schedule(seed)
    partitions, processes = Random(f"live of {seed}").choice([(1, 1), (2, 1), (2, 2), (3, 2), (3, 2), (3, 3), (4, 2)])
    return replace(
        drawn,
        live=True,
        partitions=partitions,
        processes=processes,
        standby_replicas=drawn.standby_replicas if processes > 1 else 0,
        horizon_s=LIVE_S,
    )


def joined_schedule(seed: int) -> Schedule:
    """A seed's schedule with two inputs that are joined by their keys."""
    return replace(grouped_schedule(seed), grouped=False, joins=True)


def sourced_schedule(seed: int) -> Schedule:
    """A seed's schedule with a table that is restored from its topic. The topic is never compacted.

    In a compacted topic, Kafka may remove a row that is not processed yet. A restore then lacks the row, which is no
    fault of the engine.
    """
    drawn = draw_schedule(seed)
    faults = tuple(each for each in drawn.faults if each.kind is not Kind.COMPACT)
    return replace(
        plain_schedule(seed),
        sourced=True,
        aggregated=False,
        stores=1,
        twins=drawn.twins,
        markers_left_out=drawn.markers_left_out,
        clears_at=drawn.clears_at,
        retention_s=86_400.0,
        faults=faults,
    )


def scheduled_schedule(seed: int) -> Schedule:
    """A seed's schedule with functions of messages and also schedules by the clock."""
    return replace(plain_schedule(seed), scheduled=True, aggregated=False)


def called_schedule(seed: int) -> Schedule:
    """A seed's schedule with durable calls in front of the functions, and with many crashes."""
    drawn, random = plain_schedule(seed), Random(f"kills of {seed}")
    crashes = [Fault(Kind.CRASH, random.randint(0, 150), random.choice(AIMS)) for _ in range(random.randint(4, 12))]
    faults = [*drawn.faults, *crashes]
    random.shuffle(faults)
    return replace(drawn, called=True, aggregated=False, faults=tuple(faults))


def asked_schedule(seed: int) -> Schedule:
    """A seed's schedule of functions with queries at random points, mostly with standbys, and with many freezes."""
    drawn, random = plain_schedule(seed), Random(f"queries of {seed}")
    freezes = [Fault(Kind.FREEZE, random.randint(0, 150), random.choice(AIMS)) for _ in range(random.randint(1, 4))]
    faults = [*drawn.faults, *freezes]
    random.shuffle(faults)
    standbys = random.choice([0, 1, 1])
    return replace(
        drawn,
        asked=True,
        aggregated=False,
        standby_replicas=standbys,
        processes=max(drawn.processes, 2 if standbys else 1),
        faults=tuple(faults),
    )


def _outages(seed: int) -> list[Fault]:
    """Faults that take the brokers down while a transaction is open or its markers are written."""
    random = Random(f"outages of {seed}")
    aims = ("flush:after", "send_offsets:after", "commit:sent", "commit:after", "abort:after")
    return [Fault(Kind.BROKERS_DOWN, random.randint(5, 120), random.choice(aims)) for _ in range(random.randint(1, 2))]


def _assignor(seed: int, inputs: int, *, cooperative: bool) -> Assignor:
    """Return the partition assignor. With two inputs, it gives both inputs of a partition to the same member."""
    if inputs == 1 and cooperative:
        return "cooperative-sticky"
    return "roundrobin" if inputs == 1 and Random(f"assignor of {seed}").random() < 0.35 else "range"


def _partitions(seed: int, few: int) -> int:
    """Return the number of partitions. It is small in most seeds, and up to 64 in every tenth seed."""
    random = Random(f"partitions of {seed}")
    return random.randint(4, 64) if random.random() < 0.1 else few


def _moments(name: str, share: float, most: int, until: float) -> tuple[float, ...]:
    """Return random moments before ``until``, for this share of all seeds.

    These moments use their own random generator. So the other random choices of a seed stay the same.
    """
    random = Random(name)
    count = random.randint(1, most) if random.random() < share else 0
    return tuple(random.uniform(0.0, until) for _ in range(count))
