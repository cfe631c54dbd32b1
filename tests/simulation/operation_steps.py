"""The steps of a course of operation: plain data, so that a course can be shown, cut down and run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.processors.lifecycle.plans.requests import Request

Signal = Literal["SIGINT", "SIGHUP", "SIGKILL"]
#: A version whose workers end at their start.
BROKEN = "v0"
#: A version that hangs on the newest messages, and one that lets no message through.
HANGS, MUTE = "v4", "v5"
#: Seconds of what stays until a person ends it.
FOR_EVER_S = 1e6


@dataclass(frozen=True, slots=True)
class End:
    """A process gets a signal at the n-th point whose name begins so, or so many seconds after it began."""

    signal: Signal
    aim: str = ""
    count: int = 1
    after_s: float | None = None
    #: Whether points and seconds count from the begin of an operator's apply: most of his points are its planning.
    begun: bool = False

    def __str__(self) -> str:
        where = f"after {self.after_s:g} s" if self.after_s is not None else f"at point {self.count} of {self.aim!r}"
        return f"{self.signal} {where}{' of the apply' * self.begun}"


@dataclass(frozen=True, slots=True)
class Ask:
    """An operator asks for a verb; he is gone before it ends, or it runs to its end."""

    request: Request
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Both:
    """Two operators ask, the second so many seconds later."""

    first: Ask
    second: Ask
    later_s: float


@dataclass(frozen=True, slots=True)
class Abandon:
    """An operator ends the open apply, if there is one."""

    end: End | None = None


@dataclass(frozen=True, slots=True)
class KillWorker:
    """The worker of a slot, a recovery run, or a tick of a sensor (`tick`, `hook`) is ended at a point."""

    who: str
    end: End


@dataclass(frozen=True, slots=True)
class Feed:
    """Input arrives: this share of what is left."""

    share: float


@dataclass(frozen=True, slots=True)
class Arrive:
    """Input arrives while a process passes the first point whose name begins so: this share of what is left."""

    share: float
    aim: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Time goes by."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Define:
    """The project's files define this version; another revision changes the second file alone."""

    version: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Silent:
    """The broker or the supervisor answers nothing, from so many seconds later for so many seconds."""

    who: Literal["broker", "supervisor"]
    later_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Configure:
    """The settings of workers are changed where operators and Dagster are."""

    memory_mb: str


@dataclass(frozen=True, slots=True)
class Spoil:
    """The configuration of one slot is wrong: its worker is killed, and each later one ends at its start."""

    slot: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A program pauses the worker of a slot, by HTTP."""

    slot: str


@dataclass(frozen=True, slots=True)
class Intrude:
    """A worker of another installation joins the group so many seconds later, for so many seconds."""

    later_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SetClock:
    """The machine's clock is ahead by so many seconds, for so many seconds."""

    ahead_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Somebody deletes the first recovery run of each incident in Dagster."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Another version of Holdfast wrote the plan of the open apply."""


@dataclass(frozen=True, slots=True)
class Occupy:
    """Runs of every other kind that never end fill Dagster's queue."""


@dataclass(frozen=True, slots=True)
class BreakModule:
    """The project's own module of Dagster definitions can't be imported, for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Drift:
    """Somebody changes the configuration of a changelog: it would delete state."""


@dataclass(frozen=True, slots=True)
class CopyRegistry:
    """A backup of the registry is made."""


@dataclass(frozen=True, slots=True)
class ReplaceRegistry:
    """The backup takes the registry's place, once no command, run or tick is under way."""


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
    | CopyRegistry
    | ReplaceRegistry
)
Course = tuple[Step, ...]
