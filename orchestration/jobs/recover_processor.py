"""The Dagster job that recovers one processor from one incident.

Invariants:
    - A run works on one incident. It first claims the incident in Holdfast's registry. The claim prevents a second run
      for the same incident, and prevents that a plan is applied to the processor during the recovery.
    - Recovery runs have their own limit in Dagster's run queue (``run_coordinator``), so no other kind of run delays
      them.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.keys import PROCESSOR_TAG
from holdfast.assets.pages.incidents import page_of
from holdfast.assets.rollouts import deployed_rollout
from holdfast.infra.database.records import Incident
from holdfast.infra.errors import HoldfastError
from holdfast.infra.kafka.errors import BrokerUnreachable, CoordinatorMoving
from holdfast.infra.settings import load_settings
from holdfast.orchestration.resources import ClusterResource, LifecycleResource
from holdfast.orchestration.world import newest_logged
from holdfast.processors.application.registration import find_processor
from holdfast.processors.lifecycle.deploy.marking import behind
from holdfast.processors.lifecycle.recovery.attempt import (
    RecoveryPolicy,
    RecoveryResult,
    file_by_hand,
    recover,
    wait_for_broker,
)
from holdfast.processors.lifecycle.recovery.conditions import Conditions
from holdfast.processors.lifecycle.recovery.limits import Limits
from holdfast.processors.lifecycle.recovery.strangers import find_strangers

#: The run tag whose value is the incident's number.
INCIDENT_TAG = "holdfast/incident"
#: The run tag whose value is the time when the incident was opened or last retried. This time distinguishes incidents
#: with the same number, for example after Holdfast's registry was lost and created again.
SINCE_TAG = "holdfast/incident-since"


def tags_of_incident(incident: Incident) -> dict[str, str]:
    """The tags of each recovery run of this incident: the incident's number and time."""
    since = incident.retried_at or incident.opened_at
    return {INCIDENT_TAG: str(incident.id), SINCE_TAG: since.isoformat()}


class RecoverConfig(dg.Config):
    """The run config of the job ``recover_processor``: the processor and its incident."""

    processor: str = Field(description="Name of the processor.")
    incident: int = Field(default=0, description="Number of the incident; 0: diagnose the processor now.")


@dg.op(
    description="Diagnose the processor, fence its old process, repair it, verify. Each step is recorded on the "
    "incident's timeline."
)
def recover_one(
    context: dg.OpExecutionContext, config: RecoverConfig, cluster: ClusterResource, lifecycle: LifecycleResource
) -> None:
    """Recover the processor, then log the result as an observation of the processor's asset.

    If the config names no incident, the op opens an incident.
    """
    incident_id = config.incident
    if not incident_id:
        incident_id = file_by_hand(config.processor, lifecycle.world, context.run.run_id)
        filed = lifecycle.registry.incident(incident_id)
        tags = {PROCESSOR_TAG: config.processor, **({} if filed is None else tags_of_incident(filed))}
        context.instance.add_run_tags(context.run.run_id, tags)
    result = _recovered(context, config.processor, incident_id, cluster, lifecycle)
    incident = lifecycle.registry.incident(incident_id)
    page = "" if incident is None else page_of(incident)
    metadata = {"incident": incident_id, "outcome": result.outcome, "timeline": dg.MetadataValue.md(page)}
    context.add_output_metadata(metadata)
    if result.outcome == "failed":
        raise dg.Failure(
            description=f"Incident {incident_id} of {config.processor}: {result.reason}",
            metadata=metadata,
            allow_retries=False,
        )
    context.log.info(f"Incident {incident_id} of {config.processor}: {result.outcome}, {result.reason}")
    context.log_event(
        dg.AssetObservation(
            keys.processor_key(config.processor),
            description=f"Incident {incident_id}: {result.outcome}. {result.reason}",
            metadata={**metadata, "recovery_seconds": round(result.seconds, 3), "recovery_attempts": result.attempts},
        )
    )


def _recovered(
    context: dg.OpExecutionContext,
    processor: str,
    incident_id: int,
    cluster: ClusterResource,
    lifecycle: LifecycleResource,
) -> RecoveryResult:
    settings, run_id = load_settings(), context.run.run_id
    try:
        topics = cluster.topics()
        rollout = deployed_rollout(processor, lambda name: find_processor(settings, name), topics, lifecycle)
        old = behind(processor, replace(lifecycle.world, logged=partial(newest_logged, settings, topics)))
    except (BrokerUnreachable, CoordinatorMoving) as away:
        return wait_for_broker(incident_id, lifecycle.world, run_id, away)
    policy = RecoveryPolicy(
        limits=Limits(stuck_after_s=settings.stuck_after_s),
        conditions=Conditions(lambda: cluster.topics().ping(), settings.paths.state),
        behind=old,
        strangers=lambda: find_strangers(processor, len(rollout.slots), topics.group_members, settings.paths.state),
    )
    # If the definition can't be imported, the recovery runs without the names of the stores.
    with suppress(HoldfastError):
        topology = find_processor(settings, processor).topology
        stores = tuple(store.name for store in topology.stores)
        policy = replace(policy, restorable=topology.logged == set(stores), stores=stores)
    return recover(
        incident_id,
        rollout,
        lifecycle.world,
        run_id=run_id,
        policy=policy,
        progress=lambda progress: context.log.debug(progress.sentence),
    )


@dg.job(
    executor_def=dg.in_process_executor,
    description="Recover one processor from one incident: diagnose, fence, repair, verify. To launch it by hand, give "
    "only the processor's name.",
    tags={"dagster/priority": "10", "dagster/max_retries": "0"},
)
def recover_processor() -> None:
    """The Dagster job that recovers one processor; its only op is ``recover_one``."""
    recover_one()
