"""What becomes of each orphan: a pure decision, and the plan that the decisions make up.

    never archived, or changed since ──► Archive ──grace──► Delete
    a deletion was broken off        ──► Finish
    somebody has it                  ──► Blocked

Invariants:
    - Nothing is deleted but what nobody owns, was archived a grace period ago, and is since as it was archived.
    - A plan's hash covers its steps with the facts that they rest on; nothing else, as the time of day, is in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from holdfast.infra.errors import EXIT_BAD_CONFIGURATION, HoldfastError
from holdfast.processors.lifecycle.orphans.archive import Archived
from holdfast.processors.lifecycle.orphans.owned import Kind, Orphan
from holdfast.processors.lifecycle.plans.explanation import count_of, in_bytes
from holdfast.processors.lifecycle.plans.plan import HASH_CHARACTERS

#: What is deleted first: a group tells its offsets only of topics that are there.
_ORDER: Mapping[Kind, int] = {"group": 0, "table": 1, "topic": 2, "checkpoint": 3, "state": 4}


class OrphanUnknown(HoldfastError):
    """What was named is no orphan. Fields: name."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Subject:
    """An orphan as it is now.

    Args:
        orphan: What it is.
        facts: What it is like; None when it is gone, or could not be looked at.
        blocked: Why it must not be touched, a sentence; empty when it may.
        amount: How much it is, in words; empty when that is not known.
        archived: Its newest copy.
    """

    orphan: Orphan
    facts: Mapping[str, Any] | None
    blocked: str = ""
    amount: str = ""
    archived: Archived | None = None

    @property
    def unchanged(self) -> bool:
        """Whether it is as it was when it was archived."""
        return self.archived is not None and self.facts is not None and self.facts == self.archived.manifest.facts


class Archive(msgspec.Struct, frozen=True, kw_only=True, tag="archive"):
    """Copy it; ``again`` whether an older copy is of something that it is not any more."""

    kind: Kind
    name: str
    processor: str
    facts: dict[str, Any]
    size_bytes: int | None = None
    amount: str = ""
    again: bool = False

    @property
    def says(self) -> str:
        """For people."""
        why = ", which is not what was archived before: its grace begins anew" if self.again else ""
        what = "write down what it is; no data is copied" if self.kind == "table" else "copy it into the archive"
        return f"archive {self.kind} {self.name}{_sized(self)}{why}: {what}"


class Delete(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    """Delete it: it is as the copy ``archive`` has it."""

    kind: Kind
    name: str
    processor: str
    facts: dict[str, Any]
    archive: str
    size_bytes: int | None = None
    amount: str = ""

    @property
    def says(self) -> str:
        """For people."""
        kept = "its rows can't be had again" if self.kind == "table" else f"its copy of {self.archive} stays"
        return f"delete {self.kind} {self.name}{_sized(self)}; {kept}"


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """Finish its deletion, which was broken off; ``orphan`` whether something of its name is an orphan still."""

    kind: Kind
    name: str
    processor: str
    archive: str
    orphan: bool

    @property
    def says(self) -> str:
        """For people."""
        return f"finish the deletion of {self.kind} {self.name}, which was broken off"


Step = Archive | Delete | Finish


@dataclass(frozen=True, slots=True)
class Wait:
    """It was archived, and stays until then."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Blocked:
    """It can't be touched now; ``why`` is a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Gone:
    """It is not there any more."""


Decision = Archive | Delete | Finish | Wait | Blocked | Gone


class OrphanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done.

    Args:
        steps: In order: finish, delete, archive.
        waiting: What has to wait, a sentence each.
        blocked: What is refused, a sentence each.
        unseen: What could not be looked at, a sentence each.
    """

    steps: tuple[Step, ...] = ()
    waiting: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """What names these steps, and no others."""
        encoded = msgspec.json.encode([_identity(step) for step in self.steps], order="deterministic")
        return hashlib.sha256(encoded).hexdigest()[:HASH_CHARACTERS]

    @property
    def destructive(self) -> bool:
        """Whether anything is deleted."""
        return any(not isinstance(step, Archive) for step in self.steps)


def decide(subject: Subject, now: datetime, grace: timedelta) -> Decision:
    """What becomes of one orphan."""
    orphan, copy = subject.orphan, subject.archived
    if subject.blocked:
        return Blocked(subject.blocked)
    named: dict[str, Any] = {"kind": orphan.kind, "name": orphan.name, "processor": orphan.processor}
    if copy is not None and copy.half_deleted and not subject.unchanged:
        return Finish(**named, archive=copy.id, orphan=True)
    if subject.facts is None:
        return Gone()
    facts = dict(subject.facts)
    size: dict[str, Any] = {"size_bytes": orphan.size_bytes, "amount": subject.amount}
    if copy is None or not subject.unchanged or copy.original_deleted:
        return Archive(**named, **size, facts=facts, again=copy is not None)
    until = deletable_from(copy, grace)
    if now < until:
        return Wait(until)
    return Delete(**named, **size, facts=facts, archive=copy.id)


def deletable_from(copy: Archived, grace: timedelta) -> datetime:
    """When what has this copy may be deleted, if it stays as it is."""
    return copy.manifest.archived_at + grace


def make_plan(
    subjects: Sequence[Subject], broken_off: Iterable[Archived], now: datetime, grace: timedelta, only: Sequence[str]
) -> OrphanPlan:
    """The plan for all orphans, or for those that are named.

    Args:
        subjects: The orphans as they are now.
        broken_off: Copies whose originals are no orphans any more, and whose deletion was broken off.
        now: When it is.
        grace: How long an orphan stays after it was archived.
        only: ``KIND``, ``KIND/NAME`` or ``NAME`` of those that are meant; empty for all.

    Raises:
        OrphanUnknown: Something was named that is no orphan.
    """
    left = [
        Finish(
            kind=copy.manifest.kind,
            name=copy.manifest.name,
            processor=copy.manifest.processor,
            archive=copy.id,
            orphan=False,
        )
        for copy in broken_off
    ]
    there = {(each.orphan.kind, each.orphan.name) for each in subjects} | {(each.kind, each.name) for each in left}
    for word in only:
        if not any(_is_named(kind, name, (word,)) for kind, name in there):
            raise OrphanUnknown(
                f"{word} names no orphan.",
                action="`holdfast orphans` lists them; name a KIND, a NAME, or KIND/NAME.",
                name=word,
            )
    steps: list[Step] = [each for each in left if _is_named(each.kind, each.name, only)]
    waiting, blocked = [], []
    for subject in subjects:
        orphan = subject.orphan
        if not _is_named(orphan.kind, orphan.name, only):
            continue
        decision = decide(subject, now, grace)
        match decision:
            case Archive() | Delete() | Finish():
                steps.append(decision)
            case Wait(until=until):
                waiting.append(f"{orphan.kind} {orphan.name} is archived, and may be deleted from {moment(until)} on")
            case Blocked(why=why):
                blocked.append(f"{orphan.kind} {orphan.name} is left alone: {why}")
            case Gone():
                continue
            case _:
                assert_never(decision)
    return OrphanPlan(steps=tuple(sorted(steps, key=_rank)), waiting=tuple(waiting), blocked=tuple(blocked))


def is_within(step: Step, confirmed: Sequence[Step]) -> bool:
    """Whether a step is one of those that were confirmed, or what is left of one."""
    if isinstance(step, Archive):
        return any(isinstance(each, Archive) and _same(step, each) and step.facts == each.facts for each in confirmed)
    return any(
        not isinstance(each, Archive) and _same(step, each) and step.archive == each.archive for each in confirmed
    )


def explain(plan: OrphanPlan, how: str = "") -> str:
    """The plan as lines of text."""
    lines = [_headline(plan)]
    lines += [f"  {number}. {step.says}" for number, step in enumerate(plan.steps, 1)]
    for title, entries in (("Waiting", plan.waiting), ("Refused", plan.blocked), ("Not looked at", plan.unseen)):
        lines += [f"{title}:", *(f"  - {entry}" for entry in entries)] if entries else []
    return "\n".join([*lines, how] if how else lines)


def moment(at: datetime) -> str:
    """A time for people, in UTC and to the minute."""
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _headline(plan: OrphanPlan) -> str:
    if not plan.steps:
        return "orphans: nothing to do."
    archived = sum(isinstance(step, Archive) for step in plan.steps)
    size = sum(step.size_bytes or 0 for step in plan.steps if not isinstance(step, Finish))
    gone = len(plan.steps) - archived
    parts = [
        count_of(number, "orphan") + done for number, done in ((archived, " archived"), (gone, " deleted")) if number
    ]
    danger = " What is deleted is in the archive only, tables nowhere." if gone else " Nothing is deleted."
    return f"orphans: {', '.join(parts)} ({in_bytes(size)} where sizes are known).{danger}"


def _rank(step: Step) -> tuple[int, int, str]:
    phase = 2 if isinstance(step, Archive) else 1 if isinstance(step, Delete) else 0
    return phase, _ORDER[step.kind], step.name


def _identity(step: Step) -> tuple[object, ...]:
    rest = step.archive if isinstance(step, Finish) else step.facts
    return type(step).__name__, step.kind, step.name, rest, getattr(step, "archive", "")


def _same(step: Step, other: Step) -> bool:
    return (step.kind, step.name) == (other.kind, other.name)


def _is_named(kind: Kind, name: str, only: Sequence[str]) -> bool:
    def fits(word: str) -> bool:
        return word == kind if word in _ORDER else word in (name, f"{kind}/{name}")

    return not only or any(map(fits, only))


def _sized(step: Archive | Delete) -> str:
    size = "" if step.size_bytes is None else in_bytes(step.size_bytes)
    said = ", ".join(part for part in (step.amount, size) if part)
    return f" ({said})" if said else ""
