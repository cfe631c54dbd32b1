"""The steps of a course (a simulated sequence of commands and faults), as plain data.

So a course can be printed, reduced and repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.processors.lifecycle.plans.requests import Request

Signal = Literal["SIGINT", "SIGHUP", "SIGKILL"]
#: A version whose workers end with an error when they start.
BROKEN = "v0"
#: A version that hangs on the newest messages, and a version that lets no message through.
HANGS, MUTE = "v4", "v5"
#: The seconds of a disturbance that stays until a person ends it.
FOR_EVER_S = 1e6


@dataclass(frozen=True, slots=True)
class End:
    """A signal to a process.

    The signal comes ``after_s`` seconds from now. If that is None, it comes at the point number ``count`` among those
    whose names start with ``aim``. A point is a place in a call where a simulated process may be killed.
    """

    signal: Signal
    aim: str = ""
    count: int = 1
    after_s: float | None = None
    #: Whether points (places in a call) are counted only after the operator's apply (execution of a plan) has begun.
    #: Most earlier points belong to planning.
    begun: bool = False

    def __str__(self) -> str:
        where = f"after {self.after_s:g} s" if self.after_s is not None else f"at point {self.count} of {self.aim!r}"
        return f"{self.signal} {where}{' of the apply' * self.begun}"


@dataclass(frozen=True, slots=True)
class Ask:
    """An operator requests a verb (command). With ``end``, the operator gets a signal before the verb is done."""

    request: Request
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Both:
    """Two operators request a verb (command) each, the second one ``later_s`` seconds later."""

    first: Ask
    second: Ask
    later_s: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """An operator abandons (closes without an undo) the open apply (execution of a plan), if there is one."""

    end: End | None = None


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Sends a signal to a process that is not an operator: when it makes a certain call, or after some seconds.

    ``who`` is the beginning of the process's name: `w` is a worker, and `run` is a recovery run. A tick is one run of a
    sensor: `tick` is a tick of the recovery sensor, and `hook` is a tick of the sensor that posts to the webhook.
    """

    who: str
    end: End


@dataclass(frozen=True, slots=True)
class Feed:
    """Produce this share of the remaining input."""

    share: float


@dataclass(frozen=True, slots=True)
class Arrive:
    """Produce this share of the remaining input when any process makes a call whose name starts with ``aim``."""

    share: float
    aim: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Let this many virtual seconds pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Define:
    """Write a version and a revision of the processor's code into the project's two files.

    A revision is an edit of the code that keeps the version; it changes only the second file.
    """

    version: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Silent:
    """Let the broker or the supervisor answer nothing for ``seconds``, starting ``later_s`` seconds from now."""

    who: Literal["broker", "supervisor"]
    later_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Configure:
    """The environment of operators and Dagster gets another memory limit for workers."""

    memory_mb: str


@dataclass(frozen=True, slots=True)
class Spoil:
    """A slot (place of a worker) gets a wrong configuration: its worker is killed, and later workers end at start."""

    slot: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A client pauses the worker of a slot (place of a worker) by an HTTP request."""

    slot: str


@dataclass(frozen=True, slots=True)
class Intrude:
    """A worker of another installation joins the consumer group ``later_s`` seconds from now, for ``seconds``."""

    later_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SetClock:
    """The machine's wall clock is ``ahead_s`` seconds ahead, for ``seconds``."""

    ahead_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Delete the first recovery run of each incident from Dagster."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Replace the plan of the open apply (execution of a plan) by a plan that another version of Holdfast wrote."""


@dataclass(frozen=True, slots=True)
class Occupy:
    """Fill Dagster's queue with runs of every other kind, which never end."""


@dataclass(frozen=True, slots=True)
class BreakModule:
    """The project's own module of Dagster definitions cannot be imported for ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drift:
    """Change a changelog's cleanup policy to `delete`, as another program might. Kafka would then delete state."""


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Delete the group's committed offsets if it has no member, as Kafka does after `offsets.retention.minutes`."""


@dataclass(frozen=True, slots=True)
class CopyRegistry:
    """Copy Holdfast's registry, as a backup."""


@dataclass(frozen=True, slots=True)
class ReplaceRegistry:
    """Replace Holdfast's registry by its backup, as soon as no command, recovery run or sensor tick is running."""


Step = (
    Ask
    | Both
    | Abandon
    | KillWorker
    | Feed
    | Arrive
    | Wait
    | Define
    | Silent
    | Configure
    | Spoil
    | Pause
    | Intrude
    | SetClock
    | DeleteRun
    | Upgrade
    | Occupy
    | BreakModule
    | Drift
    | ExpireOffsets
    | CopyRegistry
    | ReplaceRegistry
)
Course = tuple[Step, ...]
