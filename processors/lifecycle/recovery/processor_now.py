"""The present state of a processor, with the texts of its asset check ``working``, for commands and checks on demand.

Invariants:
    - All texts about a processor are in module ``working_check``. This module only selects the text that applies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from holdfast.infra.database.records import ApplyRecord, Incident
from holdfast.processors.lifecycle.deploy.keep_or_replace import PATIENCE_S
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.diagnosis import Diagnosis, Differs, Outdated, worst
from holdfast.processors.lifecycle.recovery.incidents import Observation, is_broken_off, observe, open_apply
from holdfast.processors.lifecycle.recovery.lagging import Lag, next_lag
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.strangers import may_start
from holdfast.processors.lifecycle.recovery.working_check import (
    STARTING,
    Answer,
    asks_to_start,
    judge_applying,
    judge_behind,
    judge_beside,
    judge_interrupted,
    judge_pause,
    judge_working,
)


@dataclass(frozen=True, slots=True)
class ProcessorNow:
    """A processor's present state: observations by slot, the result of its check ``working``, its newest incident.

    A slot is the place of one worker.
    """

    observations: Mapping[str, Observation]
    answer: Answer
    incident: Incident | None
    lag: Lag | None = None


def processor_now(
    processor: str, world: World, limits: Limits, *, patience_s: float = 0.0, before: Lag | None = None
) -> ProcessorNow:
    """Reads and judges the present state of a processor.

    A processor that was never deployed is judged like a processor that should not run. ``before`` is the lag that the
    caller measured last. Without ``before``, a present lag counts as new, so it is not reported as lasting.

    Raises:
        HoldfastError: The supervisor or Holdfast's registry does not answer.
    """
    seen = observe(processor, world, limits, patience_s=patience_s)
    found = {slot: each.diagnosis for slot, each in seen.items()}
    incident, begun = incident_of(processor, world), open_apply(processor, world)
    now = world.clock()
    lag = next_lag(before, [each.status for each in seen.values() if each.status is not None], now)
    answer = judge(found, incident, begun, last_apply(processor, world), now, lag=lag, processor=processor)
    answer = judge_beside(answer, processor, strangers_beside(answer, processor, begun, world))
    return ProcessorNow(seen, answer, incident, lag)


def judge(
    found: Mapping[str, Diagnosis],
    incident: Incident | None,
    begun: ApplyRecord | None,
    last: ApplyRecord | None,
    now: datetime,
    *,
    lag: Lag | None = None,
    processor: str = "",
) -> Answer:
    """The result of the asset check ``working``, computed only from the arguments.

    The arguments are the diagnosis of each slot (``found``), the newest incident, the open apply (``begun``) and the
    newest apply (``last``). A slot is the place of one worker; an apply is the execution of a plan. ``lag`` is the
    result of ``next_lag``; ``processor`` is the name for a command about the lag.
    """
    gravest = worst(found)
    # If Holdfast's registry was replaced by an older backup, it may list an apply (execution of a plan) as open that
    # has ended. So applies are not judged.
    if isinstance(gravest, Outdated):
        return judge_behind(gravest.behind, gravest.hangs)
    if begun is not None and is_broken_off(begun):
        return judge_interrupted(begun, found, incident)
    answer = judge_pause(judge_working(found, incident, now, lag=lag, processor=processor) or STARTING, last)
    if begun is not None and not answer.passed and not (incident is not None and incident.is_open):
        return judge_applying(begun)
    return answer


def applies_beside(world: World, deployed: Collection[str]) -> list[tuple[ApplyRecord, Answer]]:
    """Open applies (unfinished executions of plans) that no processor's check ``working`` reports, oldest first.

    These applies concern the whole installation (``clean``, ``put-back``), or processors that are not in ``deployed``
    (the deployed processors). Each has an answer, which says whether the apply still runs or was interrupted, and what
    to do.
    """
    begun = [each for each in world.registry.journal.applies(open_only=True) if each.processor not in deployed]
    judged = [(each, judge_interrupted(each, {}) if is_broken_off(each) else judge_applying(each)) for each in begun]
    return sorted(judged, key=lambda pair: pair[0].id)


def strangers_beside(answer: Answer, processor: str, begun: ApplyRecord | None, world: World) -> tuple[str, ...]:
    """The workers of another installation in the group, as texts, if ``answer`` tells the user to start workers.

    Empty for a processor that was stopped here, because it may be intended to run in the other installation.
    """
    if not asks_to_start(answer):
        return ()
    known = world.registry.deployment(processor)
    starts = may_start(begun) if begun is not None else known is not None and known.desired != "stopped"
    return world.strangers(processor) if starts else ()


def what_is_left(processor: str, world: World, limits: Limits) -> tuple[str, ...]:
    """Texts about the faults and differences of a processor's workers after its apply was abandoned.

    An apply is the execution of a plan. It is abandoned if a user ends it before its last stage. The result is empty if
    the processor works as deployed.

    Raises:
        HoldfastError: The supervisor or Holdfast's registry does not answer.
    """
    now = processor_now(processor, world, limits, patience_s=PATIENCE_S)
    living = {slot: each.living.code_version for slot, each in now.observations.items() if each.living is not None}
    lines = [] if now.answer.passed else [f"{processor}: {now.answer.text}"]
    # The check's answer describes only the most serious fault, so the faults of the other workers are added here.
    beside = [(slot, each.diagnosis) for slot, each in now.observations.items()]
    lines += [
        f"Slot {slot}: {each.sentence} What to do: {each.action}"
        for slot, each in beside
        if isinstance(each, Differs) and each.action not in now.answer.text
    ]
    if len(set(living.values())) > 1:
        each_runs = ", ".join(f"slot {slot} runs version {version}" for slot, version in living.items())
        lines.insert(0, f"workers of {processor} differ: {each_runs}")
    return tuple(lines)


def last_apply(processor: str, world: World) -> ApplyRecord | None:
    """The newest apply (execution of a plan) of a processor, open or ended; None if there was none."""
    return next(iter(world.registry.journal.applies(1, processor=processor)), None)


def incident_of(processor: str, world: World) -> Incident | None:
    """The processor's open incident, otherwise its newest incident; None if there was none."""
    return next(iter(world.registry.incidents(1, processor=processor)), None)
