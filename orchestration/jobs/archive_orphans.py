"""The job that archives orphans, and deletes archived ones after their grace period. A dry run by default.

Invariants:
    - A dry run changes nothing. Any other run needs the hash that a dry run printed, in ``confirm``.
"""

import dagster as dg
from pydantic import Field

from holdfast.assets import keys
from holdfast.assets.telling import teller
from holdfast.infra.settings import load_settings
from holdfast.orchestration.jobs.failures import plain_failures
from holdfast.orchestration.resources import ClusterResource, LifecycleResource


class OrphansConfig(dg.Config):
    """Config of ``archive_orphans``: which orphans, and whether to change anything."""

    dry_run: bool = Field(default=True, description="true: only print the plan. false: carry it out.")
    confirm: str = Field(default="", description="Hash of the plan, as the dry run printed it.")
    only: list[str] = Field(
        default_factory=list, description="Only orphans that match KIND, NAME or KIND/NAME; empty: all orphans."
    )


@dg.op(description="Plan which orphans to archive and to delete; carry the plan out unless `dry_run` is true.")
def archive_one(
    context: dg.OpExecutionContext, config: OrphansConfig, cluster: ClusterResource, lifecycle: LifecycleResource
) -> None:
    """Plan, and carry the plan out unless this is a dry run."""
    with plain_failures():
        _archive(context, config, cluster, lifecycle)


def _archive(
    context: dg.OpExecutionContext, config: OrphansConfig, cluster: ClusterResource, lifecycle: LifecycleResource
) -> None:
    from holdfast.assets.orphan_cleaning import open_cleaning
    from holdfast.processors.lifecycle.orphans.plan import explain

    who = f"dagster run {context.run.run_id}"
    cleaning = open_cleaning(load_settings(), lifecycle.world.registry, cluster.topics(), who)
    if config.dry_run:
        plan = cleaning.plan(config.only)
        how = f"This was a dry run. To apply it, launch the job with `dry_run: false` and `confirm: {plan.hash}`."
        text = explain(plan, how if plan.steps else "")
        context.log.info(text)
        context.add_output_metadata(
            {
                "explanation": dg.MetadataValue.md(f"```\n{text}\n```"),
                "plan": plan.hash,
                "steps": len(plan.steps),
                "destructive": plan.destructive,
                "dry_run": True,
            }
        )
        return
    done = cleaning.apply(config.confirm, config.only, teller(context.log.info))
    text = "\n".join(done) or "Nothing to do."
    context.log.info(text)
    context.log_event(dg.AssetObservation(keys.orphans_key(), description=text, metadata={"plan": config.confirm}))
    context.add_output_metadata({"steps": len(done), "plan": config.confirm, "dry_run": False})


@dg.job(
    executor_def=dg.in_process_executor,
    description="Archive resources that no registered store owns, and delete those archived longer ago than the grace "
    "period. A dry run by default.",
    tags={"dagster/max_retries": "0"},
)
def archive_orphans() -> None:
    """One op: ``archive_one``."""
    archive_one()
