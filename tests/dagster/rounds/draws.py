"""What a round draws from its seed."""

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
#: Statuses of a recovery run at which a daemon is struck.
STATUSES = ("QUEUED", "STARTING", "STARTED")
#: Who is struck, and how; the operator twice as often.
STRIKES: tuple[tuple[Victim, Fault], ...] = tuple(
    (victim, fault) for victim in ("operator", *VICTIMS) for fault in get_args(Fault)
)
#: How many signs of life the apply of a verb gives, where they are few.
SIGNS: Mapping[Verb, int] = {"provision": 4, "compact": 4, "clear key": 6, "clear partition": 6}
KEYS = 6
PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Draw:
    """One round.

    Args:
        seed: All else comes from it.
        verb: What the operator does.
        victim: Who is struck.
        fault: SIGKILL; or SIGSTOP until its hold is silent for too long, then SIGCONT.
        incident: Whether the worker is killed: never, before the operator begins, or in mid-apply.
        recovery_first: The operator begins once a recovery run has the processor. Else at once.
        at: The victim is struck at this sign of life of its hold, from 1. A holder gives one before each change.
        later_s: Seconds after that sign, so that the change was made, or is being made.
        status: A daemon is struck when the recovery run has this status; None: at the sign of life ``at``.
        whole: A daemon is struck with all processes of its group. Else it alone.
        thaw: When the frozen victim continues: before anyone took its hold, at a sign of life of the next holder, or
            once the next holder is done. A killed daemon is started again then.
        again: The sign of life of the next holder at which the victim continues.
        key, partition: What is cleared.
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
    """The round of a seed. Victims, faults and verbs take turns: the first 24 seeds have each victim with each fault
    twice, and the operator four times.
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
