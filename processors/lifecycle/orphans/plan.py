"""Decides the next step of each orphan, and builds the plan from these steps: pure functions.

    never archived, or changed since ──► Archive ──grace──► Delete
    a deletion was interrupted       ──► Finish
    in use                           ──► Blocked

Invariants:
    - Only resources are deleted that have no owner, were archived a grace period ago, and have not changed since.
    - A plan's hash covers its steps with their facts, and nothing else, such as the time of day.
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

#: The order of deletions: Kafka reports a group's offsets only for topics that exist.
_ORDER: Mapping[Kind, int] = {"group": 0, "table": 1, "topic": 2, "checkpoint": 3, "state": 4}


class OrphanUnknown(HoldfastError):
    """A name in ``only`` fits no orphan. Fields: name."""

    exit_code = EXIT_BAD_CONFIGURATION


@dataclass(frozen=True, slots=True)
class Subject:
    """An orphan with its present facts.

    Args:
        orphan: The orphan.
        facts: Its facts; None when it is gone or could not be read.
        blocked: Why it must not be changed, a sentence; empty when it may be.
        amount: Its size in records, files or rows, as text; empty when unknown.
        archived: Its newest copy.
    """

    orphan: Orphan
    facts: Mapping[str, Any] | None
    blocked: str = ""
    amount: str = ""
    archived: Archived | None = None

    @property
    def unchanged(self) -> bool:
        """Whether its facts are those of its copy."""
        return self.archived is not None and self.facts is not None and self.facts == self.archived.manifest.facts


class Archive(msgspec.Struct, frozen=True, kw_only=True, tag="archive"):
    """Copy an orphan; ``again`` when it changed after an older copy."""

    kind: Kind
    name: str
    processor: str
    facts: dict[str, Any]
    size_bytes: int | None = None
    amount: str = ""
    again: bool = False

    @property
    def says(self) -> str:
        """The step as a line of the plan."""
        why = ", which changed since its last copy: its grace period starts again" if self.again else ""
        what = "record its metadata; no data is copied" if self.kind == "table" else "copy it into the archive"
        return f"archive {self.kind} {self.name}{_sized(self)}{why}: {what}"


class Delete(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    """Delete an orphan that is equal to its copy ``archive``."""

    kind: Kind
    name: str
    processor: str
    facts: dict[str, Any]
    archive: str
    size_bytes: int | None = None
    amount: str = ""

    @property
    def says(self) -> str:
        """The step as a line of the plan."""
        kept = "its rows are lost" if self.kind == "table" else f"its copy of {self.archive} stays"
        return f"delete {self.kind} {self.name}{_sized(self)}; {kept}"


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag="finish"):
    """Finish an interrupted deletion; ``orphan`` when a resource with its name is still an orphan."""

    kind: Kind
    name: str
    processor: str
    archive: str
    orphan: bool

    @property
    def says(self) -> str:
        """The step as a line of the plan."""
        return f"finish the deletion of {self.kind} {self.name}, which was interrupted"


Step = Archive | Delete | Finish


@dataclass(frozen=True, slots=True)
class Wait:
    """Archived; can be deleted from ``until``."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Blocked:
    """Must not be changed now; ``why`` is a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The resource no longer exists; no step is needed."""


Decision = Archive | Delete | Finish | Wait | Blocked | Gone


class OrphanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of an apply, and the orphans without a step.

    Args:
        steps: In order: finish, delete, archive.
        waiting: A sentence for each orphan in its grace period.
        blocked: A sentence for each orphan that must not be changed.
        unseen: A sentence for each place that could not be read.
    """

    steps: tuple[Step, ...] = ()
    waiting: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """The hash of the steps and their facts, for the confirmation."""
        encoded = msgspec.json.encode([_identity(step) for step in self.steps], order="deterministic")
        return hashlib.sha256(encoded).hexdigest()[:HASH_CHARACTERS]

    @property
    def destructive(self) -> bool:
        """Whether anything is deleted."""
        return any(not isinstance(step, Archive) for step in self.steps)


def decide(subject: Subject, now: datetime, grace: timedelta) -> Decision:
    """The next step of one orphan, or why it has none."""
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
    """When the original of a copy can be deleted, if it does not change."""
    return copy.manifest.archived_at + grace


def make_plan(
    subjects: Sequence[Subject], broken_off: Iterable[Archived], now: datetime, grace: timedelta, only: Sequence[str]
) -> OrphanPlan:
    """The plan for all orphans, or for those in ``only``.

    Args:
        subjects: The orphans with their present facts.
        broken_off: Copies with an interrupted deletion whose original is no longer an orphan.
        now: The current time.
        grace: The time between archiving and deletion.
        only: ``KIND``, ``KIND/NAME`` or ``NAME`` of the selected orphans; empty for all.

    Raises:
        OrphanUnknown: A name in ``only`` fits no orphan.
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
                action="Run `holdfast orphans`, which lists them, and give a `KIND`, a `NAME` or `KIND/NAME`.",
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
                waiting.append(f"{orphan.kind} {orphan.name} is archived, and can be deleted from {moment(until)}")
            case Blocked(why=why):
                blocked.append(f"{orphan.kind} {orphan.name} is not touched: {why}")
            case Gone():
                continue
            case _:
                assert_never(decision)
    return OrphanPlan(steps=tuple(sorted(steps, key=_rank)), waiting=tuple(waiting), blocked=tuple(blocked))


def is_within(step: Step, confirmed: Sequence[Step]) -> bool:
    """Whether a step was confirmed, or is the rest of a confirmed one."""
    if isinstance(step, Archive):
        return any(isinstance(each, Archive) and _same(step, each) and step.facts == each.facts for each in confirmed)
    return any(
        not isinstance(each, Archive) and _same(step, each) and step.archive == each.archive for each in confirmed
    )


def explain(plan: OrphanPlan, how: str = "") -> str:
    """The plan as text: headline, numbered steps, and orphans without a step; ``how`` is the last line."""
    lines = [_headline(plan)]
    lines += [f"  {number}. {step.says}" for number, step in enumerate(plan.steps, 1)]
    for title, entries in (("Waiting", plan.waiting), ("Refused", plan.blocked), ("Not read", plan.unseen)):
        lines += [f"{title}:", *(f"  - {entry}" for entry in entries)] if entries else []
    return "\n".join([*lines, how] if how else lines)


def moment(at: datetime) -> str:
    """A time in UTC, to the minute, such as ``2026-11-28 09:30 UTC``."""
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
    danger = " Deleted orphans exist only in the archive; deleted tables are lost." if gone else " Nothing is deleted."
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
