"""Archives orphans, and deletes them after a grace period, by plan.

    facts ──decide (pure)──► OrphanPlan ──explain──► text
                                 └──────apply────► its steps, one by one

After a kill in a step of an apply:
    1. during the copy: the copy is not valid, and is made again.
    2. after the deletion was recorded, before or during the deletion: the next plan finishes the deletion.
    3. after the deletion, before its end was recorded: the next plan records the end.
An apply that is repeated with the confirmed hash does the rest of its steps, and nothing else.

Invariants:
    - One apply at a time for one archive.
    - Right before a deletion, the owners and the facts of the orphan are read again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, assert_never

import msgspec

from holdfast.infra.database.registry import Registry
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.topics import Topics
from holdfast.infra.settings import Settings
from holdfast.processors.lifecycle.orphans.archive import (
    VERSION,
    Archived,
    ArchiveFailed,
    Deletion,
    Manifest,
    copied_files,
    read,
    told,
    write,
)
from holdfast.processors.lifecycle.orphans.archive import Archive as ArchiveFolder
from holdfast.processors.lifecycle.orphans.facts import orphans_of
from holdfast.processors.lifecycle.orphans.kinds import OrphanChanged, things
from holdfast.processors.lifecycle.orphans.owned import Defined, Kind, Orphan
from holdfast.processors.lifecycle.orphans.plan import (
    Archive,
    Blocked,
    Decision,
    Delete,
    Finish,
    Gone,
    OrphanPlan,
    Step,
    Subject,
    Wait,
    decide,
    explain,
    is_within,
    make_plan,
    moment,
)
from holdfast.processors.lifecycle.plans.apply import EXIT_REFUSED, NotConfirmed, PlanStale, Tell
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.ports import now_utc

#: The verb in the registry's actions.
CLEAN = "clean orphans"
_CONFIRMED = "confirmed.json"


class CleaningFailed(HoldfastError):
    """A step failed; the steps before it stay done. Fields: kind, name."""


class OrphanOwned(HoldfastError):
    """A planned orphan has an owner again, and was not changed. Fields: kind, name."""

    exit_code = EXIT_REFUSED


class _Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    hash: str
    steps: tuple[Step, ...]
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Listed:
    """An orphan and its next step."""

    subject: Subject
    decision: Decision


@dataclass(frozen=True, slots=True)
class Survey:
    """All present orphans.

    Args:
        listed: The orphans with their next steps.
        broken_off: Copies with an interrupted deletion whose original is no longer an orphan.
        unseen: A sentence for each place that could not be read.
    """

    listed: tuple[Listed, ...]
    broken_off: tuple[Archived, ...]
    unseen: tuple[str, ...]


class OrphanCleaning:
    """Lists, archives and deletes orphans.

    Args:
        settings: The installation, its archive folder and grace period.
        registry: Deployments and releases; receives the record of each apply.
        topics: Kafka.
        who: The user in the records.
        defined: Loads the definitions; called again before each deletion.
        clock: The current time in UTC.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        topics: Topics,
        who: str,
        defined: Callable[[], Defined],
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._settings, self._registry, self._topics, self._who, self._clock = settings, registry, topics, who, clock
        self._defined = defined
        self._archive = ArchiveFolder(settings.archive_folder)
        self._grace = timedelta(days=settings.orphan_grace_days)
        self._things = things(settings, topics)

    def survey(self) -> Survey:
        """Every orphan with its facts, its archived copy and its next step.

        Raises:
            HoldfastError: Kafka or the registry does not answer.
        """
        found, unseen = orphans_of(self._defined(), self._settings, self._registry, self._topics)
        archived, unread = self._archive.newest()
        now, listed = self._clock(), []
        for orphan in found:
            subject = self._subject(orphan, archived.get((orphan.kind, orphan.name)))
            listed.append(Listed(subject, decide(subject, now, self._grace)))
        there = {(orphan.kind, orphan.name) for orphan in found}
        broken_off = tuple(copy for place, copy in sorted(archived.items()) if copy.half_deleted and place not in there)
        return Survey(tuple(listed), broken_off, (*unseen, *unread))

    def plan(self, only: Sequence[str] = ()) -> OrphanPlan:
        """The plan for all orphans, or for those in ``only`` (``KIND``, ``NAME``, ``KIND/NAME``).

        Raises:
            OrphanUnknown: A name fits no orphan.
            HoldfastError: Kafka or the registry does not answer.
        """
        found = self.survey()
        subjects = [each.subject for each in found.listed]
        plan = make_plan(subjects, found.broken_off, self._clock(), self._grace, only)
        return msgspec.structs.replace(plan, unseen=found.unseen)

    def apply(self, confirmed: str, only: Sequence[str] = (), tell: Tell = lambda text: None) -> tuple[str, ...]:
        """Carry out the plan with that hash, or the rest of it after an interruption; a line for each step.

        Raises:
            NotConfirmed: No hash is given.
            PlanStale: The plan has another hash now.
            ArchiveBusy: Another process holds the archive.
            ArchiveFailed: The archive can't be written, or is in a folder that is searched for orphans.
            HoldfastError: A step failed; a repeated apply does the rest.
        """
        if not confirmed:
            raise NotConfirmed(
                "The plan for orphans was not confirmed.",
                action="Run `holdfast orphans plan`, read it, then run the apply with its hash.",
                plan="",
            )
        self._check_place()
        with self._archive.held():
            self._archive.sweep()
            plan = self.plan(only)
            self._check_confirmed(plan, confirmed)
            done: list[str] = []
            began = self._clock()
            try:
                for step in plan.steps:
                    tell(step.says)
                    since = time.monotonic()
                    done.append(f"{len(done) + 1}. {self._carry_out(step)} ({time.monotonic() - since:.1f} s)")
            except HoldfastError as failed:
                self._archive.sweep()
                self._record(plan, f"failed after {len(done)} step(s): {failed.message}", began)
                raise
            if plan.steps:
                self._record(plan, "done", began)
        return tuple(done)

    def _subject(self, orphan: Orphan, copy: Archived | None) -> Subject:
        try:
            members = self._topics.members(orphan.processor) if orphan.forsaken else 0
            if members:  # a program outside of the registry, or of another installation
                why = (
                    f"{orphan.processor} runs: its group has {count_of(members, 'member')}. Stop them, then plan again."
                )
                return Subject(orphan, None, why, "", copy)
            look = self._things[orphan.kind].look(orphan)
        except HoldfastError as failed:
            return Subject(orphan, None, f"it could not be read: {failed.message}", "", copy)
        except OSError as failed:
            return Subject(orphan, None, f"it could not be read: {failed}.", "", copy)
        return Subject(orphan, look.facts, look.blocked, look.amount, copy)

    def _check_place(self) -> None:
        """Refuse an archive in a folder that is searched for orphans: the copies would be orphans."""
        paths, root = self._settings.paths, self._archive.root.resolve()
        for place in (paths.state, paths.checkpoint_folders, Path(self._settings.checkpoint_store), paths.warehouse):
            if root.is_relative_to(place.resolve()):
                raise ArchiveFailed(
                    f"The archive {root} is inside of {place}, which is searched for orphans. Nothing was done.",
                    action=f"Set `HOLDFAST_ARCHIVE` to a folder outside of {place}.",
                    path=str(root),
                )

    def _check_confirmed(self, plan: OrphanPlan, confirmed: str) -> None:
        file = self._archive.root / _CONFIRMED
        if plan.hash == confirmed:
            with told(file):
                write(file, _Confirmed(hash=plan.hash, steps=plan.steps))
            return
        before = read(file, _Confirmed) if file.exists() else None
        if (
            before is not None
            and before.hash == confirmed
            and all(is_within(step, before.steps) for step in plan.steps)
        ):
            return
        raise PlanStale(
            f"The plan for orphans is no longer {confirmed}: orphans or their archives changed, or a grace period "
            f"ended. Nothing was done. The plan now:\n{explain(plan)}",
            action=f"Read the plan, then run `holdfast orphans apply --confirm {plan.hash}`.",
            shown=confirmed,
            now=plan.hash,
        )

    def _carry_out(self, step: Step) -> str:
        try:
            match step:
                case Archive():
                    return self._copy(step)
                case Delete():
                    return self._delete(step)
                case Finish():
                    return self._finish(step)
                case _:
                    assert_never(step)
        except OSError as failed:
            raise CleaningFailed(
                f"{step.kind} {step.name} could not be changed: {failed}.",
                action="Check the rights of its folder and the disk, then run `holdfast orphans plan`.",
                kind=step.kind,
                name=step.name,
            ) from failed

    def _copy(self, step: Archive) -> str:
        orphan = self._orphan(step)
        part = self._archive.begin(step.kind, step.name, self._clock())
        about = self._things[step.kind].copy(orphan, step.facts, part)
        files = copied_files(part)
        copy = self._archive.finish(
            part,
            Manifest(
                kind=step.kind,
                name=step.name,
                processor=step.processor,
                why=orphan.why,
                archived_at=self._clock(),
                who=self._who,
                facts=step.facts,
                about=about,
                files=files,
            ),
        )
        return f"{step.kind} {step.name} archived in {copy.folder}"

    def _delete(self, step: Delete) -> str:
        orphan, thing = self._orphan(step), self._things[step.kind]
        copy = self._copy_of(step)
        if copy.id != step.archive or copy.manifest.facts != step.facts:
            raise _not_as_planned(step)
        note = Deletion(begun_at=self._clock(), who=self._who, leftovers=thing.leftovers(orphan, step.facts))
        copy = self._archive.note_deletion(copy, note)
        thing.delete(orphan, step.facts, note.leftovers)
        self._archive.note_deletion(copy, msgspec.structs.replace(note, ended_at=self._clock()))
        return f"{step.kind} {step.name} deleted; its archive is {copy.folder}"

    def _finish(self, step: Finish) -> str:
        if step.orphan:
            self._orphan(step)
        copy = self._copy_of(step)
        assert copy.deletion is not None
        self._things[step.kind].finish(step.name, copy.deletion.leftovers, orphan=step.orphan)
        self._archive.note_deletion(copy, msgspec.structs.replace(copy.deletion, ended_at=self._clock()))
        return f"deletion of {step.kind} {step.name} finished"

    def _orphan(self, step: Step) -> Orphan:
        """The orphan of a step, read again.

        Raises:
            OrphanOwned: It has an owner again, or is gone.
        """
        found, _ = orphans_of(self._defined(), self._settings, self._registry, self._topics)
        for each in found:
            if (each.kind, each.name) == (step.kind, step.name):
                return each
        raise OrphanOwned(
            f"{step.kind} {step.name} is no longer an orphan: it has an owner again, or is gone.",
            action="Run `holdfast orphans plan`.",
            kind=step.kind,
            name=step.name,
        )

    def _copy_of(self, step: Delete | Finish) -> Archived:
        copies, _ = self._archive.newest()
        place: tuple[Kind, str] = (step.kind, step.name)
        if place not in copies:
            raise _not_as_planned(step)
        return copies[place]

    def _record(self, plan: OrphanPlan, outcome: str, began: datetime) -> None:
        text = f"plan {plan.hash}\n{explain(plan)}"
        self._registry.record_action(CLEAN, "orphans", self._who, text, outcome, began, self._clock())


def as_document(listed: Listed, grace: timedelta) -> dict[str, Any]:
    """An orphan as a JSON object: its name and size, its archived copy, and its next step."""
    orphan, copy = listed.subject.orphan, listed.subject.archived
    kept = listed.subject.unchanged and copy is not None and not copy.original_deleted
    return {
        "kind": orphan.kind,
        "name": orphan.name,
        "processor": orphan.processor,
        "why": orphan.why,
        "size_bytes": orphan.size_bytes,
        "amount": listed.subject.amount,
        "archived_at": copy.manifest.archived_at.isoformat() if kept and copy is not None else None,
        "deletable_from": (copy.manifest.archived_at + grace).isoformat() if kept and copy is not None else None,
        "archive": str(copy.folder) if copy is not None else None,
        "state": said_of(listed),
    }


def said_of(listed: Listed) -> str:
    """The state of an orphan and its next step, in a few words."""
    copy = listed.subject.archived
    since = "" if copy is None else moment(copy.manifest.archived_at)
    match listed.decision:
        case Archive(again=again):
            return f"archived {since}, changed since" if again else "not archived"
        case Wait(until=until):
            return f"archived {since}, can be deleted from {moment(until)}"
        case Delete():
            return f"archived {since}, can be deleted now"
        case Finish():
            return "its deletion was interrupted"
        case Blocked(why=why):
            return f"not touched: {why}"
        case Gone():
            return "gone"


def _not_as_planned(step: Step) -> OrphanChanged:
    return OrphanChanged(
        f"The archived copy of {step.kind} {step.name} is not the one of the plan. Nothing was deleted.",
        action="Run `holdfast orphans plan`.",
        kind=step.kind,
        name=step.name,
    )
