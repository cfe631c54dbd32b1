"""Apply: carry a plan's stages out, one after the other, each recorded, so that a killed apply ends right.

Invariants:
    - What was shown is what is done: a plan whose facts changed since is refused, and what changed is said.
    - What deletes is confirmed with the plan's hash.
    - One apply per processor at a time; who finds another's says whose it is and how far it came.
    - Before each stage the apply is still ours; a run that was frozen and lost it does nothing more.
    - A run that goes on has the workers paused again first, where the stages left count on that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, cast

import structlog

from holdfast.infra.database.records import ApplyRecord, StageNote
from holdfast.infra.errors import HoldfastError
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.plan import NothingToDo, Plan, Refused
from holdfast.processors.lifecycle.plans.stages import (
    RemoveLoaded,
    RemoveShadow,
    ResumeProcessor,
    RunProcessor,
    Stage,
    StopProcessor,
)
from holdfast.processors.lifecycle.ports import BEAT_S, SILENT_S, Journal

log = structlog.get_logger(__name__)

#: What a program ends with that refused, and changed nothing.
EXIT_REFUSED = 3
#: Tells how a stage gets on; says again, too, that the apply is held.
Tell = Callable[[str], None]


class PlanRefused(HoldfastError):
    """The plan can't be carried out; nothing was changed."""

    exit_code = EXIT_REFUSED


class PlanStale(HoldfastError):
    """The world changed since the plan was shown; nothing was changed. Fields: shown, now, changes."""

    exit_code = EXIT_REFUSED


class NotConfirmed(HoldfastError):
    """The plan deletes, and was not confirmed; nothing was changed. Fields: plan."""

    exit_code = EXIT_REFUSED


class ApplyInProgress(HoldfastError):
    """Another apply of the same processor is open. Fields: apply, verb, holder, done, stages."""

    exit_code = EXIT_REFUSED


class ApplyFailed(HoldfastError):
    """A stage failed, and there is nothing to go on with: the apply is over, and asked again it is planned anew."""


class ApplyLost(HoldfastError):
    """Another run took the apply over, because this one was silent for too long."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a stage came to: in words, and how many units of work it was (keys, records; 0 when not counted)."""

    text: str
    units: float = 0.0


class Executor(Protocol):
    """Carries out one stage of one processor."""

    def __call__(self, processor: str, stage: Stage, tell: Tell) -> Done:
        """Do it; done before, it does no harm."""
        ...


@dataclass(frozen=True, slots=True)
class Holder:
    """Who applies; ``name`` tells this run from every other, ``is_gone`` whether another one is known to be dead."""

    name: str
    is_gone: Callable[[str], bool] = field(default=lambda name: False)


@dataclass(frozen=True, slots=True)
class Applied:
    """An apply that is through; ``id`` is None when there was nothing to do."""

    plan: Plan
    id: int | None
    notes: tuple[StageNote, ...]
    seconds: float

    @property
    def text(self) -> str:
        """What was done, a line for each stage."""
        if self.id is None:
            return self.plan.verdict.sentence
        return "\n".join(f"{note.number}. {note.text} ({note.seconds:.1f} s)" for note in self.notes)


def check_shown(plan: Plan, shown: str, journal: Journal, *, sure: bool) -> None:
    """Refuse what may not be done: a refused plan, one that is not what was shown, one that deletes unconfirmed.

    Args:
        plan: The plan as it is now.
        shown: The hash of the plan that was shown.
        journal: Where shown plans are remembered.
        sure: Whether what deletes is confirmed.

    Raises:
        PlanRefused, PlanStale, NotConfirmed: See there.
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
            f"{plan.verb} {plan.processor} deletes what can't be had again, and was not confirmed.",
            action=f"Read what it would do, then confirm it: --plan {plan.hash}, or --yes; confirm: {plan.hash} in a "
            "run's config.",
            plan=plan.hash,
        )


def apply(
    plan: Plan,
    execute: Executor,
    journal: Journal,
    *,
    who: str,
    holder: Holder,
    tell: Tell = lambda text: None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Applied:
    """Carry a plan out that may be (see ``check_shown``), or go on with the same that was begun and broken off.

    Args:
        plan: What to do.
        execute: Carries out a stage.
        journal: Where it is recorded.
        who: Who wants it, for the record.
        holder: This run.
        tell: Told how it gets on.
        clock: The time.

    Raises:
        ApplyInProgress: Another apply of the processor is open, and is not this one.
        ApplyLost: Another run took over.
        ApplyFailed: A stage failed for good; the apply has ended.
        HoldfastError: A stage failed; the apply stays open with the reason, and goes on when asked for again.
    """
    if not plan.changes:
        _close_what_is_done(plan, journal, holder, clock())
        return Applied(plan, None, (), 0.0)
    while True:
        record, mine = journal.begin_apply(
            processor=plan.processor,
            verb=plan.verb,
            plan_hash=plan.hash,
            plan=plans.encode(plan),
            who=who,
            holder=holder.name,
            now=clock(),
        )
        if mine:
            return _carry_out(plan, record, execute, journal, holder, tell, clock)
        begun = plans.decode(record.plan)
        _refuse_held(record, begun, holder, clock())
        if begun.after_kill == "plan anew":
            journal.end_apply(record.id, "superseded", clock(), reason=f"planned anew as {plan.verb} {plan.hash}")
            continue
        if begun.request != plan.request:
            raise _in_progress(record, begun, "was broken off")
        return resume(record, execute, journal, holder=holder, tell=tell, clock=clock)


def resume(
    record: ApplyRecord,
    execute: Executor,
    journal: Journal,
    *,
    holder: Holder,
    tell: Tell = lambda text: None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Applied:
    """Go on with an apply that was broken off, with the plan that it began with, from the stage it was at.

    Raises:
        ApplyInProgress: A live run holds it.
        HoldfastError: As for ``apply``.
    """
    begun = plans.decode(record.plan)
    _refuse_held(record, begun, holder, clock())
    if not journal.claim_apply(record.id, holder.name, clock(), instead_of=record.holder):
        raise _in_progress(record, begun, "was just taken over by another run")
    tell(f"going on with {begun.verb} {begun.processor} after stage {len(record.done)} of {len(begun.stages)}")
    return _carry_out(begun, record, execute, journal, holder, tell, clock)


def abandon(
    record: ApplyRecord,
    journal: Journal,
    *,
    holder: Holder,
    now: datetime,
    reason: str,
    execute: Executor | None = None,
) -> bool:
    """Give an open apply up, as it stands; false when it had ended.

    With ``execute``, a processor that it paused works again, and what it ran beside it is removed.

    Raises:
        ApplyInProgress: A live run holds it.
        HoldfastError: A processor that it paused can't be resumed; it stays open.
    """
    begun = plans.decode(record.plan)
    _refuse_held(record, begun, holder, now)
    for stage in begun.stages[len(record.done) :]:
        if execute is not None and isinstance(stage, ResumeProcessor | RemoveShadow | RemoveLoaded):
            execute(begun.processor, stage, lambda text: None)
    return journal.end_apply(record.id, "abandoned", now, reason=reason)


def _carry_out(  # tidy: allow-wide because it is the one loop, and each of these is a part of its caller's call
    plan: Plan,
    record: ApplyRecord,
    execute: Executor,
    journal: Journal,
    holder: Holder,
    tell: Tell,
    clock: Callable[[], datetime],
) -> Applied:
    began = time.monotonic()
    notes = list(record.done)
    again = standing(plan.stages[: len(notes)])

    def heard(text: str) -> None:
        if not journal.beat_apply(record.id, holder.name, clock()):
            raise _lost(record)
        tell(text)

    for number, stage in list(enumerate(plan.stages, 1))[len(notes) :]:
        heard(f"stage {number} of {len(plan.stages)}: {stage.says}")
        started = clock()
        try:
            with _beating(record.id, journal, holder, clock):
                if again is not None:
                    execute(plan.processor, again, heard)
                    again = None
                done = execute(plan.processor, stage, heard)
        except ApplyLost:
            raise
        except ApplyFailed as failed:
            log.error("apply.failed", apply=record.id, stage=number, error=failed.message)
            journal.end_apply(record.id, "failed", clock(), reason=f"stage {number}: {failed}")
            raise
        except HoldfastError as failed:
            log.error("apply.failed", apply=record.id, stage=number, error=failed.message)
            journal.let_go_of_apply(record.id, holder.name, f"stage {number}: {failed}", clock())
            raise
        seconds = (clock() - started).total_seconds()
        note = StageNote(number, str(type(stage).__struct_config__.tag), done.text, done.units, seconds)
        if not journal.note_stage(record.id, holder.name, note, clock()):
            raise _lost(record)
        notes.append(note)
        log.info("apply.stage", apply=record.id, stage=number, text=done.text, seconds=round(seconds, 3))
    journal.end_apply(record.id, "done", clock())
    return Applied(plan, record.id, tuple(notes), time.monotonic() - began)


def standing(done: Sequence[Stage]) -> Stage | None:
    """The stage that is through and whose effect later stages count on, although it may have ended since: a processor
    that runs paused. It is carried out again before the first stage of a run that goes on."""
    last = next((stage for stage in reversed(done) if isinstance(stage, RunProcessor | StopProcessor)), None)
    return last if isinstance(last, RunProcessor) and last.paused else None


@contextmanager
def _beating(apply_id: int, journal: Journal, holder: Holder, clock: Callable[[], datetime]) -> Iterator[None]:
    """Say again and again, from a thread of its own, that the apply is held: a stage may be long and tell nothing."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            try:
                journal.beat_apply(apply_id, holder.name, clock())
            except HoldfastError as failed:
                log.warning("apply.beat_failed", apply=apply_id, error=failed.message)

    thread = threading.Thread(target=beat, name="apply-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _close_what_is_done(plan: Plan, journal: Journal, holder: Holder, now: datetime) -> None:
    """An apply of the same request that died, or failed, after it had done its work is open no more."""
    if not isinstance(plan.verdict, NothingToDo):
        return
    for record in journal.applies(1, processor=plan.processor, open_only=True):
        begun = plans.decode(record.plan)
        if begun.request == plan.request and begun.after_kill == "plan anew" and is_free(record, holder, now):
            journal.end_apply(record.id, "done", now, reason=plan.verdict.sentence)


def is_free(record: ApplyRecord, holder: Holder, now: datetime) -> bool:
    """Whether no live run but this one holds an open apply."""
    if record.holder is None or record.holder == holder.name or holder.is_gone(record.holder):
        return True
    return now - record.beat_at > timedelta(seconds=SILENT_S)


def _refuse_held(record: ApplyRecord, begun: Plan, holder: Holder, now: datetime) -> None:
    if is_free(record, holder, now):
        return
    raise _in_progress(record, begun, f"is being carried out by {record.holder}")


def _in_progress(record: ApplyRecord, begun: Plan, how: str) -> ApplyInProgress:
    where = f"stage {len(record.done)} of {len(begun.stages)} is through"
    why = f" It stopped because: {record.reason.splitlines()[0]}" if record.reason else ""
    return ApplyInProgress(
        f"An apply of {record.processor} is open: {record.verb} (apply {record.id}, begun by {record.who}) {how}; "
        f"{where}.{why}",
        action=f"Let it finish, or go on with it: holdfast apply resume {record.id}. To give it up as it stands: "
        f"holdfast apply abandon {record.id} --reason WHY.",
        apply=record.id,
        verb=record.verb,
        holder=record.holder,
        done=len(record.done),
        stages=len(begun.stages),
    )


def _lost(record: ApplyRecord) -> ApplyLost:
    return ApplyLost(
        f"Apply {record.id} of {record.processor} is not held by this run any more: it was silent for too long, and "
        "another took over.",
        action="Look at the other run; nothing more is done here.",
        apply=record.id,
    )


def _stale(plan: Plan, shown_hash: str, journal: Journal) -> PlanStale:
    shown = journal.remembered_plan(shown_hash)
    changes: tuple[str, ...] = ()
    if shown is None:
        said = f"No plan {shown_hash} was shown here"
    else:
        changes = plans.what_changed(plans.decode(shown), plan)
        said = (
            f"Plan {shown_hash} does not fit the world any more: {'; '.join(changes) or 'it was for another request'}"
        )
    return PlanStale(
        f"{said}. The plan is {plan.hash} now.",
        action="Read the plan as it is now, and confirm that one.",
        shown=shown_hash,
        now=plan.hash,
        changes=changes,
    )
