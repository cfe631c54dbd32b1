"""The remedy for a fault: a pure decision over the diagnosis and the facts of the case.

    Restart   fence the old process, start a new one
    Rebuild   the same, and set broken local state aside in between: it is restored from checkpoint and changelog
    Wait      the cause ends without an action (broker or schema registry away, disk full): no attempt is used
    Ask       recovery stops at once and names the one action that repairs the processor

Invariants:
    - The same diagnosis and case give the same remedy.
    - A remedy deletes nothing and moves no input offsets. A person decides whatever could lose or double data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Diagnosis, Failed
from holdfast.processors.lifecycle.recovery.faults import PASSING, Kind


@dataclass(frozen=True, slots=True)
class Restart:
    """Fence the old process, start a new one."""

    name: ClassVar[str] = "restart"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Set the folder ``path`` aside (empty: the whole slot) and restart; checkpoint and changelog restore the state."""

    path: str
    name: ClassVar[str] = "rebuild"


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the cause is gone, then restart; ``path`` is the folder that needs room."""

    kind: Kind
    path: str = ""
    name: ClassVar[str] = "wait"

    @property
    def sentence(self) -> str:
        """What ends the wait."""
        until = {
            "disk-full": "the disk has room",
            "schema-registry-away": "the schema registry answers",
            "starting": "its state is restored",
            "supervisor-silent": "the supervisor answers",
        }
        return f"It resumes without an action as soon as {until.get(self.kind, 'a broker answers')}."


@dataclass(frozen=True, slots=True)
class Ask:
    """A person decides; ``action`` is the one command or edit."""

    why: str
    action: str
    #: The kind of fault, if the case is more exact than the diagnosis alone.
    kind: Kind | None = None
    name: ClassVar[str] = "ask"

    @property
    def sentence(self) -> str:
        """The reason, and the action."""
        return f"{self.why} What to do: {self.action}"


Remedy = Restart | Rebuild | Wait | Ask


@dataclass(frozen=True, slots=True)
class Case:
    """Facts beside the diagnosis."""

    processor: str
    #: The same failure, with the same message, occurred again after a restart.
    repeated: bool = False
    #: Every store has a changelog, so state that was set aside can be restored.
    restorable: bool = True
    #: The last version that worked, when the deployed version never did.
    former: str | None = None
    #: A person asked for a retry after a repair; a restart shows whether the repair helped.
    mended: bool = False
    #: Names of the stores, for commands that need one.
    stores: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PerSlot:
    """Recovery's decision for each sick slot: a remedy now, a wait, or a question to a person."""

    #: A restart may help now.
    due: Mapping[str, Remedy]
    #: Slots whose cause lasts: the remedy, and why the cause lasts, as a sentence.
    waits: Mapping[str, tuple[Wait, str]]
    asks: Mapping[str, Ask]


def decide_slots(
    found: Mapping[str, Diagnosis],
    case: Callable[[Diagnosis], Case],
    lasts: Callable[[Wait], str],
    left: Mapping[str, Ask],
) -> PerSlot:
    """The decision for each sick slot; a slot that waits, or asks a person, does not delay recovery of other slots.

    Args:
        found: The diagnosis of each slot.
        case: The facts beside a diagnosis.
        lasts: Why the cause of a wait lasts, as a sentence; empty when it is over.
        left: The slots that were left to a person shortly before; they are not tried again.
    """
    due: dict[str, Remedy] = {}
    waits: dict[str, tuple[Wait, str]] = {}
    asks: dict[str, Ask] = {}
    for slot, each in found.items():
        if not each.needs_recovery:
            continue
        remedy = left.get(slot) or remedy_for(each, case(each))
        lasting = lasts(remedy) if isinstance(remedy, Wait) else ""
        if isinstance(remedy, Ask):
            asks[slot] = remedy
        elif isinstance(remedy, Wait) and lasting:
            waits[slot] = remedy, lasting
        else:
            due[slot] = remedy
    return PerSlot(due, waits, asks)


def remedy_for(found: Diagnosis, case: Case) -> Remedy:
    """The remedy for a diagnosis that needs recovery."""
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
            f"go back to version {case.former} of the definition and deploy it: holdfast apply deploy {case.processor}",
            "bad-deploy",
        )
    if kind in ("store-corrupt", "state-missing"):
        if case.restorable:
            return Rebuild(str(fields.get("path", "")))
        return Ask(
            f"{found.sentence} Its stores have no changelogs, so no other copy of this state exists.",
            "restore the state folder from a backup, or build the state again from the input: "
            f"holdfast apply clear {case.processor} --all --rewind earliest --yes",
        )
    if kind == "poison-message" and not case.repeated:
        return Restart()  # an outside system that the function calls may be available again
    action = action_for(kind, case, error)
    return Restart() if action is None else Ask(found.sentence, action)


def action_for(kind: Kind, case: Case, error: Mapping[str, Any]) -> str | None:
    """The one action that repairs a fault which no restart repairs; None when a restart may help."""
    name, fields = case.processor, error.get("fields") or {}
    store = fields.get("store") or (case.stores[0] if len(case.stores) == 1 else "STORE")
    match kind:
        case "changelog-missing" | "changelog-recreated":
            return f"holdfast apply backfill {name} --store {store} --from local --yes"
        case "changelog-truncated" | "changelog-repartitioned":
            return (
                f"holdfast apply backfill {name} --store {store} --from local --yes; if it reports that local state "
                f"is incomplete: holdfast apply clear {name} --all --rewind earliest --yes"
            )
        case "changelog-altered" | "output-missing":
            return f"holdfast apply deploy {name}"
        case "changelog-held":
            return f"holdfast apply compact {name}"
        case "restore-unfinished":
            return f"holdfast apply resume, with the number from holdfast apply list {name}"
        case "offsets-reset" | "source-truncated":
            return f"holdfast apply reposition {name} --yes"
        case "source-recreated" | "source-repartitioned":
            return f"holdfast apply clear {name} --all --rewind earliest --yes (outputs are sent again)"
        case "source-missing":
            return str(error.get("action") or "create the topic, or correct its name")
        case "poison-message":
            return (
                f"fix the function, or set dead_letter_topic, then: holdfast apply deploy {name}; processing continues "
                "at this message"
            )
        case "bad-configuration":
            said = str(error.get("action") or f"read `holdfast logs {name}`")
            return f"{said.rstrip('.')}. Then: holdfast apply deploy {name}"
        case _:
            return None
