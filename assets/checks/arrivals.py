"""The check ``messages_arrive`` of each processor; the telemetry sensor reports it without a run."""

import dagster as dg

from holdfast.assets import keys
from holdfast.assets.checks.result import CheckResult
from holdfast.assets.ports import Lifecycle
from holdfast.processors.application.registration import ProcessorDefinition
from holdfast.processors.lifecycle.health.arrivals import Arrived, judge_arrivals
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.processor_now import processor_now

MESSAGES_ARRIVE = "messages_arrive"


def arrivals_check(definition: ProcessorDefinition) -> dg.AssetChecksDefinition:
    """Defines the Dagster check that tests whether the messages of the last hour reached their stores and topics."""

    @dg.asset_check(
        asset=keys.processor_key(definition.name),
        name=MESSAGES_ARRIVE,
        description="No message of the last hour was late for a window, put aside, skipped by the failure policy, or "
        "in a partition where its key finds no match. A warning has the counts, the rate, the newest reason, and the "
        "command that shows them. The telemetry sensor updates this check.",
    )
    def messages_arrive(lifecycle: dg.ResourceParam[Lifecycle]) -> dg.AssetCheckResult:
        seen = processor_now(definition.name, lifecycle.world, Limits(), patience_s=2.0).observations
        statuses = [each.living for each in seen.values() if each.living is not None]
        judged = judge_arrivals(definition.name, statuses, lifecycle.world.clock().timestamp())
        return arrivals_result(definition.name, judged).result()

    return messages_arrive


def arrivals_result(processor: str, judged: Arrived | None) -> CheckResult:
    """Converts the result of ``judge_arrivals`` to the result of this check.

    None means that no worker answers. The check then fails as a warning.
    """
    key, expected = keys.processor_key(processor), "each message arrives where it should"
    if judged is None:
        sentence, action = "No worker answers, so nobody knows.", f"See `holdfast status {processor}`."
        return CheckResult(key, MESSAGES_ARRIVE, False, sentence, expected, action, warns=True)
    counts = judged.counts
    metadata = {
        "late": counts.late,
        "put_aside": counts.put_aside,
        "skipped": counts.skipped,
        "misplaced": counts.misplaced,
    }
    rate = {"per_minute": judged.per_minute}
    said = judged.passed, judged.sentence, expected, judged.action
    return CheckResult(key, MESSAGES_ARRIVE, *said, warns=True, metadata={**metadata, **rate})
