"""Finds the one command that ends an open apply (interrupted execution of a plan). Status, checks and errors print it.

It also decides what happens to the workers of an apply that is abandoned.

The state of the open apply, and the command that ends it:

the apply resumes its recorded plan       holdfast apply resume N
the apply needs a new plan                the original command, with the same options
a compact was interrupted                 holdfast apply abandon N --reason WHY, because it changes no state
the recorded plan cannot be read          holdfast apply abandon N --reason WHY
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.infra.database.records import ApplyRecord
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.plan import Plan, PlanUnreadable
from holdfast.processors.lifecycle.plans.requests import INSTALLATION, Compact, OfInstallation, Request, verb_of
from holdfast.processors.lifecycle.plans.stages import (
    AdoptStore,
    AdoptTable,
    CheckLocalState,
    ClearKeys,
    CompareStores,
    CreateTopic,
    DeleteStateAside,
    EraseCopy,
    MakeRelease,
    PauseProcessor,
    ProveVersion,
    ReadAgain,
    RemoveLoaded,
    RemoveShadow,
    ResumeProcessor,
    RunProcessor,
    SetPositions,
    SetTopicConfig,
    Stage,
    StopProcessor,
)

#: The commands (verbs) that leave no half-changed state if they are interrupted. After them, recovery may start
#: workers, even if another version of Holdfast wrote the plan.
HARMLESS = frozenset(
    {"provision", "deploy", "scale", "restart", "stop", "compact", "adopt", "replay", "clean", "erase"}
)
#: Stages (steps of a plan) that running workers carry out. Such a stage fails while a worker is down.
_BY_WORKERS = (AdoptStore, AdoptTable, ClearKeys, CompareStores, EraseCopy, PauseProcessor, ReadAgain)
#: Stages (steps of a plan) that start or resume workers, and fail if a worker does not start.
_STARTS = (ResumeProcessor, RunProcessor)
#: Stages (steps of a plan) that change no state of the processor.
_CHANGES_NO_STATE = (
    CheckLocalState,
    CreateTopic,
    MakeRelease,
    PauseProcessor,
    ProveVersion,
    RunProcessor,
    SetTopicConfig,
    StopProcessor,
)
#: Stages (steps of a plan) that only stop workers, or remove old state or temporary topics. The state stays complete.
_REMOVES_REST = (DeleteStateAside, RemoveLoaded, RemoveShadow, StopProcessor)
#: Maps a field of a request to its command-line option, if their names differ.
#: An empty text means a positional argument.
_OPTIONS = {
    "workers": "",
    "topic": "",
    "timeout_s": "--timeout",
    "warm_s": "--warm",
    "dropped": "--drop",
}


def read(record: ApplyRecord) -> Plan | None:
    """The plan of an apply (execution of a plan); None if another version of Holdfast wrote it."""
    try:
        return plans.decode(record.plan)
    except PlanUnreadable:
        return None


def keeps_recovery_away(record: ApplyRecord) -> bool:
    """Whether recovery must not touch a processor until its interrupted apply (execution of a plan) is resumed.

    True if the plan itself starts or stops workers and must be resumed, because a worker that recovery starts would
    process half-changed state. If another version of Holdfast wrote the plan, the plan is unreadable, so only the verb
    (kind of change) decides. False for an apply of the whole installation, because it belongs to no processor.
    """
    if record.processor == INSTALLATION:
        return False
    plan = read(record)
    if plan is None:
        return record.verb not in HARMLESS
    starts_or_stops = any(isinstance(stage, RunProcessor | StopProcessor) for stage in plan.stages)
    return plan.after_kill == "go on" and starts_or_stops


def waits_with_whole_state(record: ApplyRecord) -> bool:
    """Whether an open apply (execution of a plan) next starts or resumes workers, while the state is complete.

    The apply may then be abandoned if the workers do not start. The state is complete if no stage has changed it yet.
    It is also complete if all stages after the start only stop workers, or delete old state or temporary topics.
    """
    plan = read(record)
    return plan is not None and _starts_whole(plan, len(record.done))


def resumes_to_whole_state(record: ApplyRecord) -> bool:
    """Whether a resumed apply (execution of a plan) comes to a stage that starts workers while the state is complete.

    If the workers do not start there, ``waits_with_whole_state`` is true, and the apply may be abandoned.
    """
    plan = read(record)
    if plan is None or needs_workers(record) or paused_start(plan.stages[: len(record.done)]) is not None:
        return False  # Unreadable, or the apply first needs running workers, or starts workers with half-changed state.
    starts = (at for at in range(len(record.done), len(plan.stages)) if isinstance(plan.stages[at], _STARTS))
    first = next(starts, None)
    return first is not None and _starts_whole(plan, first)


def _starts_whole(plan: Plan, number: int) -> bool:
    """Whether the stage with this index, from 0, starts or resumes workers while the state is complete."""
    done, after = plan.stages[:number], plan.stages[number:]
    unchanged = all(isinstance(stage, _CHANGES_NO_STATE) for stage in done)
    later = all(isinstance(stage, _REMOVES_REST) for stage in after[1:])
    return isinstance(next(iter(after), None), _STARTS) and (unchanged or later)


def needs_workers(record: ApplyRecord) -> bool:
    """Whether a resumed apply needs running workers before one of its remaining stages starts workers.

    An apply is the execution of a plan.
    """
    plan = read(record)
    if plan is None or isinstance(plan.request, Compact):
        return False  # An interrupted compact is abandoned instead of resumed, so it needs no worker.
    after = plan.stages[len(record.done) :]
    first = next((stage for stage in after if isinstance(stage, (RunProcessor, *_BY_WORKERS))), None)
    return isinstance(first, _BY_WORKERS)


def abandon_of(record: ApplyRecord) -> str:
    """The command that ends an open apply (execution of a plan) without its remaining stages."""
    return f"holdfast apply abandon {record.id} --reason WHY"


def way_on(record: ApplyRecord) -> str:
    """The command with which a user ends an open apply, for example ``holdfast apply resume 7``.

    An apply is the execution of a plan.
    """
    begun = read(record)
    if begun is None or isinstance(begun.request, Compact):
        return abandon_of(record)
    if begun.after_kill == "go on":
        return f"holdfast apply resume {record.id}"
    return command_of(begun.request)


def command_of(request: Request) -> str:
    """The command that makes a new plan for a request after a kill, with all arguments of the request."""
    words = [] if isinstance(request, OfInstallation) else [request.processor]
    for field in msgspec.structs.fields(request):
        value = getattr(request, field.name)
        if field.name == "processor" or (not field.required and value == field.default):
            continue
        option = _OPTIONS.get(field.name, f"--{field.name.replace('_', '-')}")
        for each in value if isinstance(value, tuple) else (value,):
            words += [option] * bool(option) + [_word(each)]
    return shlex.join(["holdfast", "apply", verb_of(request), *words])


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def paused_start(done: Sequence[Stage]) -> Stage | None:
    """The newest finished stage that started or stopped workers, if it started the workers paused; otherwise None.

    A resumed apply (execution of a plan) repeats this stage first, because the paused workers may have died meanwhile.
    """
    last = next((stage for stage in reversed(done) if isinstance(stage, RunProcessor | StopProcessor)), None)
    return last if isinstance(last, RunProcessor) and last.paused else None


def after_abandoning(plan: Plan, done: int) -> tuple[Stage | None, str]:
    """Returns the stage that stops or starts the workers of an abandoned apply (or None), and a text about the result.

    The first ``done`` stages are done; the next stage may have begun. The returned stage concerns workers that the
    apply started paused. If the plan ends with a stop, these workers are stopped. If it ends with a start, they are
    started normally. If the state is partly changed, the processor is stopped permanently, so that recovery starts no
    worker. Workers that the apply had already stopped stay stopped.
    """
    tried, left = plan.stages[: done + 1], plan.stages[done:]
    name, repeat = plan.processor, "Repeat the command that was broken off"
    if paused_start(plan.stages[:done]) is not None or (left and paused_start(left[:1]) is not None):
        end = next((stage for stage in left if _ends_a_pause(stage)), None)
        if isinstance(end, StopProcessor):
            return end, ""
        half = end is None or (end is not left[0] and any(_between(stage) for stage in tried))
        if isinstance(end, RunProcessor) and end.release_id is None and not half:
            return end, ""
        return _stopped(name), (
            f"{name} is stopped, because its state is changed in part. {repeat}, or start the processor with the state "
            f"that it has: `holdfast apply deploy {name}`."
        )
    last = next((stage for stage in reversed(tried) if isinstance(stage, RunProcessor | StopProcessor)), None)
    if isinstance(last, StopProcessor) and not last.for_good and plan.after_kill == "go on":
        return _stopped(name), f"{name} is stopped. {repeat}, or start the processor: `holdfast apply deploy {name}`."
    return None, ""


def is_undone_at_the_end(plan: Plan, number: int) -> bool:
    """Whether an abandoned apply still has to carry out the stage with this index, from 0.

    Such a stage removes something temporary, resumes paused workers, or sets back a topic's configuration, which an
    earlier stage changed for a time.
    """
    stage = plan.stages[number]
    if isinstance(stage, SetTopicConfig):
        return any(isinstance(each, SetTopicConfig) and each.name == stage.name for each in plan.stages[:number])
    return isinstance(stage, ResumeProcessor | RemoveShadow | RemoveLoaded)


def _stopped(processor: str) -> StopProcessor:
    return StopProcessor(f"stop {processor}: the apply is abandoned", for_good=True)


def _ends_a_pause(stage: Stage) -> bool:
    return isinstance(stage, StopProcessor) or (isinstance(stage, RunProcessor) and not stage.paused)


def _between(stage: Stage) -> bool:
    """Whether state and input offsets may contradict each other while the stage is only partly done."""
    moves = isinstance(stage, ClearKeys) and bool(stage.positions)
    return moves or isinstance(stage, ReadAgain | SetPositions | CompareStores)
