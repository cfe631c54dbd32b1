"""Carries out a plan: its stages in order. Each finished stage is recorded, so that a killed execution can be resumed.

One execution of a plan is an apply. The process that carries out an apply is a run; a resumed apply has several runs.

Invariants:
    - An apply executes the plan that was shown. If the present plan has another hash than the shown plan, the apply is
      refused, and the error lists the changes.
    - A plan that deletes data needs a confirmation with its hash.
    - At most one apply per processor is open. A second apply is refused, and the error names the run that holds the
      open apply, and its progress.
    - Before each stage, the run checks that it still holds the apply (module ``holding``). If another run took over,
      the run stops before its next change, and records nothing more.
    - An apply and a live recovery run of the same processor exclude each other (``infra.database.leases``).
    - If the remaining stages of a resumed apply need paused workers, the workers are first started paused again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from holdfast.infra.database.applies import ApplyJournal
from holdfast.infra.database.errors import HeldByRecovery, HoldLost
from holdfast.infra.database.lease_times import SILENT_S
from holdfast.infra.database.leases import Fence
from holdfast.infra.database.records import ApplyOutcome, ApplyRecord, StageNote
from holdfast.infra.errors import HoldfastError, in_one_line
from holdfast.infra.exit_codes import EXIT_REFUSED
from holdfast.infra.log import get_logger
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans import way_on
from holdfast.processors.lifecycle.plans.explanation import count_of
from holdfast.processors.lifecycle.plans.holding import Hold
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Refused
from holdfast.processors.lifecycle.plans.requests import Adopt
from holdfast.processors.lifecycle.plans.stages import Stage
from holdfast.processors.lifecycle.ports import NotStarted, now_utc

log = get_logger(__name__)

#: A function that is called with each progress message while a stage of a plan is carried out.
ProgressLog = Callable[[str], None]


class PlanRefused(HoldfastError):
    """The plan cannot be applied; nothing was changed."""

    exit_code = EXIT_REFUSED


class PlanStale(HoldfastError):
    """The facts changed after the plan was shown; nothing was done. Fields: ``shown``, ``now``, ``changes``."""

    exit_code = EXIT_REFUSED


class NotConfirmed(HoldfastError):
    """The plan deletes data and was not confirmed; nothing was done. Fields: ``plan``."""

    exit_code = EXIT_REFUSED


class ApplyInProgress(HoldfastError):
    """Another apply of the same processor is open. Fields: ``apply``, ``verb``, ``holder``, ``done``, ``stages``."""

    exit_code = EXIT_REFUSED


class ApplyFailed(HoldfastError):
    """A stage failed, and the apply (execution of the plan) cannot be resumed.

    The apply has ended; a retry needs a new plan.
    """


class RecoveryInProgress(HoldfastError):
    """A recovery run of the processor is in progress, so nothing was done.

    Fields: ``processor``, ``incident``, ``run``.
    """

    exit_code = EXIT_REFUSED


class ApplyLost(HoldLost):
    """Another run (process) took over the apply, because this run sent no heartbeat for too long."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of one stage of a plan: a text, and the number of processed keys or records (0 if not counted)."""

    text: str
    units: float = 0.0


#: Function that carries out one stage of a plan for a processor. A stage may be carried out twice without harm.
Executor = Callable[[str, Stage, ProgressLog], Done]


@dataclass(frozen=True, slots=True)
class Holder:
    """The run (process) that carries out an apply (execution of a plan). Only one run at a time may carry out an apply.

    ``name`` is unique. ``is_gone`` is a function that returns whether another holder, given by name, is known to be
    dead.
    """

    name: str
    is_gone: Callable[[str], bool] = field(default=lambda name: False)


@dataclass(frozen=True, slots=True)
class Applied:
    """A finished execution of a plan (apply).

    If the plan had nothing to do, no apply was recorded and ``id`` is None.
    """

    plan: Plan
    id: int | None
    notes: tuple[StageNote, ...]
    seconds: float

    @property
    def text(self) -> str:
        """The result of the apply (execution of a plan) as text, one line for each stage."""
        if self.id is None:
            return self.plan.verdict.sentence
        return "\n".join(f"{note.number}. {note.text} ({note.seconds:.1f} s)" for note in self.notes)


def check_shown(plan: Plan, shown: str, journal: ApplyJournal, *, sure: bool) -> None:
    """Raises an error unless the present plan may be applied.

    Raises:
        PlanRefused: The plan is refused.
        PlanStale: The plan's hash differs from ``shown``, the hash of the plan that was shown to the user.
        NotConfirmed: The plan deletes data, and ``sure`` is false.
    """
    if shown != plan.hash:
        raise _stale(plan, shown, journal)
    if isinstance(plan.verdict, Refused):
        raise PlanRefused(
            f"{plan.verb} {plan.processor}: {plan.verdict.sentence}",
            action=plan.verdict.action,
            **cast("dict[str, Any]", {"verb": plan.verb, "processor": plan.processor, **plan.verdict.fields}),
        )
    if plan.destructive and not sure:
        raise NotConfirmed(
            f"{plan.verb} {plan.processor} deletes data{' permanently' * plan.permanent} and was not confirmed.",
            action=f"Read the plan, then confirm it: add `--plan {plan.hash}` or `--yes` to the command, or `confirm: "
            f"{plan.hash}` to the run's config.",
            plan=plan.hash,
        )


@dataclass(frozen=True, slots=True)
class Applier:
    """Carries out plans for one run.

    Args:
        execute: Function that carries out one stage.
        journal: The journal that records applies.
        who: Name of the user or Dagster run, for the records.
        holder: This run as a holder of applies.
        tell: Called with the progress as text.
        clock: Function that returns the present time, for the records.
        hold: The run's lease on the apply (execution of a plan). The ports (objects through which ``execute`` changes
            other systems) verify the lease before each change.
    """

    execute: Executor
    journal: ApplyJournal
    who: str
    holder: Holder
    tell: ProgressLog = lambda text: None
    clock: Callable[[], datetime] = now_utc
    hold: Hold = field(default_factory=Hold)

    def apply(self, plan: Plan) -> Applied:
        """Carry out a plan that ``check_shown`` accepted, or resume the open apply (execution) of the same request.

        Raises:
            ApplyInProgress: Another apply of the processor is open.
            RecoveryInProgress: A live recovery run holds the processor.
            ApplyLost: Another run took over the apply.
            ApplyFailed: A stage failed and cannot be resumed; the apply has ended.
            HoldfastError: A stage failed; the apply stays open with the reason and can be resumed.
        """
        if not plan.changes:
            self._close_what_is_done(plan)
            return Applied(plan, None, (), 0.0)
        while True:
            record, mine = self._begin(plan)
            if mine:
                return self._carry_out(plan, self._held(record, record.token))
            begun = way_on.read(record)
            self._refuse_held(record, begun)
            if begun is None:
                raise _in_progress(record, begun, "was begun by another version of Holdfast")
            # An ``adopt`` replaces any open apply, because Holdfast's registry may be a restored backup. Such a backup
            # may list an apply as open that ended after the backup was made.
            if begun.after_kill == "plan anew" or isinstance(plan.request, Adopt):
                self._end(record, "superseded", f"replaced by {plan.verb} {plan.hash}")
                continue
            if begun.request != plan.request:
                raise _in_progress(record, begun, "was broken off")
            return self.resume(record)

    def resume(self, record: ApplyRecord) -> Applied:
        """Resume an interrupted apply (execution of a plan) at its first unfinished stage, with its recorded plan.

        Raises:
            ApplyInProgress: A live run holds the apply.
            HoldfastError: The errors of ``apply``.
        """
        begun = plans.decode(record.plan)
        self._refuse_held(record, begun)
        token = self._claim(record)
        if token is None:
            raise _in_progress(record, begun, "was just taken over by another run")
        record = self._held(record, token)
        self.tell(f"resuming {begun.verb} {begun.processor} after stage {len(record.done)} of {len(begun.stages)}")
        return self._carry_out(begun, record)

    def abandon(self, record: ApplyRecord, reason: str) -> bool:
        """End an open apply without its remaining stages; returns False if the apply had already ended.

        An apply is the execution of a plan. Workers that the apply paused are resumed, and its shadow or temporary
        topic is removed. A plan that another version of Holdfast wrote is unreadable; then only the apply is ended.
        Workers that the apply started paused are started normally or stopped, as the plan's remaining stages specify.
        Workers whose state is only partly changed are stopped. ``tell`` receives the progress, and a list of what the
        apply leaves behind.

        Raises:
            ApplyInProgress: A live run holds the apply.
            HoldfastError: The processor cannot be stopped or resumed; the apply stays open.
        """
        begun = way_on.read(record)
        self._refuse_held(record, begun)
        token = self._claim(record)
        if token is None:
            now = self.journal.apply_of(record.id)
            if now is None or now.finished_at is not None:
                return False
            raise _in_progress(now, begun, "was just taken over by another run")
        record = self._held(record, token)
        if begun is None:
            self.tell(
                f"its plan can't be read, because another version wrote it; {count_of(len(record.done), 'stage')} done"
            )
        else:
            self._end_for_workers(record, begun)
        return self.journal.end_apply(record.id, token, "abandoned", self.clock(), reason=f"{self.who}: {reason}")

    def _end_for_workers(self, record: ApplyRecord, begun: Plan) -> None:
        """Resume or stop the workers of an abandoned apply (plan execution), and remove its temporary resources."""
        left = begun.stages[len(record.done) :]
        if left:
            self.tell(f"stage {len(record.done) + 1} may be done in part: {left[0].says}")
        after, said = way_on.after_abandoning(begun, len(record.done))
        ends = [] if after is None or any(stage is after for stage in left) else [after]
        undone = [way_on.is_undone_at_the_end(begun, at) for at in range(len(record.done), len(begun.stages))]
        for stage, temporary in zip((*left, *ends), (*undone, *[False] * len(ends)), strict=True):
            if stage is after or temporary:
                try:
                    with self.hold.beating():
                        done = self.execute(begun.processor, stage, self._heard)
                except HoldLost as lost:
                    raise _lost(record) from lost
                except NotStarted as failed:
                    # The workers' state needs no further stage, so the apply ends although workers did not start.
                    # Recovery then starts them, or names the action that starts them.
                    self.tell(f"{stage.says}: {failed} Recovery continues with them.")
                    continue
                except HoldfastError as failed:
                    self.journal.let_go_of_apply(record.id, record.token, f"abandoning it failed: {failed}")
                    raise
                self.tell(f"{stage.says}: {done.text}")
        if said:
            self.tell(said)

    def _begin(self, plan: Plan) -> tuple[ApplyRecord, bool]:
        try:
            return self.journal.begin_apply(
                processor=plan.processor,
                verb=plan.verb,
                plan_hash=plan.hash,
                plan=plans.encode(plan),
                who=self.who,
                holder=self.holder.name,
                now=self.clock(),
            )
        except HeldByRecovery as held:
            raise _recovering(held) from held

    def _claim(self, record: ApplyRecord) -> int | None:
        """Takes over an apply (execution of a plan) and returns the token of the new lease.

        Returns None if the apply changed after ``record`` was read.
        """
        gone = record.holder is None or record.holder == self.holder.name or self.holder.is_gone(record.holder)
        try:
            return self.journal.claim_apply(record.id, self.holder.name, seen=record.token, is_gone=gone)
        except HeldByRecovery as held:
            raise _recovering(held) from held

    def _end(self, record: ApplyRecord, outcome: ApplyOutcome, reason: str) -> None:
        """End an open apply (plan execution) that no live run holds. Does nothing if another run takes it over now."""
        token = self._claim(record)
        if token is not None:
            self.journal.end_apply(record.id, token, outcome, self.clock(), reason=reason)

    def _held(self, record: ApplyRecord, token: int) -> ApplyRecord:
        """The present record of the apply (execution of a plan), read again after this run got the apply's lease.

        The record is read again, because the previous holder may have recorded more stages in the meantime.
        """
        self.hold.take(Fence("apply", record.id, token), lambda: self.journal.beat_apply(record.id, token))
        now = self.journal.apply_of(record.id)
        assert now is not None
        return now

    def _heard(self, text: str) -> None:
        self.hold.check()
        self.tell(text)

    def _carry_out(self, plan: Plan, record: ApplyRecord) -> Applied:
        began, token = time.monotonic(), self.hold.fence.token
        notes = list(record.done)
        again = way_on.paused_start(plan.stages[: len(notes)])
        for number, stage in list(enumerate(plan.stages, 1))[len(notes) :]:
            started, self.hold.step = self.clock(), f"{record.started_at.isoformat()}/{record.id}/{number}"
            try:
                self._heard(f"stage {number} of {len(plan.stages)}: {stage.says}")
                with self.hold.beating():
                    if again is not None:
                        self.execute(plan.processor, again, self._heard)
                        again = None
                    done = self.execute(plan.processor, stage, self._heard)
            except HoldLost as lost:
                raise _lost(record) from lost
            except HoldfastError as failed:
                log.error("apply.failed", apply=record.id, stage=number, error=failed.message)
                reason = f"stage {number}: {failed}"
                if isinstance(failed, ApplyFailed):
                    self.journal.end_apply(record.id, token, "failed", self.clock(), reason=reason)
                else:
                    self.journal.let_go_of_apply(record.id, token, reason)
                raise
            except (Exception, KeyboardInterrupt) as failed:
                # The process may stay alive after this error, so the lease is released here. Otherwise other runs could
                # resume the apply only after ``SILENT_S`` seconds.
                self.journal.let_go_of_apply(record.id, token, f"stage {number}: {type(failed).__name__}: {failed}")
                raise
            seconds = (self.clock() - started).total_seconds()
            note = StageNote(number, str(type(stage).__struct_config__.tag), done.text, done.units, seconds)
            if not self.journal.note_stage(record.id, token, note, self.clock()):
                raise _lost(record)
            notes.append(note)
            log.info("apply.stage", apply=record.id, stage=number, text=done.text, seconds=round(seconds, 3))
        if not self.journal.end_apply(record.id, token, "done", self.clock()):
            raise _lost(record)
        return Applied(plan, record.id, tuple(notes), time.monotonic() - began)

    def _close_what_is_done(self, plan: Plan) -> None:
        """End an open apply (execution of a plan) of the same request if the new plan finds nothing left to do.

        The process of that apply died after its last change, but before it recorded the end.
        """
        if not isinstance(plan.verdict, NothingToDo):
            return
        for record in self.journal.applies(1, processor=plan.processor, open_only=True):
            begun = way_on.read(record)
            if (
                begun is not None
                and begun.request == plan.request
                and begun.after_kill == "plan anew"
                and is_free(record, self.holder)
            ):
                self._end(record, "done", plan.verdict.sentence)

    def _refuse_held(self, record: ApplyRecord, begun: Plan | None) -> None:
        if not is_free(record, self.holder):
            raise _in_progress(record, begun, f"is being carried out by {record.holder}")


def is_free(record: ApplyRecord, holder: Holder) -> bool:
    """Whether this run may continue the apply (plan execution): no other live run held it when its record was read."""
    if record.holder is None or record.holder == holder.name or holder.is_gone(record.holder):
        return True
    return record.silent_s > SILENT_S


def _in_progress(record: ApplyRecord, begun: Plan | None, how: str) -> ApplyInProgress:
    total = "an unknown number of stages" if begun is None else count_of(len(begun.stages), "stage")
    where = f"{len(record.done)} of {total} done"
    abandon, on = way_on.abandon_of(record), way_on.way_on(record)
    action = f"Let it finish, or complete it: `{on}`. To end it without its remaining stages: `{abandon}`."
    why = f" It stopped because: {in_one_line(record.reason)}" if record.reason else ""
    return ApplyInProgress(
        f"An apply of {record.processor} is open: {record.verb} (apply {record.id}, begun by {record.who}) {how}, "
        f"with {where}.{why}",
        action=f"End it: `{abandon}`." if on == abandon else action,
        apply=record.id,
        verb=record.verb,
        holder=record.holder,
        done=len(record.done),
        stages=None if begun is None else len(begun.stages),
    )


def _recovering(held: HeldByRecovery) -> RecoveryInProgress:
    return RecoveryInProgress(held.message, action=held.action, **held.fields)


def _lost(record: ApplyRecord) -> ApplyLost:
    return ApplyLost(
        f"This run no longer holds apply {record.id} of {record.processor}: it recorded no progress for "
        f"{SILENT_S:.0f} s, and another run took over, or ended it.",
        action="Follow the other run, which `holdfast apply list` names. This run does nothing more.",
        apply=record.id,
    )


def _stale(plan: Plan, shown_hash: str, journal: ApplyJournal) -> PlanStale:
    shown = journal.remembered_plan(shown_hash)
    changes: tuple[str, ...] = ()
    if shown is None:
        problem = f"Plan {shown_hash} was not shown by this installation"
    else:
        changes = plans.what_changed(plans.decode(shown), plan)
        problem = f"Plan {shown_hash} is outdated: {'; '.join(changes) or 'it was for another request'}"
    return PlanStale(
        f"{problem}. The present plan is {plan.hash}.",
        action=f"Read the present plan, then confirm it with `--plan {plan.hash}`.",
        shown=shown_hash,
        now=plan.hash,
        changes=changes,
    )
