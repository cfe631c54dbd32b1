"""Finds the one command that ends an open apply (interrupted execution of a plan). Status, checks and errors print it.

The state of the open apply, and the command that ends it:

the apply resumes its recorded plan       holdfast apply resume N
the apply needs a new plan                the original command, with the same options
a compact was interrupted                 holdfast apply abandon N --reason WHY, because it changes no state
the recorded plan cannot be read          holdfast apply abandon N --reason WHY
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from holdfast.infra.database.records import ApplyRecord
from holdfast.processors.lifecycle.plans import plan as plans
from holdfast.processors.lifecycle.plans.plan import Plan, PlanUnreadable
from holdfast.processors.lifecycle.plans.requests import INSTALLATION, Compact, OfInstallation, Request, verb_of
from holdfast.processors.lifecycle.plans.stages import (
    AdoptStore,
    AdoptTable,
    ClearKeys,
    CompareStores,
    DeleteStateAside,
    PauseProcessor,
    ReadAgain,
    RunProcessor,
    StopProcessor,
)

#: The commands (verbs) that leave no half-changed state if they are interrupted. After them, recovery may start
#: workers, even if another version of Holdfast wrote the plan.
HARMLESS = frozenset({"provision", "deploy", "scale", "restart", "stop", "compact", "adopt", "replay", "clean"})
#: Stages that running workers carry out, so that they fail while a worker is down.
_BY_WORKERS = (AdoptStore, AdoptTable, ClearKeys, CompareStores, PauseProcessor, ReadAgain)
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

    True if the plan itself starts or stops workers and must be resumed. A worker that recovery starts would then
    process half-changed state. If another version of Holdfast wrote the plan, the plan is unreadable. Then only the
    verb (kind of change) decides. An apply of the whole installation belongs to no processor.
    """
    if record.processor == INSTALLATION:
        return False
    plan = read(record)
    if plan is None:
        return record.verb not in HARMLESS
    starts_or_stops = any(isinstance(stage, RunProcessor | StopProcessor) for stage in plan.stages)
    return plan.after_kill == "go on" and starts_or_stops


def only_starts_workers(record: ApplyRecord) -> bool:
    """Whether an open apply next starts workers, and then has only stages that stop workers or delete old state.

    The state is then complete, so the apply (execution of a plan) may be abandoned if the workers do not start.
    """
    plan = read(record)
    after = () if plan is None else plan.stages[len(record.done) :]
    later = all(isinstance(stage, StopProcessor | DeleteStateAside) for stage in after[1:])
    return isinstance(next(iter(after), None), RunProcessor) and later


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


def way_on(record: ApplyRecord) -> str:
    """The command with which a user ends an open apply, for example ``holdfast apply resume 7``.

    An apply is the execution of a plan.
    """
    begun = read(record)
    if begun is None or isinstance(begun.request, Compact):
        return f"holdfast apply abandon {record.id} --reason WHY"
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
