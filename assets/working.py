"""The check ``working`` of each processor: recorded by the recovery sensor, and run on demand."""

from collections.abc import Mapping

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.incidents import page_of
from holdfast.assets.ports import Lifecycle
from holdfast.infra.database.records import Incident
from holdfast.processors.lifecycle.ports import World
from holdfast.processors.lifecycle.recovery.answer import Answer, judge_working
from holdfast.processors.lifecycle.recovery.diagnosis import Limits
from holdfast.processors.lifecycle.recovery.incidents import observe
from holdfast.processors.registration import ProcessorDefinition

WORKING = "working"


def working_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """The check of one processor."""
    key = keys.processor_key(definition.name)

    @dg.asset_check(
        asset=key,
        name=WORKING,
        description="Passes while every instance processes input. A failure names the fault, its start, the incident, "
        "and the next action. The recovery sensor updates this check.",
    )
    def working(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        world = lifecycle.world
        seen = observe(definition.name, world, Limits(), patience_s=2.0)
        incident = incident_of(definition.name, world)
        found = {slot: each.diagnosis for slot, each in seen.items()}
        answer = judge_working(found, incident, world.clock())
        if answer is None:
            answer = Answer(False, "starting", "It is starting and does not process every partition yet.")
        return dg.AssetCheckResult(
            passed=answer.passed,
            severity=_severity(answer),
            description=answer.text,
            metadata=_metadata(answer, incident),
        )

    return working


def evaluation(processor: str, answer: Answer, incident: Incident | None) -> dg.AssetCheckEvaluation:
    """An answer as an event that needs no run."""
    return dg.AssetCheckEvaluation(
        asset_key=keys.processor_key(processor),
        check_name=WORKING,
        passed=answer.passed,
        metadata=_metadata(answer, incident),
        severity=_severity(answer),
        description=answer.text,
    )


def incident_of(processor: str, world: World) -> Incident | None:
    """The processor's open incident, or else its newest."""
    return next(iter(world.registry.incidents(1, processor=processor)), None)


def _severity(answer: Answer) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.WARN if answer.only_warns else dg.AssetCheckSeverity.ERROR


def _metadata(answer: Answer, incident: Incident | None) -> Mapping[str, dg.MetadataValue]:
    told: dict[str, dg.MetadataValue] = {"kind": dg.MetadataValue.text(answer.kind)}
    if answer.incident is not None:
        told["incident"] = dg.MetadataValue.int(answer.incident)
    if answer.action:
        told["action"] = dg.MetadataValue.text(answer.action)
    if incident is not None:
        told["timeline"] = dg.MetadataValue.md(page_of(incident))
    return told
