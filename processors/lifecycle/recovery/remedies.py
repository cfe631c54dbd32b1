"""Chooses the remedy for a fault (kind of failure) of a worker. Pure: the choice depends only on the arguments.

    Restart   fence the old process, then start a new one
    Rebuild   like Restart, but first set broken local state aside, so that checkpoint and changelog restore it
    Wait      the cause ends by itself (no broker or schema registry answers, disk full): no attempt is used
    Ask       recovery stops at once and names the one action that repairs the processor

Invariants:
    - The same diagnosis and case give the same remedy.
    - A remedy deletes nothing and changes no input offsets. If a step could lose or duplicate data, a person decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.processors.lifecycle.recovery.diagnosis import Dead, Diagnosis, Failed
from holdfast.processors.lifecycle.recovery.faults import OF_DATA, PASSING, Kind


@dataclass(frozen=True, slots=True)
class Restart:
    """Make the old process unable to commit (fence it), then start a new process."""

    name: ClassVar[str] = "restart"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Set ``path`` aside (rename it; empty means the worker's whole state) and restart, so that state is restored."""

    path: str
    name: ClassVar[str] = "rebuild"


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the cause of the failure has ended, then restart; ``path`` is the folder that needs free space."""

    kind: Kind
    path: str = ""
    name: ClassVar[str] = "wait"

    @property
    def sentence(self) -> str:
        """The condition that must be met before the restart, as a sentence."""
        until = {
            "disk-full": "the disk has room",
            "schema-registry-away": "the schema registry answers",
            "starting": "its state is restored",
            "supervisor-silent": "the supervisor answers",
        }
        return f"It resumes without an action as soon as {until.get(self.kind, 'a broker answers')}."


@dataclass(frozen=True, slots=True)
class Ask:
    """A person must act; ``action`` is the one command or edit that repairs the fault."""

    why: str
    action: str
    #: The kind of fault, if it is more specific than the kind in the diagnosis; otherwise None.
    kind: Kind | None = None
    name: ClassVar[str] = "ask"

    @property
    def sentence(self) -> str:
        """The reason why a person must act, and the action, as one text."""
        return f"{self.why} What to do: {self.action}"


Remedy = Restart | Rebuild | Wait | Ask


@dataclass(frozen=True, slots=True)
class Case:
    """Facts of an incident that its diagnosis does not contain, but that the choice of a remedy needs."""

    processor: str
    #: Whether the same failure, with the same message, occurred again after a restart.
    repeated: bool = False
    #: Whether every store has a changelog, so that broken local state can be renamed (set aside) and restored.
    restorable: bool = True
    #: The newest version that once worked, if the deployed version never worked; otherwise None.
    former: str | None = None
    #: Whether a person repaired something and then asked for a retry. If so, a restart is tried.
    mended: bool = False
    #: Names of the processor's stores, for commands that need a store's name.
    stores: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PerSlot:
    """The decision for each failed slot (worker): a remedy now, a wait, or a question to a person."""

    #: Slot (place of one worker) -> remedy, for the slots that a restart may repair now.
    due: Mapping[str, Remedy]
    #: Slot (place of one worker) -> the wait, and a sentence with the reason why the slot must still wait.
    waits: Mapping[str, tuple[Wait, str]]
    asks: Mapping[str, Ask]


def decide_slots(
    found: Mapping[str, Diagnosis],
    case: Callable[[Diagnosis], Case],
    lasts: Callable[[Wait], str],
    left: Mapping[str, Ask],
) -> PerSlot:
    """Decides for each failed slot (place of one worker).

    A slot that must wait, or needs a person, does not delay the recovery of other slots.

    Args:
        found: The diagnosis of each slot.
        case: Function of a diagnosis that returns further facts of the incident.
        lasts: Function that returns the reason why a wait must continue, as a sentence; empty if its cause has ended.
        left: The slots that the previous incident left to a person; these are not restarted again.
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
    of_version = isinstance(found, Dead | Failed) and kind not in OF_DATA
    if case.former is not None and of_version and (case.repeated or kind == "bad-configuration"):
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
        # The function that failed may call another system, which may be available again after a restart. So the first
        # remedy is a restart; if the message fails again, a person is asked.
        return Restart()
    action = action_for(kind, case, error)
    return Restart() if action is None else Ask(found.sentence, action)


def retry_of(incident: int) -> str:
    """The command that makes recovery retry an incident that it closed as failed."""
    return f"holdfast incidents retry {incident}"


def asked_by(action: str, before: int, incident: int) -> str:
    """The text ``action`` of the incident ``before``, changed so that it fits the next incident.

    A command that retries the incident ``before`` becomes the command that retries the incident with number
    ``incident``.
    """
    return re.sub(rf"{re.escape(retry_of(before))}\b", retry_of(incident), action)


def action_for(kind: Kind, case: Case, error: Mapping[str, Any]) -> str | None:
    """The one action that repairs a fault which no restart repairs; None if a restart may help."""
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
