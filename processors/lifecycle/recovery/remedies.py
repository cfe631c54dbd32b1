"""What is done about a fault: a pure decision over the diagnosis and what is known of the case.

    Restart   fence the old process, start a new one
    Rebuild   the same, with the broken local state set aside in between: it is restored from checkpoint and changelog
    Wait      the cause passes by itself (the broker is away, the disk is full): no attempts are used up
    Ask       recovery stops at once, and says which one action mends it

Invariants:
    - The same diagnosis and case give the same remedy.
    - Nothing is ever deleted by a remedy, and no input offsets are moved: what could lose or double anything is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Diagnosis, Failed
from holdfast.processors.lifecycle.recovery.faults import PASSING, Kind


@dataclass(frozen=True, slots=True)
class Restart:
    """Fence the old process, start a new one."""

    name: ClassVar[str] = "restart"

    @property
    def sentence(self) -> str:
        """For people."""
        return "It is restarted."


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Set broken local state aside and restart: it is restored from checkpoint and changelog."""

    #: The folder; empty for all of the slot.
    path: str
    name: ClassVar[str] = "rebuild"

    @property
    def sentence(self) -> str:
        """For people."""
        return "Its local state is set aside, and restored from checkpoint and changelog."


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the cause is gone, then restart."""

    kind: Kind
    #: The folder that needs room.
    path: str = ""
    name: ClassVar[str] = "wait"

    @property
    def sentence(self) -> str:
        """For people."""
        until = {"disk-full": "there is room on the disk", "starting": "it has restored its state"}
        return f"It goes on by itself as soon as {until.get(self.kind, 'a broker answers')}."


@dataclass(frozen=True, slots=True)
class Ask:
    """A person decides; ``action`` is the one thing to do."""

    why: str
    action: str
    #: What it is by that, where the diagnosis alone says less.
    kind: Kind | None = None
    name: ClassVar[str] = "ask"

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{self.why} What to do: {self.action}"


Remedy = Restart | Rebuild | Wait | Ask


@dataclass(frozen=True, slots=True)
class Case:
    """What is known beside the diagnosis."""

    processor: str
    #: The same failure, in the same words, came back after a restart.
    repeated: bool = False
    #: Every store has a changelog: what is set aside is restored.
    restorable: bool = True
    #: The version that is deployed never worked, and this is the one that did last.
    former: str | None = None
    #: A person asked to have it tried again: what was asked for is mended, and a restart shows whether it is.
    mended: bool = False
    #: Names of the stores, for commands that need one.
    stores: tuple[str, ...] = field(default=())


def remedy_for(found: Diagnosis, case: Case) -> Remedy:
    """What is done about a diagnosis that needs recovery.

    Args:
        found: The diagnosis.
        case: What is known beside it.
    """
    remedy = _decided(found, case)
    return Restart() if case.mended and isinstance(remedy, Ask) else remedy


def _decided(found: Diagnosis, case: Case) -> Remedy:
    kind, error = found.kind, found.error if isinstance(found, Failed) else {}
    fields: Mapping[str, Any] = error.get("fields") or {}
    if kind in PASSING:
        return Wait(kind, str(fields.get("path", "")))
    if case.former is not None and isinstance(found, Dead | Failed) and (case.repeated or kind == "bad-configuration"):
        return Ask(
            f"{found.sentence} This version never worked; {case.former} did.",
            f"take the definition back to {case.former} and deploy it: holdfast apply deploy {case.processor}",
            "bad-deploy",
        )
    if kind in ("store-corrupt", "state-missing"):
        if case.restorable:
            return Rebuild(str(fields.get("path", "")))
        return Ask(
            f"{found.sentence} Its stores keep no changelogs: nothing else has this state.",
            "restore the state folder from a backup, or build the state anew: "
            f"holdfast apply clear {case.processor} --all --rewind earliest --yes",
        )
    if kind == "poison-message" and not case.repeated:
        return Restart()  # what a function asks elsewhere may be there again
    action = action_for(kind, case, error)
    return Restart() if action is None else Ask(found.sentence, action)


def action_for(kind: Kind, case: Case, error: Mapping[str, Any]) -> str | None:
    """The one action that mends a fault that no restart mends; None for one that a restart may mend."""
    name, fields = case.processor, error.get("fields") or {}
    store = fields.get("store") or (case.stores[0] if len(case.stores) == 1 else "STORE")
    match kind:
        case "changelog-missing" | "changelog-recreated":
            return f"holdfast apply backfill {name} --store {store} --from local --yes"
        case "changelog-truncated":
            return (
                f"holdfast apply backfill {name} --store {store} --from local --yes; if it says that local state is "
                f"not whole: holdfast apply clear {name} --all --rewind earliest --yes"
            )
        case "changelog-altered":
            return f"holdfast apply provision {name}"
        case "changelog-held":
            return f"holdfast apply compact {name}"
        case "restore-unfinished":
            return f"holdfast apply resume, with the number that holdfast apply list {name} shows"
        case "offsets-reset" | "source-truncated":
            return f"holdfast apply reposition {name} --yes"
        case "source-recreated" | "source-repartitioned":
            return f"holdfast apply clear {name} --all --rewind earliest --yes (outputs are sent again)"
        case "source-missing":
            return str(error.get("action") or "create the topic, or correct its name")
        case "poison-message":
            return (
                f"mend the function, or set dead_letter_topic, then: holdfast apply deploy {name}; processing goes on "
                "at this message"
            )
        case "bad-configuration":
            said = str(error.get("action") or f"see what `holdfast logs {name}` says")
            return f"{said.rstrip('.')}. Then: holdfast apply deploy {name}"
        case _:
            return None
