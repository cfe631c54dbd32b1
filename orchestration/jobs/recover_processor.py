"""The job that brings one processor back, for one incident.

Invariants:
    - A run works on one incident only; the registry sees to it that one run does.
    - The run is tagged with its processor, so that the queue never runs two of one processor at once.
"""

import dagster as dg

from assets import keys
from assets.processors import rollout_of
from infra.settings import load_settings
from orchestration.resources import ClusterResource, LifecycleResource
from processors.lifecycle.diagnosis import Limits
from processors.lifecycle.recovery import RecoveryPolicy, recover
from processors.registration import find_processor

#: The run tag that names the processor.
PROCESSOR_TAG = "processor"
INCIDENT_TAG = "holdfast/incident"


class RecoverConfig(dg.Config):
    """Which processor to recover, and for which incident."""

    processor: str
    incident: int


@dg.op(description="Diagnose, fence, restart, verify; each step is on the incident's timeline.")
def recover_one(
    context: dg.OpExecutionContext,
    config: RecoverConfig,
    cluster: ClusterResource,
    lifecycle: LifecycleResource,
) -> None:
    """Recover, then tell the processor's asset."""
    settings = load_settings()
    definition = find_processor(settings, config.processor)
    rollout = rollout_of(definition, cluster.topics(), lifecycle)
    result = recover(
        config.incident,
        rollout,
        lifecycle.world,
        run_id=context.run.run_id,
        policy=RecoveryPolicy(limits=Limits(stuck_after_s=settings.stuck_after_s)),
        progress=lambda progress: context.log.debug(progress.sentence),
    )
    incident = lifecycle.registry.incident(config.incident)
    notes = [] if incident is None else incident.timeline
    timeline = "\n".join(f"- **{note.step}** ({note.seconds or 0.0:.2f} s): {note.text}" for note in notes)
    context.add_output_metadata({"outcome": result.outcome, "timeline": dg.MetadataValue.md(timeline)})
    if result.outcome == "failed":
        raise dg.Failure(
            description=f"Incident {config.incident} of {config.processor}: {result.reason}",
            metadata={"timeline": dg.MetadataValue.md(timeline)},
            allow_retries=False,
        )
    context.log.info(f"Incident {config.incident} of {config.processor}: {result.outcome}, {result.reason}")
    context.log_event(
        dg.AssetObservation(
            keys.processor_key(config.processor),
            description=result.reason,
            metadata={
                "incident": config.incident,
                "recovery_seconds": round(result.seconds, 3),
                "recovery_attempts": result.attempts,
                "timeline": dg.MetadataValue.md(timeline),
            },
        )
    )


@dg.job(
    executor_def=dg.in_process_executor,
    description="Bring one processor back for one incident: diagnose, fence, restart, verify.",
    tags={"dagster/priority": "10", "dagster/max_retries": "0", "dagster/max_runtime": "900"},
)
def recover_processor() -> None:
    """See ``recover_one``."""
    recover_one()
