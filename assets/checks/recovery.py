"""The check ``working`` of each processor; the recovery sensor reports it without a run, and it can run on demand."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.pages.incidents import page_of
from holdfast.assets.ports import Lifecycle
from holdfast.infra.database.records import Incident
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now
from holdfast.processors.lifecycle.recovery.working_check import WORKING, Answer


def working_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """Defines the check that tests whether a processor processes input.

    The check uses recovery's diagnosis, so both give the same verdict.
    """
    key = keys.processor_key(definition.name)

    @dg.asset_check(
        asset=key,
        name=WORKING,
        description="Passes while every instance processes input. A failure names the fault, its start, the incident, "
        "and the next action. The recovery sensor updates this check.",
    )
    def working(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        now = processor_now(definition.name, lifecycle.world, Limits(), patience_s=2.0)
        return check_result(definition.name, now.answer, now.incident).result()

    return working


def check_result(processor: str, answer: Answer, incident: Incident | None) -> CheckResult:
    """Converts recovery's diagnosis of a processor to a check result. The diagnosis text contains the next action."""
    key, metadata = keys.processor_key(processor), _metadata(answer, incident)
    return CheckResult(key, WORKING, answer.passed, answer.text, warns=answer.only_warns, metadata=metadata)


def _metadata(answer: Answer, incident: Incident | None) -> Mapping[str, Any]:
    given = {"kind": answer.kind, "incident": answer.incident, "action": answer.action or None}
    metadata: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if incident is not None:
        metadata["timeline"] = dg.MetadataValue.md(page_of(incident))
    return metadata
