"""Draws the random choices of a round from its seed.

In a round, an operator runs a command while one process is killed or frozen.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Verb = Literal[
    "deploy", "provision", "compact", "clear key", "clear partition", "restore", "stop and deploy", "reposition"
]
Victim = Literal["operator", "daemon 1", "daemon 2", "recovery", "worker"]
Fault = Literal["kill", "freeze"]
Killed = Literal["none", "before", "during"]
Thaw = Literal["before", "during", "after"]
VERBS: tuple[Verb, ...] = get_args(Verb)
VICTIMS: tuple[Victim, ...] = get_args(Victim)
#: The statuses of a recovery run at which a daemon may be killed or frozen.
STATUSES = ("QUEUED", "STARTING", "STARTED")
#: Each victim (the process that is struck) with each fault. The operator appears twice as often.
STRIKES: tuple[tuple[Victim, Fault], ...] = tuple(
    (victim, fault) for victim in ("operator", *VICTIMS) for fault in get_args(Fault)
)
#: The number of heartbeats while a verb (operator command) is executed. All other verbs send many heartbeats.
SIGNS: Mapping[Verb, int] = {"provision": 4, "compact": 4, "clear key": 6, "clear partition": 6}
KEYS = 6
PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Draw:
    """The random choices of one round.

    The holder of an apply (execution of a plan) or an incident is the process that works on it. It sends heartbeats.

    Args:
        seed: The seed from which all other values are drawn.
        verb: The operator's command.
        victim: The process that is killed or frozen.
        fault: SIGKILL; or SIGSTOP until the hold has expired, then SIGCONT.
        incident: When the worker is killed: never, before the operator starts the command, or during the apply.
        recovery_first: Whether the operator waits until a recovery run holds the processor.
        at: The fault strikes at this heartbeat of the victim's hold, counted from 1. A holder sends one before each
            change.
        later_s: Delay of the fault after that heartbeat in seconds, so that the change is in progress or done.
        status: A daemon is killed or frozen when the recovery run has this status. None: at the heartbeat ``at``.
        whole: Whether the fault hits all processes in a daemon's process group, or only the daemon.
        thaw: When the frozen victim continues, or a killed daemon restarts: before another holder took the hold, at a
            heartbeat of the next holder, or once the next holder is done.
        again: The heartbeat of the next holder at which the victim continues.
        key, partition: The key or partition that a clear deletes.
    """

    seed: int
    verb: Verb
    victim: Victim
    fault: Fault
    incident: Killed
    recovery_first: bool
    at: int
    later_s: float
    status: str | None
    whole: bool
    thaw: Thaw
    again: int
    key: str
    partition: int

    def __str__(self) -> str:
        daemon = self.victim.startswith("daemon")
        when = self.status if daemon and self.status else f"sign {self.at} + {self.later_s:g} s"
        return (
            f"seed {self.seed}: {self.verb}; {self.fault} {self.victim}{' with its group' if self.whole else ''} at "
            f"{when}; worker killed: {self.incident}; {'recovery' if self.recovery_first else 'operator'} first; "
            f"goes on {self.thaw} the next holder (sign {self.again})"
        )


def drawn(seed: int) -> Draw:
    """Draw the choices of a round from its seed.

    Victims, faults and verbs (operator commands) rotate. The first 24 seeds have each victim with each fault twice, and
    the operator four times.
    """
    dice = random.Random(seed)
    victim, fault = STRIKES[seed % len(STRIKES)]
    verb = VERBS[(seed + seed // len(STRIKES)) % len(VERBS)]
    daemon = victim.startswith("daemon")
    incident: Killed
    if victim == "recovery" or daemon:
        incident = "before"
    elif victim == "worker":
        incident = "none"
    else:
        incident = dice.choice(("none", "none", "before", "during"))
    return Draw(
        seed=seed,
        verb=verb,
        victim=victim,
        fault=fault,
        incident=incident,
        recovery_first=victim == "recovery" or (daemon and dice.random() < 0.7),
        at=dice.randint(1, SIGNS.get(verb, 6)),
        later_s=dice.choice((0.0, 0.0, 0.1, 0.3, 0.6)),
        status=dice.choice((*STATUSES, None)) if daemon else None,
        whole=daemon and dice.random() < 0.5,
        thaw=dice.choice(get_args(Thaw)),
        again=dice.randint(1, 5),
        key=f"key-{dice.randrange(KEYS)}",
        partition=dice.randrange(PARTITIONS),
    )
